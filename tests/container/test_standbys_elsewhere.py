"""Standbys in phases, in groups, on a terminal, and in a control group that leaves little memory."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.containers import Run, Starter
from support.control_group import limited
from support.ports import free_port
from support.runs import objects, wait_for

PROGRAM = """
import email.message, os, sys, time
import ftrun_hooks as ft
ft.beat(1)
START, NAME = os.environ["MA_PROC_START_CNT"], sys.argv[1]
taken = b""
while not os.path.exists(f"{NAME}-{START}"):
    time.sleep(0.02)
    ft.beat()
    if not taken and os.path.exists(f"{NAME}-take"):
        taken = b"x" * (int(open(f"{NAME}-take").read()) << 20)
sys.exit(START in ("1", "3"))  # the phases share the count
"""
FAILURE = ("--restart-on", "failure", "--backoff", "10ms")


def program(folder: Path, name: str) -> list[str]:
    (folder / "train.py").write_text(PROGRAM)
    return [sys.executable, str(folder / "train.py"), str(folder / name)]


def outcomes(run_dir: Path) -> list[dict[str, object]]:
    return [record for record in objects(run_dir / "events.jsonl") if record["event"] == "standby"]


def is_ready(run_dir: Path) -> bool:
    return any(record["what"] == "ready" for record in outcomes(run_dir))


def test_each_phase_has_its_standbys(start: Starter, tmp_path: Path) -> None:
    names = ("one", "two")
    tables = [f"[[phase]]\nname = '{name}'\ncommand = {json.dumps(program(tmp_path, name))}\n" for name in names]
    (tmp_path / "phases.toml").write_text("".join(tables))
    folder = tmp_path / "state"
    run = start(options=["--config", str(tmp_path / "phases.toml"), "--standby", "1", *FAILURE], run_dir=folder)
    for number, name in enumerate(names):
        phase = wait_for(lambda number=number: sorted(folder.glob("*_restartable"))[number], name)  # type: ignore[misc]
        wait_for(lambda phase=phase: is_ready(phase), f"the standby of phase {name}")  # type: ignore[misc]
        for count in (2 * number + 1, 2 * number + 2):
            (tmp_path / f"{name}-{count}").touch()
    assert run.finish()[0] == 0
    for phase in sorted(folder.glob("*_restartable")):
        starts = [(one["warm"], one["of"]) for one in outcomes(phase) if one["what"] == "start"]
        assert starts == [(1, 1)], outcomes(phase)


def test_all_members_of_a_group_restart_warm_with_their_ranks(start: Starter, tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_port()}"

    def member(rank: int) -> Run:
        group = ["--group-size", "2", "--group-rank", str(rank), "--group-endpoint", endpoint]
        options = [*group, "--nproc-per-node", "2", "--standby", "2", *FAILURE]
        return start(*program(tmp_path, f"member-{rank}"), options=options)

    members = [member(0), member(1)]
    for one in members:
        one.until("standby", what="ready")
    (tmp_path / "member-0-1").touch()
    for name in ("member-0-2", "member-1-2"):
        (tmp_path / name).touch()
    assert [one.finish()[0] for one in members] == [0, 0]
    for one in members:
        starts = [(o["warm"], o["forked"], o["of"]) for o in outcomes(one.run_dir) if o["what"] == "start"]
        assert starts == [(2, 2, 2)], outcomes(one.run_dir)


@pytest.fixture
def little_memory(start: Starter) -> Iterator[list[str]]:
    with limited(f"ftrun-standby-{start.mark}", 1700 << 20, start.close) as prefix:
        yield prefix


def test_a_standby_ends_when_the_job_needs_its_memory(start: Starter, little_memory: list[str], tmp_path: Path) -> None:
    options = ["--standby", "1", *FAILURE]
    run = start(*program(tmp_path, "job"), options=options, above=little_memory)
    run.until("standby", what="ready")
    (tmp_path / "job-take.new").write_text("1250")
    (tmp_path / "job-take.new").rename(tmp_path / "job-take")
    cold = wait_for(lambda: [one for one in outcomes(run.run_dir) if one["what"] == "cold"], "its end")
    assert "too little memory" in str(cold[0]["why"])
    (tmp_path / "job-1").touch()
    (tmp_path / "job-2").touch()
    assert run.finish()[0] == 0
    start_of_two = next(one for one in outcomes(run.run_dir) if one["what"] == "start")
    assert start_of_two["warm"] == 0
    assert "too little memory" in str(start_of_two["why"])


ASKS = """
import os, sys
from os import isatty
SEEN = [one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr)], [os.isatty(number) for number in range(3)]
SIZE = os.get_terminal_size(), os.get_terminal_size(2)
"""


def test_an_import_that_looks_for_a_terminal_finds_it(start: Starter, tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "asks.py").write_text(ASKS)
    os.utime(site / "asks.py", (1e9, 1e9))
    command = program(tmp_path, "end")
    seen = "import asks; print(asks.SEEN, asks.SIZE, asks.isatty(1), file=open(f'{sys.argv[1]}-seen', 'a'))"
    (tmp_path / "train.py").write_text(PROGRAM.replace("import ftrun_hooks", f"{seen}\nimport ftrun_hooks"))
    options = ["--standby", "1", *FAILURE]
    run = start(*command, options=options, env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}, tty=True)
    run.until("standby", what="ready")
    for number in (1, 2):
        (tmp_path / f"end-{number}").touch()
    assert run.wait() == 0, run.terminal.seen
    assert [one["warm"] for one in outcomes(run.run_dir) if one["what"] == "start"] == [1], outcomes(run.run_dir)
    cold, warm = (tmp_path / "end-seen").read_text().splitlines()
    assert warm == cold
    assert cold.startswith("([True, True, True], [True, True, True])")
