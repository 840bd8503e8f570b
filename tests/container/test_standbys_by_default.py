"""`--standby auto`, the default: what it needs is loaded after the start of the command, and only if that is Python."""

import sys
from pathlib import Path
from typing import Final

import pytest

from support.containers import Run, Starter
from support.runs import FTRUN, HOUSE, wait_for

# ftrun that does not wait for 30 s.
PROMPT: Final = (
    sys.executable,
    "-c",
    f"import sys; sys.path[:0] = [{str(HOUSE / 'supervisor')!r}, {str(HOUSE / 'hooks')!r}]; "
    f"del sys.argv[:{len(FTRUN)}]; from ftrun.core.rules import standby; standby.HEALTHY = 0.5; "
    "from ftrun.cli.entry import ftrun; ftrun()",
)
RESTARTS: Final = ("--restart-on", "failure", "--backoff", "10ms")
PROGRAM: Final = """
import email.message, os, sys, time
import ftrun_hooks as ft
start = os.environ["MA_PROC_START_CNT"]
ft.beat(1)
while not os.path.exists(sys.argv[1] + start):
    time.sleep(0.02)
    ft.beat()
sys.exit(start == "1")
"""


def python(folder: Path) -> list[str]:
    (folder / "train.py").write_text(PROGRAM)
    return [sys.executable, str(folder / "train.py"), str(folder / "end-")]


def outcomes(run: Run) -> list[tuple[object, ...]]:
    return [(one["what"], one.get("warm"), one.get("forked"), one.get("of")) for one in run.named("standby")]


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_second_start_of_a_python_program_is_warm(ranks: int, start: Starter, tmp_path: Path) -> None:
    options = [*RESTARTS, *(["--nproc-per-node", str(ranks)] if ranks > 1 else [])]
    run = start(*python(tmp_path), options=options, above=PROMPT)
    wait_for(lambda: [one for one in outcomes(run) if one[0] == "ready"], "the standbys")
    (tmp_path / "end-1").touch()
    (tmp_path / "end-2").touch()
    assert run.finish()[0] == 0
    forked = ranks if ranks > 1 else 0
    assert ("start", ranks, forked, ranks) in outcomes(run)


def settled(run: Run) -> object:
    """What `state.json` says of the next start, once ftrun has done the work that can wait until the command runs."""
    wait_for(lambda: (run.run_dir / "ftctl.sock").exists(), "the end of the start")
    return run.state["next_start"]


def test_a_restart_that_comes_before_there_can_be_a_standby_is_not_recorded_as_cold(
    start: Starter, tmp_path: Path
) -> None:
    run = start(*python(tmp_path), options=RESTARTS)
    wait_for(lambda: run.state.get("next_start") == {"ready": 0, "of": 1, "why": None, "saved": None}, "the state")
    (tmp_path / "end-1").touch()
    (tmp_path / "end-2").touch()
    assert run.finish()[0] == 0
    assert run.named("standby") == []


NONE: Final = {
    "a shell": (["sh", "-c", "{} & wait"], RESTARTS),
    "off": (["{}"], (*RESTARTS, "--standby", "off")),
    "no budget": (["{}"], (*RESTARTS, "--max-restarts", "0")),
}


@pytest.mark.parametrize(("words", "options"), NONE.values(), ids=[name.replace(" ", "-") for name in NONE])
def test_nothing_is_loaded_where_no_start_can_be_warm(
    words: list[str], options: list[str], start: Starter, tmp_path: Path
) -> None:
    program = python(tmp_path)
    command = program if words == ["{}"] else [word.format(" ".join(program)) for word in words]
    run = start(*command, options=options, above=PROMPT)
    assert settled(run) is None
    wait_for(lambda: run.state["now"]["phase"] == "running", f"the program: {run.state['now']}")
    assert run.state["next_start"] is None
    run.process.terminate()
    run.wait()
    assert run.named("standby") == []
