"""What a Python that dies of an exception leaves for the supervisor, and that nobody else notices."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun.core.rules.crash_causes import Traceback, first_cause
from ftrun.host import tracebacks
from support.beat_file import HOUSE, BeatDir
from support.containers import Starter
from support.containers import start as start

AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
FOUND = sorted(
    Path.home().glob(".pyenv/versions/3.*/bin/python"),
    key=lambda path: [int(number) for number in re.findall(r"\d+", path.parts[-3])],
)
NEW = [Path(sys.executable), *(path for path in FOUND if not path.parts[-3].startswith(("3.6.", "3.7.")))]
Ended = tuple[int, str, str]


def name(python: Path) -> str:
    return "this" if python == NEW[0] else python.parts[-3]


def ran(beats: BeatDir, *words: object, path: object = AUTO, python: Path = NEW[0], **env: str) -> Ended:
    environment = beats.environment(**env) | {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def left(beats: BeatDir) -> list[Traceback]:
    return tracebacks.read(str(beats.folder), 0.0)


def one(beats: BeatDir) -> Traceback:
    (found,) = left(beats)
    return found


@pytest.mark.parametrize("python", NEW, ids=name)
def test_an_exception_is_written_down_and_shown_as_ever(beats: BeatDir, tmp_path: Path, python: Path) -> None:
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
    assert found.said
    assert found.root.kinds[0] == "json.decoder.JSONDecodeError"
    assert found.root.where.startswith("decoder.py:")
    assert found.root.own == "train.py:3 in step"


@pytest.mark.parametrize("python", [NEW[0], *NEW[1:2], *NEW[2:][-1:]], ids=name)  # this one, the oldest, the newest
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_so_in_what_multiprocessing_starts(beats: BeatDir, tmp_path: Path, python: Path, method: str) -> None:
    script = tmp_path / "starts.py"
    script.write_text(
        "import multiprocessing as mp, sys\n"
        "def raises(): raise ValueError('mine')\n"
        "def prints():\n try: raises()\n except ValueError: sys.exit(3)\n"
        "def leaves(): sys.exit(4)\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "if __name__ == '__main__':\n"
        " for target in (raises, prints, leaves, interrupted, print):\n"
        f"  child = mp.get_context('{method}').Process(target=target); child.start(); child.join()\n"
        "  print(child.exitcode)\n"
    )
    ended = ran(beats, script, python=python)
    assert ended == ran(beats, script, python=python, path="")
    assert ended[1].split() == ["1", "3", "4", "1", "0"]
    assert [found.thrown.own for found in left(beats)] == ["starts.py:2 in raises"] * 2


@pytest.mark.parametrize("python", NEW, ids=name)
def test_also_under_a_hook_of_the_programs_own(beats: BeatDir, python: Path) -> None:
    code = "import sys; sys.excepthook = lambda *_: print('mine'); 1 / 0"
    assert ran(beats, "-c", code, python=python) == (1, "mine\n", "")
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
    "hangs at its end": "import atexit, os; atexit.register(lambda: os.kill(os.getpid(), 9)); 1 / 0",
    "a fork": "import os\nif os.fork() == 0: 1 / 0\nos.wait()",
    "a group": "raise ExceptionGroup('two', [ZeroDivisionError('division by zero'), KeyError(1)])",
    "without a word": "class E(Exception):\n def __str__(self): 1 / 0\nraise E",
    "a long one": "raise ValueError('é\\x1b[31m' * 100000)",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS.keys())
def test_however_it_ends(beats: BeatDir, code: str) -> None:
    ended = ran(beats, "-c", code)
    assert ended == ran(beats, "-c", code, path="")
    found = one(beats)
    assert found.thrown.message.isprintable()
    assert {"ZeroDivisionError", "__main__.E", "ValueError"} & {
        found.thrown.kinds[0],
        (found.root or found.thrown).kinds[0],
    }


NONE = {
    "well": "pass",
    "a code": "import sys; sys.exit(2)",
    "a message": "raise SystemExit('usage')",
    "interrupted": "raise KeyboardInterrupt",
    "caught": "try: 1 / 0\nexcept Exception: pass",
    "in a thread": "import threading as t; one = t.Thread(target=lambda: 1 / 0); one.start(); one.join()",
    "none": "import sys; sys.__excepthook__(None, None, None)",
}


@pytest.mark.parametrize("code", NONE.values(), ids=NONE.keys())
def test_nothing_is_left_by_what_is_no_death_by_an_exception(beats: BeatDir, code: str) -> None:
    assert ran(beats, "-c", code)[0] == ran(beats, "-c", code, path="")[0]
    assert left(beats) == []


@pytest.mark.parametrize("python", NEW, ids=name)
def test_nobody_sees_a_hook(beats: BeatDir, python: Path) -> None:
    code = "import sys; print(sys.excepthook is sys.__excepthook__, 'atexit' in sys.modules, sorted(sys.modules))"
    code += "; import atexit; atexit.register(print, 'bye')"
    assert ran(beats, "-c", code, python=python) == ran(beats, "-c", code, python=python, path="")


def test_a_script_that_is_none(beats: BeatDir, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\ndef\n")
    assert ran(beats, script)[0] == 1
    found = one(beats)
    assert found.thrown.kinds[0] == "SyntaxError"
    assert found.thrown.where == "train.py:2"


def test_what_kills_the_program_does_not_silence_it(beats: BeatDir, tmp_path: Path) -> None:
    (tmp_path / "threading.py").write_text("raise ImportError('shadows')")
    (tmp_path / "typing.py").write_text("raise ImportError('shadows')")
    (tmp_path / "train.py").write_text("import threading")
    assert ran(beats, tmp_path / "train.py")[0] == 1
    assert one(beats).thrown.line == "ImportError: shadows"


@pytest.mark.parametrize("spoil", ["gone", "not ours", "full of others"])
def test_a_folder_that_takes_nothing(beats: BeatDir, tmp_path: Path, spoil: str) -> None:
    folder = {"gone": "/nowhere", "not ours": "/proc", "full of others": str(beats.folder / "beats")}[spoil]
    bare = ran(beats, "-c", "1 / 0", path="")
    assert ran(beats, "-c", "1 / 0", FTRUN_BEAT_DIR=folder) == bare


def test_a_million_of_them_fill_nothing(beats: BeatDir) -> None:
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


def test_the_leak_of_one_is_no_leak(beats: BeatDir) -> None:
    """What the hook is shown is not kept alive by it."""
    code = (
        "import sys, weakref\nclass Big: pass\n"
        "def f():\n big = Big(); global seen; seen = weakref.ref(big); 1 / 0\n"
        "try: f()\nexcept Exception: sys.excepthook(*sys.exc_info())\n"
        "print(seen())"
    )
    assert ran(beats, "-c", code)[1] == "None\n"


def test_under_a_real_ftrun(start: Starter, tmp_path: Path) -> None:
    """What a launcher starts leaves its word where ftrun reads, and each attempt begins with none."""
    (tmp_path / "train.py").write_text("assert False, 'of rank 5'")
    shown = tmp_path / "shown"
    script = (
        f'ls "$FTRUN_BEAT_DIR" >> {shown}; RANK=5 {sys.executable} {tmp_path}/train.py; cat "$FTRUN_BEAT_DIR"/raised-*'
    )
    options = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "10ms")
    _, out, _ = start("sh", "-c", f"{script}; exit 3", options=options).finish()
    assert b"rank 5\nprogram train.py\nkinds AssertionError" in out
    assert b"kinds AssertionError" in out
    assert "raised" not in shown.read_text()


# --- torch ------------------------------------------------------------------------------------------------------------

RANKS = """
import os, sys, time, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 1:
        assert not rank, "the loss is no number"
    dist.barrier()
main()
"""


@pytest.mark.torch
def test_two_ranks_under_torchrun(beats: BeatDir, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert ran(beats, *torchrun, tmp_path / "train.py", OMP_NUM_THREADS="1")[0] == 1
    found = left(beats)
    assert found[-1].thrown.kinds[0].endswith("ChildFailedError")
    cause = first_cause(found)
    assert cause is not None
    assert cause.words == "rank 1: AssertionError: the loss is no number (train.py:10 in main)"


@pytest.mark.torch
def test_what_torch_spawns(beats: BeatDir, tmp_path: Path) -> None:
    pytest.importorskip("torch.multiprocessing")
    (tmp_path / "train.py").write_text(
        "import torch.multiprocessing as mp, time\n"
        "def work(rank):\n"
        "    if rank: raise ImportError('no such kernel')\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__': mp.spawn(work, nprocs=2)\n"
    )
    assert ran(beats, tmp_path / "train.py", OMP_NUM_THREADS="1")[0] == 1
    found = left(beats)
    assert found[-1].thrown.kinds[0] == "torch.multiprocessing.spawn.ProcessRaisedException"
    cause = first_cause(found)
    assert cause is not None
    assert cause.words == "ImportError: no such kernel (train.py:3 in work)"
