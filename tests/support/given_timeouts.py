"""Run kinds of `fthang` under ftrun with timeouts that a user gave."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ftrun.workload.kinds import FAILURES, HEALTHY, KINDS
from support.runs import FTHANG, Run, Runs, wait_for

GIVEN, IDLE, LONG = 3, 4, 8  # s: the given hang timeout, the given idle timeout, the healthy kinds
PATIENCE = 3 * IDLE  # s, for a hang that is not expected to be found
AT_ONCE = 2
ARGUMENTS = {"crash": "7", "signal": "SEGV", "orphans": "3"} | {k.name: f"{LONG}s" for k in HEALTHY if " " in k.usage}
OPTIONS = ["--restart-on", "hang,fault,failure", "--backoff", "100ms", "--grace", "1s"]
TRAINING = ["--after", "25", "--steps", "60", "--step-time", "5ms", "--checkpoint-every", "25"]


class Mode(NamedTuple):
    name: str
    ftrun: Sequence[str]
    fthang: Sequence[str]


STEPS = Mode(f"`--hang-timeout {GIVEN}s`", ("--hang-timeout", f"{GIVEN}s", "--start-timeout", "1h"), ())
NOTHING = Mode(
    f"`--idle-timeout {IDLE}s`, no heartbeats", ("--no-auto-beat", "--idle-timeout", f"{IDLE}s"), ("--no-hooks",)
)


class Cell(NamedTuple):
    kind: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.kind}, {self.mode.name.replace('`', '')}"


ENDS = tuple(kind for kind in FAILURES if not kind.line.startswith("hanging"))
HANGS = tuple(kind for kind in FAILURES if kind not in ENDS)
WORK = "the idle rule counts CPU use as work as long as no accelerator is used"
# The cells in which ftrun cannot distinguish a hang from work, and why.
UNDETECTED = {
    **{Cell(kind, NOTHING): WORK for kind in ("spin", "busy", "flag")},
    Cell(
        "nobeat", STEPS
    ): "a given hang timeout counts from the first heartbeat; `--start-timeout` is for those before",
}
FALSE_ALARMS = {
    Cell("slow-step", STEPS): "a step takes longer than the timeout that the user gave, and is in no section",
    Cell("quiet-sleep", NOTHING): "without heartbeats a pause looks like `sleep`; use an `--idle-timeout` that is "
    "longer than any pause, or declare the pause as a section",
}


class Result(NamedTuple):
    """The outcome of one run.  `after`: seconds from the line that the kind prints to the `hang` record."""

    code: int
    finished: bool
    rule: str | None = None
    after: float = 0.0
    restarts: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    log: str = ""


def run_cell(cell: Cell, folder: Path) -> Result:
    """Run one to its end; a hang that is `UNDETECTED` is ended after `PATIENCE`."""
    folder.mkdir(parents=True)
    runs = Runs(folder)
    words = [*OPTIONS, *cell.mode.ftrun, *FTHANG, cell.kind]
    words += [ARGUMENTS[cell.kind]] if cell.kind in ARGUMENTS else []
    try:
        run = runs.start(*words, *TRAINING, *cell.mode.fthang)
        begun = _begun(run, cell)
        if cell in UNDETECTED:
            until = time.monotonic() + PATIENCE
            wait_for(lambda: run.named("hang") or time.monotonic() > until or run.process.poll() is not None, "a hang")
            if not run.named("hang"):
                run.process.send_signal(signal.SIGTERM)
        code = run.wait(180)
        with contextlib.suppress(AssertionError):  # a helper may still be ending
            wait_for(lambda: not runs.left(), "the end of its processes")
        return _seen(run, code, begun, runs.left())
    finally:
        runs.end()
        shutil.rmtree(folder)


def _begun(run: Run, cell: Cell) -> float:
    """The time at which the kind has printed its line."""
    line = KINDS[cell.kind].line.partition("{value")[0].format(name=cell.kind)
    wait_for(lambda: line in run.stdout or run.process.poll() is not None, f"{cell} begins")
    return time.monotonic()


def _seen(run: Run, code: int, begun: float, left: Sequence[str]) -> Result:
    hang = next(iter(run.named("hang")), None)
    restarts = tuple(str(record["reason"]) for record in run.named("restart"))
    seen = Result(code, "finished at step" in run.stdout, None, 0.0, restarts, tuple(left), run.log())
    return seen if hang is None else seen._replace(rule=hang["rule"], after=hang["mono"] - begun)


def run_all(cells: Iterable[Cell], folder: Path, at_once: int = AT_ONCE) -> Iterator[tuple[Cell, Result]]:
    """Run all, a few at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        begun = [(cell, pool.submit(run_cell, cell, folder / f"{n}")) for n, cell in enumerate(cells)]
        for cell, seen in begun:
            yield cell, seen.result()


def wrong(cell: Cell, seen: Result) -> str | None:
    """What differs from the expectation, or None."""
    if seen.left:
        return f"left behind: {seen.left}"
    if cell in UNDETECTED:
        return f"found by {seen.rule}, which was not expected" if seen.rule else None
    if not seen.finished or seen.code:
        return f"not finished: exit code {seen.code}"
    if KINDS[cell.kind] in HANGS or cell in FALSE_ALARMS:
        return None if seen.rule and seen.restarts == ("hang",) else "not found"
    restarts = ("failure",) if cell.kind in ("crash", "signal") else ()
    return None if seen.restarts == restarts else f"restarted: {seen.restarts} {seen.rule}"
