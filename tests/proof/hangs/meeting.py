"""One run of a healthy row, and what ftrun made of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from proof.hangs.actors import Stage, nobody
from proof.hangs.rows import Row
from support.runs import FTRUN, Run, Runs

WAITED = 0.9  # of the wait that was asked for: some programs count it in steps of ten seconds
PATIENCE = 600.0  # s more than the wait, for a start and an end on a busy machine
UNENDED = "it did not end in time"


class Met(NamedTuple):
    """`wrong`: why the run failed, or nothing; `suspected`: the rules that suspected it; `cleared`: why it was no hang;
    `learned`: ftrun has learned a limit; times in seconds."""

    row: str
    moment: str
    waited: float
    took: float
    wrong: str = ""
    suspected: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    learned: bool = False


def meet(
    row: Row, moment: str, seconds: float, ports: tuple[int, int], folder: Path, program: Sequence[str] = FTRUN
) -> Met:
    """Run it to its end.  It is wrong if there is a verdict or a restart, or if it does not end with 0."""
    seconds, begun, ended = row.seconds or seconds, time.monotonic(), False
    folder.mkdir(parents=True)
    runs, stage = Runs(folder), Stage(folder)
    actor = row.actor(stage)
    arguments = [*map(str, ports), str(seconds), str(folder), moment]
    try:
        with stage.at_end:
            next(actor)
            command = row.command(folder, arguments)
            runs.stdin = stage.stdin
            stage.run = run = runs.start(*command, program=program)
            if row.actor is not nobody:
                _act(stage, run, actor, seconds)
            left = begun + seconds + PATIENCE - time.monotonic()
            with contextlib.suppress(Exception):  # a run that does not end in time is a result
                run.wait(left)
            ended = run.process.poll() is not None
    except Exception as error:
        return Met(row.name, moment, seconds, time.monotonic() - begun, f"the harness failed: {error!r}")
    finally:
        with contextlib.suppress(Exception):
            actor.close()
        runs.end()
    return _met(row, moment, seconds, time.monotonic() - begun, run, ended)


def _act(stage: Stage, run: Run, actor: Any, seconds: float) -> None:
    """The parts of the actor, each at its time; none once the run has ended."""

    def until(condition: Any) -> bool:
        over = time.monotonic() + seconds + PATIENCE
        while run.process.poll() is None and time.monotonic() < over:
            if condition():
                return True
            time.sleep(0.1)
        return False

    if until((stage.folder / "waits").exists):
        next(actor)
        end = time.monotonic() + seconds
        until(lambda: time.monotonic() > end)
        # Also if the run has ended: what it holds is set free.
        with contextlib.suppress(ProcessLookupError):  # the process that a signal is for has ended with the run
            next(actor, None)


def _met(row: Row, moment: str, seconds: float, took: float, run: Run, ended: bool) -> Met:
    code, verdicts = run.process.poll(), run.named("hang", "restart")
    wrong = ""
    if not ended and not verdicts:  # it was killed here
        wrong = f"{UNENDED}: {run.log()}"
    elif code or verdicts:
        wrong = f"exit code {code}, {[(r['event'], r.get('rule'), r.get('why')) for r in verdicts]}\n{run.log()}"
    elif took < WAITED * seconds:
        wrong = f"it did not wait: {took:.1f} s\n{run.log()}"
    suspected = tuple(str(record.get("rule")) for record in run.named("suspect"))
    cleared = tuple(str(record.get("why")) for record in run.named("cleared"))
    return Met(row.name, moment, seconds, round(took, 1), wrong, suspected, cleared, bool(run.named("learned")))
