"""Many short jobs side by side, each derived from a seed and an index: what all forms of `bin/prove chaos` share."""

import os
import shutil
import statistics
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from proof.chaos.play import Stopped
from support.measured import Measured

HIDDEN = ("schema", "time", "mono", "event", "command")
TAIL = 50  # records of an ftrun in a job that failed
CHECKED = "After each job the conditions that docs/reliability.md lists are checked."


class Result(NamedTuple):
    """`outcome` is None if the harness itself failed; `wrong` has the reason."""

    job: Any
    outcome: Any
    wrong: list[str]


class Form(NamedTuple):
    """One form of chaos.  `options` choose it; `refusal` says why it is not possible here.  `describe` gives lines
    about a job and its outcome; `faults` those that happened in a job, by kind, and `went` what else did.  It is
    published as `name` and `title`, with what it is `about`, if there were `enough` faults."""

    options: str
    name: str
    title: str
    about: str
    enough: int
    refusal: Callable[[], str | None]
    job: Callable[[int, int], Any]
    play: Callable[[Any, Path, threading.Event], Any]
    check: Callable[[Any], list[str]]
    describe: Callable[[Any, Any], Iterator[str]]
    faults: Callable[[Any], Counter[str]]
    went: Callable[[Any], Counter[str]]

    @property
    def command(self) -> str:
        return f"bin/prove chaos {self.options}".strip()


def one(form: Form, seed: int, index: int, folder: Path, stop: threading.Event) -> Result | None:
    """One job; None if it was stopped.  The folder of a failed one is kept."""
    made, mine = form.job(seed, index), folder / f"{seed}-{index}"
    try:
        outcome = form.play(made, mine, stop)
        wrong = form.check(outcome)
    except Stopped:
        shutil.rmtree(mine, ignore_errors=True)
        return None
    except Exception:
        return Result(made, None, [f"the harness failed: {traceback.format_exc()}"])
    if not wrong:
        shutil.rmtree(mine, ignore_errors=True)
    return Result(made, outcome, wrong)


def run(form: Form, seed: int, seconds: float, beside: int, folder: Path) -> tuple[list[Result], bool]:
    """Jobs side by side until the time is over, and whether Ctrl-C has ended them; what failed is printed."""
    until, stop, indexes, lock = time.monotonic() + seconds, threading.Event(), count(), threading.Lock()
    results: list[Result] = []

    def work() -> None:
        while time.monotonic() < until and not stop.is_set():
            with lock:
                index = next(indexes)
            result = one(form, seed, index, folder, stop)
            if result is None:
                return
            results.append(result)
            if result.wrong:
                print(report(form, result, folder), flush=True)

    with ThreadPoolExecutor(beside) as pool:
        try:
            for future in [pool.submit(work) for _ in range(beside)]:
                future.result()
        except KeyboardInterrupt:
            stop.set()
    return results, stop.is_set()


def report(form: Form, result: Result, folder: Path) -> str:
    """A description of the job and of what was wrong."""
    name = result.job.name
    lines = [f"--- {name} {'failed' if result.wrong else 'passed'}", *(f"  {wrong}" for wrong in result.wrong)]
    lines += [f"  {line}" for line in form.describe(result.job, result.outcome)]
    lines.append(f"  folder: {folder / name.replace(':', '-')}; again: {form.command} --job {name}")
    return "\n".join(lines)


def described(run: Any, name: str, output: int) -> Iterator[str]:
    """How an ftrun ended, a line for each of its last records, and its last lines of output."""
    yield f"ftrun {name}: code {run.code}{', killed by the chaos' if run.killed else ''}"
    for record in run.records[-TAIL:]:
        fields = {name: value for name, value in record.items() if name not in HIDDEN}
        yield f"  {record.get('mono')} {record.get('event')} {str(fields)[:300]}"
    yield from (f"  | {line}" for line in run.stderr.splitlines()[-output:])


def options(given: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"--{name}={text}" if text else f"--{name}" for name, text in given)


class Tally(NamedTuple):
    """Faults by kind, those of them in a job that failed, and what else happened."""

    happened: Counter[str]
    lost: Counter[str]
    went: Counter[str]


def tally(form: Form, results: Sequence[Result]) -> Tally:
    found = Tally(Counter(), Counter(), Counter())
    for result in results:
        if result.outcome is not None:
            found.happened.update(form.faults(result.outcome))
            if result.wrong:
                found.lost.update(form.faults(result.outcome))
            found.went.update(form.went(result.outcome))
    return found


def page(form: Form, results: Sequence[Result], seed: int, took: float) -> Measured:
    """The published section."""
    happened, lost, went = tally(form, results)
    failed = sum(bool(result.wrong) for result in results)
    median = statistics.median(result.outcome.seconds for result in results if result.outcome is not None)
    rows = ((kind, f"{happened[kind]:,}", f"{lost[kind]:,}") for kind in sorted(happened))
    return Measured(
        name=form.name,
        title=form.title,
        made_by=form.command,
        before=(
            f"The result is {len(results):,} jobs with {happened.total():,} faults, of which {lost.total():,}, those "
            f"of {failed:,} jobs, were mishandled, in {took / 60:.0f} minutes with seed {seed}, on a machine with a "
            f"load of {os.getloadavg()[2]:.0f}. {form.about} All of it follows from the seed and the index of the job. "
            f"The median duration of a job is {median:.0f} s. {CHECKED}",
            f"There were: {', '.join(f'{name} {number:,}' for name, number in sorted(went.items()))}.",
        ),
        head=("fault", "injected", "mishandled"),
        rows=(*rows, ("**total**", f"**{happened.total():,}**", f"**{lost.total():,}**")),
    )
