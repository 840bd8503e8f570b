"""The proof that a thread repeats the same states for ever.

A program that nothing influences is a function of its state: if it comes back to a state in which it was, it will come
back for ever.  The state is all of its memory and its registers, to the last bit, so that whatever a computation gets
further by is a part of it: counters in iterators, elements of arrays, the state of a random generator, the stack of C
code.  No computation that ends, and none that gets anywhere, is in the same state twice.

What may influence a thread, and how that is excluded:
* system calls and signals: the thread stops at each of them while it is traced, and the comparison has then failed;
* the clock and random numbers: the vDSO is not touched, and no code runs but that of the interpreter and the C library
  (of an interpreter whose files have no instruction for that, clocks.py);
* memory that other processes, files or devices change: none of it is touched, and no page is pinned for a device;
* other threads of the process: proof.py shows that none of them can run, but for those that look for timeouts;
* the kernel, which ends a process at its limit of processor time: there is none.

The thread is stopped some thousand times, for less than a millisecond each if its memory is small.  At each stop its
registers and the pages that are known to change are read.  All other pages are read for a share of the stops until a
state recurs, again when the thread has come back to it a few times, and once more before a proof counts.  In between
are windows in which is observed what the thread touches; there it is not stopped, and none of its memory is read.

Which memory is touched is observed roughly at first, and exactly once the states have been found to recur: that costs
more, and most threads never come to it.
"""

import os
import random
import time
from collections.abc import Iterable
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.evidence import clocks, touched_memory, tracing
from ftrun.helpers.evidence.compared_memory import Memory
from ftrun.helpers.evidence.exclusion import Windows
from ftrun.helpers.evidence.other_threads import OtherThreads
from ftrun.helpers.evidence.processes import environment
from ftrun.helpers.evidence.touched_memory import Area
from ftrun.helpers.evidence.tracing import Acted, Registers, Tracee
from ftrun.host import procfs
from ftrun_hooks import layout

MEMORY: Final = 512 << 20  # bytes that are compared at most
CHANGING: Final = 256  # pages that may change
IN_A_ROW: Final = 3  # windows in which an area looks touched, until it is compared, too
PAUSE: Final = 0.0005  # s between two stops, at most,
SHORT: Final = 0.0001  # while it comes back to a state
WARM_UP: Final = (0.05, 0.02, 0.02, 0.02)  # s that the thread runs between the first stops, which show what changes
FEW: Final = 24  # pages that change, of a thread that is confined
ENOUGH: Final = 20  # stops, for that
STOPS: Final = 200  # until another state is taken, to which it comes back more often
TURNS: Final = 3  # back to the state, before the first window: the shortest one tells how long a turn takes at most
LONGER: Final = 4.0  # times as long as a turn is a window,
LONGER_BY: Final = 0.001  # s: the kernel may need to map its pages anew
WINDOW: Final = 0.05  # s that it runs while is observed what may influence it; at most WINDOWS times
WINDOWS: Final = 40
SLACK: Final = 0.2  # of the memory that a loop without recurring states touches: it is not the same in each window
RAN: Final = 0.005  # s that it has to be on a processor in one of them
COMPLETE: Final = 0.5  # of the time, for complete comparisons of states that were not seen before
CLEARED: Final = "has memory that cannot be observed, since something else clears the accessed bits"
OTHER: Final = "touches other memory now and then"
NOT_FOUND: Final = "computes, and its state was not found to recur"


class Comparison(NamedTuple):
    """`reason`: why it is not proved that the states recur, as `calls the system`; None: it is.  `stops`, `states`: how
    often the thread was stopped, and in how many different states; `recurred`: how often it came
    back to a state after a window, with all of its memory if `reason` is None; `pages`: how many change; `seconds`: how
    long it took.  `influence`: what may influence the thread, as far as that was seen in windows of a fixed length."""

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
    clocked = clocks.reading(pid, touched_memory.built(pid))  # before the thread is stopped: a disk may be slow
    started = time.monotonic()
    try:
        others, path = OtherThreads(pid, tid), f"/proc/{pid}/mem"
        with Tracee(tid) as tracee, others, open(path, "rb", buffering=0) as memory:
            found = _Comparer(pid, tid, tracee, others, memory.fileno(), started + seconds, clocked).run()
    except Acted as what:
        found = Comparison(str(what))
    except OSError as error:
        found = Comparison(f"computes, and its state cannot be read: {error.strerror or error}")
    return found._replace(seconds=round(time.monotonic() - started, 3))


class _Comparer:
    def __init__(
        self,
        pid: int,
        tid: int,
        tracee: Tracee,
        others: OtherThreads,
        memory: int,
        until: float,
        clocked: frozenset[str] = frozenset(),
    ) -> None:
        self._clocked = clocked
        self._pid, self._tid, self._tracee, self._others, self._until = pid, tid, tracee, others, until
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
        from there for as long as it takes to come back to that state, it never touches as the first: nothing is left if
        each influence was excluded in one of these windows (exclusion.py).
        """
        self._seen, self._recurred = set(), 0
        windows = dict[int, Windows]()
        reason: str | None = NOT_FOUND
        in_a_row: dict[int, int] = {}
        turn: _Turn | None = None  # to the state in which it is, if it is known to recur
        while time.monotonic() < self._until:
            now: _Touched | None
            if turn is None:
                touched_memory.clear(self._pid, exact=self._exact)
                turn, now, observed = self._sample(found), self._touched(), None
            else:
                now = observed = self._window(found, turn.seconds)
                turn = self._return(found, turn)
            if now is None:  # then it says nothing
                continue
            other = now.other_than(found)
            in_a_row = {area.start: in_a_row.get(area.start, 0) + 1 for area in other}
            # The data of a library looks touched when another process that has loaded it ends, and so does memory from
            # before a fork: it counts as an influence at first.  What is compared only grows, so that each area is new
            # at most once.
            if any(not area.common or in_a_row[area.start] >= IN_A_ROW for area in other):
                return now._replace(written=[*found.written, *other]), OTHER
            if turn is None:
                continue
            if observed is None or not self._exact:
                self._exact = True
                continue
            self._recurred += 1
            seen = windows.setdefault(turn.state, Windows())
            seen.add(now.own, now.influences | {f"{area.start:x}": OTHER for area in other})
            left = seen.left()
            if left == "":
                if not self._memory.learn():
                    return found, None
                turn, windows = None, {}  # it was not the same state
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
            with self._others.held():
                now = self._touched(WINDOW)
                alone = not self._others.have_run
            if not alone or _ran(self._pid, self._tid) - before < RAN:
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
        return _Touched(written, code, touched_memory.influences(areas, self._beats, self._clocked))

    def _sample(self, found: "_Touched") -> "_Turn | None":
        """Let it run until it is in a state that recurs.  None if it does not come to one in time."""
        states, complete = set[int](), dict[int, float]()  # of these also the processor time of the thread then
        before, spent, began = b"", 0.0, time.monotonic()
        turn: _Turn | None = None
        while (now := time.monotonic()) < self._until and turn is None:
            if (registers := self._next(found, before)) is None:
                continue
            before = registers.general
            state = hash((registers, self._memory.changed()))
            known = state in states
            states.add(state)
            if not known and spent > COMPLETE * (now - began):
                continue
            ran = _ran(self._pid, self._tid)
            if self._memory.learn():  # a page that nobody knew to change: all states so far are incomplete
                states, complete = set(), {}
            elif state in complete:
                turn = _Turn(state, ran - complete[state], ran)
            else:
                complete[state] = ran
            spent += time.monotonic() - now
        self._seen |= states
        for _ in range(TURNS):
            turn = turn and self._return(found, turn)
        return None if turn is None or self._memory.learn() else turn

    def _return(self, found: "_Touched", turn: "_Turn") -> "_Turn | None":
        """Let it run until it is in that state again; all of its memory is not read.  None if that takes long."""
        before = self._tracee.registers().general
        for _ in range(STOPS):
            if time.monotonic() > self._until:
                break
            if (registers := self._next(found, before, SHORT)) is None:
                continue
            before = registers.general
            if hash((registers, self._memory.changed())) == turn.state:
                ran = _ran(self._pid, self._tid)
                return _Turn(turn.state, min(turn.seconds, ran - turn.ran), ran)
        return None

    def _window(self, found: "_Touched", seconds: float) -> "_Touched | None":
        """What it touches while it computes for so many seconds, and some more.  None if it did not, or another thread
        has run, too: what that one touches looks the same.

        It is not stopped in between, so that the window is short: on a busy node others end all the time.
        """
        before = _ran(self._pid, self._tid)
        needed = before + LONGER * seconds + LONGER_BY
        with self._others.held():
            touched_memory.clear(self._pid, exact=self._exact)
            self._tracee.run(needed - before, lambda: _ran(self._pid, self._tid) >= needed)
            now = self._touched()
            alone = not self._others.have_run
        if (what := self._runs(found, self._tracee.registers())) is not None:
            raise Acted(what)
        return now if alone and 0 < before < needed <= _ran(self._pid, self._tid) else None

    def _next(self, found: "_Touched", before: bytes, pause: float = PAUSE) -> Registers | None:
        """Let it run for a moment.  Its registers then, or None if they are as `before`: it may not have run at all.
        Acted if it runs code that something may influence."""
        if self._memory.changing > CHANGING:
            raise Acted("computes, and changes much memory")
        self._tracee.run(random.random() * pause)
        self._stops += 1
        registers = self._tracee.registers()
        if registers.general == before:
            return None
        if (what := self._runs(found, registers)) is not None:
            raise Acted(what)
        return registers

    def _runs(self, found: "_Touched", registers: Registers) -> str | None:
        return touched_memory.runs(_containing(found.code, registers.at), self._clocked)


class _Turn(NamedTuple):
    """From a state back to it.  `seconds`: of processor time, that it takes at most; `ran`: how much of that the thread
    had used when it was in the state last."""

    state: int
    seconds: float
    ran: float


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
