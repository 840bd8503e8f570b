"""`ftctl list`: the living runs as a table."""

from __future__ import annotations

from pathlib import Path

from ftctl.verbs.list import RunLine, _table, read
from support.made_run import MadeRun


def test_living_runs_are_a_table() -> None:
    one = RunLine(
        "/tmp/ftrun-a",
        True,
        "running",
        "running for 5s",
        1,
        812,
        began="",
        command="torchrun train.py",
        word="quiet",
        do="look",
    )
    other = RunLine("/tmp/ftrun-longer", True, attempt=12, command="python " + "x" * 200, word="running")
    lines = list(_table([one, other], 80))
    assert lines == [
        "state    attempt  step  started  run dir            command",
        "quiet          1   812           /tmp/ftrun-a       torchrun train.py",
        f"running       12                 /tmp/ftrun-longer  {lines[2][52:]}",
        "do, about /tmp/ftrun-a: look",
    ]
    assert lines[2][52:].startswith("python x")
    assert max(map(len, lines)) <= 80
    assert not list(_table([], 80))


def test_a_row_has_the_state_in_a_word_and_what_to_do(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    try:
        run.rank(0, moved=90.0)
        path = run.write()
        (row,) = [one for one in read([str(tmp_path)]) if one.run_dir == path]
    finally:
        run.close()
    assert (row.word, row.step) == ("quiet", 7)
    assert row.do.startswith("`ftctl stacks --run-dir ")
