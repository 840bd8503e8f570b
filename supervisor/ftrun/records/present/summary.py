"""A snapshot as text for an operator, and as JSON."""

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ftrun.core.accounting.totals import NO_GOODPUT
from ftrun.core.rules import exit_codes
from ftrun.core.rules.hang_rules import RULES, Silent
from ftrun.core.rules.stalls import ADVICE
from ftrun.core.rules.standby import NextStart
from ftrun.core.text import sentences, states
from ftrun.core.text.durations import seconds, step_duration
from ftrun.core.text.sentences import printable, several
from ftrun.messages import records
from ftrun.messages.codec import DECODABLE
from ftrun.records.files.recent_events import REASONS
from ftrun.records.present.advice import hung_nowhere, no_step, quiet, what_to_do
from ftrun.records.present.snapshot import DeviceNow, RankNow, Snapshot

SCHEMA: Final = 1
HEAD: Final = 12  # columns of the line names
PATH: Final = 300  # characters of a path
COMMAND: Final = 140  # characters of a command
SLOW: Final = 8  # stragglers, and ranks that failed, that are listed
FAULTY: Final = 8  # devices with a fault that are listed
DAY: Final = 86_400.0  # s
LEAST: Final = 0.05  # s: less lost time is not shown
SHARE: Final = 0.001  # of the wall time: less is not shown
RANK_STATES: Final = {  # in the order in which they are counted
    **{name: states.RANKS[name] for name in ("starting", "moving", "stalled")},
    states.QUIET: states.QUIET,
    **{name: states.RANKS[name] for name in ("section", *states.ENDED_RANKS)},
}
SummaryLine = tuple[str, str]  # name, text


def document(shown: Snapshot) -> dict[str, Any]:
    """The output of `--json`: the fields of `Snapshot`, nested tuples as objects, and what a person can do."""
    return {"schema": SCHEMA, **DECODABLE.plain(shown), "do": what_to_do(shown) or None}


def title(shown: Snapshot, width: int = 80) -> list[str]:
    """The headline, wrapped."""
    return wrapped(headline(shown), width)


def lines(shown: Snapshot, width: int = 80) -> list[str]:
    """The lines below the title: about 25 at most, none wider than `width` except for a long path."""
    found, indent = [], " " * HEAD
    for name, text in _lines(shown):
        body = wrapped(text, width, indent, indent)
        body[:1] = [f"{name:<{HEAD}}{body[0][HEAD:]}"] if body else []
        found += body
    return found


def wrapped(text: str, width: int, indent: str = "", first: str = "") -> list[str]:
    """The text in lines: the first begins with `first`, each other one with `indent`.  A word is not cut, so that a
    path or a command can be copied."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def headline(shown: Snapshot, ages: bool = True) -> str:
    """The state of the run in one sentence.  Without `ages` it changes only when the state does."""
    old = "THE DISK OF THE RUN DIR IS FULL, what follows may be out of date: " if shown.full_disk else ""
    if shown.stopped is not None:
        old += f"FTRUN ITSELF IS STOPPED (process {shown.stopped}) AND WATCHES NOTHING: "
    return old + _headline(shown, ages)


def _headline(shown: Snapshot, ages: bool) -> str:
    attempt, inside = f"attempt {shown.attempt}", f"in attempt {shown.attempt}"
    if not shown.attempt:
        attempt = inside = "before the first start"
    elif shown.reason not in ("first", ""):
        attempt += f" after {shown.origin or REASONS.get(shown.reason, shown.reason)}"
    if shown.paused is not None and shown.alive:
        end = "until `ftctl resume`"
        if shown.resumes is not None:
            until = datetime.now(UTC) + timedelta(seconds=shown.resumes)
            end = f"until {until:%H:%M:%S} UTC" + (f", in {seconds(shown.resumes)}" if ages else "")
        by = f" by {shown.paused_by}" if shown.paused_by else ""
        since = f" for {seconds(shown.paused)}" if ages else ""
        return f"{states.PAUSED.upper()}{by}{since}: HANGS ARE NOT DETECTED; {end} ({shown.phase}, {attempt})"
    if shown.phase == "done":
        return f"ended with {shown.exit_code} ({shown.verdict}) {inside}"
    if shown.phase == "cut off":
        gone = states.RUN["cut off"]
        return f"cut off: {gone}; it was killed, or its machine went down, {inside}"
    duration = shown.up if shown.phase in states.LIVE else shown.since
    up = "" if duration is None or not ages else f" for {seconds(duration)}"
    if shown.job is not None:
        return f"{shown.job.text if ages else shown.job.state}; this member: {shown.phase}{up}, {attempt}"
    if shown.suspended is not None:
        since = f" for {seconds(shown.suspended)}" if ages else ""
        return f"{states.SUSPENDED} by job control{since}, {attempt}: no timeout runs until the command continues"
    return f"{shown.phase}{up}, {attempt}: {_health(shown, ages)}"


def word(shown: Snapshot) -> str:
    """The state of the run in a word or two, as a cell of a table."""
    if shown.paused is not None and shown.alive:
        return states.PAUSED
    if shown.suspended is not None:
        return states.SUSPENDED
    if shown.stalled is not None and shown.alive:
        return states.STALLED
    stalest = shown.stalest
    standing = stalest is not None and quiet(stalest)
    return states.QUIET if shown.phase in ("starting", "running") and standing else shown.phase


def _health(shown: Snapshot, ages: bool) -> str:
    stalest = shown.stalest
    if shown.recovery is not None and shown.phase in ("starting", "running"):
        return "its ranks recover"
    if shown.phase == "waiting" and shown.group is not None:
        return "the start waits for the other members of the group"
    if shown.phase not in ("starting", "running"):
        return states.RUN.get(shown.phase, "")
    if shown.first_beat is not None and shown.phase == "starting":
        return (
            f"no heartbeat since this start; in an earlier start the first one came after {seconds(shown.first_beat)}"
        )
    if shown.phase == "running" and not shown.ranks:  # it has moved, so there are heartbeats
        return "its heartbeats cannot be read from here"
    if not shown.ranks or (stalest is None and any(rank.state == "starting" for rank in shown.ranks)):
        return "no heartbeat yet"
    if stalest is None:
        return "no rank is active"
    announced = None if stalest.rule is None else RULES[stalest.rule].announced
    if announced is not None:
        return f"healthy, {announced(Silent(stalest.rank, stalest.step, stalest.section))}"
    if shown.stalled is not None:
        since = f" for {seconds(shown.stalled.age)}" if ages else ""
        return f"{states.STALLED}, {sentences.rank(shown.stalled.rank)} has not moved{since}"
    if quiet(stalest) or shown.wait is not None:  # a look has shown that it stands still
        since = f" for {seconds(stalest.age or 0.0)}" if ages else ""
        return f"{states.QUIET}, {sentences.rank(stalest.rank)} has not moved{since}"
    return "healthy, no step yet" if shown.phase == "starting" else f"healthy, {states.RUN['running']}"


def _lines(shown: Snapshot) -> Iterator[SummaryLine]:
    if todo := what_to_do(shown):
        yield "do", todo
    if shown.phase == "done":
        yield from _end(shown)
    if shown.next is not None and shown.alive:
        yield "next", shown.next
    if shown.wait is not None and shown.alive:
        yield "wait", shown.wait
    if shown.stalled is not None and shown.alive:
        yield "stalled", f"{sentences.rank(shown.stalled.rank)} for {seconds(shown.stalled.age)}; {ADVICE}"
    if shown.recovery is not None and shown.alive:
        yield "recovery", shown.recovery
    if shown.trouble is not None:
        incident = shown.trouble
        why = "" if incident.why == shown.why else f": {incident.why}"
        yield "incident", f"{ago(incident.time)}, {incident.title}{why}"
        if incident.cause == "loss":
            pass  # nobody was left to write one
        elif incident.member is not None:
            yield "report", f"on member {incident.member} ({incident.node}); `ftctl report` fetches it"
        elif incident.report is not None or incident.cause == "hang":
            yield "report", incident.report or "none was written"
    elif shown.alive:
        yield "incident", "none so far"
    if shown.restarts or shown.left:
        yield "restarts", restarts(shown)
    if shown.recovered or (shown.round or 1) > 1:
        yield "recovered", _recovered(shown)
    if shown.next_start is not None and shown.alive:
        yield "next start", _next_start(shown.next_start)
    if shown.group is not None:
        yield "group", f"{shown.group}; its members: ftctl status --all"
    if shown.heartbeats is not None and shown.alive:
        yield "heartbeats", shown.heartbeats
    yield from _progress(shown)
    if shown.ranks:
        yield from _ranks(shown)
    if shown.devices:
        faulty = [device for device in shown.devices if device.fault]
        yield "devices", _devices(shown)
        yield from (("", f"{_named(device)}: {device.fault}") for device in faulty[:FAULTY])
        if faulty[FAULTY:]:
            yield "", f"and {len(faulty) - FAULTY} more with a fault"
    longest = max((len(limit.name) for limit in shown.limits), default=0)
    for number, limit in enumerate(shown.limits):
        value = "auto" if limit.proved else "off" if limit.seconds is None else seconds(limit.seconds)
        yield "" if number else "timeouts", f"{limit.name:<{longest}} {value:<7} {limit.source}"
    if shown.wall:
        yield "goodput", goodput(shown)
    yield "job", _command(shown)
    schedule = "" if shown.schedule_cnt is None else f", schedule {shown.schedule_cnt}"
    yield "started", f"{ago(shown.began)} (ftrun {shown.version or 'of an unknown version'}{schedule})"
    if shown.ended is not None:
        yield "ended" if shown.phase == "done" else "last seen", ago(shown.ended)
    yield "records", shown.run_dir
    for problem in shown.problems:
        yield "warning", problem


def _end(shown: Snapshot) -> Iterator[SummaryLine]:
    if shown.why:
        yield "why", shown.why
    known = exit_codes.named(shown.verdict)
    action = "act as it would without ftrun" if known is None else f"{known.outer}: {meaning(shown, known)}"
    yield "scheduler", f"should {action}"


def meaning(shown: Snapshot, verdict: exit_codes.Verdict) -> str:
    """The meaning of the verdict with which this run has ended."""
    missing = verdict is exit_codes.HANG_LIMIT and hung_nowhere(shown)
    return "a member of its group was missing" if missing else verdict.meaning


def restarts(shown: Snapshot) -> str:
    """All so far, and for each cause how many of its budget are used up."""
    done = {why: number for why, number in shown.restarts.items() if number}
    total = ", ".join(f"{number} after {REASONS.get(why, why)}" for why, number in done.items()) or "none"
    if shown.phase == "done" or not shown.left:
        return total
    budgets = [_budget(shown, cause) for cause in shown.counts if _permitted(shown, cause)]
    final = [cause for cause in shown.counts if not _permitted(shown, cause)]
    ends = f"; a {' or a '.join(final)} ends the job" if final else ""
    return f"{total}; consecutive without progress: {', '.join(budgets) or 'none permitted'}{ends}"


def _recovered(shown: Snapshot) -> str:
    """The recoveries below a restart of all ranks."""
    names = {"retry": "by a retry", "rank": "by replacing ranks"}
    done = [f"{number} {names.get(rung, rung)}" for rung, number in shown.recovered.items()]
    now = [] if shown.round is None else [f"round {shown.round}"]
    return ", ".join([*done, *now])


def _next_start(found: NextStart) -> str:
    if found.ready == found.of:
        text = "warm: its imports are done"
    else:
        what = "cold" if found.ready == 0 else f"warm for {found.ready} of {found.of} processes"
        text = f"{what}: {found.why or 'standbys are not ready yet'}"
    if found.saved is None:
        return text
    return f"{text}; the last warm start {'saved' if found.saved >= 0 else 'lost'} {seconds(abs(found.saved))}"


def _permitted(shown: Snapshot, cause: str) -> bool:
    """Whether this cause has a restart budget at all."""
    return shown.left.get(cause) is None or shown.counts[cause] + (shown.left[cause] or 0) > 0


def _budget(shown: Snapshot, cause: str) -> str:
    count, left = shown.counts[cause], shown.left.get(cause)
    return f"{cause} {count}" if left is None else f"{cause} {count} of {count + left}"


def _progress(shown: Snapshot) -> Iterator[SummaryLine]:
    if shown.step is not None:
        best = f", best {shown.best_step}" if (shown.best_step or 0) > shown.step else ""
        pace = shown.step_time
        rate = f", {step_duration(pace)} per step, {1 / pace:.3g} steps/s" if pace else ""
        if still := no_step(shown):
            rate = f", {still}" + (f"; before that {step_duration(pace)} per step" if pace else "")
        yield "step", f"{shown.step}{best}{rate}"
    if shown.checkpoint is not None or shown.checkpoint_step is not None:
        at = "" if shown.checkpoint_step is None else f"step {shown.checkpoint_step}"
        age = "" if shown.checkpoint_age is None else saved(shown)
        when = ", ".join(part for part in (at, age) if part)
        yield "checkpoint", sentences.short(f"{when}: {shown.checkpoint}" if shown.checkpoint else when, PATH)
    elif shown.step is not None:
        yield "checkpoint", "none reported"


def straggler(shown: Snapshot, rank: RankNow) -> str:
    """Which rank it is, where, and why it is one."""
    device = f", device {rank.device}" if rank.device else ""
    return f"{rank.called} on {shown.node}{device}: {rank.straggler}"


def _ranks(shown: Snapshot) -> Iterator[SummaryLine]:
    present = [states.QUIET if rank.state == "moving" and quiet(rank) else rank.state for rank in shown.ranks]
    counts = [f"{present.count(state)} {name}" for state, name in RANK_STATES.items() if state in present]
    yield "ranks", f"{len(shown.ranks)}: {', '.join(counts)}"
    slowest, stalest = shown.slowest, shown.stalest
    if slowest is not None and len(shown.ranks) > 1:
        behind = max((rank.step or 0) for rank in shown.ranks) - (slowest.step or 0)
        text = f"{slowest.called} at step {slowest.step}, {several(behind, 'step')} behind"
        yield "slowest", text if behind else f"none, all are at step {slowest.step}"
    if stalest is not None:
        yield "stalest", _stalest(stalest)
    slow = [rank for rank in shown.ranks if rank.straggler is not None]
    yield from ((states.STRAGGLER, straggler(shown, rank)) for rank in slow[:SLOW])
    if slow[SLOW:]:
        yield "", f"and {len(slow) - SLOW} more stragglers"
    failed = [rank for rank in shown.ranks if rank.state == "exited"]
    yield from (("exited", f"{rank.called} with {rank.exit}") for rank in failed[:SLOW])


def _stalest(rank: RankNow) -> str:
    inside = f" in section {rank.section}" if rank.section else ""
    limit = "" if rank.limit is None else f" of {seconds(rank.limit)}"
    return f"{sentences.member(rank.rank, rank.pid, inside)}: {seconds(rank.age or 0.0)}{limit}"


def _devices(shown: Snapshot) -> str:
    utils = [device.util for device in shown.devices if device.util is not None]
    powers = [device.power for device in shown.devices if device.power is not None]
    used = sum(device.memory_used or 0 for device in shown.devices)
    total = sum(device.memory_total or 0 for device in shown.devices)
    parts = [several(len(shown.devices), shown.devices[0].name or "device")]
    healthy = sum(device.health == "ok" and not device.fault for device in shown.devices)
    if any(device.health is not None for device in shown.devices):
        parts.append("health ok" if healthy == len(shown.devices) else f"health ok: {healthy} of {len(shown.devices)}")
    if utils:
        parts.append(f"util {min(utils):.0f}-{max(utils):.0f}%")
    if total:
        parts.append(f"memory {used / 2**30:.0f} of {total / 2**30:.0f} GiB")
    if powers:
        parts.append(f"{sum(powers):.0f} W")
    parts.append(f"{seconds(max(device.age for device in shown.devices))} ago")
    return ", ".join(parts)


def _named(device: DeviceNow) -> str:
    return device.id if device.index is None or device.index < 0 else f"{device.id} (number {device.index})"


def goodput(shown: Snapshot) -> str:
    """`93% of 2h 3m; lost 8m: 5m hang, 2m redone, 1m startup`, or why it is unknown."""
    wall = shown.wall or 0.0
    share = f"- ({NO_GOODPUT})" if shown.goodput is None else f"{100 * shown.goodput:.0f}% of {seconds(wall)}"
    worth = max(LEAST, SHARE * wall)
    lost = sorted(((why, value) for why, value in shown.lost.items() if value >= worth), key=lambda o: -o[1])
    if not lost:
        return share
    total = seconds(sum(shown.lost.values()))
    parts = f"lost {total}: " + ", ".join(f"{seconds(value)} {why}" for why, value in lost)
    return f"{share}; {parts}"


def _command(shown: Snapshot) -> str:
    text = sentences.short(" ".join(shown.command), COMMAND) or "unknown"
    part = f"phase {shown.part}: " if shown.part else ""
    return f"{part}{text}" + (f" (process {shown.pid})" if shown.pid and shown.alive else "")


def saved(shown: Snapshot) -> str:
    """When the last checkpoint was saved: `2026-11-21 22:33:20 UTC, 4m ago`."""
    return f"{_moment(shown.checkpoint_time)}{seconds(shown.checkpoint_age or 0.0)} ago"


def _moment(time: str | None) -> str:
    """`2026-11-21 22:33:20 UTC, `; empty where there is none."""
    try:
        return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M:%S} UTC, " if time else ""
    except ValueError:
        return ""


def ago(time: str | None) -> str:
    """`2026-11-21 22:33:20 UTC, 41s ago`."""
    passed = age(time)
    return f"{_moment(time)}{passed}" if passed else time or "at an unknown time"


def age(time: str | None) -> str:
    """`41s ago`, `3 days ago`; empty where the time is unknown."""
    if (at := records.seconds(time)) is None:
        return ""
    passed = datetime.now(UTC).timestamp() - at
    return f"{f'{passed / DAY:.0f} days' if passed > 2 * DAY else seconds(max(0.0, passed))} ago"
