"""Which process owns a slot, and what happens with an invalid beat file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.beat_file import MAGIC, SIZE, BeatDir

EVERYTHING = (
    "ft.beat(1); ft.checkpoint(2, 'x'); ft.done(); ft.fail('y')\n"
    "with ft.section('a', '1s'): pass\n"
    "assert ft.section('b')(len)('abc') == 3"
)


def test_outside_ftrun_everything_is_a_no_op(tmp_path: Path, beats: BeatDir) -> None:
    env = beats.environment()
    del env["FTRUN_BEAT_DIR"]
    code = f"import ftrun_hooks as ft\n{EVERYTHING}"
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == ["beats"]
    assert beats.rings() == 0


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\0" * SIZE, MAGIC.to_bytes(8, sys.byteorder), (MAGIC + 1).to_bytes(8, sys.byteorder).ljust(SIZE)],
    ids=["missing", "empty", "no magic", "torn", "other version"],
)
def test_an_invalid_beat_file_is_left_alone(beats: BeatDir, content: bytes | None) -> None:
    file = beats.folder / "beats"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    beats.output(EVERYTHING)
    assert (file.read_bytes() if content is not None else None) == content
    assert beats.rings() == 0
    assert {"checkpoint-0", "fail-0"}.isdisjoint(os.listdir(beats.folder))
    file.unlink(missing_ok=True)
    file.mkdir()
    beats.output(EVERYTHING)


def test_a_read_only_beat_file_is_left_alone(beats: BeatDir) -> None:
    beats.folder.chmod(0o755)
    (beats.folder / "beats").chmod(0o444)
    # Root may write to a read-only file: become another user, who can enter no folder but this one.
    become = "import os; os.chdir(os.environ['FTRUN_BEAT_DIR']); os.geteuid() == 0 and os.setuid(65534)\n"
    beats.output(f"{become}os.environ['FTRUN_BEAT_DIR'] = '.'\n{EVERYTHING}")
    assert beats.slot()["magic"] == 0


def test_a_bell_without_a_listener_or_no_bell_is_harmless(beats: BeatDir) -> None:
    beats.close()
    ran = beats.run(EVERYTHING)
    (beats.folder / "bell").unlink()
    again = beats.run(EVERYTHING)
    beats.bell = os.open(os.devnull, os.O_RDONLY)
    assert (ran.returncode, ran.stderr, again.returncode, again.stderr) == (0, "", 0, "")


def test_a_second_live_process_of_a_rank_gets_the_next_slot(beats: BeatDir) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", "import ftrun_hooks as ft; ft.beat(5); print(flush=True); input(); ft.beat(6)"],
        env=beats.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        owner.stdout.readline()
        ran = beats.run(f"import os; print(os.getpid())\n{EVERYTHING}")
        slot = beats.slot()
        assert (slot["pid"], slot["step"], slot["flags"]) == (owner.pid, 6, 0)
        second = beats.slot(1)
        assert (second["pid"], second["rank"], second["step"]) == (int(ran.stdout), 0, 3)
        owner.stdin.write(b"\n")
    assert beats.slot()["step"] == 7


def test_the_slot_of_a_dead_process_is_taken_over_and_cleared(beats: BeatDir) -> None:
    beats.run("ft.beat(500); ft.section('left').__enter__()")
    assert beats.sections()[0][0] == "left"
    beats.run("ft.beat(3)")
    slot = beats.slot()
    assert (slot["step"], slot["depth"], beats.slot(1)["magic"]) == (4, 0, 0)
    assert beats.sections() == []


def test_the_slot_of_a_zombie_is_taken_over(beats: BeatDir) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import ftrun_hooks as ft; ft.beat(5)"], env=beats.environment())
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    beats.run("ft.beat(1)")
    owner.wait()
    assert beats.slot()["step"] == 2


# What a program does, and then fields of slots.
PROCESSES = {
    "a pid that was given again": (
        "import os, struct\n"
        "path = os.path.join(os.environ['FTRUN_BEAT_DIR'], 'beats')\n"
        f"with open(path, 'r+b') as f: f.seek(512 * 8); f.write(struct.pack('=QQQ', {MAGIC}, os.getppid(), 1))\n"
        "ft.beat(1)",
        {0: {"step": 2}, 1: {"magic": 0}},
    ),
    "a forked child, whose parent lives": (
        "import os\nft.beat(5)\nwith ft.section('s'):\n child = os.fork()\n if not child:\n  ft.beat(99)\n"
        "if not child: ft.done(); os._exit(0)\nos.waitpid(child, 0); os._exit(0)",
        {0: {"step": 6, "flags": 0, "depth": 0}, 1: {"rank": 0, "step": 100, "flags": 1}},
    ),
    "a forked child of another rank": (
        "import os\nft.beat(5)\nif os.fork() == 0:\n os.environ['RANK'] = '1'; ft.beat(8)\nelse: os.wait(); ft.beat(6)",
        {0: {"step": 7}, 1: {"step": 9}},
    ),
    "a child that was forked while a thread held the lock": (
        "import os, threading\nfrom ftrun_hooks._beat import own_slot\nft.beat()\n"
        "held, go = threading.Event(), threading.Event()\n"
        "def hold():\n with own_slot.lock: held.set(); go.wait()\n"
        "t = threading.Thread(target=hold); t.start(); held.wait()\n"
        "if os.fork() == 0:\n os.environ['RANK'] = '1'\n with ft.section('s'): ft.beat(3)\n os._exit(0)\n"
        "os.wait(); go.set(); t.join()",
        {1: {"step": 4, "depth": 0}},
    ),
    "another thread during the first claim": (
        "import threading\nfrom ftrun_hooks._beat import Slot\n"
        "inside, go, claim = threading.Event(), threading.Event(), Slot._claim\n"
        "def slow(slot, rank): inside.set(); go.wait(); claim(slot, rank)\n"
        "Slot._claim = slow\n"
        "first, other = threading.Thread(target=ft.beat), threading.Thread(target=ft.beat, args=(4,))\n"
        "first.start(); inside.wait(); other.start()\n"
        "other.join(0.2)\n"  # it waits for the claim; where it did not, it would have ended by now, without a beat
        "go.set(); first.join(); other.join()",
        {0: {"step": 5}},
    ),
    "a process after exec": (
        "import os, sys\nft.beat(9)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'import ftrun_hooks as ft; ft.beat(1)'])",
        {0: {"step": 2}, 1: {"magic": 0}},
    ),
    "a second import": (
        "import sys, importlib\nft.beat(3); importlib.reload(ft); ft.beat(4)\n"
        "for name in [n for n in sys.modules if n.startswith('ftrun_hooks')]: del sys.modules[name]\n"
        "import ftrun_hooks as again; again.beat(5); ft.beat(6)",
        {0: {"step": 7}, 1: {"magic": 0}},
    ),
}


@pytest.mark.parametrize(("code", "slots"), PROCESSES.values(), ids=PROCESSES)
def test_a_slot_belongs_to_one_process(beats: BeatDir, code: str, slots: dict[int, dict[str, int]]) -> None:
    beats.output(code)
    assert {n: {name: beats.slot(n)[name] for name in fields} for n, fields in slots.items()} == slots


def test_a_thread_that_forks_is_the_main_thread_of_the_child(beats: BeatDir) -> None:
    beats.run(
        "import os, threading\n"
        "def work():\n if os.fork() == 0:\n  ft.beat(); os._exit(0)\n os.wait()\n"
        "t = threading.Thread(target=work); t.start(); t.join()"
    )
    assert beats.slot()["moved_at"] > 0


def test_processes_that_claim_one_rank_together_get_a_slot_each(beats: BeatDir) -> None:
    ran = beats.run(
        "import os\nfrom ftrun_hooks._beat import own_slot\n"
        "(start, go), (over, end), (beaten_in, beaten_out) = os.pipe(), os.pipe(), os.pipe()\n"
        "for _ in range(8):\n if os.fork() == 0:\n"
        "  os.close(go); os.close(end); os.read(start, 1)\n"
        "  ft.beat(1); os.write(beaten_out, b'1'); os.read(over, 1); os._exit(0)\n"
        "os.close(go); beaten = b''\n"
        "while len(beaten) < 8: beaten += os.read(beaten_in, 8)\n"
        "os.close(end)\n"
        "for _ in range(8): os.wait()"
    )
    assert (ran.stdout, ran.stderr) == ("", "")
    slots = [beats.slot(number) for number in range(9)]
    assert [slot["rank"] for slot in slots] == [0] * 9
    assert len({slot["pid"] for slot in slots} - {0}) == 8


# A signal handler that raises once, before the nth line of the hooks that `act` executes, each time in another rank.
INTERRUPTED = """
import os, sys, threading
from ftrun_hooks import _section
def interrupted(act, after):
    hooks = os.path.dirname(ft.__file__)
    for number in range(1000):
        pid = os.fork()
        if pid == 0:
            os.environ["RANK"] = str(number)
            lines = [0]
            def trace(frame, event, argument):
                if not frame.f_code.co_filename.startswith(hooks):
                    return None
                code = frame.f_code
                entered = code.co_name == "__exit__" and frame.f_lineno == code.co_firstlineno + 1
                if event == "line" and not entered:  # nothing can be made up for before `__exit__` has begun
                    lines[0] += 1
                    if lines[0] == number + 1:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return trace
            sys.settrace(trace)
            try:
                act()
            except KeyboardInterrupt:
                pass
            sys.settrace(None)
            complete = lines[0] <= number
            after()
            os._exit(9 if complete else 0)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9:
            print(number)
            return
"""


def test_a_first_beat_that_a_signal_handler_interrupts_is_made_up_for(beats: BeatDir) -> None:
    """Whatever the moment: a Ctrl-C that the program survives must not end all heartbeats."""
    ran = beats.run(f"{INTERRUPTED}interrupted(lambda: ft.beat(1), lambda: ft.beat(2))")
    assert ran.stderr == ""
    lines = int(ran.stdout)
    assert lines > 30, "each line of the first heartbeat"
    assert [beats.slot(number)["step"] for number in range(lines + 1)] == [3] * (lines + 1)


def test_a_section_that_a_signal_handler_interrupts_is_closed(beats: BeatDir) -> None:
    """Else its timeout would pass, and a healthy program would be taken for hanging."""
    act = "def act():\n with ft.section('s', '1s'): pass\n"
    after = "def after():\n with ft.section('t'): pass\n ft.beat(2)\n"
    ran = beats.run(f"{INTERRUPTED}{act}{after}ft.beat(0)\ninterrupted(act, after)", RANK="900")
    assert ran.stderr == ""
    lines = int(ran.stdout)
    assert lines > 30, "each line of a section"
    slots = [beats.slot(number) for number in range(lines + 1)]
    assert [(slot["step"], slot["depth"], slot["sequence"] % 2) for slot in slots] == [(3, 0, 0)] * (lines + 1)
