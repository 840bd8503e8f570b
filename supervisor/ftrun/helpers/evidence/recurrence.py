"""The proof that a thread repeats the same states for ever.

A program that nothing influences is a function of its state: if it comes back to a state in which it was, it will come
back for ever.  The state is all of its memory and its registers, to the last bit, so that whatever a computation gets
further by is a part of it: counters in iterators, elements of arrays, the state of a random generator, the stack of C
code.  No computation that ends, and none that gets anywhere, is in the same state twice.

What may influence a thread, and how that is excluded:
* system calls and signals: the thread stops at each of them while it is traced, and the comparison has then failed;
* the clock and random numbers: the vDSO is not touched, and no code but that of the interpreter and the C library runs;
* memory that other processes, files or devices change: none of it is touched, and no page is pinned for a device;
* other threads of the process: proof.py shows that none of them can run;
* the kernel, which ends a process at its limit of processor time: there is none.

The thread is stopped some thousand times, for less than a millisecond each if its memory is small.  At each stop its
registers and the pages that are known to change are read.  Whether all other pages are as they were is read whenever a
state seems to recur, and for a share of the other stops, so that there are states to come back to.

Which memory is touched is observed roughly at first, and exactly once the states have been found to recur: that costs
more, and most threads never come to it.
"""

import os
import random
import time
from collections.abc import Iterable
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.evidence import touched_memory, tracing
from ftrun.helpers.evidence.exclusion import Windows
from ftrun.helpers.evidence.processes import environment
from ftrun.helpers.evidence.touched_memory import Area
from ftrun.helpers.evidence.tracing import Acted, Registers, Tracee
from ftrun.host import procfs
from ftrun_hooks import layout

MEMORY: Final = 512 << 20  # bytes that are compared at most
CHANGING: Final = 256  # pages that may change
IN_A_ROW: Final = 3  # windows in which an area looks touched, until it is compared, too
PAUSE: Final = 0.0005  # s between two stops, at most
WARM_UP: Final = (0.05, 0.02, 0.02, 0.02)  # s that the thread runs between the first stops, which show what changes
FEW: Final = 24  # pages that change, of a thread that is confined
ENOUGH: Final = 20  # stops, for that
WINDOW: Final = 0.05  # s that it runs while is observed what may influence it; at most WINDOWS times
WINDOWS: Final = 40
SLACK: Final = 0.2  # of the memory that a loop without recurring states touches: it is not the same in each window
RAN: Final = 0.005  # s that it has to be on a processor in one of them
COMPLETE: Final = 0.5  # of the time, for complete comparisons of states that were not seen before
CLEARED: Final = "has memory that cannot be observed, since something else clears the accessed bits"
OTHER: Final = "touches other memory now and then"
NOT_FOUND: Final = "computes, and its state was not found to recur"
_PAGE: Final = 4096
_CHUNK: Final = 16 * _PAGE


class Comparison(NamedTuple):
    """`reason`: why it is not proved that the states recur, as `calls the system`; None: it is.  `stops`, `states`: how
    often the thread was stopped, and in how many different states; `recurred`: how often in a complete state in which
    it had been before; `pages`: how many change; `seconds`: how long it took.  `influence`: what may influence the
    thread, as far as that was seen in windows of a fixed length."""

    reason: str | None
    stops: int = 0
    states: int = 0
    recurred: int = 0
    pages: int = 0
    seconds: float = 0.0
    influence: str = ""

    @property
    def confined(self) -> bool:
        """Whether nothing influences the thread, and it changes next to no memory, although its states do not recur, as
        those of a loop that counts.  That is no proof: a computation that ends one day may be like that."""
        few = self.stops >= ENOUGH and self.pages <= FEW
        return self.reason is None or (self.reason == NOT_FOUND and few and not self.influence)

    @property
    def text(self) -> str:
        """How far the evidence goes."""
        seen = (
            f"{self.stops} stops in {self.seconds:.1f} s, {self.states} different states, {self.pages} changing pages"
        )
        if self.reason is not None:
            return f"it {self.reason} ({seen})" if self.stops else f"it {self.reason}"
        return f"the same complete state was found {self.recurred} times again ({seen})"


def compare(pid: int, tid: int, seconds: float) -> Comparison:
    """Compare the states of that thread for so long, or until they are proved to recur."""
    if not tracing.SUPPORTED:
        return Comparison("computes, and its states can be compared on x86_64 only")
    started = time.monotonic()
    try:
        with Tracee(tid) as tracee, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            found = _Comparer(pid, tid, tracee, memory.fileno(), started + seconds).run()
    except Acted as what:
        found = Comparison(str(what))
    except OSError as error:
        found = Comparison(f"computes, and its state cannot be read: {error.strerror or error}")
    return found._replace(seconds=round(time.monotonic() - started, 3))


class _Comparer:
    def __init__(self, pid: int, tid: int, tracee: Tracee, memory: int, until: float) -> None:
        self._pid, self._tid, self._tracee, self._until = pid, tid, tracee, until
        self._memory = Memory(memory)
        self._beats = os.path.join(environment(pid).get("FTRUN_BEAT_DIR", ""), layout.BEATS)
        self._stops = self._recurred = 0
        self._seen = set[int]()
        self._exact = False

    def run(self) -> Comparison:
        if _pinned(self._pid):
            return Comparison("has memory that devices may change")
        if _limited(self._pid):
            return Comparison("computes, and the kernel ends it at a limit of its processor time")
        reason: str | None = "computes, and there was no time to compare its states"
        found = self._touched(WARM_UP[0])
        while reason is not None and time.monotonic() < self._until:
            if sum(area.end - area.start for area in found.written) > MEMORY:
                reason = "uses more memory than can be compared"
                break
            self._memory.begin(found.written)
            for pause in WARM_UP[1:]:
                self._tracee.run(pause)
                self._memory.learn()
            found, reason = self._repeat(found)
        compared = Comparison(reason, self._stops, len(self._seen), self._recurred, self._memory.changing)
        if compared.confined:
            compared = compared._replace(influence=self._influence(found))
        return compared._replace(reason=CLEARED) if compared.influence == CLEARED else compared

    def _repeat(self, found: "_Touched") -> tuple["_Touched", str | None]:
        """What it touches, and why the states are not proved to recur, or None.  Ends early if other memory is touched
        than that which is compared.

        From one and the same state the thread goes the same way up to the first influence.  So what it does not touch
        in one of the times in which that state recurs, it never touches as the first: nothing is left if each of them
        was excluded (exclusion.py).
        """
        self._seen, self._recurred = set(), 0
        turns: dict[int, Windows] = {}
        reason: str | None = NOT_FOUND
        in_a_row: dict[int, int] = {}
        at: int | None = None  # the state in which it is, if it is known to recur
        while time.monotonic() < self._until:
            touched_memory.clear(self._pid, exact=self._exact)
            turn = at
            if turn is None:
                at, now = self._sample(found), self._touched()
            else:
                came_back, now = self._turn(found, turn)
                at = turn if came_back else None
            other = now.other_than(found)
            in_a_row = {area.start: in_a_row.get(area.start, 0) + 1 for area in other}
            # The data of a library looks touched when another process that has loaded it ends, and so does memory from
            # before a fork: it counts as an influence at first.  What is compared only grows, so that each area is new
            # at most once.
            if any(not area.common or in_a_row[area.start] >= IN_A_ROW for area in other):
                return now._replace(written=[*found.written, *other]), OTHER
            if turn is None or at is None or not self._exact:  # then nothing is known of what it does not touch
                self._exact = self._exact or at is not None
                continue
            self._recurred += 1
            windows = turns.setdefault(turn, Windows())
            windows.add(now.own, now.influences | {f"{area.start:x}": OTHER for area in other})
            left = windows.left()
            if left == "":
                return found, None
            reason = left or reason
        return found, reason

    def _influence(self, found: "_Touched") -> str:
        """What may influence the thread, since it looks touched in most windows in which it ran; empty if there is
        nothing like that.  Other processes make files look touched now and then; what a loop uses in each of its turns
        is touched each time."""
        windows = Windows(SLACK)
        self._exact = True
        for _ in range(WINDOWS):
            before = _ran(self._pid, self._tid)
            now = self._touched(WINDOW)
            if _ran(self._pid, self._tid) - before < RAN:
                continue
            windows.add(now.own, now.influences | {f"{area.start:x}": OTHER for area in now.other_than(found)})
            if windows.left() == "":
                return ""
        if windows.few:
            return "has hardly run"
        left = windows.left()
        return CLEARED if left is None else left

    def _touched(self, seconds: float | None = None) -> "_Touched":
        """What the thread touches; in the next `seconds`, if given."""
        if seconds is not None:
            touched_memory.clear(self._pid, exact=self._exact)
            self._tracee.run(seconds)
        areas = touched_memory.read(self._pid)
        written = [area for area in areas if area.is_written and area.touched]
        code = [area for area in areas if area.is_code]
        return _Touched(written, code, touched_memory.influences(areas, self._beats))

    def _sample(self, found: "_Touched") -> int | None:
        """Let it run until it is in a state that recurs.  None if it does not come to one in time."""
        states, complete = set[int](), set[int]()
        before, spent, began = b"", 0.0, time.monotonic()
        at: int | None = None
        while (now := time.monotonic()) < self._until and at is None:
            if (registers := self._next(found, before)) is None:
                continue
            before = registers.general
            state = hash((registers, self._memory.changed()))
            known = state in states
            states.add(state)
            if not known and spent > COMPLETE * (now - began):
                continue
            if self._memory.learn():  # a page that nobody knew to change: all states so far are incomplete
                states, complete = set(), set()
            elif state in complete:
                at = state
            else:
                complete.add(state)
            spent += time.monotonic() - now
        self._seen |= states
        return at

    def _turn(self, found: "_Touched", state: int) -> tuple[bool, "_Touched"]:
        """Whether it has come back to the state in which it is, and what it has touched on its way.

        All of its memory is read after that, so that the way is short: on a busy node others end all the time.
        """
        before = self._tracee.registers().general
        while time.monotonic() < self._until:
            if (registers := self._next(found, before)) is None:
                continue
            before = registers.general
            if hash((registers, self._memory.changed())) == state:
                now = self._touched()
                return not self._memory.learn(), now
        return False, self._touched()

    def _next(self, found: "_Touched", before: bytes) -> Registers | None:
        """Let it run for a moment.  Its registers then, or None if they are as `before`: it may not have run at all.
        Acted if it runs code that something may influence."""
        if self._memory.changing > CHANGING:
            raise Acted("computes, and changes much memory")
        self._tracee.run(random.random() * PAUSE)
        self._stops += 1
        registers = self._tracee.registers()
        if registers.general == before:
            return None
        if (what := touched_memory.runs(_containing(found.code, registers.at))) is not None:
            raise Acted(what)
        return registers


class _Touched(NamedTuple):
    """`written`: the private memory; `code`: all code that is mapped; `influences`: by a key, what else
    may change."""

    written: list[Area]
    code: list[Area]
    influences: dict[str, str]

    @property
    def own(self) -> int:
        """Bytes of memory of no file that the process alone writes to, and has touched."""
        return sum(area.touched for area in self.written if not area.path.startswith("/"))

    def other_than(self, compared: "_Touched") -> list[Area]:
        known = {area.start for area in compared.written}
        return [area for area in self.written if area.start not in known]


class Memory:
    """The private memory that a process touches.  `memory`: a descriptor of its memory."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._areas: list[Area] = []
        self._pages: dict[int, int] = {}  # hashes of the pages that are not known to change
        self._chunks: dict[int, int] = {}  # hashes of the chunks without a page that is known to change
        self._changing: list[tuple[int, int]] = []  # address and length

    @property
    def changing(self) -> int:
        return sum(length for _, length in self._changing) // _PAGE

    def begin(self, areas: Iterable[Area]) -> None:
        """Compare with the present content of these areas."""
        self._areas, self._pages, self._chunks, self._changing = list(areas), {}, {}, []
        for at, content in self._content():
            self._chunks[at] = hash(content)
            for page in range(0, len(content), _PAGE):
                self._pages[at + page] = hash(content[page : page + _PAGE])

    def changed(self) -> bytes:
        """The content of the pages that are known to change."""
        return b"".join(os.pread(self._memory, length, at) for at, length in self._changing)

    def learn(self) -> bool:
        """Read everything; return whether a page has changed that was not known to."""
        new = False
        for at, content in self._content():
            if self._chunks.get(at) == hash(content):
                continue
            for page in range(0, len(content), _PAGE):
                known = self._pages.get(at + page)
                if known is not None and known != hash(content[page : page + _PAGE]):
                    del self._pages[at + page]
                    self._chunks.pop(at, None)
                    self._add(at + page)
                    new = True
        return new

    def _add(self, page: int) -> None:
        pages = sorted({at + offset for at, length in self._changing for offset in range(0, length, _PAGE)} | {page})
        self._changing = []
        for at in pages:
            if self._changing and sum(self._changing[-1]) == at:
                self._changing[-1] = self._changing[-1][0], self._changing[-1][1] + _PAGE
            else:
                self._changing.append((at, _PAGE))

    def _content(self) -> Iterable[tuple[int, bytes]]:
        for area in self._areas:
            for at in range(area.start, area.end, _CHUNK):
                length = min(_CHUNK, area.end - at)
                content = os.pread(self._memory, length, at)
                if len(content) < length:
                    raise OSError(0, "its memory is not mapped completely")
                yield at, content


def _pinned(pid: int) -> bool:
    """Whether pages are held in memory for a device, as far as the kernel counts them; True if that is unknown."""
    lines = (procfs.read(f"/proc/{pid}/status") or b"").splitlines()
    found = [line.split()[1] for line in lines if line.startswith(b"VmPin:")]
    return found != [b"0"]


def _limited(pid: int) -> bool:
    """Whether the kernel ends the process when it has used so much processor time (setrlimit(2)), as code that is
    tried in a sandbox is ended; True if that is unknown."""
    lines = (procfs.read(f"/proc/{pid}/limits") or b"").splitlines()
    limits = [line.split()[-3:-1] for line in lines if line.startswith((b"Max cpu time", b"Max realtime timeout"))]
    return not limits or any(limit != b"unlimited" for found in limits for limit in found)


def _containing(areas: Iterable[Area], at: int) -> Area | None:
    return next((area for area in areas if area.start <= at < area.end), None)


def _ran(pid: int, tid: int) -> float:
    """Seconds that the thread was on a processor; 0 where the kernel does not count that."""
    fields = (procfs.read(f"/proc/{pid}/task/{tid}/schedstat", 128) or b"0").split()
    return int(fields[0]) / 1e9
