"""The stack of a process that a signal ends is kept in the beat folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.core.rules import crash_causes
from ftrun.host import tracebacks
from support.runs import HOUSE
from waitproof import handled

AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
DIES = "import ctypes\ndef step():\n    ctypes.string_at(0)\nstep()\n"


def run(folder: Path, code: str, *options: str) -> tuple[subprocess.CompletedProcess[str], int]:
    program = folder / "train.py"
    program.write_text(code)
    beats = folder / "beats"
    beats.mkdir(exist_ok=True)
    variables = os.environ | {"FTRUN_BEAT_DIR": str(beats), "PYTHONPATH": str(AUTO)}
    words = [sys.executable, *options, str(program)]
    with subprocess.Popen(words, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, errors), process.pid


def crashes(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder / "beats") if name.startswith("crashed-"))


def test_a_crash_keeps_its_stack_and_its_output_is_unchanged(tmp_path: Path) -> None:
    ended, pid = run(tmp_path, DIES)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGSEGV, "", "")
    found = tracebacks.crash_of(str(tmp_path / "beats"), 0.0, pid)
    assert found is not None
    assert (found.error, found.place) == ("Segmentation fault", "train.py:3 in step")
    assert found.frames[-2:] == ("train.py:3 in step", "train.py:4 in <module>")


@pytest.mark.parametrize("code", ["print(1)", "raise SystemExit(3)", "1 / 0"])
def test_a_process_that_ends_otherwise_leaves_no_file(tmp_path: Path, code: str) -> None:
    run(tmp_path, code)
    assert crashes(tmp_path) == []


def test_a_faulthandler_of_the_program_stays(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, DIES, "-X", "faulthandler")
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert crashes(tmp_path) == []


def test_the_files_of_processes_that_were_killed_are_few(tmp_path: Path) -> None:
    (tmp_path / "beats").mkdir()
    for number in range(400):
        (tmp_path / "beats" / f"crashed-{number:020}-{number + 1}").touch()
    run(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert len(crashes(tmp_path)) <= 400 - 128 + 1


def test_malformed_stacks_are_none() -> None:
    for text in ("", "Fatal Python error: x", "Fatal Python error: x\n\nCurrent thread 0x1 (most recent):\n  torn"):
        assert crash_causes.parsed_crash(text) is None


def caught(text: str) -> int:
    """The set of signals that are handled, as the kernel says."""
    return int(text.split("SigCgt:")[1].split()[0], 16)


@pytest.mark.parametrize("own", [False, True])
def test_a_handler_of_sigabrt_of_the_program_can_be_told_from_that_of_faulthandler(tmp_path: Path, own: bool) -> None:
    handles = (
        "import signal; before = signal.signal(signal.SIGABRT, lambda *_: None); assert before == signal.SIG_DFL\n"
    )
    ended, _ = run(tmp_path, (handles if own else "") + "print(open('/proc/self/status').read())")
    assert not ended.returncode, ended.stderr
    found = {number for number in (4, 6, 7, 8, 11) if caught(ended.stdout) >> (number - 1) & 1}
    assert found == {4, 6, 7, 8, 11} - ({4} if own else set())
    assert bool(handled.alarms(frozenset(found))) is own


def test_a_handler_of_sigill_of_the_program_stays(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfor n in (signal.SIGILL, signal.SIGABRT): signal.signal(n, lambda *_: print('handled'))\n"
        "print(open('/proc/self/status').read()); "
    )
    ended, _ = run(tmp_path, code + "os.kill(os.getpid(), signal.SIGILL)")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "handled")
    found = frozenset(number for number in (4, 6, 7, 8, 11) if caught(ended.stdout) >> (number - 1) & 1)
    assert handled.alarms(found) == [6], "the handler of SIGABRT can be seen all the same"


def test_a_handler_of_sigill_of_a_library_in_c_stays(tmp_path: Path) -> None:
    code = """import ctypes, os, signal
libc = ctypes.CDLL(None)
libc.signal.restype = ctypes.c_void_p
handles = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: os._exit(number))
libc.signal(int(signal.SIGILL), handles)
signal.signal(signal.SIGABRT, lambda *_: None)
os.kill(os.getpid(), signal.SIGILL)
"""
    ended, _ = run(tmp_path, code)
    assert (ended.returncode, ended.stderr) == (signal.SIGILL, "")


# What a program sees of `signal.signal`: the same with and without the hooks.
SEEN = """import inspect, pickle, signal, sys, threading
print(inspect.signature(signal.signal), signal.signal.__name__, signal.signal.__module__, signal.signal.__doc__)
assert pickle.loads(pickle.dumps(signal.signal)) is signal.signal
assert pickle.loads(pickle.dumps(signal.default_int_handler)) is signal.default_int_handler
def handle(*_): pass
print(signal.signal(signal.SIGUSR1, handle), signal.signal(signal.SIGUSR1, signal.SIG_IGN) is handle)
print(signal.signal(signal.SIGABRT, handle), signal.getsignal(signal.SIGABRT) is handle)
print(signal.signal(signal.SIGABRT, signal.SIG_DFL) is handle, signal.signal(signal.SIGABRT, signal.SIG_IGN))
for arguments in ((), (1,), (1, 2, 3), ('x', handle), (signal.SIGABRT, 'x'), (999, handle), (signal.SIGKILL, handle)):
    try: signal.signal(*arguments)
    except Exception as error: print(type(error), error)
def elsewhere():
    try: signal.signal(signal.SIGABRT, handle)
    except Exception as error: print(type(error), error)
thread = threading.Thread(target=elsewhere); thread.start(); thread.join()
"""


def test_a_program_sees_the_same_signal_signal(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, SEEN)
    plain = subprocess.run([sys.executable, "-c", SEEN], text=True, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, plain.stdout, "")


ENABLES = "import faulthandler\nif not faulthandler.is_enabled(): faulthandler.enable()\n"
# What a program sees of a faulthandler that it has not enabled, and of its own.
OWN = """import faulthandler, pickle
print(faulthandler.is_enabled(), faulthandler.disable(), faulthandler.is_enabled())
print(faulthandler.enable(), faulthandler.is_enabled(), faulthandler.disable(), faulthandler.is_enabled())
for what in faulthandler.enable, faulthandler.disable, faulthandler.is_enabled:
    print(what.__name__, what.__qualname__, what.__module__, what.__doc__, pickle.loads(pickle.dumps(what)) is what)
try: faulthandler.enable(file=1.5)
except Exception as error: print(type(error), error, faulthandler.is_enabled())
"""


def test_a_program_sees_its_own_faulthandler(tmp_path: Path) -> None:
    ended, _ = run(tmp_path, OWN)
    plain = subprocess.run([sys.executable, "-c", OWN], text=True, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, plain.stdout, plain.stderr)
    ended, _ = run(tmp_path, ENABLES + DIES)
    assert "Fatal Python error: Segmentation fault" in ended.stderr, "a program that enables what is not enabled"
