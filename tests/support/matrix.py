"""Every kind of `fthang` in every mode, as ftrun meets it, and the page that says what was measured.

Half a minute, under which no limit is learned, is made three seconds, and the hour of a start half a minute.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ftrun.workload import crashes
from ftrun.workload.kinds import FAILURES, HEALTHY, KINDS, Kind
from support.runs import FTHANG, HOUSE, Run, Runs, wait_for

PAGE = HOUSE / "docs" / "hang-matrix.md"
FLOOR, IDLE, START, LONG = 3, 4, 30, 8  # s: the least learned limit, the idle limit, the start limit, what is healthy
PATIENCE = 3 * IDLE  # s, for a hang that nobody is expected to find
AT_ONCE = 2
ARGUMENTS = {"crash": "7", "signal": "SEGV", "orphans": "3"} | {k.name: f"{LONG}s" for k in HEALTHY if " " in k.usage}
FTRUN = f"""
import sys
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
import ftrun.core.rules.adaptive_timeout as learning
learning.FLOOR = {FLOOR}.0
from ftrun.cli.run import main
main()
"""
OPTIONS = f"--idle-timeout {IDLE}s --restart-on hang,fault,failure --backoff 100ms --grace 1s".split()
TRAINING = ["--after", "125", "--steps", "160", "--step-time", "5ms", "--checkpoint-every", "25"]


class Mode(NamedTuple):
    name: str
    ftrun: Sequence[str]
    fthang: Sequence[str]


STARTS = ("--start-timeout", f"{START}s")
HOOKS = Mode("hooks", STARTS, ())
AUTO = Mode("automatic beats", STARTS, ("--torch",))
NOTHING = Mode("nothing", ("--no-auto-beat",), ("--no-hooks",))
MODES = (HOOKS, AUTO, NOTHING)
GIVEN = Mode("a given limit", ("--hang-timeout", f"{FLOOR}s"), ())


class Cell(NamedTuple):
    kind: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.kind}, {self.mode.name}"


ENDS = tuple(kind for kind in FAILURES if kind.begin.__module__ == crashes.__name__)
HANGS = tuple(kind for kind in FAILURES if kind not in ENDS)
WELL = [Cell(kind.name, mode) for kind in HEALTHY for mode in MODES]
FAILING = [Cell(kind.name, mode) for kind in HANGS + ENDS for mode in MODES]
FAILING += [Cell("spin", GIVEN), Cell("busy", GIVEN)]
# What nothing tells from its contrary, and why.
UNDETECTED = {
    Cell("spin", NOTHING): "a processor that is used is work to the idle rule, as long as no accelerator is",
    Cell("busy", NOTHING): "as `spin`",
}
FALSE_ALARMS = {
    Cell("quiet-sleep", NOTHING): "without a word a pause is what `sleep` is; give an `--idle-timeout` that is longer "
    "than any pause, or name it a section",
}


class Seen(NamedTuple):
    """What became of one.  `after`: seconds from the trouble's own line to the `hang` record."""

    code: int
    finished: bool
    rule: str | None = None
    after: float = 0.0
    why: str = ""
    cleared: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    log: str = ""


def run_cell(cell: Cell, folder: Path) -> Seen:
    """One run, to its end; a hang that is `UNDETECTED` is ended after `PATIENCE`."""
    folder.mkdir(parents=True)
    runs = Runs(folder)
    words = [*OPTIONS, *cell.mode.ftrun, *FTHANG, cell.kind]
    words += [ARGUMENTS[cell.kind]] if cell.kind in ARGUMENTS else []
    try:
        run = runs.start(*words, *TRAINING, *cell.mode.fthang, program=(sys.executable, "-c", FTRUN))
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
    """When it said that the trouble begins."""
    line = KINDS[cell.kind].line.partition("{value")[0].format(name=cell.kind)
    wait_for(lambda: line in run.stdout or run.process.poll() is not None, f"{cell} begins")
    return time.monotonic()


def _seen(run: Run, code: int, begun: float, left: Sequence[str]) -> Seen:
    hang = next(iter(run.named("hang")), None)
    cleared = tuple(str(record["why"]) for record in run.named("cleared"))
    restarts = tuple(str(record["reason"]) for record in run.named("restart"))
    seen = Seen(code, "finished at step" in run.stdout, None, 0.0, "", cleared, restarts, tuple(left), run.log())
    if hang is None:
        return seen
    return seen._replace(rule=hang["rule"], after=hang["mono"] - begun, why=hang.get("why", "no evidence in time"))


def run_all(cells: Iterable[Cell], folder: Path) -> Iterator[tuple[Cell, Seen]]:
    """Each as it ends, a few at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = [(cell, pool.submit(run_cell, cell, folder / f"{n}")) for n, cell in enumerate(cells)]
        for cell, seen in begun:
            yield cell, seen.result()


def wrong(cell: Cell, seen: Seen) -> str | None:
    """What should not have been, in a few words."""
    if seen.left:
        return f"left behind: {seen.left}"
    if cell in UNDETECTED:
        return f"found by {seen.rule}, though nobody should" if seen.rule else None
    if not seen.finished or seen.code:
        return f"not finished: exit code {seen.code}"
    kind = KINDS[cell.kind]
    if kind in HANGS or cell in FALSE_ALARMS:
        return None if seen.rule and seen.restarts == ("hang",) else "not found"
    restarts = ("failure",) if cell.kind in ("crash", "signal") else ()
    return None if seen.restarts == restarts else f"restarted: {seen.restarts} {seen.rule} {seen.why}"


# --- the page ---------------------------------------------------------------------------------------------------------

Measured = dict[Cell, list[Seen]]
HEAD = f"""# What is found, and what is left alone

What each kind of `fthang` came to, measured by `pytest -m slow tests/test_hang_matrix.py`, in three modes, under
`ftrun {" ".join(OPTIONS)}`:

| mode | the program | ftrun |
| --- | --- | --- |
| hooks | beats, names its sections | learns its limit; `{" ".join(STARTS)}` |
| automatic beats | PyTorch, tells nothing (`--torch`) | the same |
| nothing | tells nothing (`--no-hooks`) | `--no-auto-beat`: the idle rule alone |

All is scaled to seconds: a learned limit is at least {FLOOR} s in place of 30 s, the hour of a start is {START} s, and
what is healthy lasts {LONG} s, longer than either limit, so that sections, evidence or the idle rule's measure of work
have to save it."""
LATE = f"""- `spin` and `busy` use their processor, so that evidence raises a learned limit until the start timeout, by
  default an hour, has passed. A limit that is given finds them at once: `--hang-timeout {FLOOR}s` after {{given}}.
- `nobeat` trains on. To the idle rule, which found it here, its steps are next to nothing; had they taken a twentieth
  of its time it would be left alone. A given `--start-timeout` ends what has never beaten.
- By default a limit is learned from a hundred steps. What hangs after fewer has a provisional limit of at least five
  minutes, and what hangs before its first beat is found only in a later start of a job that has beaten before. The idle
  rule is on by itself only for a job that uses an accelerator, after half an hour."""


def page(measured: Measured) -> str:
    parts = [HEAD, "## Hangs", _hangs(measured), "## Healthy, though it looks like a hang", _healthy(measured)]
    parts += ["## Ends, and what is left behind", _ends(measured), "## Not found, found late, or not told apart"]
    return "\n\n".join([*parts, _exceptions(measured)]) + "\n"


def _hangs(measured: Measured) -> str:
    def cell(all_seen: Sequence[Seen]) -> str:
        found = [seen for seen in all_seen if seen.rule]
        if not found:
            return f"not found in {PATIENCE} s"
        missed = f", {len(all_seen) - len(found)} of {len(all_seen)} not found" if len(found) < len(all_seen) else ""
        return f"{_names(f'`{seen.rule}`' for seen in found)} {_longest(found)}{missed}"

    def where(all_seen: Sequence[Seen]) -> str:
        return _names(f"`{seen.why}`" for seen in all_seen if seen.why)

    hung = [seen for cell, all_seen in measured.items() if KINDS[cell.kind] in HANGS for seen in all_seen if seen.rule]
    finished = sum(seen.finished and seen.restarts == ("hang",) for seen in hung)
    words = "The rule that found it, and how long after it began (the longest, where it ran more than once).\n"
    words += (
        f"Of the {len(hung)} runs that were found {finished} were restarted once and then finished their training.\n\n"
    )
    return words + _table(measured, HANGS, cell, "where it hangs, as the report says", where)


def _healthy(measured: Measured) -> str:
    def cell(all_seen: Sequence[Seen]) -> str:
        killed, suspected = sum(bool(seen.restarts) for seen in all_seen), sum(bool(seen.cleared) for seen in all_seen)
        return f"{killed} of {len(all_seen)}" + (f" ({suspected} suspected)" if suspected else "")

    def cleared(all_seen: Sequence[Seen]) -> str:
        return _names(why.partition(":")[0] for seen in all_seen for why in seen.cleared)

    words = """How many were killed; a suspicion that was cleared does no harm. Healthy jobs that wait for minutes for
somebody outside (a rate limit, an upload, a simulator, ranks of which one uploads) are measured with the real limits:
[waits for somebody outside](reliability.md#waits-for-somebody-outside)."""
    return words + "\n\n" + _table(measured, HEALTHY, cell, "what cleared the suspicions", cleared)


def _ends(measured: Measured) -> str:
    def cell(all_seen: Sequence[Seen]) -> str:
        ends = ("finished" if seen.finished else f"ended with {seen.code}" for seen in all_seen)
        again = ("restarted, " if seen.restarts else "" for seen in all_seen)
        return _names(f"{restarted}{end}" for restarted, end in zip(again, ends, strict=True))

    def left(all_seen: Sequence[Seen]) -> str:
        return _names(what for seen in all_seen for what in seen.left) or "nothing"

    return _table(measured, ENDS, cell, "left after it", left)


def _exceptions(measured: Measured) -> str:
    lines = [f"- `{cell.kind}`, {cell.mode.name}: not found: {why}." for cell, why in UNDETECTED.items()]
    lines += [f"- `{cell.kind}`, {cell.mode.name}: killed: {why}." for cell, why in FALSE_ALARMS.items()]
    given = [seen for cell, all_seen in measured.items() if cell.mode is GIVEN for seen in all_seen if seen.rule]
    return "\n".join([*lines, LATE.format(given=_longest(given) if given else "a time that was not measured")])


def _longest(found: Iterable[Seen]) -> str:
    return f"{max(seen.after for seen in found):.1f} s"


def _names(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words)))


Tell = Callable[[Sequence[Seen]], str]


def _table(measured: Measured, kinds: Sequence[Kind], cell: Tell, last: str, of_all: Tell) -> str:
    """A row a kind, a column a mode, and a column for all of them."""
    rows = [["kind", *(mode.name for mode in MODES), last], ["---"] * (len(MODES) + 2)]
    for kind in kinds:
        row = [measured.get(Cell(kind.name, mode), []) for mode in MODES]
        cells = [cell(seen) if seen else "not run" for seen in row]
        rows.append([f"`{kind.name}`", *cells, of_all([*chain(*row)])])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
