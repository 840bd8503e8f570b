"""What `beat`, `checkpoint`, `done` and `fail` write, read back by independent code."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.beat_file import MAGIC, BeatDir, Slot
from support.pythons import EXTREMES, NEW, version
from support.short import quick

SHOW = "import json; from support import beat_file; show = lambda rank=0: print(json.dumps(beat_file.slot(rank)))\n"


def shown(beats: BeatDir, code: str, **env: str) -> list[Slot]:
    return [json.loads(line) for line in beats.output(SHOW + code, **env).splitlines()]


def test_the_first_beat_claims_the_slot_of_the_rank(beats: BeatDir) -> None:
    before = time.monotonic_ns()
    (slot,) = shown(beats, "ft.beat(); show(7)", RANK="7", LOCAL_RANK="3")
    assert slot["magic"] == MAGIC
    assert slot["rank"] == 7
    assert slot["pid"] > 0
    assert slot["start_ticks"] > 0
    assert before < slot["claimed_at"] <= slot["moved_at"] < time.monotonic_ns()
    assert slot["step"] == slot["flags"] == 0
    assert beats.slot(0)["magic"] == beats.slot(3)["magic"] == 0


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "2"}, 2),
        ({"RANK": "x", "LOCAL_RANK": "2"}, 0),
        ({"RANK": "-1"}, 0),
        ({"RANK": "9" * 30}, 0),
        ({"RANK": "1030"}, 1030),
    ],
)
def test_the_rank_is_read_from_the_environment(beats: BeatDir, env: dict[str, str], rank: int) -> None:
    """A rank that is not a number counts as zero, with a flag."""
    beats.run("ft.beat()", **env)
    slot = beats.slot(rank)
    assert slot["magic"] == MAGIC
    assert slot["rank"] == rank
    assert slot["flags"] & 4 == (4 if not env.get("RANK", "0").isdigit() or len(env.get("RANK", "")) > 20 else 0)


@pytest.mark.parametrize(
    ("code", "claims"),
    [
        *((code, False) for code in ("", "ft.attempt()", "ft.fail('x', recoverable=True)")),
        *((code, True) for code in ("ft.beat()", "ft.section('a').__enter__()", "ft.checkpoint(1)", "ft.done()")),
        ("ft.fail('why')", True),
    ],
)
def test_a_call_that_reports_something_claims_the_slot_and_rings(beats: BeatDir, code: str, claims: bool) -> None:
    beats.run(code)
    assert (beats.slot()["magic"], beats.rings() > 0) == (MAGIC if claims else 0, claims)


def test_steps_only_rise(beats: BeatDir) -> None:
    """A step is anything with `__index__`, like the integers of other libraries."""
    slots = shown(
        beats,
        "class I:\n def __index__(self): return 6\n"
        "for step in (0, 5, 3, None, 'x', -1, 2**63, 10**40, 1.5, I()): ft.beat(step); show()",
    )
    assert [slot["step"] for slot in slots] == [1, *[6] * 8, 7]
    moved = [slot["moved_at"] for slot in slots]
    assert moved == sorted(set(moved))  # each is progress, from the main thread


def test_a_side_thread_is_alive_and_moves_only_by_an_advancing_step(beats: BeatDir) -> None:
    first, idle, stuck, ahead = shown(
        beats,
        "import threading\n"
        "def aside(*step):\n t = threading.Thread(target=ft.beat, args=step); t.start(); t.join(); show()\n"
        "ft.beat(5); show(); aside(); aside(5); aside(6)",
    )
    assert first["moved_at"] == idle["moved_at"] == stuck["moved_at"] < ahead["moved_at"]
    assert first["moved_at"] < idle["alive_at"] < stuck["alive_at"] == ahead["alive_at"] < ahead["moved_at"]
    assert ahead["step"] == 7


def test_only_the_claim_the_first_progress_and_the_hundredth_ring(beats: BeatDir) -> None:
    aside = "import os, threading\nt = threading.Thread(target=ft.beat); t.start(); t.join()\n"
    for code, rings in (
        ("for step in range(99): ft.beat(step)", 2),
        ("for step in range(999): ft.beat(step)", 3),  # enough is known now to learn a timeout
        ("", 1),
        ("ft.beat(); ft.beat()", 2),
    ):
        beats.run(f"{aside if 'step' not in code else 'import os'}\n{code}\nos._exit(0)")
        assert beats.rings() == rings, code


def test_a_checkpoint_has_a_step_and_the_last_path_if_any(beats: BeatDir) -> None:
    (slot,) = shown(beats, "ft.checkpoint(40, '/data/c\\u00f6-40'); show()")
    assert slot["checkpoint_step"] == slot["step"] == 41
    assert slot["moved_at"] <= slot["checkpoint_at"]
    assert (beats.folder / "checkpoint-0").read_text() == "/data/cö-40"
    assert sorted(os.listdir(beats.folder)) == ["beats", "bell", "checkpoint-0"]
    beats.run("import pathlib; ft.checkpoint(1, pathlib.Path('/a')); ft.checkpoint(2)")
    assert not (beats.folder / "checkpoint-0").exists()
    assert beats.slot()["checkpoint_step"] == 3


def test_only_a_newer_checkpoint_is_progress_from_any_thread(beats: BeatDir) -> None:
    before, newer, again = shown(
        beats,
        "import threading\n"
        "def aside(step):\n t = threading.Thread(target=ft.checkpoint, args=(step,)); t.start(); t.join(); show()\n"
        "ft.beat(50); show(); aside(40); aside(40)",
    )
    assert before["moved_at"] < newer["moved_at"] == again["moved_at"]


def test_bad_arguments_never_raise(beats: BeatDir) -> None:
    beats.output("ft.checkpoint(None, 3); ft.checkpoint('x', '\\0'); ft.checkpoint(1, '/a\\udc80'); ft.fail(None)")
    assert (beats.folder / "checkpoint-0").read_bytes() == b"/a\x80"


def test_fail_writes_its_reason_and_the_flag(beats: BeatDir) -> None:
    (slot,) = shown(beats, "ft.fail('the data set is gone'); show(3)", RANK="3")
    assert slot["flags"] == 2
    assert (beats.folder / "fail-3").read_text() == "the data set is gone"


@pytest.mark.parametrize(
    ("end", "code", "flags"),
    [
        ("", 0, 1),
        ("ft.done()", 0, 1),
        ("raise SystemExit", 0, 1),
        ("raise ValueError", 1, 0),
        ("import sys; sys.excepthook = lambda *error: print('mine'); raise ValueError", 1, 0),
        ("raise KeyboardInterrupt", -2, 0),
        ("import os; os._exit(0)", 0, 0),
        ("ft.fail('x')", 0, 3),
    ],
)
def test_done_is_reported_at_a_clean_exit_and_not_at_a_crash(beats: BeatDir, end: str, code: int, flags: int) -> None:
    ran = beats.run(f"ft.beat()\n{end}")
    assert ran.returncode == code
    assert beats.slot()["flags"] == flags
    assert ran.stdout == ("mine\n" if "mine" in end else "")


@pytest.mark.parametrize("python", quick(NEW, EXTREMES, ids=version))
def test_the_hooks_work_under_every_python(beats: BeatDir, python: Path) -> None:
    code = "@ft.section('a', '1m')\ndef f(): ft.beat(1)\nf(); ft.checkpoint(2, 'x'); ft.attempt()"
    beats.output(code, str(python))
    assert beats.slot()["checkpoint_step"] == 3


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed: system calls cannot be counted")
def test_a_beat_makes_no_system_call(beats: BeatDir, tmp_path: Path) -> None:
    def calls(count: int) -> int:
        trace = tmp_path / "trace"
        code = f"import ftrun_hooks as ft\nft.beat(0)\nfor step in range({count}): ft.beat(step)"
        command = ["strace", "-f", "-c", "-o", str(trace), sys.executable, "-c", code]
        ran = subprocess.run(command, env=beats.environment(), capture_output=True, text=True, timeout=120)
        if ran.returncode and "ptrace" in ran.stderr.lower():
            pytest.skip("strace is not permitted here")
        return int(trace.read_text().splitlines()[-1].split()[3])

    assert abs(calls(100_000) - calls(10)) < 100


def test_the_hooks_stay_harmless_at_interpreter_shutdown(beats: BeatDir) -> None:
    ran = beats.run(
        "import sys\nclass Late:\n def __del__(self): ft.beat(9); ft.checkpoint(9, 'x'); ft.done()\n"
        "ft.beat(); sys.late = Late(); late = Late(); late.me = late"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
