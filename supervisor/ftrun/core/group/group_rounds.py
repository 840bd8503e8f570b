"""The rounds that the ranks of all members have in common within an epoch, as the coordinator leads them.  Pure.

A round is left by all members when one of them reports that it leaves it, or when a container is lost.  The next one is
ordered only when every member reports that all its ranks wait at this one.  What is ordered follows from the reports
alone, so that a new coordinator orders the same again.  What cannot be done together is left to the restart of all
members, as without recovery.  So is the loss of a container where the members of an epoch may change (MIN:MAX, spares):
the next epoch then begins without it, or with a spare.
"""

from typing import Final

from ftrun.core.group.losses import Losses, NodeNote
from ftrun.core.group.membership import LATE, Coordinator, GroupEffects, Steady, kind_of
from ftrun.core.group.places import agree
from ftrun.core.group.root_cause import MemberState
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.shared import GroupRound, NodeRounds, Rung, newness

MOST_RANKS: Final = 1024  # that one round replaces
UNEXPLAINED: Final = "the evidence of no member names a rank as the cause"
BETWEEN: Final = ("leaving", "waiting")


class RoundsStep(NamedTuple):
    """`goes_on`: the epoch goes on, although members are missing.  `drain`: why all members have to restart."""

    group: Coordinator
    effects: GroupEffects = ()
    goes_on: bool = False
    drain: str | None = None


class _View(NamedTuple):
    """The members by what they can do for a next round.  `lost`: their containers, or ftruns, are not those that began
    the round, and the new ones have not started their ranks; `missing` are those of them that have not come yet, and
    `ready` those that can start."""

    running: dict[int, MemberState]
    lost: frozenset[int]
    missing: frozenset[int]
    ready: frozenset[int]
    other: tuple[MemberState, ...]

    @property
    def rounds(self) -> dict[int, NodeRounds]:
        return {rank: m.report.rounds for rank, m in self.running.items() if m.report.rounds is not None}


def follow(group: Coordinator, phase: Steady, now: float) -> RoundsStep:
    """What the reports mean for the ranks of an epoch that all members run."""
    order = group.order.round
    if order is None:
        return RoundsStep(_opened(group))
    view = _view(group)
    if order.what == "close":
        if phase.round_due is None:
            return RoundsStep(_until_closed(group, phase, now))
        return RoundsStep(group, drain=order.why if now >= phase.round_due else None)
    leaves = bool(view.lost) or any(_has_left(one, order) for one in view.rounds.values())
    if order.what == "work" and not leaves:
        if _is_unexplained(group, order, view):
            return _given_up(group, phase, order, view, UNEXPLAINED, now)
        return RoundsStep(_proved(group, order, view))
    if (why := _obstacle(group, phase, order, view, now)) is not None:
        return _given_up(group, phase, order, view, why, now)
    if _all_wait(group, order, view):
        return _begin(group, phase, order, view, now)
    return _leave(group, phase, order, view, now)


def adopted(group: Coordinator) -> GroupRound | None:
    """The round of a group whose coordinator is new: the last that any member has followed."""
    known = (m.report.rounds.adopted for m in group.working if m.report.rounds is not None)
    places = ("work", "leave", "close")
    found = [one for one in known if one is not None]
    return max(found, key=lambda one: (one.number, places.index(one.what)), default=None)


def can_admit(group: Coordinator) -> bool:
    """Whether members that come to a new coordinator may join those at work: the ranks of these are in rounds."""
    view = _view(group)
    followed = (m.report.rounds is not None and m.report.rounds.adopted is not None for m in view.running.values())
    return group.shape.is_fixed and bool(view.running) and not view.other and all(followed)


# --- what the members do ----------------------------------------------------------------------------------------------


def _view(group: Coordinator) -> _View:
    running, other = dict[int, MemberState](), list[MemberState]()
    lost, missing, ready = set[int](), set[int](), set[int]()
    for rank, member in sorted((rank, group.members[rank]) for rank in group.placed & group.members.keys()):
        kind = kind_of(member, group.epoch, rank in group.fences)
        is_new = member.report.state == "ready" and member.report.ran < group.epoch
        if kind == "running":
            running[rank] = member
        elif kind in ("gone", "fenced") or is_new:
            lost.add(rank)
            if kind == "gone":
                missing.add(rank)
            if is_new and kind in ("behind", "ready"):
                ready.add(rank)
        else:
            other.append(member)
    return _View(running, frozenset(lost), frozenset(missing), frozenset(ready), tuple(other))


def _opened(group: Coordinator) -> Coordinator:
    """The ranks recover together once those of every member have said that they can."""
    members = [group.members.get(rank) for rank in _places(group)]
    rungs = members[0].report.rounds.rungs if members[0] is not None and members[0].report.rounds is not None else ()
    if not rungs:
        return group
    for member in members:
        rounds = member.report.rounds if member is not None else None
        if member is None or rounds is None or rounds.progress != "ready" or rounds.rungs != rungs:
            return group
        if kind_of(member, group.epoch, False) != "running":
            return group
    return group._replace(order=group.order._replace(round=GroupRound()))


def _places(group: Coordinator) -> tuple[int, ...]:
    """The members that have a place in the epoch, in the order of their places: the first one has rank 0."""
    return group.places or tuple(sorted(group.placed))


def _has_left(rounds: NodeRounds, order: GroupRound) -> bool:
    """Whether this member leaves the round, or has begun a different round of the same number, so that not all share
    it."""
    if rounds.number != order.number:
        return False
    differs = rounds.adopted is not None and (rounds.adopted.what, rounds.adopted.port) == ("work", order.port)
    return rounds.progress in BETWEEN or (rounds.progress in ("working", "proved") and not differs)


def _is_unexplained(group: Coordinator, order: GroupRound, view: _View) -> bool:
    """Whether each member has declared a hang in this round, and no member's evidence names a rank: no further evidence
    will come."""
    hung = [rank for rank, one in view.rounds.items() if one.lacks_culprit and one.number == order.number]
    return len(hung) == len(_places(group))


def _proved(group: Coordinator, order: GroupRound, view: _View) -> Coordinator:
    if order.rung is None:
        return group
    for rank in _places(group):
        rounds = view.rounds.get(rank)
        if rank in view.running and (rounds is None or rounds.number != order.number or rounds.progress != "proved"):
            return group
    return _with(group, order._replace(rung=None, ranks=(), why="", joining=()))


def _obstacle(group: Coordinator, phase: Steady, order: GroupRound, view: _View, now: float) -> str | None:
    """Why the members cannot come to a next round together."""
    for member in view.other:
        return f"{member.name} does not run its command any more"
    for rank, member in view.running.items():
        rounds = view.rounds.get(rank)
        if rank in order.joining and rounds is not None and rounds.adopted is None:
            continue  # its ranks are being started
        if rounds is None or rounds.progress == "closed" or rounds.number + 1 < order.number:
            return f"the ranks of {member.name} do not recover any more"
        if rounds.ended:
            return f"a rank of {member.name} has ended already"
    rungs = {rounds.rungs for rounds in view.rounds.values()}
    counts = _counts(group)
    if counts is None:
        return "the numbers of the ranks are not known"
    for rank in sorted(view.lost):
        name = group.members[rank].name
        if not group.shape.is_fixed:
            return f"{name} is lost, and the group may go on without it"
        if not view.rounds or not all("rank" in one for one in rungs):
            return "no rank may be replaced (--recover)"
        if order.rung == "rank" and order.what == "work":
            return f"{name} was lost in the round that had to prove the recovery"
        if rank in order.joining and rank not in view.ready:
            return f"{name} was lost again while the ranks recovered"
        rounds = group.members[rank].report.rounds
        if rank in view.ready and (rounds is None or rounds.rungs not in rungs):
            return f"{name} has other options (--recover) than the other members"
    if len(_replaced(group, order, view)) > MOST_RANKS:
        return f"more than {MOST_RANKS} ranks would have to be replaced"
    if phase.round_due is not None and now >= phase.round_due:
        known = [rank for rank in sorted(group.placed) if rank in group.members]
        late = [group.members[rank].name for rank in known if not _waits(view, rank, order.number)]
        return f"{', '.join(late[:3])} did not come to the next round in time"
    return None


def _waits(view: _View, rank: int, number: int) -> bool:
    rounds = view.rounds.get(rank)
    return rounds is not None and rounds.number == number and rounds.progress == "waiting"


def _all_wait(group: Coordinator, order: GroupRound, view: _View) -> bool:
    """Whether all ranks wait for the next round, and the member with rank 0 has reserved a new port for it."""
    places = _places(group)
    if len(view.running) != len(places) or not all(_waits(view, rank, order.number) for rank in view.running):
        return False
    offer, world = view.running[places[0]].report.ranks, group.order.world
    used = {order.port, world.port if world is not None else 0}
    return offer is not None and offer.port not in {*used, 0}


# --- what follows -----------------------------------------------------------------------------------------------------


def _with(group: Coordinator, order: GroupRound) -> Coordinator:
    return group._replace(order=group.order._replace(round=order))


def _given_up(group: Coordinator, phase: Steady, order: GroupRound, view: _View, why: str, now: float) -> RoundsStep:
    """Without a next round: a member that has noticed a fault does what follows from it; otherwise all restart."""
    noticed = any(rounds.rung is not None or rounds.lacks_culprit for rounds in view.rounds.values())
    if view.lost or not noticed or view.other:
        who = next((f"{group.members[rank].name} is lost" for rank in sorted(view.lost)), why)
        return RoundsStep(group, drain=who if noticed or view.lost else why)
    group = _with(group, order._replace(what="close", why=why, joining=()))
    return RoundsStep(_until_closed(group, phase, now), (NodeNote(f"no further round: {why}"),))


def _until_closed(group: Coordinator, phase: Steady, now: float) -> Coordinator:
    return group._replace(phase=phase._replace(round_due=max(now, group.paused_until) + LATE + group.drain))


def _replaced(group: Coordinator, order: GroupRound, view: _View) -> tuple[int, ...]:
    """The ranks whose processes are replaced, or with their container."""
    counts = _counts(group) or []
    ranks = {rank for rounds in view.rounds.values() if rounds.number == order.number for rank in rounds.ranks}
    for place, member in enumerate(_places(group)):
        if member in view.lost or member in order.joining:
            first = sum(counts[:place])
            ranks |= set(range(first, first + counts[place]))
    return tuple(sorted(ranks))


def _leave(group: Coordinator, phase: Steady, order: GroupRound, view: _View, now: float) -> RoundsStep:
    """All members leave the round."""
    noticed = [one for one in view.rounds.values() if one.number == order.number and one.rung is not None]
    away = bool(view.lost) or bool(order.joining)
    rung: Rung = "rank" if away or any(one.rung == "rank" for one in noticed) else "retry"
    why = order.why if order.what == "leave" else "the members are not in one round"
    if view.lost and phase.losses.first is None:
        member = group.members[min(view.lost)]
        why = f"{member.name} is lost" + (f": {member.gone.why}" if member.gone is not None else "")
    elif noticed and not away:
        why = next((one.why for one in noticed if one.rung == rung), noticed[0].why)
    slowest = max((one.slowest for one in view.rounds.values()), default=order.slowest)
    joining = tuple(sorted({*view.ready, *(rank for rank in order.joining if rank in view.running)}))
    found = order._replace(
        what="leave",
        rung=rung,
        ranks=_replaced(group, order, view),
        why=why,
        joining=joining,
        slowest=max(slowest, order.slowest),
        step=None,
    )
    effects: GroupEffects = ()
    if found != order or phase.losses.missing.keys() != view.missing or phase.round_due is None:
        losses = phase.losses.following(view.missing, now) if view.lost else Losses()
        if view.lost and losses.first is None:
            losses = losses._replace(first=now)
        limit = max((one.limit for one in view.rounds.values()), default=0.0)
        due = max(now, group.paused_until) + limit + LATE
        if view.missing and (patience := losses.until(group.wait)) is not None:
            due = max(due, patience)
        elif view.lost - view.ready:
            due += group.lease + LATE + group.drain
        phase = phase._replace(deadline=None, round_due=due, losses=losses)
        group = group._replace(phase=phase)
    if order.what != "leave":
        effects = (NodeNote(f"all ranks leave round {order.number}: {why}"),)
    if joining and group.order.world is None:
        world = agree([(group.members[rank].name, group.members[rank].report.ranks) for rank in _places(group)])
        group = group._replace(order=group.order._replace(world=world if not isinstance(world, str) else None))
    return RoundsStep(group if found == order else _with(group, found), effects, goes_on=True)


def _begin(group: Coordinator, phase: Steady, order: GroupRound, view: _View, now: float) -> RoundsStep:
    """The next round, in which rank 0 listens on a port that no earlier round has used."""
    left = _leave(group, phase, order, view, now).group.order.round
    offer = view.running[_places(group)[0]].report.ranks
    assert left is not None
    assert offer is not None
    number = order.number + 1
    begun = left._replace(number=number, what="work", address=offer.address, port=offer.port, joining=())
    # The newest step of which every rank of every member can have a snapshot.
    steps = [set(rounds.steps) for rounds in view.rounds.values()]
    begun = begun._replace(step=max(set.intersection(*steps), key=newness, default=None) if steps else None)
    group = _with(group, begun)._replace(phase=phase._replace(round_due=None, losses=Losses()))
    return RoundsStep(group, (NodeNote(f"all ranks begin round {number}"),), goes_on=True)


def _counts(group: Coordinator) -> list[int] | None:
    """How many ranks each member has, in the order of their places."""
    members = [group.members.get(rank) for rank in _places(group)]
    known = [member.report.ranks.number for member in members if member is not None and member.report.ranks is not None]
    return known if len(known) == len(members) else None
