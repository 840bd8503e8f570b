"""Run every kind of `fthang` under ftrun in every mode, and write the page of the measurements.

The shortest learned timeout is three seconds in place of half a minute, the start timeout half a minute in place of an
hour.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ftrun.workload.kinds import FAILURES, HEALTHY, KINDS, Kind
from support.runs import FTHANG, HOUSE, Run, Runs, patched, wait_for

PAGE = HOUSE / "docs" / "hang-matrix.md"
FLOOR, IDLE, START, LONG = 3, 4, 30, 8  # s: the shortest learned, the idle, the start timeout, the healthy kinds
PATIENCE = 3 * IDLE  # s, for a hang that is not expected to be found
AT_ONCE = 2
ARGUMENTS = {"crash": "7", "signal": "SEGV", "orphans": "3"} | {k.name: f"{LONG}s" for k in HEALTHY if " " in k.usage}
FTRUN = patched(f"import ftrun.core.rules.adaptive_timeout as adaptive_timeout; adaptive_timeout.FLOOR = {FLOOR}.0")
OPTIONS = f"--idle-timeout {IDLE}s --restart-on hang,fault,failure --backoff 100ms --grace 1s".split()
TRAINING = ["--after", "125", "--steps", "160", "--step-time", "5ms", "--checkpoint-every", "25"]


class Mode(NamedTuple):
    name: str
    ftrun: Sequence[str]
    fthang: Sequence[str]


STARTS = ("--start-timeout", f"{START}s")
HOOKS = Mode("hooks", STARTS, ())
AUTO = Mode("automatic heartbeats", STARTS, ("--torch",))
NOTHING = Mode("no heartbeats", ("--no-auto-beat",), ("--no-hooks",))
MODES = (HOOKS, AUTO, NOTHING)
GIVEN = Mode("a given timeout", ("--hang-timeout", f"{FLOOR}s"), ())


class Cell(NamedTuple):
    kind: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.kind}, {self.mode.name}"


ENDS = tuple(kind for kind in FAILURES if not kind.line.startswith("hanging"))
HANGS = tuple(kind for kind in FAILURES if kind not in ENDS)
WELL = [Cell(kind.name, mode) for kind in HEALTHY for mode in MODES]
FAILING = [Cell(kind.name, mode) for kind in HANGS + ENDS for mode in MODES]
FAILING += [Cell("spin", GIVEN), Cell("busy", GIVEN)]
# The cells in which ftrun cannot distinguish a hang from work, and why.
UNDETECTED = {
    Cell("spin", NOTHING): "the idle rule counts CPU use as work as long as no accelerator is used",
    Cell("busy", NOTHING): "the idle rule counts CPU use as work, as for `spin`",
}
FALSE_ALARMS = {
    Cell("quiet-sleep", NOTHING): "without heartbeats a pause looks like `sleep`; use an `--idle-timeout` that "
    "is longer than any pause, or declare the pause as a section",
}


class Result(NamedTuple):
    """The outcome of one run.  `after`: seconds from the line that the kind prints to the `hang` record."""

    code: int
    finished: bool
    rule: str | None = None
    after: float = 0.0
    why: str = ""
    cleared: tuple[str, ...] = ()
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
        run = runs.start(*words, *TRAINING, *cell.mode.fthang, program=FTRUN)
        begun = _begun(run, cell)
        if cell in UNDETECTED:
            until = time.monotonic() + PATIENCE
            wait_for(lambda: run.named("hang") or time.monotonic() > until or run.process.poll() is not None, "a hang")
            if not run.named("hang"):
                run.process.send_signal(signal.SIGTERM)
        code = run.wait(180)
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
    cleared = tuple(str(record["why"]) for record in run.named("cleared"))
    restarts = tuple(str(record["reason"]) for record in run.named("restart"))
    seen = Result(code, "finished at step" in run.stdout, None, 0.0, "", cleared, restarts, tuple(left), run.log())
    if hang is None:
        return seen
    return seen._replace(rule=hang["rule"], after=hang["mono"] - begun, why=hang.get("why", "no evidence in time"))


def run_all(cells: Iterable[Cell], folder: Path) -> Iterator[tuple[Cell, Result]]:
    """Run all, a few at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
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
    kind = KINDS[cell.kind]
    if kind in HANGS or cell in FALSE_ALARMS:
        return None if seen.rule and seen.restarts == ("hang",) else "not found"
    restarts = ("failure",) if cell.kind in ("crash", "signal") else ()
    return None if seen.restarts == restarts else f"restarted: {seen.restarts} {seen.rule} {seen.why}"


# --- the page ---------------------------------------------------------------------------------------------------------

Measured = dict[Cell, list[Result]]
HEAD = f"""# Which hangs are found

This page has the outcome of each kind of `fthang`, measured by `pytest -m slow tests/test_hang_matrix.py`, in three
modes, under `ftrun {" ".join(OPTIONS)}`:

| mode | the program | ftrun |
| --- | --- | --- |
| hooks | sends heartbeats, has sections | learns its timeout; `{" ".join(STARTS)}` |
| automatic heartbeats | PyTorch, reports nothing (`--torch`) | the same |
| no heartbeats | reports nothing (`--no-hooks`) | `--no-auto-beat`: only the idle rule |

All times are scaled to seconds: a learned timeout is at least {FLOOR} s in place of 30 s, the start timeout is
{START} s in place of an hour, and the healthy kinds last {LONG} s, longer than the learned and the idle
timeout, so that sections, evidence or the idle rule's measure of work have to prevent a verdict."""
LATE = f"""- `spin` and `busy` use the processor, so that evidence raises a learned timeout until the start timeout, by
  default an hour, has passed. A given timeout finds them: `--hang-timeout {FLOOR}s` after {{given}}.
- `nobeat` continues to train. The idle rule found it here because its steps use almost no CPU time; if they used a
  twentieth of the time it would not. A given `--start-timeout` ends a command that has never given a heartbeat.
- By default a timeout is learned from a hundred steps. A job that hangs after fewer has a provisional timeout of
  at least five minutes; one that hangs before its first heartbeat is found only in a later start, if it has given
  heartbeats before. By default the idle rule applies only to a job that uses an accelerator, after half an hour."""


def page(measured: Measured) -> str:
    parts = [HEAD, "## Hangs", _hangs(measured), "## Healthy jobs that look like a hang", _healthy(measured)]
    parts += [
        "## Other ends, and the processes left behind",
        _ends(measured),
        "## Hangs that are not found, found late, or not distinguishable",
    ]
    return "\n\n".join([*parts, _exceptions(measured)]) + "\n"


def _hangs(measured: Measured) -> str:
    def cell(all_seen: Sequence[Result]) -> str:
        found = [seen for seen in all_seen if seen.rule]
        if not found:
            return f"not found in {PATIENCE} s"
        missed = f", {len(all_seen) - len(found)} of {len(all_seen)} not found" if len(found) < len(all_seen) else ""
        return f"{_names(f'`{seen.rule}`' for seen in found)} {_longest(found)}{missed}"

    def where(all_seen: Sequence[Result]) -> str:
        return _names(f"`{seen.why}`" for seen in all_seen if seen.why)

    hung = [seen for cell, all_seen in measured.items() if KINDS[cell.kind] in HANGS for seen in all_seen if seen.rule]
    finished = sum(seen.finished and seen.restarts == ("hang",) for seen in hung)
    text = f"""The table has the rule that found the hang, and the time from the start of the hang to its record (the
longest, where there are several runs). Line numbers are those of the measured version. The hang was found in
{len(hung)} runs, of which {finished} were restarted once and then finished their training.

"""
    return text + _table(measured, HANGS, cell, "location in the report", where)


def _healthy(measured: Measured) -> str:
    def cell(all_seen: Sequence[Result]) -> str:
        killed, suspected = sum(bool(seen.restarts) for seen in all_seen), sum(bool(seen.cleared) for seen in all_seen)
        return f"{killed} of {len(all_seen)}" + (f" ({suspected} suspected)" if suspected else "")

    def cleared(all_seen: Sequence[Result]) -> str:
        return _names(why.partition(":")[0] for seen in all_seen for why in seen.cleared)

    text = """The table has the number of runs that were killed; a suspicion that was cleared does no harm. Healthy jobs
that wait for minutes for something outside the job (a rate limit, an upload, a simulator, ranks of which one uploads)
are measured with the real timeouts, in
[Waits for something outside the job](reliability.md#waits-for-something-outside-the-job)."""
    return text + "\n\n" + _table(measured, HEALTHY, cell, "evidence that cleared the suspicions", cleared)


def _ends(measured: Measured) -> str:
    def cell(all_seen: Sequence[Result]) -> str:
        ends = ("finished" if seen.finished else f"ended with {seen.code}" for seen in all_seen)
        again = ("restarted, " if seen.restarts else "" for seen in all_seen)
        return _names(f"{restarted}{end}" for restarted, end in zip(again, ends, strict=True))

    def left(all_seen: Sequence[Result]) -> str:
        return _names(what for seen in all_seen for what in seen.left) or "nothing"

    return _table(measured, ENDS, cell, "left behind", left)


def _exceptions(measured: Measured) -> str:
    lines = [
        f"- `{cell.kind}`, {cell.mode.name}: the hang is not found, because {why}." for cell, why in UNDETECTED.items()
    ]
    lines += [
        f"- `{cell.kind}`, {cell.mode.name}: the job is killed, because {why}." for cell, why in FALSE_ALARMS.items()
    ]
    given = [seen for cell, all_seen in measured.items() if cell.mode is GIVEN for seen in all_seen if seen.rule]
    return "\n".join([*lines, LATE.format(given=_longest(given) if given else "a time that was not measured")])


def _longest(found: Iterable[Result]) -> str:
    return f"{max(seen.after for seen in found):.1f} s"


def _names(texts: Iterable[str]) -> str:
    return ", ".join(sorted(set(texts)))


def _table(
    measured: Measured,
    kinds: Sequence[Kind],
    cell: Callable[[Sequence[Result]], str],
    last: str,
    of_all: Callable[[Sequence[Result]], str],
) -> str:
    """A row for each kind, a column for each mode, and a column for all of them."""
    rows = [["kind", *(mode.name for mode in MODES), last], ["---"] * (len(MODES) + 2)]
    for kind in kinds:
        row = [measured.get(Cell(kind.name, mode), []) for mode in MODES]
        cells = [cell(seen) if seen else "not run" for seen in row]
        rows.append([f"`{kind.name}`", *cells, of_all([*chain(*row)])])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
