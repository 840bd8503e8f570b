"""The lives of a job's containers, one file each in the folder `runs` of the state dir: which attempts there were, on
which node, how each ended, and what it cost.  The folder `reports` has copies of their reports.  Both outlive the
containers and their run dirs.
"""

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import sentences, states
from ftrun.core.text.durations import seconds
from ftrun.host import procfs
from ftrun.messages.codec import EXACT, TOLERANT, Malformed, parse_object
from ftrun.records.files import state
from ftrun.records.past import history
from ftrun.records.past.history import History
from ftrun.records.past.lost_time import AttemptSpan, LostInterval

FOLDER: Final = "runs"
REPORTS: Final = "reports"
REPORTED: Final = ("hang", "failure")  # the causes that leave a report
SCHEMA: Final = 1
LIMIT: Final = 1 << 20  # bytes of a file that is read
MOST: Final = 256  # attempts in a file, the last ones
READ: Final = 512  # files that are read, the newest
TEXT: Final = 300  # characters of a text
COMMAND: Final = 1000  # characters of a command


class AttemptLine(NamedTuple):
    """One attempt.  Times are s since the epoch.  `cause`: hang, fault, failure or stop, if one of them ended it;
    `place`: where in the code.  `lost`: seconds by reason.  `report`: a path in the run dir.  `open`: it was running
    when this was written."""

    number: int
    reason: str
    since: float
    until: float
    cause: str | None = None
    why: str = ""
    place: str = ""
    report: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    lost: dict[str, float] = {}  # noqa: RUF012 - a value, never changed
    open: bool = False


class RunLife(NamedTuple):
    """One ftrun of the job.  `schedule`: the outer scheduler's count, 0: not known; `member`: its rank in the group.
    `verdict` is None where no end was recorded: it runs or waits, or its node died; `why` says so where it is known."""

    schema: int
    key: str
    schedule: int
    member: int
    node: str
    phase: str
    job: str
    run_dir: str
    command: str
    began: float
    ended: float | None = None
    verdict: str | None = None
    exit_code: int | None = None
    why: str = ""
    last_step: int | None = None
    last_checkpoint: str = ""
    attempts: tuple[AttemptLine, ...] = ()


def with_history(life: RunLife, found: History, waiting: bool = False) -> RunLife:
    """The life with the last attempts of this history of its run dir, which are those of the last ftrun there;
    `waiting`: its own ftrun may have no record yet, so that the last one may be an earlier one.  Pure.

    Only then wall times are compared: the clock may step back after the begin of a life."""
    last = found.attempts[-1].run if found.attempts else 0
    own = [span for span in found.attempts if span.run == last and (not waiting or span.since >= life.began)]
    lines = {span.number: _line(span, found.lost) for span in own}
    attempts = tuple(lines[number] for number in sorted(lines))[-MOST:]
    ended = found.verdict is not None and not found.open and bool(own or not waiting)
    return life._replace(
        command=sentences.short(" ".join(found.command), COMMAND) or life.command,
        ended=found.runs[-1][1] if ended and found.runs else None,
        verdict=found.verdict if ended else None,
        exit_code=found.exit_code if ended else None,
        why=(found.why or "")[:TEXT] if ended else "",
        attempts=attempts,
    )


def _line(span: AttemptSpan, lost: Sequence[LostInterval]) -> AttemptLine:
    """`lost`: in order, without overlaps."""
    cost: dict[str, float] = {}
    for interval in lost[bisect_right(lost, span.since, key=lambda one: one.until) :]:
        if interval.since >= span.until:
            break
        shared = min(interval.until, span.until) - max(interval.since, span.since)
        if shared > 0:
            cost[interval.why] = round(cost.get(interval.why, 0.0) + shared, 3)
    return AttemptLine(
        span.number,
        span.reason,
        round(span.since, 3),
        round(span.until, 3),
        span.cause,
        (span.why or span.elsewhere)[:TEXT],
        span.place[:TEXT],
        span.report,
        span.first_step,
        span.last_step,
        cost,
        span.under_way or span.cut_off,
    )


def file_name(key: str) -> str:
    return f"{_safe(key)}.json"


def report_copy(folder: str, key: str, attempt: int) -> str:
    """Where the state dir `folder` keeps the report of this attempt."""
    return f"{folder}/{REPORTS}/{_safe(key)}/attempt-{attempt}.md"


def _safe(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", key).lstrip(".")[:200]


def dump(life: RunLife) -> bytes:
    return EXACT.dump(life).encode("ascii") + b"\n"


def load(content: bytes) -> RunLife | None:
    """The life in this file; None for a file of another version, or that no ftrun has written."""
    try:
        life = TOLERANT.value(RunLife, parse_object(content, LIMIT))
    except Malformed:
        return None
    return life if life.schema == SCHEMA else None


def names(folder: str) -> list[str]:
    """The files of this state dir, the newest first; none if it cannot be read."""
    try:
        with os.scandir(f"{folder}/{FOLDER}") as entries:
            found = [(entry.stat().st_mtime, entry.name) for entry in entries if entry.name.endswith(".json")]
    except (OSError, ValueError):  # a path that this locale cannot encode
        return []
    return [name for _, name in sorted(found, reverse=True)]


def read(folder: str) -> list[RunLife]:
    """The lives in this state dir in the order of the schedules, at most READ of them."""
    contents = (procfs.read(f"{folder}/{FOLDER}/{name}", LIMIT) for name in names(folder)[:READ])
    lives = [life for content in contents if content and (life := load(content)) is not None]
    began: dict[int, float] = {}
    for life in lives:
        began[life.schedule] = min(life.began, began.get(life.schedule, life.began))
    return sorted(lives, key=lambda life: (began[life.schedule], life.schedule, life.member, life.began, life.key))


def of_job(run_dir: str) -> tuple[list[RunLife], str]:
    """The lives of the job of this run, and the folder that they were read from: its state dir, or the run dir."""
    folder = state.load(run_dir).rest.run.state_dir
    lives = [] if folder is None else read(folder)
    return (lives, os.path.abspath(folder)) if lives and folder else (of_run(run_dir), os.path.abspath(run_dir))


def kept_report(run_dir: str, member: int, attempt: int) -> str | None:
    """The copy of the newest report of that member in the state dir of this run; `attempt` 0: of any attempt."""
    folder = state.load(run_dir).rest.run.state_dir or ""
    for life in reversed(read(folder) if folder else []):
        for line in reversed(life.attempts if life.member == member else ()):
            if attempt in (0, line.number) and (
                content := procfs.read(report_copy(folder, life.key, line.number), LIMIT)
            ):
                return content.decode("utf-8", "replace")
    return None


def of_run(run_dir: str) -> list[RunLife]:
    """The ftruns that worked in this run dir, where there is no state dir: one life for each."""
    run_dir, found = os.path.abspath(run_dir), history.read(run_dir)
    command = sentences.short(" ".join(found.command), COMMAND)
    lives = []
    for number, (since, _) in enumerate(found.runs):
        last = number == len(found.runs) - 1
        life = RunLife(SCHEMA, f"{run_dir}#{number}", 0, 0, "", "", "", run_dir, command, since)
        inside = tuple(span for span in found.attempts if span.run == number)
        known = found._replace(attempts=inside, runs=(found.runs[number],))
        lives.append(with_history(life, known if last else known._replace(verdict=None, open=True)))
    if lives and lives[-1].verdict is None and not found.open:
        lives[-1] = lives[-1]._replace(why=f"cut off: {states.RUN['cut off']}")
    return lives


# --- as text ----------------------------------------------------------------------------------------------------------


def lines(lives: Sequence[RunLife], folder: str = "") -> list[str]:
    """A line for each schedule and member, and one for each attempt; not wrapped.  `folder`: the state dir they are
    from, if they are."""
    found: list[str] = []
    schedule: int | None = None
    members = len({life.member for life in lives}) > 1
    replaced = _replaced(lives)
    for life in lives:
        if life.schedule != schedule and life.schedule:
            found.append(f"schedule {life.schedule}")
            schedule = life.schedule
        who = f"member {life.member} on {life.node}" if members else f"on {life.node}" if life.node else "this run"
        part = f", phase {life.phase}" if life.phase else ""
        found.append(f"  {who}{part}: {time(life.began)}, {_ending(life, life.key in replaced)}")
        found += [f"    run dir: {life.run_dir}"] if life.attempts else []
        for attempt in life.attempts:
            found += _attempt(attempt, _stopped(life, attempt), _report(life, attempt, folder))
    return found


def _report(life: RunLife, attempt: AttemptLine, folder: str) -> str:
    """The path of the report: in the run dir if it is there, else of the copy."""
    own = os.path.join(life.run_dir, attempt.report) if attempt.report else ""
    copy = report_copy(folder, life.key, attempt.number) if folder else ""
    return next((path for path in (own, copy) if path and os.path.exists(path)), attempt.report or "")


def table(lives: Sequence[RunLife], folder: str, run_dir: str) -> list[dict[str, Any]]:
    """A row for each attempt, as JSON values for the page.  `link`: where the page has its report, if it can be read:
    in its own run dir `run_dir`, or as a copy in the state dir `folder`."""
    rows, replaced = [], _replaced(lives)
    for life in lives:
        where = {"schedule": life.schedule, "member": life.member, "node": life.node, "run_dir": life.run_dir}
        gone = life.key in replaced or (life.verdict is None and bool(life.why))
        for attempt in life.attempts:
            last = attempt is life.attempts[-1]
            names = ("number", "reason", "cause", "place", "why", "lost", "open")
            rows.append(
                {
                    **where,
                    **{name: getattr(attempt, name) for name in names},
                    "open": attempt.open and not gone,
                    "began": attempt.since,
                    "seconds": max(0.0, attempt.until - attempt.since),
                    "steps": _steps(attempt),
                    "cost": _cost(attempt),
                    "stopped": _stopped(life, attempt),
                    "ending": _ending(life, life.key in replaced)
                    if last and (life.verdict or not attempt.open or gone)
                    else "",
                    "good": life.exit_code == 0 if last and life.verdict else None,
                    "link": _link(life, attempt, folder, run_dir),
                }
            )
    return rows


def _stopped(life: RunLife, attempt: AttemptLine) -> str:
    """Why an attempt without a cause of its own ended, as the next one says it."""
    after = next((one.reason for one in life.attempts if one.number > attempt.number), "")
    known = {
        "peer": f"stopped for {attempt.why or 'another member'}",
        "manual": "stopped by an operator",
        "returned": "stopped for a device",
    }
    return known.get(after, "ended")


def _link(life: RunLife, attempt: AttemptLine, folder: str, run_dir: str) -> str | None:
    if attempt.cause in REPORTED and os.path.realpath(life.run_dir) == os.path.realpath(run_dir):
        return f"report/{attempt.number}"
    if folder and os.path.exists(report_copy(folder, life.key, attempt.number)):
        return f"history/{_safe(life.key)}/{attempt.number}"
    return None


def _replaced(lives: Sequence[RunLife]) -> set[str]:
    """The keys of the lives that a later life of the same member has replaced."""
    last = {(life.phase, life.member): life.key for life in lives}
    return {life.key for life in lives} - set(last.values())


def _ending(life: RunLife, replaced: bool) -> str:
    if life.verdict is None and replaced:
        return "no end was recorded, and another ftrun has taken its place"
    if life.verdict is None and life.why:
        return life.why
    if life.verdict is None:
        is_at_work = any(one.open for one in life.attempts[-1:])
        return "running when last seen" if is_at_work else "waiting for a start when last seen"
    lasted = "" if life.ended is None else f" after {seconds(max(0.0, life.ended - life.began))}"
    why = "" if life.verdict == "succeeded" or not life.why else f": {life.why}"
    return f"ended with {life.exit_code} ({life.verdict}){lasted}{why}"


def _steps(attempt: AttemptLine) -> str:
    if attempt.last_step is None:
        return ""
    begin = attempt.last_step if attempt.first_step is None else attempt.first_step
    return f"{begin} to {attempt.last_step}" if begin != attempt.last_step else f"{begin}"


def _cost(attempt: AttemptLine) -> str:
    lost = sorted(((why, value) for why, value in attempt.lost.items() if value >= 0.05), key=lambda one: -one[1])
    parts = ", ".join(f"{seconds(value)} {why}" for why, value in lost)
    return f"{seconds(sum(value for _, value in lost))} ({parts})" if lost else ""


def _attempt(attempt: AttemptLine, stopped: str, report: str) -> list[str]:
    steps = f", step{'s' * (' to ' in stepped)} {stepped}" if (stepped := _steps(attempt)) else ""
    cost = f"; cost {lost}" if (lost := _cost(attempt)) else ""
    ending = attempt.cause or stopped
    place = f" at {attempt.place}" if attempt.place else ""
    what = f"{seconds(max(0.0, attempt.until - attempt.since))}{steps}; {ending}{place}{cost}"
    if attempt.open and not attempt.cause:
        what = f"since {time(attempt.since)}{steps}{cost}"
    found = [f"    attempt {attempt.number} ({attempt.reason or 'first'}): {what}"]
    found += [f"      {attempt.why}"] if attempt.why and attempt.cause else []
    return found + ([f"      report: {report}"] if report else [])


def time(at: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
