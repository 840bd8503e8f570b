"""A lease in a folder that the members share: it names the coordinator, and lets another member take its place.  Pure.

The folder has numbered places.  A holder renews its lease by taking the next one, and another member takes the lease
over in the same way.  A place is taken once, by a link that only the storage itself can grant, so that of several that
try one has it, and what an observer has not seen yet cannot mislead it: a place that is taken already stays taken.
Times in a place are for people.  Each side measures by its own monotonic clock:

* The holder, from before it began to take its newest place.  Once that is `length` ago, another member may take over,
  so its own ranks are stopped before, and its coordinator decides nothing any more (`stops_at`).
* An observer, from when it saw the newest place for the first time, or heard of its holder, if that was later.

`witnesses` of a place are the processes that have proved that they see this folder, and write to it.  Only these may
take over, or testify to a new process of the holder's member that they have lost contact with the holder.  So a holder
that still hears all of them keeps its lease although the folder stalls, but no longer than `patience` beyond, and
although nothing can be written there, for as long as it sees that nobody else could: a healthy job must not end for a
disk that is slow or full.  Without witnesses nothing follows from a lease at all.

A group of a fixed size cannot go on without its member 0, so that it has nobody to make room for, and no lease.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ftrun.core.group.messages import GroupEnd, Places
from ftrun.core.named_tuple import NamedTuple

RENEWAL: Final = 2.0  # s between two renewals
LATE: Final = 5.0  # s for an order that is on its way, and for clocks that do not run alike
TAKEOVER: Final = 20.0  # s, at most, from the end of a lease until all members have heard of the next holder
TURN: Final = 0.5  # s between the attempts of two witnesses, so that the lowest that is left takes over
MOST_FORMER: Final = 16
Witness = tuple[int, str]  # a member, and the life of its ftrun


class Place(NamedTuple):
    """One place in the folder, as its holder wrote it.  `life`, `node`, `boot`: of the holder's ftrun; `endpoint`:
    where its coordinator is reached.  `epoch`, `places`: of the group then.  `former`: the holders before it since that
    epoch began.  `over`: the group has ended, and this lease with it; `end`: how.  `written`: a time for a person."""

    number: int
    rank: int
    life: str
    node: str
    boot: str
    endpoint: str
    epoch: int = 0
    places: Places = ()
    witnesses: tuple[Witness, ...] = ()
    former: tuple[Witness, ...] = ()
    over: bool = False
    written: float = 0.0
    end: GroupEnd | None = None


class Watch(NamedTuple):
    """What an observer knows: the newest place, and since when that has not changed."""

    place: Place | None = None
    since: float = 0.0


def length(silence: float, drain: float) -> float:
    """How long a lease lasts: as long as the silence after which any member counts as lost, and at least twice what its
    holder needs to stop."""
    return max(silence, 2 * (drain + LATE))


def wait(asked: float, silence: float, drain: float) -> float:
    """How long a lost member is waited for: at least until its lease is over and another member has taken it.
    Otherwise no member might be left to take it."""
    return max(asked, length(silence, drain) + TAKEOVER - silence)


def seen(watch: Watch, place: Place, now: float) -> Watch:
    """A newer place starts the measurement again; an older one, from a cache, changes nothing."""
    newer = watch.place is None or place.number > watch.place.number
    return Watch(place, now) if newer else watch


def heard(watch: Watch, life: str, at: float) -> Watch:
    """The ftrun of this life, which may be the holder, has answered at that time."""
    if watch.place is None or watch.place.life != life:
        return watch
    return watch._replace(since=max(watch.since, at))


def resumed(watch: Watch, now: float) -> Watch:
    """This observer was stopped, and perhaps the holder too: the measurement starts again."""
    return watch._replace(since=now)


def is_binding(place: Place | None) -> bool:
    """Whether another member might take over this lease, so that only its holder may start an epoch."""
    return place is not None and bool(place.witnesses) and not place.over


def proves_sharing(place: Place) -> bool:
    """Whether this place shows that several members see its folder: another member has proved that to its holder, or a
    member has taken it over.  What member 0 has written there alone may be in an empty mount point."""
    return bool(place.rank or place.witnesses)


def takes_at(watch: Watch, me: Witness, length: float, patience: float, lost: Mapping[Witness, float]) -> float:
    """When this process may try to take the next place; inf: never.  `lost`: since when witnesses that are here have
    had no contact with the holder.  A process that is no witness takes over only if it is new at the holder's member,
    or at member 0, whose address all know."""
    place, (rank, life) = watch.place, me
    if place is None:
        return math.inf
    may_replace = rank in (0, place.rank)
    if place.life == life or (place.over and may_replace):
        return watch.since
    if place.over:
        return math.inf
    if not place.witnesses:
        return watch.since + length + (patience if place.rank else 0.0) if may_replace else math.inf
    if me in place.witnesses:
        return watch.since + length + TURN * place.witnesses.index(me)
    if not may_replace:
        return math.inf
    testified = [max(watch.since, since) for witness, since in lost.items() if witness in place.witnesses]
    # Without a witness: after the longest time for which a holder may do without the folder.
    return min([watch.since + patience + length, *(since + length for since in testified)])


def stops_at(
    renewed: float,
    witnesses: Collection[Witness],
    heard: Mapping[Witness, float],
    length: float,
    patience: float,
    drain: float,
    rank: int = 0,
    looked: float = -math.inf,
) -> float:
    """Until when the holder's own ranks may run, and its coordinator may decide.  `renewed`: when it began to take its
    newest place; `witnesses`: of that place and of a place that it may have taken, without those that are certainly
    dead; `heard`: for each a time when it knew for certain that the holder lives, by the holder's clock; `looked`: when
    the folder was seen to have no newer place."""
    if not witnesses:  # one of another `rank` than 0 has taken over and works alone: a new member 0 may come
        return renewed + patience + length - drain - LATE if rank else math.inf
    contact = min(heard.get(witness, -math.inf) for witness in witnesses)
    latest = max(renewed, min(contact, max(renewed, looked) + patience))
    return latest + length - drain - LATE


def next_place(before: Place | None, mine: Place, began: bool) -> Place:
    """The place that is taken next.  `began`: a newer epoch has begun since, of which no earlier holder has run
    anything."""
    if before is None:
        return mine._replace(number=1)
    former: Iterable[Witness] = () if began else (*before.former, (before.rank, before.life))
    kept = tuple(dict.fromkeys(one for one in former if one[1] != mine.life))[-MOST_FORMER:]
    return mine._replace(number=before.number + 1, former=kept)
