"""The one reader of the run dir, for all clients of the page: one read per second while there are any; and what
each client gets of it, `/events`: server-sent events of the HTML standard.

`snapshot`: the present state.  `record`: one record, with an id.  `fresh`: the records sent before are of another run.
`unread`: nothing can be read, and why.  `beat`: nothing is new.  An interrupted stream continues after `Last-Event-ID`.
"""

import asyncio
import contextlib
import json
import os
import time
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from ftctl.page.threads import Busy, WorkerThreads
from ftctl.processes import Meter
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.messages.codec import DECODABLE
from ftrun.records.files.record_files import HEAD, GrowingFile, Record, record
from ftrun.records.files.rundir import NoRunDir
from ftrun.records.files.steps import paces
from ftrun.records.present import group
from ftrun.records.present.advice import no_step
from ftrun.records.present.group import GroupNow
from ftrun.records.present.group import document as document_of_group
from ftrun.records.present.run_snapshot import read_snapshot
from ftrun.records.present.snapshot import RankNow, Snapshot
from ftrun.records.present.summary import document, headline, meaning

PERIOD: Final = 1.0  # s
SHOWN: Final = 64  # ranks, unless all are requested
STATES: Final = ("exited", "gone", "starting", "section", "stalled", "moving", "done")
PATIENCE: Final = 5.0  # s after which a disk that does not answer is reported
BACK: Final = 256 << 10  # bytes that are read at the start
LONGEST: Final = 16 << 10  # bytes of a record that is passed on in full
HELD: Final = 256  # records


# --- the records, each with an id from which an interrupted stream can continue, also after a restart of the server ---


class StreamPosition(NamedTuple):
    """The end of a record: a checksum that identifies the file, as it may be replaced, and the offset in bytes."""

    file: int
    end: int

    def __str__(self) -> str:
        return f"{self.file:08x}-{self.end}"

    @classmethod
    def of(cls, text: str) -> "StreamPosition | None":
        file, dash, end = text.partition("-")
        fits = dash and len(file) == 8 and len(end) < 20 and end.isdecimal() and end.isascii()
        try:
            return cls(int(file, 16), int(end)) if fits else None
        except ValueError:
            return None


class HeldRecord(NamedTuple):
    """`position`: the end of the record; `text`: the record as JSON, in one line."""

    position: StreamPosition
    text: str


class Records(NamedTuple):
    """The records in memory, read up to `at`; those that end at `floor` or before have been dropped."""

    at: StreamPosition = StreamPosition(0, 0)
    floor: int = 0
    held: tuple[HeldRecord, ...] = ()

    def after(self, position: StreamPosition | None) -> tuple[bool, tuple[HeldRecord, ...]]:
        """The records after `position`; or True and all records, if they do not continue from there."""
        if position is None or position.file != self.at.file or not self.floor <= position.end <= self.at.end:
            return True, self.held
        return False, tuple(one for one in self.held if one.position.end > position.end)


class Follower:
    """Follows a growing file; one that was replaced or truncated is read from the start."""

    def __init__(self) -> None:
        self._records = Records()
        self._file = GrowingFile("")

    def read(self, path: str) -> Records:
        """With the new records, of 1 MiB at most.  OSError: the file cannot be read."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size, head = os.fstat(fd).st_size, os.pread(fd, 256, 0)
        finally:
            os.close(fd)
        file = zlib.crc32(head.partition(b"\n")[0])
        if file != self._records.at.file or size < self._records.at.end:
            start = max(0, size - BACK)
            self._records, self._file = Records(StreamPosition(file, start), start), GrowingFile(path, start)
        self._file.path = path
        held, floor = deque(self._records.held), self._records.floor
        for end, line in self._file.block():
            if (found := record(line)) is not None:
                held.append(HeldRecord(StreamPosition(file, end), _short(found, len(line))))
        while len(held) > HELD:
            floor = held.popleft().position.end
        self._records = Records(StreamPosition(file, self._file.at), floor, tuple(held))
        return self._records


def _short(record: Record, size: int) -> str:
    if size > LONGEST:
        record = {name: record[name] for name in HEAD if name in record and len(str(record[name])) < 100}
        record["cut"] = f"{size} bytes"
    return json.dumps(record)


# --- what the page shows ----------------------------------------------------------------------------------------------


class PageView(NamedTuple):
    """What one read gave.  `number` rises with each that has something new; 0: none yet.  `snapshot` has all ranks, and
    `text` is the same with fewer ranks, as JSON; without them `why` is the reason that nothing can be read."""

    number: int = 0
    run_dir: str = ""
    records: Records = Records()
    snapshot: dict[str, Any] | None = None
    text: str = ""
    why: str | None = None


class Feed:
    """`find` returns the run dir to read, or raises NoRunDir; it is called each time."""

    def __init__(self, find: Callable[[], str], threads: WorkerThreads) -> None:
        self.view = PageView()
        self.closed = False
        self._find, self._threads = find, threads
        self._follower, self._meter = Follower(), Meter()
        self.clients = 0
        self._last_read = float("-inf")
        self._reading: asyncio.Future[PageView | str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def now(self) -> PageView:
        """A view that is at most a second old.  Busy: the disk does not answer."""
        if time.monotonic() - self._last_read >= PERIOD:
            await self._refresh()
        if self.view.number == 0:
            raise Busy("the disk does not answer")
        return self.view

    async def next(self, within: float) -> None:
        """Wait until there is a new view, or `within` seconds have passed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), within)

    def enter(self) -> None:
        """A client has connected: the run dir is read regularly until the last one has left."""
        self.clients += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    def leave(self) -> None:
        self.clients -= 1

    def close(self) -> None:
        self.closed = True
        self._notify()

    async def _watch(self) -> None:
        while self.clients and not self.closed:
            begun = time.monotonic()
            await self._refresh()
            await asyncio.sleep(max(0.05, begun + PERIOD - time.monotonic()))

    async def _refresh(self) -> None:
        """One read; those who ask while it is in progress share its result."""
        if self._reading is None:
            try:
                self._reading = self._threads.begin(self._read)
            except Busy as busy:
                return self._unread(str(busy))
        reading = self._reading
        await asyncio.wait([reading], timeout=PATIENCE)
        if not reading.done():
            return self._unread("the disk does not answer")
        if self._reading is reading:
            self._reading = None
            self._last_read = time.monotonic()
            found = reading.result()
            if isinstance(found, str):
                self._unread(found)
            else:
                self._publish(found)
        return None

    def _unread(self, why: str) -> None:
        self._publish(self.view._replace(snapshot=None, text="", why=why))

    def _publish(self, view: PageView) -> None:
        """Clients are notified only if something other than `snapshot` has changed, as ages in it change each time."""
        new = self.view.number == 0 or view._replace(snapshot=None) != self.view._replace(snapshot=None)
        self.view = view._replace(number=self.view.number + new)
        if new:
            self._notify()

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _read(self) -> PageView | str:
        """Read the run dir, in a thread.  Each error is shown to the clients: the page is made for runs that have
        problems."""
        run_dir = self.view.run_dir
        try:
            run_dir = self._find()
            shown = self._meter.measured(read_snapshot(run_dir))
            members = group.read(shown)
            shown = group.marked(shown, members)
            records = self._follower.read(f"{run_dir}/events.jsonl")
            found = payload(shown, paces(shown.run_dir, shown.attempt), members)
            return PageView(self.view.number, run_dir, records, found, json.dumps(brief(found)))
        except NoRunDir as error:
            return str(error)
        except OSError as error:
            return f"{error.filename or run_dir}: {error.strerror}"
        except Exception as error:
            return f"{run_dir} cannot be read: {error!r}"


def payload(shown: Snapshot, paces: list[tuple[float, float]], members: GroupNow | None = None) -> dict[str, Any]:
    """The snapshot as JSON values, with all ranks, the stalest first, and what the page shows beside it; `outer`: what
    the outer scheduler should do after the verdict; `members`: the view of its group."""
    verdict = exit_codes.named(shown.verdict)
    return document(shown._replace(ranks=tuple(sorted(shown.ranks, key=_order)))) | {
        "headline": headline(shown),
        "state": headline(shown, ages=False),
        "standstill": no_step(shown),
        "meaning": meaning(shown, verdict) if verdict else None,
        "outer": verdict.outer if verdict else None,
        "states": dict(Counter(rank.state for rank in shown.ranks)),
        "paces": paces,
        "members": None if members is None else DECODABLE.plain(document_of_group(members)),
    }


def brief(found: dict[str, Any]) -> dict[str, Any]:
    """The snapshot with only the first ranks and members; `states` counts all ranks, `size` of the group all
    members."""
    members = found["members"]
    few = members and members | {"members": members["members"][:SHOWN], "never_seen": members["never_seen"][:SHOWN]}
    return found | {"ranks": found["ranks"][:SHOWN], "members": few}


def _order(rank: RankNow) -> tuple[float, int, int]:
    """The rank nearest to its limit first; then those without a limit, by state."""
    return -rank.used, STATES.index(rank.state), rank.rank


BEAT: Final = 5.0  # s


async def event_stream(feed: Feed, after: StreamPosition | None, all_ranks: bool) -> AsyncIterator[bytes]:
    """The events for one client, until the feed is closed.  All that is kept for it is a position in the records."""
    feed.enter()
    try:
        with contextlib.suppress(Busy):  # an older view will do
            await feed.now()
        yield b"retry: 1000\n\n"
        sent = 0
        while not feed.closed:
            if feed.view.number == sent:
                await feed.next(BEAT)
            view = feed.view
            if view.number == sent:
                yield b": heartbeat\n" + _event("beat", "0")
            elif view.snapshot is None:
                yield _event("unread", json.dumps({"why": view.why}))
            else:
                yield _news(view, after, all_ranks)
                after = view.records.at
            sent = view.number
    finally:
        feed.leave()


def _news(view: PageView, after: StreamPosition | None, all_ranks: bool) -> bytes:
    restart, records = view.records.after(after)
    parts = [_event("fresh", "0")] if restart else []
    parts += [_event("snapshot", json.dumps(view.snapshot) if all_ranks else view.text)]
    parts += [_event("record", one.text, one.position) for one in records]
    return b"".join(parts)


def _event(name: str, data: str, position: StreamPosition | None = None) -> bytes:
    mark = "" if position is None else f"id: {position}\n"
    return f"{mark}event: {name}\ndata: {data}\n\n".encode()
