"""A member's part in its group: the link to the coordinator, or the coordinator itself, and which of the two it is.

Member 0 has the coordinator, unless the members share a folder, and may go on without some of them: then the member
that has the lease in that folder (lease_keeper.py).  A member that takes the lease over becomes the coordinator, all
others find its address in the folder, and the one before becomes a member like any other.
"""

import math
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ftrun.core.group import lease
from ftrun.core.group.lease import Place
from ftrun.core.group.losses import NodeNote
from ftrun.core.group.messages import GroupEnd, GroupOrder, MemberReport
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.messenger.known_lives import KnownLives
from ftrun.helpers.messenger.lease_keeper import LeaseChange, LeaseKeeper
from ftrun.helpers.messenger.present_stacks import SendPart
from ftrun.helpers.messenger.transport import LATE, RESUMED, split
from ftrun.messages import messenger as messages
from ftrun.messages import peers
from ftrun.messages.group_view import FileRequest, MemberRow

if TYPE_CHECKING:
    from ftrun.helpers.messenger.coordinator_link import CoordinatorLink
    from ftrun.helpers.messenger.member_link import MemberLink

LOOK: Final = 0.25  # s between two looks at what the lease requires
QUIET: Final = 7.0  # s; members report at least every 4.5 s
SEEN: Final = 2.0  # s that a new coordinator waits for the first look at the folder
TOLD: Final = 2.0  # s in which the coordinator tells all that the group has ended; PID 1 waits for 8 after a suspension
STEP: Final = 0.2  # s; PID 1 is informed when the end of a lease has changed by more


class GroupLink:
    """The owner polls `sources`, which may change, and calls `process` after that and at `due`."""

    def __init__(self, address: peers.MemberAddress, beat_dir: str, lines: ProtocolLines) -> None:
        self._address, self._beat_dir, self._lines = address, beat_dir, lines
        self._leading: CoordinatorLink | None = None
        self._following: MemberLink | None = None
        self._report: MemberReport | None = None
        self._endpoint = address.endpoint  # of the coordinator
        is_fixed = (address.least or address.size - address.spares) == address.size
        self._lives = KnownLives(joined=is_fixed)
        self._rows: Mapping[int, MemberRow] = {}  # the rows of all members, as the earlier link knew them
        self._keeper = LeaseKeeper(address, lines) if address.folder else None
        self._ended = False  # whether the lease has ended, so that the ranks here stop
        self._before: Place | None = (
            None  # of the holder before, until the coordinator here knows that its lease is over
        )
        self._tenure: float | None = None  # as it was last sent to PID 1
        self._mine = ""  # where it would be the coordinator
        self._next = self._planned = 0.0
        self._resumed = -math.inf  # when this process ran again after it was suspended
        self._renewing = False  # a lease that seems to be over since
        self._began = time.monotonic()
        if address.rank:
            self._follow(address.endpoint)
        else:
            self._lead(address.endpoint)

    @property
    def _link(self) -> "CoordinatorLink | MemberLink":
        link = self._leading or self._following
        assert link is not None
        return link

    @property
    def sources(self) -> tuple[object, ...]:
        clerk = () if self._keeper is None or self._keeper.source < 0 else (self._keeper.source,)
        return clerk if self._renewing else (*self._link.sources, *clerk)

    @property
    def due(self) -> float:
        if self._keeper is None:
            return self._link.due
        return self._next if self._renewing else min(self._link.due, self._next)

    @property
    def at_work(self) -> list[int]:
        return self._link.view.at_work

    def ask(self, request: FileRequest, answer: SendPart, now: float) -> None:
        self._link.view.ask(request, answer, now)

    def set_report(self, report: MemberReport, now: float) -> None:
        self._report = report
        if not self._must_renew(now):
            self._tell(report, now)

    def _tell(self, report: MemberReport, now: float) -> None:
        if self._leading is not None:
            self._lives.sent(report)
            report = report._replace(lives=self._lives.of(report))
        self._link.set_report(report, now)

    def process(self, now: float) -> None:
        keeper, renewed = self._keeper, self._renewing
        if keeper is not None:
            self._note_stop(keeper, now)
            for change in keeper.changes(now):
                self._changed(keeper, change, now)
            if self._leading is not None:
                self._leading.marking = keeper.holds and not keeper.is_over and not self._ended
        if not self._must_renew(now):
            if renewed and self._report is not None:
                self._tell(self._report, now)
            self._link.process(now)
        if keeper is not None and self._following is not None and keeper.end is not None:
            self._take_end(keeper, self._following, keeper.end, now)
        elif keeper is not None and self._leading is not None and self._leading.group.order.what == "end":
            self._mark_end(keeper, self._leading, now)
        elif keeper is not None and now >= self._next:
            self._next = now + LOOK
            if self._leading is not None:
                self._while_leading(keeper, self._leading, now)
            elif self._following is not None:
                self._while_following(keeper, self._following, now)
        self._planned = max(now, self.due)

    def _note_stop(self, keeper: LeaseKeeper, now: float) -> None:
        if self._planned and now > self._planned + LATE:
            self._resumed = self._planned = now
            keeper.resumed(now)
            self._lives.stopped()

    def _must_renew(self, now: float) -> bool:
        """Whether this holder of a lease was suspended until after the end of that, perhaps with all others, so that it
        still has the lease if a renewal succeeds.  It decides nothing until that is known, for a few seconds; nor does
        a new coordinator before it has seen the folder, since what it starts would be stopped at once for the lease of
        an earlier one."""
        keeper, leading = self._keeper, self._leading
        if keeper is not None:
            self._note_stop(keeper, now)
        recent = now < self._resumed + RESUMED and not self._ended
        self._renewing = False
        if recent and keeper is not None and leading is not None and keeper.holds and keeper.has_renewed:
            self._renewing = now >= self._held_until(keeper, leading)
        if keeper is not None and leading is not None and not keeper.proved and now < self._began + SEEN:
            self._renewing = True
        return self._renewing

    def close(self, orphan: bool) -> None:
        self._link.close(orphan)
        if self._keeper is not None:
            self._keeper.close()

    # --- the lease ----------------------------------------------------------------------------------------------------

    def _while_leading(self, keeper: LeaseKeeper, link: "CoordinatorLink", now: float) -> None:
        group, views = link.group, link.lease_views
        witnesses = {who for who, (view, _) in views.items() if view.life == self._address.life}
        places, place = group.order.places, keeper.place
        elsewhere = any(view.binding and view.life != self._address.life for view, _ in views.values())
        if keeper.shared:
            link.folder_proved(now)
        elif elsewhere and keeper.holds:
            link.lease_foreign(0, None, now)  # the folder here is not that of the others
        if self._renewing or (keeper.holds and not keeper.has_renewed):
            keeper.take(self._endpoint, group.epoch, places, witnesses)
            return
        if keeper.holds or self._ended:
            until = self._held_until(keeper, link)
            if now >= until and not self._ended:
                self._ended = True
                link.lease_foreign(self._address.rank, None, now)
            if not self._ended:
                self._tell_tenure(until)
            # Where it hears nobody it is the one that is cut off, unless there is nobody.
            hears = any(now - at < QUIET for _, at in views.values())
            if (hears or keeper.is_fresh or keeper.is_alone) and now >= keeper.renews_at():
                keeper.take(self._endpoint, group.epoch, places, witnesses, group.all_new)
            return
        lost = {who: at - view.quiet for who, (view, at) in views.items() if place and view.number >= place.number}
        certain = place is not None and place.life in group.dead_starters
        takes_at = keeper.takes_at(lost)
        if now >= takes_at or group.all_new or certain:
            keeper.take(self._endpoint, group.epoch, places, witnesses, group.all_new)
        if place is not None and lease.is_binding(place):
            link.lease_foreign(place.rank, takes_at, now)
        elif elsewhere:
            link.lease_foreign(0, None, now)  # the folder cannot be read here

    def _mark_end(self, keeper: LeaseKeeper, link: "CoordinatorLink", now: float) -> None:
        """The group has ended, and the lease with it: the next schedule need not wait for that.  This process stays
        for a moment until the folder says so."""
        self._next = now + LOOK
        if link.marking:
            order = link.group.order
            keeper.take(self._endpoint, order.epoch, order.places, set(), all_new=True, end=order.end)

    def _take_end(self, keeper: LeaseKeeper, link: "MemberLink", end: GroupEnd, now: float) -> None:
        """The group has ended.  Where this member was suspended, or cut off, nobody tells it any more."""
        self._next, place = now + LOOK, keeper.place
        if place is not None and now >= keeper.watch.since + TOLD and not link.over:
            link.over = True
            order = GroupOrder(place.epoch, "end", end.why, node=end.node, end=end, places=place.places)
            self._lines.send(messages.ChangedOrder(order))

    def _held_until(self, keeper: LeaseKeeper, link: "CoordinatorLink") -> float:
        stamps = {who: self._own_stamp(view) for who, (view, _) in link.lease_views.items()}
        return keeper.stops_at({who: at for who, at in stamps.items() if at is not None}, link.certainly_dead)

    def _own_stamp(self, view: peers.LeaseView) -> float | None:
        """When the member knew for certain that this coordinator lives."""
        life, at = peers.load_stamp(view.heard.encode()) if view.heard else ("", 0.0)
        return at if life == self._address.life else None

    def _while_following(self, keeper: LeaseKeeper, link: "MemberLink", now: float) -> None:
        keeper.heard(*link.lease_heard)
        place = keeper.place
        takes_at = keeper.takes_at({})
        if place is not None:
            binding = lease.is_binding(place)
            link.view.holder = place.rank
            link.view.takeover = keeper.watch.since + keeper.length if binding else 0.0
            if keeper.proved and link.lease_view is None:
                link.lease_view = self._lease_view
        host = link.own_host
        if now >= takes_at and host and place is not None and not place.over:
            self._mine = self._reachable(host)
            keeper.take(self._mine, place.epoch, place.places, set())

    def _lease_view(self, now: float) -> peers.LeaseView:
        keeper = self._keeper
        assert keeper is not None
        assert keeper.place is not None
        place = keeper.place
        return peers.LeaseView(place.number, place.life, now - keeper.watch.since, lease.is_binding(place))

    def _changed(self, keeper: LeaseKeeper, change: LeaseChange, now: float) -> None:
        place = keeper.place
        assert place is not None
        if change.taken:
            if self._leading is None:
                self._note(f"member {self._address.rank} is the coordinator now: {_ended(change.before)}")
                self._lead(self._mine)
            assert self._leading is not None
            if change.before is not None and change.before.life != self._address.life:
                self._before = change.before
            if now >= self._held_until(keeper, self._leading):
                return  # it was taken long ago, and the answer came too late: it has to be renewed first
            self._before = self._before or change.before
            self._count_lease(keeper, self._leading, now)
            return
        before = change.before
        assert before is not None
        if self._leading is None:
            if place.endpoint != self._endpoint or place.life != before.life:
                self._note(f"member {place.rank} ({place.node}) has the coordinator")
                self._follow(place.endpoint)
        elif keeper.bound or (before.life != self._address.life and place.rank != self._address.rank):
            self._note(f"member {place.rank} ({place.node}) has taken over, and this member follows it")
            if keeper.bound:
                self._lines.send(messages.Tenure(0.0))
                self._tenure = 0.0
            keeper.bound, self._ended, self._before = set(), False, None
            self._follow(place.endpoint)

    def _count_lease(self, keeper: LeaseKeeper, link: "CoordinatorLink", now: float) -> None:
        """The lease has been taken, which counts once it is known that the folder is shared."""
        if not keeper.shared:
            return
        if self._ended or link.group.lease_state != "held":
            link.lease_taken(self._before, now)
        self._ended, self._before = False, None

    def _tell_tenure(self, until: float) -> None:
        found = None if until == math.inf else until
        before = self._tenure
        if found != before and (found is None or before is None or abs(found - before) >= STEP):
            self._tenure = found
            self._lines.send(messages.Tenure(found))

    def _note(self, what: str) -> None:
        self._lines.send(NodeNote(what))

    # --- the links ----------------------------------------------------------------------------------------------------

    def _lead(self, endpoint: str) -> None:
        from ftrun.helpers.messenger.coordinator_link import CoordinatorLink

        self._close_link()
        self._leading = CoordinatorLink(self._address._replace(endpoint=endpoint), self._beat_dir, self._lines)
        self._begin(endpoint)

    def _follow(self, endpoint: str) -> None:
        from ftrun.helpers.messenger.member_link import MemberLink

        self._close_link()
        address = self._address._replace(endpoint=endpoint)
        self._following = MemberLink(address, self._beat_dir, self._lines, self._lives)
        self._begin(endpoint)

    def _begin(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._link.view.adopt(self._rows)
        if self._report is not None:
            self._tell(self._report, time.monotonic())

    def _close_link(self) -> None:
        if self._leading is not None or self._following is not None:
            self._rows = self._link.view.rows
            self._link.close(False)
            self._lives.connected()
        self._leading = self._following = None

    def _reachable(self, host: str) -> str:
        """The address at which this member listens as the coordinator: with the port of the group, if that is free
        here."""
        port = int(split(self._address.endpoint)[1])
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((host, port))
            except OSError:
                one.bind((host, 0))
                port = one.getsockname()[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ended(before: Place | None) -> str:
    return "" if before is None else f"the lease of member {before.rank} ({before.node}) has ended"
