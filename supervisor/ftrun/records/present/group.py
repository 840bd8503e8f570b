"""The whole group as one member sees it: `group.json` of its run dir, which its messenger writes, with its own row made
anew.  It is shown also when other members, member 0 among them, are gone: each row says how old it is."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ftrun.core.group.losses import LossWait
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.core.text import sentences, states
from ftrun.core.text.durations import seconds
from ftrun.host import procfs
from ftrun.messages import group_view
from ftrun.messages.codec import Malformed
from ftrun.messages.group_view import PACES, TEXT, GroupView, MemberRow, RankPace, SlowRank
from ftrun.records.files import reports
from ftrun.records.files.recent_events import Incident, incident_elsewhere
from ftrun.records.present import own_ranks, summary
from ftrun.records.present.snapshot import JobNow, Snapshot

STEP: Final = 1 << 53  # the largest step that is passed on
DEVICE: Final = 64  # characters of the id of a device


def own_row(shown: Snapshot, rank: int, node: str, now: float) -> MemberRow:
    """The row of this member as of `now`, by CLOCK_MONOTONIC.  Pure, except that it looks for the report."""
    active = [one for one in shown.ranks if one.state not in own_ranks.ENDED]
    silent = [one.alive if one.alive is not None else one.age for one in active]
    known = [age for age in silent if age is not None]
    trouble = shown.trouble
    return MemberRow(
        rank=rank,
        node=node[:TEXT],
        phase=shown.phase if shown.paused is None or not shown.alive else states.PAUSED,
        health=summary.headline(shown)[:TEXT],
        attempt=shown.attempt,
        at=now,
        step=shown.step if shown.step is None or shown.step <= STEP else None,
        step_time=shown.step_time,
        beat=round(max(known), 3) if known else None,
        ranks=len(active),
        trouble=None if trouble is None else f"{trouble.cause} in attempt {trouble.attempt}: {trouble.why}"[:TEXT],
        report=max(reports.collected(shown.run_dir), default=None),
        run_dir=os.path.abspath(shown.run_dir)[:TEXT],
        paces=tuple(
            RankPace(one.rank, round(one.step_time, 6), (one.device or "")[:DEVICE], one.work)
            for one in active
            if one.step_time
        )[:PACES],
    )


OLD: Final = 15.0  # s; an older row says so
HOST: Final = 16  # columns
ENDED: Final = ("done", "cut off")
ILL: Final = ("suspect", "stopping", "healing", "cut off")  # phases of another member that concern the whole job
WIDE: Final = 80  # columns
NARROW: Final = f"{'member':>6} {'state':<10} {'step':>9}  trouble"
HEAD: Final = f"{'member':>6} {'host':<{HOST}} {'state':<10} {'attempt':>7} {'step':>9} {'heartbeat':>9}  trouble"


class GroupNow(NamedTuple):
    """`seen_from`: the member whose run dir this is.  `contact`: seconds since rank 0 replied last; None: it is rank 0,
    or never had contact.  `silence`, `lease`: seconds without contact after which rank 0 counts as lost, and the job
    ends here.  `ages`: seconds since each row was made, by rank; None: of another boot, so unknown.  `loss`: until when
    lost members are waited for; None: for none, or not known.  `cause`: the last incident of the job, if it was on
    another member.  `holder`: the member that has the coordinator; `takeover`: seconds until its lease in a shared
    folder ends, and another member takes its place; None: there is none.  `over`: this member has
    ended, and all is as it saw it last."""

    size: int
    seen_from: int
    epoch: int
    what: str
    why: str
    waits_for: tuple[int, ...]
    rows: tuple[MemberRow, ...]
    ages: dict[int, float | None]
    contact: float | None = None
    loss: LossWait | None = None
    silence: float = OLD
    lease: float = 0.0
    cause: Incident | None = None
    holder: int = 0
    takeover: float | None = None
    over: bool = False

    @property
    def is_cut_off(self) -> bool:
        """Whether rank 0 has not replied for long."""
        return self.contact is not None and self.contact > min(OLD, self.silence)


def read(shown: Snapshot, now: float | None = None) -> GroupNow | None:
    """None for a run that is not a member of a group; `shown` is the snapshot of its run dir."""
    try:
        content = procfs.read(f"{shown.run_dir}/{group_view.FILE}", group_view.FILE_LIMIT)
        view = group_view.load(GroupView, content or b"", group_view.FILE_LIMIT)
    except Malformed:
        return None
    if view.schema != group_view.SCHEMA:
        return None
    now = time.monotonic() if now is None else now
    if shown.full_disk or not shown.alive:  # it is not written any more: the silence since then says nothing
        now = min(now, max(view.now, view.contact, *(row.at for row in view.rows)))
    same_clock = view.boot == procfs.boot_id()
    rows = {row.rank: row for row in view.rows}
    own = own_row(shown, view.rank, shown.node, now)
    known = rows.get(view.rank)
    rows[view.rank] = own._replace(slow=known.slow if known else (), paces=())
    ages = {rank: max(0.0, now - row.at) if same_clock or rank == view.rank else None for rank, row in rows.items()}
    heard = max(view.now, view.contact)
    contact = max(0.0, now - heard) if view.rank and heard and same_clock else None
    ordered = tuple(rows[rank] for rank in sorted(rows))
    loss = view.loss if same_clock else None
    if loss is not None:
        loss = loss._replace(left=max(0.0, loss.left - max(0.0, now - view.now)))
    order = view.epoch, view.what, view.why, view.waits_for
    cause = incident_elsewhere(shown.run_dir, view.rank)
    if cause is not None and not cause.node and cause.member in rows:
        cause = cause._replace(node=rows[cause.member].node)
    found = GroupNow(view.size, view.rank, *order, ordered, ages, contact, loss, view.silence or OLD, view.lease, cause)
    takeover = max(0.0, view.takeover - now) if view.takeover and same_clock else None
    return found._replace(holder=view.holder, takeover=takeover, over=not shown.alive)


def is_gone(found: GroupNow, row: MemberRow) -> bool:
    """Whether nothing was heard of this member lately, though it has not ended."""
    age = found.ages.get(row.rank)
    return (
        row.rank != found.seen_from
        and row.phase not in ENDED
        and not (found.over and row.present)
        and (not row.present or age is None or age > max(OLD, 3 * group_view.period(found.size)))
    )


def lost(found: GroupNow) -> list[int]:
    """The members that are lost or not heard of, as far as this one knows.  Without contact to rank 0 it knows of the
    others only what was so before."""
    gone = [row.rank for row in found.rows if (not row.present if found.is_cut_off else is_gone(found, row))]
    known = () if found.loss is None else found.loss.members
    return sorted({*gone, *known, *((found.holder,) if found.is_cut_off else ())} - {found.seen_from})


def state(found: GroupNow, row: MemberRow) -> str:
    """The state of a member in one word or two."""
    if not is_gone(found, row):
        return row.phase
    return states.UNKNOWN if found.is_cut_off and row.rank and row.present else states.NO_CONTACT


def marked(shown: Snapshot, found: GroupNow | None) -> Snapshot:
    """The snapshot with what only the view of the whole group has: the stragglers that a comparison over all members
    has found among its ranks, until when a lost member is waited for, and what has happened on another member."""
    if found is None:
        return shown
    cause = found.cause
    if cause is not None and (shown.trouble is None or shown.trouble.attempt <= cause.attempt):
        shown = shown._replace(trouble=cause)
    if not shown.alive:
        return shown
    number = 0 if found.loss is None else found.loss.number
    job = _job(shown, found)
    shown = shown._replace(job=job, lost_members=max(number, len(lost(found))))
    left = _lease_left(found) if found.takeover is None else found.takeover
    if found.loss is not None and shown.phase in ("waiting", "spare"):
        shown = shown._replace(deadline=found.loss.left, next=_as_sentence(loss_sentence(found.loss, found.size)))
    elif found.is_cut_off and job is not None and shown.phase in ("waiting", "spare"):
        shown = shown._replace(deadline=left, next=_as_sentence(job.text))
    elif found.is_cut_off and shown.phase in states.LIVE:
        who = _named(found, found.holder)
        ends = f"the job ends with {exit_codes.HANG_LIMIT.code} in {seconds(left)} unless {who} is back"
        if found.takeover is not None:
            ends = f"another member takes the place of {who} in {seconds(left)}, unless it is back"
        shown = shown._replace(deadline=left, next=f"The command keeps running; {ends}.")
    if found.is_cut_off and shown.group:
        shown = shown._replace(group=f"{shown.group}, when rank 0 was last heard of")
    slow = {one.rank: one for row in found.rows if row.rank == found.seen_from for one in row.slow}
    if shown.paused is not None:
        return shown
    return shown._replace(
        ranks=tuple(
            rank._replace(straggler=_why(slow[rank.rank], "the others of the group"))
            if rank.rank in slow and rank.straggler is None
            else rank
            for rank in shown.ranks
        )
    )


def _as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _lease_left(found: GroupNow) -> float:
    return max(0.0, found.lease - (found.contact or 0.0))


def _job(shown: Snapshot, found: GroupNow) -> JobNow | None:
    """What is wrong with the job beside this member, the worst first."""
    if found.is_cut_off:
        left, ends = _lease_left(found), f"then the job ends with {exit_codes.HANG_LIMIT.code}"
        who = f"{_named(found, found.holder)} is missing"
        if found.takeover is not None:
            since = f"no contact for {seconds(found.contact or 0.0)}"
            waits = f"its lease in the shared folder ends at {_clock(found.takeover)}, {seconds(found.takeover)} more"
            follows = "then its command has ended, and another member takes its place"
            return JobNow(f"{who}: {since}; {waits}, {follows}", f"{who}; {follows}", True)
        since = f"no contact for {seconds(found.contact or 0.0)}"
        waits = f"it is waited for until {_clock(left)}, {seconds(left)} more, {ends}"
        return JobNow(f"{who}: {since}; {waits}", f"{who}; it is waited for, {ends}", True)
    if found.loss is not None:
        text, one = loss_sentence(found.loss, found.size), found.loss.members[0]
        if found.loss.number == 1:
            text = text.replace(f"member {one} ", f"{_named(found, one)} ", 1)
        return JobNow(f"{text}, at {_clock(found.loss.left)}", text.partition(";")[0], True)
    gone = [row for row in found.rows if is_gone(found, row)]
    if gone:
        age, more = found.ages.get(gone[0].rank), f" and {len(gone) - 1} more" if gone[1:] else ""
        who = f"no contact with {_named(found, gone[0].rank)}{more}"
        return JobNow(who + ("" if age is None else f" for {seconds(age)}"), who, True)
    if shown.phase == "waiting" and (awaited := [rank for rank in found.waits_for if rank != found.seen_from]):
        what = f"the next start waits for {_members(tuple(awaited))}"
        return JobNow(what, what)
    ill = next((row for row in found.rows if row.rank != found.seen_from and row.phase in ILL), None)
    if ill is not None and shown.phase in states.LIVE and shown.phase != "suspect":
        who = _named(found, ill.rank)
        return JobNow(f"{who}: {ill.health}", f"{who}: {ill.phase}")
    return None


def _named(found: GroupNow, rank: int) -> str:
    node = next((row.node for row in found.rows if row.rank == rank), "")
    return f"member {rank} ({node})" if node else f"member {rank}"


def _clock(left: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=left):%H:%M:%S} UTC"


def _why(one: SlowRank, others: str) -> str:
    what, own = ("step_time", one.step_time) if one.work is None else ("work", one.work)
    return sentences.slower(what, own, one.usual, others)


def needs_attention(found: GroupNow, row: MemberRow) -> bool:
    return is_gone(found, row) or bool(row.slow) or row.phase in ("suspect", "cut off", states.PAUSED)


def document(found: GroupNow) -> dict[str, Any]:
    """The JSON of the view; the members that need attention come first."""
    members = []
    for row in sorted(found.rows, key=lambda row: not needs_attention(found, row)):
        plain: dict[str, Any] = {name: value for name, value in row._asdict().items() if name not in ("at", "paces")}
        plain["slow"] = [one._asdict() | {"text": straggler(one)} for one in row.slow]
        plain |= {"age": found.ages.get(row.rank), "gone": is_gone(found, row), "state": state(found, row)}
        plain["old"] = _old(found, row) or None
        members.append(plain)
    head = {name: value for name, value in found._asdict().items() if name not in ("rows", "ages")}
    missing = [rank for rank in range(found.size) if rank not in found.ages]
    head["loss"] = found.loss and {**found.loss._asdict(), "text": loss_sentence(found.loss, found.size)}
    return {**head, "headline": headline(found), "never_seen": missing, "members": members}


# --- as text ----------------------------------------------------------------------------------------------------------


def headline(found: GroupNow) -> str:
    """The group, the coordinator's view of it, and who is waited for."""
    if found.over:  # its last order may be from long before the end, and nobody waits for anybody
        return f"group of {found.size}, epoch {found.epoch}, as member {found.seen_from}, which has ended, saw it last"
    why = f": {found.why}" if found.why and found.what != "run" else ""
    others = tuple(rank for rank in found.waits_for if found.loss is None or rank not in found.loss.members)
    waits = f"; waits for {_members(others)}" if others else ""
    waits += f"; {loss_sentence(found.loss, found.size)}" if found.loss is not None else ""
    missing = ""
    if found.contact is not None and found.is_cut_off:
        missing = (
            f"; no contact with member {found.holder} for {seconds(found.contact)}, so the other rows are as of then"
        )
    elif found.seen_from and found.contact is None:
        missing = f"; no contact with member {found.holder}"
    what = states.group(found.what)
    return (
        f"group of {found.size}, epoch {found.epoch}, {what}{why}{waits}{missing} (seen from member {found.seen_from})"
    )


def loss_sentence(loss: LossWait, size: int) -> str:
    """Who is lost, until when the group waits, and what follows: `member 2 is lost; the group waits 48s more for it,
    then goes on with 2 of 3 members`."""
    one, left = loss.number == 1, f"{seconds(loss.left)} more"
    if loss.then == "start":
        who = f"{'an earlier ftrun' if one else 'earlier ftruns'} of {_members(loss.members, loss.number)}"
        leases = "its lease is over, or as soon as it is" if one else "their leases are over, or as soon as they are"
        return f"{who} may still be at work; all start in {seconds(loss.left)}, when {leases} certainly dead"
    who = f"{_members(loss.members, loss.number)} {'is' if one else 'are'} lost"
    if loss.then == "replace":
        certain = f"in {seconds(loss.left)}, when it is certain that nothing of {'it' if one else 'them'} runs any more"
        when = certain if loss.left else "once the others have ended their command"
        return f"{who}; {'a spare takes its place' if one else 'spares take their places'} {when}"
    goes_on, them = f"goes on with {loss.working} of {size} members", "it" if one else "them"
    if not loss.left:
        then = f"and {goes_on}" if loss.then == "go on" else f"and the job ends with {loss.code}"
        return f"{who}; the group does not wait for {them} any more, {then}"
    then = goes_on if loss.then == "go on" else f"the job ends with {loss.code}"
    return f"{who}; the group waits {left} for {them}, then {then}"


def table(found: GroupNow, columns: int = WIDE) -> Iterator[tuple[str, bool]]:
    """The heading and a row for each member, at most 80 columns, and less where fewer `columns` are there, since the
    trouble is last; True for a row that needs attention."""
    wide = columns >= WIDE
    yield HEAD if wide else NARROW, False
    for row in found.rows:
        age = found.ages.get(row.rank) or 0.0
        beat = "" if row.beat is None else f"{seconds(row.beat + age)} ago"
        step = "" if row.step is None else str(row.step)
        trouble = row.trouble.partition(":")[0].replace(" in attempt ", " in ") if row.trouble else ""
        trouble = f"{states.STRAGGLER}: {', '.join(str(one.rank) for one in row.slow)}" if row.slow else trouble
        trouble = "; ".join(filter(None, (trouble, old))) if (old := _old(found, row)) else trouble or "none"
        name = sentences.short(row.node, HOST)
        more = f"{row.attempt:>7} {step:>9} {beat:>9}  {trouble}" if wide else f"{step:>9}  {trouble}"
        host = f"{name:<{HOST}} " if wide else ""
        yield f"{row.rank:>6} {host}{state(found, row):<10} {more}"[: min(WIDE, columns)], needs_attention(found, row)
    for rank in range(found.size):
        if rank not in found.ages:
            yield f"{rank:>6} {'':<{HOST}} never seen" if wide else f"{rank:>6} never seen", True


def _old(found: GroupNow, row: MemberRow) -> str:
    """`40s old` for a row that is; empty for others, and for members that have ended."""
    age = found.ages.get(row.rank)
    if row.rank == found.seen_from or row.phase in ENDED or (age is not None and age <= OLD):
        return ""
    return "of unknown age" if age is None else f"{seconds(age)} old"


def details(found: GroupNow) -> Iterator[str]:
    """What the table has no room for: of each member the trouble, its stragglers and its report."""
    for row in found.rows:
        who = f"member {row.rank} ({row.node})"
        if is_gone(found, row):
            age = found.ages.get(row.rank)
            when = "at an unknown time" if age is None else f"{seconds(age)} ago"
            yield f"{who}: last heard of {when}, then {row.health}"
        if row.trouble:
            own = "" if row.rank == found.seen_from else f" --member {row.rank}"
            report = f"; report: ftctl report{own}" if row.report is not None else ""
            yield f"{who}: {row.trouble}{report}"
        yield from (f"{who}: {straggler(one)}" for one in row.slow)


def straggler(one: SlowRank) -> str:
    who = sentences.placed(sentences.rank(one.rank), one.device)
    return f"{who} is a {states.STRAGGLER}: {_why(one, 'the others')}, for {seconds(one.since)}"


def _members(ranks: tuple[int, ...], number: int | None = None) -> str:
    """The members by their numbers, as text.  `number`: of all of them, where `ranks` has only the first."""
    number = len(ranks) if number is None else number
    shown = ", ".join(map(str, ranks[:8])) + (f" and {number - 8} more" if number > 8 else "")
    return f"member{'s' if number > 1 else ''} {shown}"
