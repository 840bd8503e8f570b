"""No process survives a restart or the end of ftrun: trees that are hard to end, as PID 1 and as subreaper."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.host import procfs, tree
from ftrun.host.procfs import Stat
from support.runs import (
    FTRUN,
    HOUSE,
    MOUNTS,
    PID1,
    TREE,
    Run,
    Runs,
    alive,
    children,
    end_process,
    need_mounts,
    need_pid1,
    permitted,
    state_of,
    wait_for,
)

HARD = 16  # two of each kind


@pytest.fixture(params=["subreaper", pytest.param("pid1", marks=pytest.mark.pid1)])
def prefix(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if request.param == "pid1":
        need_pid1()
        return PID1
    return ()


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("grace", "size", "restarts"),
    [
        ("off", HARD, 1),
        ("200ms", HARD, 1),
        pytest.param("off", 200, 100, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_a_restart_leaves_no_process(runs: Runs, prefix: tuple[str, ...], grace: str, size: int, restarts: int) -> None:
    options = ("--hang-timeout", "300ms", "--max-restarts", "off", "--grace", grace)
    run = runs.start(*options, *TREE, str(runs.folder), str(size), str(restarts), prefix=prefix)
    assert run.wait(60 + 12 * restarts) == 0, run.log()
    assert text(runs.folder / "left") == ""
    assert [int(line) for line in text(runs.folder / "stood").splitlines()] == list(range(1, restarts + 2))
    assert len(run.named("hang")) == len(run.named("restart")) == restarts
    if grace == "off":
        assert all(record["processes"] > size for record in run.named("killed")[:restarts])
    lines = [line.split() for line in text(runs.folder / "pids").splitlines()]
    left = [found for _, pid, start in lines if (found := procfs.stat(int(pid))) and found.start == int(start)]
    assert prefix or all(process.ended for process in left)
    wait_for(lambda: not runs.living(), "the end of all its processes")


def ask_to_end(run: Run, prefix: tuple[str, ...]) -> None:
    """With SIGTERM; the `unshare` around PID 1 is left alone."""
    (pid,) = children(run.pid) if prefix else (run.pid,)
    os.kill(pid, signal.SIGTERM)


SAVES_WHEN_ASKED = """
import os, signal, sys, time
def save(*about):
    for shard in range(20):
        print("shard", shard, flush=True)
        time.sleep(0.02)
    open("saved", "w").close()
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
open("ready", "w").close()
while True: signal.pause()
"""


def test_a_script_pipes_the_training_into_other_programs_and_it_can_save_when_it_is_asked_to_end(
    runs: Runs, prefix: tuple[str, ...]
) -> None:
    """The shell dies of SIGTERM first, which leaves both to ftrun."""
    (runs.folder / "train.py").write_text(SAVES_WHEN_ASKED)
    script = f"{sys.executable} train.py 2>&1 | cat | tee log; true"
    run = runs.start("--grace", "30s", "bash", "-c", script, prefix=prefix)
    wait_for(lambda: (runs.folder / "ready").exists() or None, "that it handles the signal")
    ask_to_end(run, prefix)
    assert run.wait() == 143, run.log()
    assert (runs.folder / "saved").exists(), run.log()
    assert (runs.folder / "log").read_text().endswith("shard 19\nsaved\n"), "nothing of its output is lost"


@pytest.mark.parametrize("script", ["coproc cat; exec <&${COPROC[0]} >&${COPROC[1]}; read", "sleep 3600 | sleep 3601"])
def test_readers_that_do_not_end_by_themselves_are_ended_within_the_grace(
    runs: Runs, prefix: tuple[str, ...], script: str
) -> None:
    """Two that wait for each other, and one that does not read its input."""
    run = runs.start("--grace", "300s", "bash", "-c", f"( touch ready; {script} ) ; true", prefix=prefix)
    wait_for(lambda: (runs.folder / "ready").exists() or None, "the pipe")
    ask_to_end(run, prefix)
    assert run.wait() == 143, run.log()


def test_processes_that_a_command_leaves_are_ended_and_its_exit_code_is_kept(
    runs: Runs, prefix: tuple[str, ...]
) -> None:
    runs.ends(7, "--grace", "200ms", *TREE, str(runs.folder), str(HARD), "0", "7", prefix=prefix)
    pids = [int(line.split()[1]) for line in text(runs.folder / "pids").splitlines()]
    assert len(pids) >= HARD
    assert prefix or not [pid for pid in pids if alive(pid)]
    wait_for(lambda: not runs.living(), "the end of all its processes")


def test_what_a_single_listing_shows_is_stopped_before_a_complete_one() -> None:
    """On a busy machine a complete one of a tree that keeps forking may take until the node has no free pid."""
    process = subprocess.Popen(["sleep", "3600"])
    wait_for(lambda: state_of(process.pid) == "S", "it sleeps")
    asked = list[tuple[int, str]]()

    def list_members(listings: int) -> list[Stat]:
        if asked:
            wait_for(lambda: state_of(process.pid) == "T", "the stop takes effect")
        found = procfs.stat(process.pid)
        assert found is not None
        asked.append((listings, found.state))
        return [found]

    killed, refused, all_stopped = tree.kill(list_members)
    assert process.wait(60) == -signal.SIGKILL
    assert ([one.pid for one in killed], refused, all_stopped) == ([process.pid], set(), True)
    assert asked == [(1, "S"), (1, "T"), (procfs.COMPLETE, "T")]


# A process that each listing misses: by the end of the listing it has forked its successor and has ended.
SUCCESSORS = """
import os, select, time
from functools import partial
from ftrun.host import procfs, spawn, tree
spawn.become_subreaper()
ask, answer = os.pipe(), os.pipe()
alive = os.fork()
if not alive:
    while os.read(ask[0], 1):
        if os.fork():
            os._exit(0)
        os.write(answer[1], b"%9d" % os.getpid())
def list_members(listings):
    global alive
    found = procfs.stat(alive)
    os.write(ask[1], b"1")
    while procfs.stat(alive).state != "T":
        if select.select([answer[0]], [], [], 0.01)[0]:
            alive = int(os.read(answer[0], 9))
            break
    return [found]
tree.kill(list_members, partial(tree.walk, lambda process: True))
until = time.monotonic() + 30
while not procfs.stat(alive).ended and time.monotonic() < until:
    time.sleep(0.01)
print("ended" if procfs.stat(alive).ended else "left")
os.kill(alive, 9)
"""


def test_a_pid_that_is_used_again_during_a_listing_makes_no_endless_search() -> None:
    """A process was read before its parent ended, and once more as an orphan; its new child has that parent's pid."""

    def process(pid: int, parent: int) -> Stat:
        return Stat(pid, "sh", "S", parent, pid, pid, 1, 100)

    orphan, child = process(20, 1), process(30, 20)
    below = {1: [orphan], 20: [child], 30: [process(20, 30)]}
    assert tree._descend([orphan], below) == [orphan, child]


def test_a_process_that_ends_before_a_listing_does_is_stopped_by_the_lists_of_children() -> None:
    done = subprocess.run([sys.executable, "-c", SUCCESSORS], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("ended\n", "")


# A frozen file system: a process that writes to it waits in state D, where SIGKILL has no effect.
FROZEN = """
cd {folder}
truncate -s 8M image
mkfs.ext4 -q image
mkdir frozen
mount -o loop image frozen
fsfreeze --freeze frozen
trap 'fsfreeze --unfreeze frozen; umount frozen' EXIT
set +e
"$@"
exit $?
"""
# The kill timeout of 60 s is not an option: it is shortened in the policy that the loop uses.
SHORT = """
import sys
sys.path[:0] = {paths!r}
import ftrun.pid1.loop as loop
given = loop.policy
def short(*found):
    policy = given(*found)
    return policy._replace(limits=policy.limits._replace(kill_timeout=1.0))
loop.policy = short
from ftrun.cli.run import main
main()
"""


@pytest.fixture
def frozen(runs: Runs) -> list[str]:
    """A prefix: the command after it runs where `./frozen` is a frozen file system."""
    need_mounts()
    script = FROZEN.format(folder=runs.folder)
    prefix = [*MOUNTS, "sh", "-ec", script, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("a loop mount or fsfreeze is not permitted here: no process in D state can be had")
    (runs.folder / "frozen").rmdir()
    return prefix


def test_a_process_that_sigkill_cannot_end_is_named_and_isolates_the_node(runs: Runs, frozen: list[str]) -> None:
    program = (sys.executable, "-c", SHORT.format(paths=[str(HOUSE / "supervisor"), str(HOUSE / "hooks")]))
    command = ("sh", "-c", "echo $$ > writer; touch $FTRUN_BEAT_DIR/touch; echo x > frozen/file")
    run = runs.ends(197, "--hang-timeout", "500ms", "--grace", "off", *command, prefix=frozen, program=program)
    writer = int((runs.folder / "writer").read_text())
    named = rf"{writer} \(sh\) D \w+"
    (escalated,) = run.named("escalated")
    assert re.search(named, escalated["why"])
    assert escalated["verdict"] == runs.verdict["verdict"] == "node-fault"
    assert re.search(named, runs.verdict["message"])
    assert re.search(named, run.stderr)
    wait_for(lambda: not alive(writer), "the thaw ends it")


def test_a_process_that_sigkill_cannot_end_does_not_change_the_exit_code(runs: Runs, frozen: list[str]) -> None:
    program = (sys.executable, "-c", SHORT.format(paths=[str(HOUSE / "supervisor"), str(HOUSE / "hooks")]))
    command = ("sh", "-c", "sh -c 'echo $$ > writer; echo x > frozen/file' & until [ -s writer ]; do :; done; exit 0")
    run = runs.ends(0, "--grace", "off", *command, prefix=frozen, program=program)
    writer = int((runs.folder / "writer").read_text())
    named = rf"cannot end {writer} \(sh\) D \w+: SIGKILL has no effect; the exit code stays 0"
    assert re.search(named, run.stderr)
    assert not run.named("escalated")
    wait_for(lambda: not alive(writer), "the thaw ends it")


# --- processes that ftrun may not signal: the command has changed its user, and CAP_KILL is missing ------------------

POOR = ("setpriv", "--bounding-set=-all,+setuid,+setgid", "--inh-caps=-all")
OTHER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
REFUSED = r"\d+ \((?:sleep|sh)\) \S \S+ of user 65534"


@pytest.fixture
def poor(runs: Runs, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A prefix: the program after it may change its user, and cannot signal that one.  The rest is ended."""
    if os.getuid() != 0 or not permitted(*POOR, *OTHER):
        pytest.skip("only root can give up capabilities and change its user")
    yield (*prefix, *POOR)
    for pid in runs.living():
        end_process(pid)
    wait_for(lambda: not runs.living(), "the end of what was left")


def test_a_leftover_that_may_not_be_signalled_does_not_change_the_exit_code(runs: Runs, poor: tuple[str, ...]) -> None:
    run = runs.ends(0, "--grace", "1h", *OTHER, "sh", "-c", "sleep 600 & exit 0", prefix=poor)
    assert re.search(rf"cannot end {REFUSED}: no permission .* exit code stays 0", run.stderr)
    assert not run.named("escalated")


HIDING = (
    *("unshare", "--mount", "sh", "-ec", 'mount -t proc -o hidepid=2,gid=65534 hidden /proc; exec "$@"', "sh"),
    *("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"),
)


def test_a_process_that_proc_hides_is_ended(runs: Runs, prefix: tuple[str, ...]) -> None:
    if os.getuid() != 0 or not permitted(*HIDING, *OTHER):
        pytest.skip("only root can mount /proc and change its user")
    command = ("sh", "-c", f"{' '.join(OTHER)} sh -c 'sleep 600 & sleep 600' & exit 0")
    runs.ends(0, "--grace", "300ms", *command, prefix=(*prefix, *HIDING))
    assert not runs.living()


@pytest.mark.parametrize("change", ["mount -t tmpfs none", "umount -l"])
def test_a_command_that_takes_proc_away_leaves_no_process(runs: Runs, prefix: tuple[str, ...], change: str) -> None:
    need_mounts()
    command = ("sh", "-c", f"setsid sleep 600 & {change} /proc; exit 3")
    runs.ends(
        93, "--grace", "300ms", "--restart-on", "failure", "--max-restarts", "1", *command, prefix=prefix or MOUNTS
    )
    assert not runs.living()


def test_nothing_is_started_while_a_process_may_not_be_signalled(runs: Runs, poor: tuple[str, ...]) -> None:
    """A hang of such a command is for another container, without isolation of the node."""
    run = runs.ends(195, "--grace", "200ms", "--start-timeout", "2s", *OTHER, "sleep", "600", prefix=poor)
    assert len(run.named("spawned")) == 1
    assert re.search(REFUSED, runs.verdict["message"])


def test_a_failure_with_a_leftover_that_may_not_be_signalled_keeps_its_exit_code(
    runs: Runs, poor: tuple[str, ...]
) -> None:
    options = ("--grace", "200ms", "--restart-on", "failure")
    run = runs.ends(3, *options, *OTHER, "sh", "-c", "sleep 600 & exit 3", prefix=poor)
    assert len(run.named("spawned")) == 1


def test_a_stop_that_cannot_be_forwarded_is_reported_at_once(runs: Runs, poor: tuple[str, ...]) -> None:
    """The command does not receive it, and continues to its own end."""
    script = "read line; exit 4"
    os.mkfifo(runs.folder / "go")
    inner = ("sh", "-c", f'exec 3<>{runs.folder}/go; exec "$@" <&3', "sh")
    run = runs.spawned(*OTHER, "sh", "-c", script, prefix=(*poor, *inner))

    def ftrun() -> int:
        lines = {pid: text(Path(f"/proc/{pid}/cmdline")).split("\0")[:4] for pid in runs.living()}
        found = [pid for pid, line in lines.items() if line[0] == sys.executable and FTRUN[1] in line]
        return found[0] if len(found) == 1 else 0  # a child has its command line until it is executed

    os.kill(wait_for(ftrun, "ftrun alone"), signal.SIGTERM)
    wait_for(lambda: "SIGTERM cannot be forwarded" in run.stderr, "the line")
    wait_for(lambda: [p for p in run.named("problem") if "SIGTERM cannot be forwarded" in p["what"]], "the record")
    with open(runs.folder / "go", "w") as go:
        go.write("\n")
    assert run.wait() == 4, run.log()
