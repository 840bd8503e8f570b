"""The record that a Python process leaves for the supervisor when an exception ends it; nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun.core.rules.crash_causes import Traceback
from ftrun.host import tracebacks
from support.beat_file import HOUSE, BeatDir
from support.containers import Starter
from support.containers import start as start
from support.pythons import EXTREMES, NEW, version
from support.short import quick

AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
Ended = tuple[int, str, str]


def ran(beats: BeatDir, *words: object, path: object = AUTO, python: Path = NEW[0], **env: str) -> Ended:
    environment = beats.environment(**env) | {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def left(beats: BeatDir) -> list[Traceback]:
    return tracebacks.read(str(beats.folder), 0.0)


def one(beats: BeatDir) -> Traceback:
    (found,) = left(beats)
    return found


@pytest.mark.parametrize("python", quick(NEW, EXTREMES, ids=version))
def test_an_exception_is_recorded_and_shown_unchanged(beats: BeatDir, tmp_path: Path, python: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import json\n"
        "class Bad(ValueError): pass\n"
        "def step(): json.loads('{')\n"
        "try: step()\n"
        "except ValueError as error: raise Bad('bad batch\\nof 3') from error\n"
    )
    before = time.monotonic()
    ended = ran(beats, script, python=python, RANK="3")
    assert ended == ran(beats, script, python=python, path="")
    assert ended[0] == 1
    found = one(beats)
    assert before - 0.02 < found.started <= found.at < time.monotonic()
    assert (found.rank, found.program, found.parents[0]) == (3, "train.py", os.getpid())
    assert found.thrown.kinds == ("__main__.Bad", "ValueError", "Exception", "BaseException")
    assert (found.thrown.message, found.thrown.more, found.thrown.where) == (
        "bad batch",
        "of 3",
        "train.py:5 in <module>",
    )
    assert found.root is not None
    assert found.explicit_cause
    assert found.root.kinds[0] == "json.decoder.JSONDecodeError"
    assert found.root.where.startswith("decoder.py:")
    assert found.root.own == "train.py:3 in step"
    assert found.root.frames[:3] == ("train.py:<module>", "train.py:step", "__init__.py:loads")
    assert (found.thrown.frames, found.thrown.source) == (
        ("train.py:<module>",),
        "except ValueError as error: raise Bad('bad batch\\nof 3') from error",
    )


@pytest.mark.parametrize("python", quick(NEW, EXTREMES[:1], ids=version))
def test_exceptions_in_children_of_multiprocessing_are_recorded(beats: BeatDir, tmp_path: Path, python: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(
        "import multiprocessing as mp, sys\n"
        "def raises(): raise ValueError('mine')\n"
        "def prints():\n try: raises()\n except ValueError: sys.exit(3)\n"
        "def leaves(): sys.exit(4)\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "if __name__ == '__main__':\n"
        " for method in ('fork', 'spawn', 'forkserver'):\n"
        "  for target in (raises, prints, leaves, interrupted, print):\n"
        "   child = mp.get_context(method).Process(target=target); child.start(); child.join()\n"
        "   print(child.exitcode)\n"
    )
    ended = ran(beats, script, python=python)
    assert ended == ran(beats, script, python=python, path="")
    assert ended[1].split() == ["1", "3", "4", "1", "0"] * 3
    assert [found.thrown.own for found in left(beats)] == ["starts.py:2 in raises"] * 6


@pytest.mark.parametrize("python", quick(NEW, EXTREMES, ids=version))
def test_an_excepthook_of_the_program_works_and_that_of_the_hooks_is_not_visible(beats: BeatDir, python: Path) -> None:
    code = (
        "import sys; print(sys.excepthook is sys.__excepthook__, 'atexit' in sys.modules, sorted(sys.modules))\n"
        "import atexit; atexit.register(print, 'bye'); sys.excepthook = lambda *_: print('mine'); 1 / 0"
    )
    ended = ran(beats, "-c", code, python=python)
    assert ended == ran(beats, "-c", code, python=python, path="")
    assert ended[1].endswith("]\nmine\nbye\n")
    assert one(beats).thrown.line == "ZeroDivisionError: division by zero"


ENDS = {
    "a hook that calls the one before, and ends hard": (
        "import sys, os; before = sys.excepthook\n"
        "def hook(*words): before(*words); os._exit(7)\n"
        "sys.excepthook = hook; 1 / 0"
    ),
    "a hook that calls Python's, and ends hard": (
        "import sys, os\ndef hook(*words): sys.__excepthook__(*words); os._exit(7)\nsys.excepthook = hook; 1 / 0"
    ),
    "is killed at its end": "import atexit, os; atexit.register(lambda: os.kill(os.getpid(), 9)); 1 / 0",
    "a fork": "import os\nif os.fork() == 0: 1 / 0\nos.wait()",
    "a group": "raise ExceptionGroup('two', [ZeroDivisionError('division by zero'), KeyError(1)])",
    "no message": "class E(Exception):\n def __str__(self): 1 / 0\nraise E",
    "a long message": "raise ValueError('é\\x1b[31m' * 100000)",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS.keys())
def test_an_exception_is_recorded_however_the_process_ends(beats: BeatDir, code: str) -> None:
    ended = ran(beats, "-c", code)
    assert ended == ran(beats, "-c", code, path="")
    found = one(beats)
    assert found.thrown.message.isprintable()
    assert {"ZeroDivisionError", "__main__.E", "ValueError"} & {
        found.thrown.kinds[0],
        (found.root or found.thrown).kinds[0],
    }


def test_an_exception_that_hydra_prints_is_recorded(beats: BeatDir, tmp_path: Path) -> None:
    """A package that is Hydra in name only, and ends as `run_and_report` of Hydra 1.3 does."""
    package = tmp_path / "hydra" / "_internal"
    package.mkdir(parents=True)
    (package / "utils.py").write_text(
        "import os, sys\ndef run_and_report(func):\n try: return func()\n"
        " except Exception as error:\n  if 'HYDRA_FULL_ERROR' in os.environ: raise\n"
        "  print('hydra:', error)\n  sys.exit(1)\n"
    )
    (tmp_path / "train.py").write_text(
        "from hydra._internal import utils\nprint(utils.run_and_report(lambda: 'well'))\n"
        "def main(): import no_such_module\nutils.run_and_report(main)\n"
    )
    ended = ran(beats, tmp_path / "train.py")
    assert ended == (1, "well\nhydra: No module named 'no_such_module'\n", "")
    assert ended == ran(beats, tmp_path / "train.py", path="")
    assert (one(beats).thrown.kinds[0], one(beats).thrown.own) == ("ModuleNotFoundError", "train.py:3 in main")
    whole = ran(beats, tmp_path / "train.py", HYDRA_FULL_ERROR="1")
    assert whole == ran(beats, tmp_path / "train.py", path="", HYDRA_FULL_ERROR="1"), (
        "the traceback is as without ftrun"
    )
    assert len(left(beats)) == 2


def test_an_end_without_an_uncaught_exception_leaves_nothing(beats: BeatDir) -> None:
    for code in (
        "pass",
        "import sys; sys.exit(2)",
        "raise SystemExit('usage')",
        "raise KeyboardInterrupt",
        "try: 1 / 0\nexcept Exception: pass",
        "import threading as t; one = t.Thread(target=lambda: 1 / 0); one.start(); one.join()",
        "import sys; sys.__excepthook__(None, None, None)",
    ):
        assert ran(beats, "-c", code)[0] == ran(beats, "-c", code, path="")[0]
        assert left(beats) == [], code


def test_a_syntax_error_is_recorded(beats: BeatDir, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\ndef\n")
    assert ran(beats, script)[0] == 1
    found = one(beats)
    assert found.thrown.kinds[0] == "SyntaxError"
    assert found.thrown.where == "train.py:2"


def test_a_module_that_shadows_the_standard_library_is_recorded(beats: BeatDir, tmp_path: Path) -> None:
    (tmp_path / "threading.py").write_text("raise ImportError('shadows')")
    (tmp_path / "typing.py").write_text("raise ImportError('shadows')")
    (tmp_path / "train.py").write_text("import threading")
    assert ran(beats, tmp_path / "train.py")[0] == 1
    assert one(beats).thrown.line == "ImportError: shadows"


def test_a_beat_folder_that_cannot_be_written_changes_nothing(beats: BeatDir) -> None:
    bare = ran(beats, "-c", "1 / 0", path="")
    for folder in ("/nowhere", "/proc", str(beats.folder / "beats")):
        assert ran(beats, "-c", "1 / 0", FTRUN_BEAT_DIR=folder) == bare


def test_the_number_and_size_of_records_are_bounded(beats: BeatDir) -> None:
    code = (
        "import sys\n"
        "for i in range(600):\n"
        " try: raise ValueError(i)\n except ValueError: sys.__excepthook__(*sys.exc_info())\n"
        "raise KeyError('the last')\n"
    )
    assert ran(beats, "-c", code)[0] == 1
    kept = sorted(name for name in os.listdir(beats.folder) if "raised" in name)
    assert len(kept) == 256
    found = left(beats)
    assert [found[0].thrown.message, found[-1].thrown.message] == ["0", "'the last'"]
    assert sum((beats.folder / name).stat().st_size for name in kept) < 256 * 4096


def test_the_hook_does_not_keep_the_exception_alive(beats: BeatDir) -> None:
    code = (
        "import sys, weakref\nclass Big: pass\n"
        "def f():\n big = Big(); global seen; seen = weakref.ref(big); 1 / 0\n"
        "try: f()\nexcept Exception: sys.excepthook(*sys.exc_info())\n"
        "print(seen())"
    )
    assert ran(beats, "-c", code)[1] == "None\n"


def test_a_crash_of_a_process_below_ftrun_is_recorded_for_each_attempt(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("assert False, 'of rank 5'")
    shown = tmp_path / "shown"
    script = (
        f'ls "$FTRUN_BEAT_DIR" >> {shown}; RANK=5 {sys.executable} {tmp_path}/train.py; cat "$FTRUN_BEAT_DIR"/raised-*'
    )
    options = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "10ms")
    _, out, _ = start("sh", "-c", f"{script}; exit 3", options=options).finish()
    assert b"rank 5\nprogram train.py\nkinds AssertionError" in out
    assert "raised" not in shown.read_text()
