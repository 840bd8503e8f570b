"""Many short jobs side by side, each derived from a seed and an index: what all forms of `bin/prove chaos` share."""

import pickle
import shutil
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


class Result(NamedTuple):
    """`outcome` is None if the harness itself failed; `wrong` has the reason."""

    job: Any
    outcome: Any
    wrong: list[str]


class Form(NamedTuple):
    """One form of chaos.  `options` choose it; `refusal` says why it is not possible here.  `describe` gives lines
    about a job and its outcome; `tally` the faults by kind, those of them in a job that failed, and what else happened.
    A page is published if there were `enough` faults."""

    options: str
    refusal: Callable[[], str | None]
    job: Callable[[int, int], Any]
    play: Callable[[Any, Path, threading.Event], Any]
    check: Callable[[Any], list[str]]
    describe: Callable[[Any, Any], Iterator[str]]
    tally: Callable[[Sequence[Result]], tuple[Counter[str], Counter[str], Counter[str]]]
    page: Callable[[list[Result], int, float], Measured]
    enough: int


def one(
    form: Form, seed: int, index: int, folder: Path, stop: threading.Event, outcomes: Path | None = None
) -> Result | None:
    """One job; None if it was stopped.  The folder of a failed one is kept, and in `outcomes` what is known of each, so
    that it can be checked again."""
    made, mine = form.job(seed, index), folder / f"{seed}-{index}"
    try:
        outcome = form.play(made, mine, stop)
        if outcomes is not None:
            (outcomes / f"{seed}-{index}.pickle").write_bytes(pickle.dumps(outcome))
        wrong = form.check(outcome)
    except Stopped:
        shutil.rmtree(mine, ignore_errors=True)
        return None
    except Exception:
        return Result(made, None, [f"the harness failed: {traceback.format_exc()}"])
    if not wrong:
        shutil.rmtree(mine, ignore_errors=True)
    return Result(made, outcome, wrong)


def run(
    form: Form, seed: int, seconds: float, beside: int, folder: Path, outcomes: Path | None = None
) -> tuple[list[Result], bool]:
    """Jobs side by side until the time is over, and whether Ctrl-C has ended them; what failed is printed."""
    until, stop, indexes, lock = time.monotonic() + seconds, threading.Event(), count(), threading.Lock()
    results: list[Result] = []

    def work() -> None:
        while time.monotonic() < until and not stop.is_set():
            with lock:
                index = next(indexes)
            result = one(form, seed, index, folder, stop, outcomes)
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
    how = " ".join(("bin/prove chaos", *form.options.split(), f"--job {name}"))
    lines.append(f"  folder: {folder / name.replace(':', '-')}; again: {how}")
    return "\n".join(lines)


def options(given: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"--{name}={text}" if text else f"--{name}" for name, text in given)


def last(records: Sequence[dict[str, Any]], most: int) -> Iterator[str]:
    """A line for each of the last records: when, which event, and its own fields."""
    for record in records[-most:]:
        fields = {name: value for name, value in record.items() if name not in HIDDEN}
        yield f"  {record.get('mono')} {record.get('event')} {str(fields)[:300]}"


def output(text: str, most: int) -> Iterator[str]:
    yield from (f"  | {line}" for line in text.splitlines()[-most:])


def table(happened: Counter[str], lost: Counter[str]) -> tuple[tuple[str, ...], ...]:
    """The rows of a page."""
    rows = ((kind, f"{happened[kind]:,}", f"{lost[kind]:,}") for kind in sorted(happened))
    return *rows, ("**total**", f"**{happened.total():,}**", f"**{lost.total():,}**")


HEAD = ("fault", "injected", "mishandled")
