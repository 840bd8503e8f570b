"""The comparison runs end to end for ftrun and the bare command, where no other program is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from proof.bench.compare.peers import ALL
from support.measured import HOUSE, RESULTS
from support.runs import need_pid1

OURS = ("10-first-instruction", "30-heartbeat", "70-teardown")
SOME = [pytest.param(OURS[:1], id="one"), pytest.param(OURS, id="all", marks=pytest.mark.slow)]


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """An environment in which no other program is installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("git", "mount", "sh", "unshare"):
        (programs / name).symlink_to(shutil.which(name) or "/bin/false")
    path = os.pathsep.join(str(HOUSE / part) for part in ("supervisor", "hooks", "tests"))
    return os.environ | {"PATH": str(programs), "PYTHONPATH": path, "TMPDIR": str(tmp_path)}


def compare(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(HOUSE / "tests" / "proof" / "bench" / "compare"), *arguments]
    return subprocess.run(program, env=env, capture_output=True, text=True, timeout=240)


def saved() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (RESULTS / "benchmarks").glob("*")}


@pytest.mark.pid1
@pytest.mark.parametrize("figures", SOME)
def test_figures_without_a_peer(figures: Sequence[str], alone: dict[str, str], tmp_path: Path) -> None:
    need_pid1()
    before = saved()
    ended = compare(alone, "--short", *figures)
    assert ended.returncode == 0, ended.stderr
    shown = ended.stdout.splitlines()
    assert [line.split(": ")[0] for line in shown if line.startswith(OURS)] == list(figures)
    first = [line.split("  ")[0] for line in shown if "  " in line]
    assert first.count("ftrun") == min(2, len(figures))  # in each figure that has a row for each program
    assert first.count("bare") == 1
    assert not {peer.name for peer in ALL if peer.program} & {cell.split(" ")[0] for cell in first}
    assert saved() == before
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_help_and_names(alone: dict[str, str]) -> None:
    helped = compare(alone, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert all(name in helped.stdout for name in OURS)
    unknown = compare(alone, "nothing")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert len(unknown.stderr.splitlines()) == 1
