"""A messenger's part in the view of the whole group: it makes the row of its own member, keeps those of the others in
`group.json`, and answers requests for the files of reports.

Everything is bounded: the rows and their rate, the files that may be read (those of `reports/`, whole regular files of
at most `MOST` bytes), the requests under way, and how long they wait.  A failure here harms nothing but the view.
"""

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from ftrun.core.group import membership
from ftrun.core.group.loss_waits import loss_wait
from ftrun.core.group.membership import Coordinator
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import stragglers
from ftrun.core.rules.stragglers import Persistence
from ftrun.core.text import states
from ftrun.helpers.lines import ProtocolLines
from ftrun.helpers.messenger import imports
from ftrun.helpers.messenger.group_waits import Connected, CoordinatorWaits, MemberWaits
from ftrun.helpers.messenger.paces import straggler
from ftrun.helpers.messenger.present_stacks import LONGEST, POLL, PresentStacks, SendPart, part_of
from ftrun.host import procfs, safe_files
from ftrun.messages import group_view as messages
from ftrun.messages import group_waits
from ftrun.messages.codec import Malformed
from ftrun.messages.group_view import FilePart, FileRequest, GroupView, MemberRow

if TYPE_CHECKING:
    from ftrun.messages.peers import MemberAddress

RATE: Final = 4 * messages.BYTES_PER_SECOND  # news may make the views of a group four times as frequent
BURST: Final = 1_000_000  # bytes that are sent at once: the whole view, in a group of up to 40 members
FRESH: Final = 1.0  # s for which the same bytes are sent, since they contain the time
ASKING: Final = 5.0  # s for an answer of another member; more where its stacks have to be collected
PENDING: Final = 32  # requests under way
STACKS: Final = 64  # files of stacks that are joined
Send = Callable[[bytes, bytes], bool]


class ViewDelivery:
    """`send` passes bytes to that member; one that does not take them misses these rows until the next view."""

    def __init__(self, send: Callable[[int, bytes], bool]) -> None:
        self._send = send
        self._view: GroupView | None = None
        self._left: deque[tuple[tuple[MemberRow, ...], int]] = deque()  # a part of the rows, and who gets it
        self._rows: tuple[MemberRow, ...] = ()  # the last part that was sent, its bytes, and when they were made
        self._content, self._made = b"", -math.inf
        self._paid = 0.0  # the time from which on more may be sent

    @property
    def due(self) -> float:
        """When `process` has to be called next; infinity: nothing is left to send."""
        return self._paid if self._left else math.inf

    def begin(self, view: GroupView, members: Collection[int]) -> None:
        """Send this view to these members, from the next `process` on.  The one before has been sent."""
        self._view, self._made = view, -math.inf
        self._left = deque((rows, member) for rows in _parts(view.rows) for member in members)

    def process(self, now: float) -> None:
        self._paid = max(self._paid, now - BURST / RATE)
        while self._view is not None and self._left and self._paid <= now:
            rows, member = self._left.popleft()
            if rows is not self._rows or now >= self._made + FRESH:
                view, loss = self._view, self._view.loss
                if loss is not None:
                    loss = loss._replace(left=max(0.0, loss.left - (now - view.now)))
                self._rows, self._made = rows, now
                self._content = messages.dump(view._replace(now=now, loss=loss, rows=rows))
            self._send(member, self._content)
            self._paid += len(self._content) / RATE


def _parts(rows: tuple[MemberRow, ...]) -> list[tuple[MemberRow, ...]]:
    """The rows by the frames that they are sent in, of at most LIMIT bytes."""
    parts, some, size = [], list[MemberRow](), 0
    for row in rows:
        length = len(messages.dump(row))
        if some and size + length > messages.VIEW_ROWS:
            parts.append(tuple(some))
            some, size = [], 0
        if length <= messages.VIEW_ROWS:
            some.append(row)
            size += length
    return [*parts, tuple(some)]


class OwnMember:
    """The row and the files of this member, from its run dir, which is the working directory."""

    def __init__(self, address: "MemberAddress", lines: ProtocolLines) -> None:
        self._address, self._lines = address, lines
        self.stacks = PresentStacks()

    def row(self, now: float) -> MemberRow | None:
        """The row of this member; None as long as there is nothing to show."""
        try:
            from ftrun.records.present.group import own_row  # once the command runs: it takes time and memory
            from ftrun.records.present.run_snapshot import read_snapshot

            return own_row(read_snapshot(os.getcwd(), now), self._address.rank, self._address.node, now)
        except Exception as error:
            self._lines.problem(f"the view of the group lacks this member: {error!r}")
            return None

    def answer(self, request: FileRequest, answer: SendPart, now: float) -> None:
        """Answer through `answer`, in any case: at once, but for the present stacks."""
        if request.what == "present stacks":
            self.stacks.ask(request, answer, now)
        else:
            answer(self.read(request))

    def read(self, request: FileRequest) -> FilePart:
        """A part of a file of a report, or of the imports; never an exception."""
        if request.what == "imports":
            content = imports.own()
            return part_of(request, content) if content else FilePart(request.id, False, "it has imported nothing yet")
        from ftrun.records.files import reports  # seldom needed: it takes time and memory

        failed = reports.failed(".") if request.what in ("report.md", "report.json") else []
        attempts = sorted({*reports.collected("."), *failed})
        attempt = request.attempt or (attempts[-1] if attempts else 0)
        if attempt not in attempts:
            known = f"; attempts with a report: {', '.join(map(str, attempts[-9:]))}" if attempts else ""
            what = f"no report of attempt {attempt}" if attempt else "no report was written"
            return FilePart(request.id, False, f"{what} by member {self._address.rank}{known}")
        content = _report_file(attempt, request.what) or (attempt in failed and _failure(attempt, request.what)) or b""
        if not content:
            what = f"reports/attempt-{attempt}/{request.what} cannot be read"
            return FilePart(request.id, False, f"member {self._address.rank}: {what}", attempt)
        return part_of(request, content, attempt)


def _failure(attempt: int, what: str) -> bytes:
    """From the records alone: a file that is not read safely is not read."""
    from ftrun.records.files import reports

    found = reports.failure(".", attempt)
    if found is None:
        return b""
    text = reports.failure_markdown(found) if what == "report.md" else json.dumps(found)
    return text.encode("utf-8", "replace")[: messages.MOST]


def _report_file(attempt: int, what: str) -> bytes:
    """A file of a report, at most MOST bytes; of stacks all files one after another, each after its name.  Empty if it
    cannot be read.  No link is followed on the way, since the command may have put one there."""
    folders: list[int] = []
    try:
        for name in ("reports", f"attempt-{attempt}", *(("stacks",) if what == "stacks" else ())):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            folders.append(os.open(name, flags, dir_fd=folders[-1] if folders else None))
        if what != "stacks":
            return safe_files.read_foreign(what, messages.MOST, folders[-1])
        found = b""
        for name in sorted(os.listdir(folders[-1]))[:STACKS]:
            content = safe_files.read_foreign(name, messages.MOST, folders[-1])
            found += f"== {name} ==\n".encode("utf-8", "replace") + content + b"\n"
            if len(found) > messages.MOST:
                break
        return found[: messages.MOST]
    except OSError:
        return b""
    finally:
        for folder in folders:
            os.close(folder)


class PendingFile(NamedTuple):
    """A request that was passed on to `member`, or through the coordinator, and is answered at `until` at the latest.
    `id`: of the request as it came."""

    member: int
    id: str
    answer: SendPart
    until: float


class _Side(ABC):
    """What both sides share: the rows of all members, `group.json`, and the requests that were passed on."""

    silent: str  # who does not answer a request that was passed on, with `{}` for the member
    unconnected: str
    way: float  # seconds that an answer may take beyond those of the member itself

    def __init__(self, address: "MemberAddress", lines: ProtocolLines) -> None:
        self._address, self._lines = address, lines
        self._own, self._boot = OwnMember(address, lines), procfs.boot_id()
        self._rows: dict[int, MemberRow] = {}
        self._asked: dict[str, PendingFile] = {}
        self._row_period = messages.row_period(address.size)
        self._written: GroupView | None = None

    @property
    def at_work(self) -> list[int]:
        """The other members whose command runs, as far as that is known."""
        here = self._address.rank
        return [rank for rank, row in sorted(self._rows.items()) if rank != here and row.phase in states.LIVE]

    @property
    def rows(self) -> Mapping[int, MemberRow]:
        return self._rows

    def adopt(self, rows: Mapping[int, MemberRow]) -> None:
        """Adopt the rows of all members, as this member knew them at its earlier coordinator."""
        self._rows.update(rows)

    def close(self) -> None:
        self._own.stacks.close()

    def ask(self, request: FileRequest, answer: SendPart, now: float) -> None:
        """Pass the request on; `answer` is called in any case."""
        member, id = request.member, os.urandom(8).hex()
        if member == self._address.rank:
            self._own.answer(request, answer, now)
        elif len(self._asked) >= PENDING:
            answer(FilePart(request.id, False, "too many requests"))
        elif not self._pass_on(member, messages.dump(request._replace(id=id))):
            answer(FilePart(request.id, False, self.unconnected.format(member)))
        else:
            collects = request.what == "present stacks" and not request.offset
            patience = ASKING + self.way + (LONGEST if collects else 0.0)
            self._asked[id] = PendingFile(member, request.id, answer, now + patience)

    @abstractmethod
    def _pass_on(self, member: int, request: bytes) -> bool:
        """Send the request towards `member`; False: there is no connection."""

    def _answered(self, content: bytes, sender: int | None = None) -> None:
        """A member has answered.  `sender`: the only member that may answer this request."""
        part = messages.load(FilePart, content)
        pending = self._asked.get(part.id)
        if pending is not None and sender in (None, pending.member):
            del self._asked[part.id]
            pending.answer(part._replace(id=pending.id))

    def _process_files(self, now: float) -> None:
        self._own.stacks.process(now)
        for id, pending in list(self._asked.items()):
            if now >= pending.until:
                del self._asked[id]
                pending.answer(FilePart(pending.id, False, self.silent.format(pending.member)))

    def _shown_rows(self) -> tuple[MemberRow, ...]:
        return tuple(row._replace(paces=()) for _, row in sorted(self._rows.items()))

    def _write(self, view: GroupView) -> None:
        """Write `group.json`, if its content has changed."""
        view = view._replace(boot=self._boot)
        if view == self._written:
            return
        self._written = view
        try:
            safe_files.replace(messages.FILE, messages.dump(view) + b"\n", durable=False)
        except OSError as error:
            self._lines.problem(f"{messages.FILE}: {error.strerror}")


class MemberSide(_Side):
    """At a member other than rank 0.  `send` passes a message to rank 0; False: there is no connection."""

    silent, unconnected = "rank 0 does not answer", "there is no connection to rank 0"
    way = ASKING

    def __init__(self, address: "MemberAddress", lines: ProtocolLines, send: Send) -> None:
        super().__init__(address, lines)
        self._send = send
        self._view = GroupView(messages.SCHEMA, address.size, address.rank, 0.0)
        self._contact = 0.0
        self.holder, self.takeover = 0, 0.0  # as in `GroupView`
        self._waits = MemberWaits(address, lines, send)
        self.row_due = time.monotonic() + messages.PERIOD

    @property
    def due(self) -> float:
        """When `process` has to be called next."""
        return time.monotonic() + POLL if self._own.stacks.collecting else self.row_due

    def process(self, now: float) -> None:
        self._process_files(now)
        self._waits.process(now)
        if now < self.row_due:
            return
        self.row_due = now + self._row_period
        row = self._own.row(now)
        if row is not None:
            self._send(messages.ROW, messages.dump(row))
            mine = self._rows.get(row.rank)
            self._rows[row.rank] = row._replace(slow=mine.slow if mine else (), paces=())
        silence = self._address.silence
        view = self._view._replace(contact=self._contact, silence=silence, lease=silence + self._address.wait)
        self._write(view._replace(holder=self.holder, takeover=self.takeover, rows=self._shown_rows()))

    def heard(self, sent_at: float) -> None:
        """Rank 0 has replied to the message that was sent then."""
        self._contact = sent_at

    def receive(self, kind: bytes, content: bytes, now: float) -> None:
        """A message of rank 0; Malformed if it is not valid."""
        if kind == group_waits.ANSWER:
            self._waits.receive(content)
        elif kind == messages.VIEW:
            view = messages.load(GroupView, content)
            for row in view.rows:
                if 0 <= row.rank < self._address.size and row.rank != self._address.rank:
                    self._rows[row.rank] = row._replace(at=now - max(0.0, view.now - row.at))
                elif row.rank == self._address.rank and row.rank in self._rows:
                    self._rows[row.rank] = self._rows[row.rank]._replace(slow=row.slow)
            self._view = view._replace(rank=self._address.rank, now=now, rows=())
        elif kind == messages.ASK:

            def reply(part: FilePart) -> None:
                self._send(messages.FILE_PART, messages.dump(part))

            self._own.answer(messages.load(FileRequest, content), reply, now)
        elif kind == messages.FILE_PART:
            self._answered(content)

    def _pass_on(self, member: int, request: bytes) -> bool:
        return self._send(messages.ASK, request)


class CoordinatorSide(_Side):
    """At rank 0.  `send` passes a message to that member; False: it is not connected."""

    silent, unconnected = "member {} does not answer", "member {} is not connected to rank 0"
    way = 0.0

    def __init__(
        self, address: "MemberAddress", lines: ProtocolLines, send: Callable[[int, bytes, bytes], bool]
    ) -> None:
        super().__init__(address, lines)
        self._send = send
        self._slow_since: dict[tuple[int, int], float] = {}  # stragglers, by member and rank
        self._waits = CoordinatorWaits(address, lines, send)
        self._persistent: Persistence[tuple[int, int]] = Persistence()
        self._delivery = ViewDelivery(lambda rank, content: send(rank, messages.VIEW, content))
        self._every = messages.period(address.size)
        self.row_due = time.monotonic() + self._row_period
        self._sent_at, self._news = 0.0, False

    @property
    def due(self) -> float:
        """When `process` has to be called next."""
        due = min(self.row_due, self._delivery.due)
        return min(due, time.monotonic() + POLL) if self._own.stacks.collecting else due

    def process(
        self, now: float, known: Coordinator, present: Callable[[], Mapping[int, Connected]], stopped: float = 0.0
    ) -> None:
        """`present`: the ranks that are connected; `stopped`: for how long the coordinator's time has not run."""
        self._process_files(now)
        self._waits.process(now, known.order.epoch, present)
        self._delivery.process(now)
        if now < self.row_due:
            return
        self.row_due = now + self._row_period
        own = self._own.row(now)
        if own is not None:
            self._rows[self._address.rank] = own
        there = present()
        here = {self._address.rank} | there.keys() | known.staying
        for rank, row in self._rows.items():
            self._rows[rank] = row._replace(present=rank in here)
        self._compare(now)
        order, awaited = known.order, tuple(membership.waited_for(known))
        view = GroupView(
            messages.SCHEMA, known.size, self._address.rank, now, order.epoch, order.what, order.why, awaited
        )
        view = view._replace(loss=loss_wait(known, now - stopped), rows=self._shown_rows())
        self._write(view)
        if there and now >= self._view_due and self._delivery.due == math.inf:
            self._sent_at, self._news = now, False
            self._delivery.begin(view, there)
            self._delivery.process(now)

    @property
    def _view_due(self) -> float:
        """When the next view may be sent to the members: news brings it forward."""
        return self._sent_at + (self._every / 4 if self._news else self._every)

    def _compare(self, now: float) -> None:
        """Mark the stragglers over all members.  A member without news takes no part."""
        fresh = {rank: row for rank, row in self._rows.items() if row.present and now - row.at < 3 * self._row_period}
        paces = {(rank, pace.rank): pace for rank, row in fresh.items() for pace in row.paces}
        found = stragglers.stragglers({name: stragglers.Pace(p.step_time, p.work) for name, p in paces.items()})
        self._slow_since = {name: self._slow_since.get(name, now) for name in found}
        slow: dict[int, list[messages.SlowRank]] = {}
        for name, since in self._slow_since.items():
            pace, work = paces[name], found[name].work
            one = messages.SlowRank(name[1], pace.step_time, found[name].usual, pace.device, now - since, work)
            slow.setdefault(name[0], []).append(one)
        for rank, row in self._rows.items():
            self._rows[rank] = row._replace(slow=tuple(slow.get(rank, ())[: messages.SLOW]))
        for name in self._persistent.update(found, now):
            pace, node = paces[name], self._rows[name[0]].node
            self._lines.send(straggler(found[name], pace, self._persistent.seconds(name, now), node, name[0]))

    def receive(self, rank: int, kind: bytes, content: bytes, now: float) -> None:
        """A message of that member.  An invalid one is a problem, and does not count against the member."""
        try:
            self._receive(rank, kind, content, now)
        except Malformed as error:
            self._lines.problem(f"the view of the group: malformed message from member {rank}: {error}")

    def _receive(self, rank: int, kind: bytes, content: bytes, now: float) -> None:
        if kind == messages.ROW:
            new, before = messages.load_row(content, rank)._replace(at=now), self._rows.get(rank)
            self._rows[rank] = new
            same = before and (before.phase, before.attempt, before.trouble) == (new.phase, new.attempt, new.trouble)
            if not same:
                self._news = True
                self.row_due = min(self.row_due, max(now, self._view_due))
        elif kind == group_waits.WAITS:
            row = self._rows.get(rank)
            self._waits.receive(rank, row.node if row else "", content)
        elif kind == messages.ASK:
            request = messages.load(FileRequest, content)

            def reply(part: FilePart) -> None:
                self._send(rank, messages.FILE_PART, messages.dump(part))

            self.ask(request, reply, now)
        elif kind == messages.FILE_PART:
            self._answered(content, rank)

    def _pass_on(self, member: int, request: bytes) -> bool:
        return self._send(member, messages.ASK, request)
