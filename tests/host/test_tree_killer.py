"""Whether anything is left of the command is seen at once, and without a listing of /proc."""

import subprocess
import sys

PRELUDE = """
import os, signal
from ftrun.core.machine import effects as do
from ftrun.host import procfs, spawn
from ftrun.host.tree import Tree, TreeKiller
spawn.become_subreaper()
tree = Tree(b"A=B")
killer = TreeKiller(tree)
listings = []
all_processes = procfs.all_processes
procfs.all_processes = lambda *given: listings.append(1) or all_processes(*given)
def waiting(inner=False):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        child = os.fork() if inner else None
        if child != 0:
            os.write(write, b"%d" % (child or 0))
        signal.pause()
    return pid, int(os.read(read, 99))
def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
def terminate():
    return killer.perform(do.Terminate())
def names(events):
    return [type(one).__name__ for one in events]
helper, _ = waiting()
tree.exclude(helper)
command, inner = waiting(inner=True)
tree.started(command)
"""


def shown(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout


def test_the_end_of_the_tree_is_seen_without_a_listing_of_all_processes() -> None:
    code = """
end(command)
print("unreaped", names(killer.check()))
tree.reaped(command)
print("orphan", names(killer.check()))
end(inner)
listings.clear()
print("none", *(names(step()) for step in (killer.check, killer.kill, terminate)), listings)
end(helper)
"""
    assert shown(code) == "unreaped []\norphan []\nnone ['TreeEnded'] ['TreeEnded'] ['TreeEnded'] []\n"


def test_where_the_kernel_has_no_list_of_children_a_listing_decides() -> None:
    code = """
procfs.children = lambda pid: []
end(command)
tree.reaped(command)
print("orphan", names(killer.check()), len(listings))
end(inner)
print("none", names(killer.check()), len(listings))
end(helper)
"""
    assert shown(code) == "orphan [] 1\nnone ['TreeEnded'] 2\n"
