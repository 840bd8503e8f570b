"""The headline of a report: in one sentence, by which mechanism the suspect stands still.  Pure.

It names what a person has to look at: a stopped process before those that wait for it, and otherwise the suspect, what
it waits for, and what the last one in that chain does.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from waitproof import recognized
from waitproof.calls import Call
from waitproof.changes import BUSY_CPU, Change
from waitproof.connections import Connections
from waitproof.stacks import Thread
from waitproof.text import printable
from waitproof.world import Descriptor, Socket, WaitingThread, World

LENGTH: Final = 200  # characters
OUTSIDE: Final = "something outside the job"
RUNS: Final = "it runs"  # what ends the wait of a thread that does not wait
LOCK: Final = "waits for a lock"
LINKS: Final = 4  # processes of a chain that are named
STOPPED: Final = {"T": "is stopped by SIGSTOP", "t": "is stopped by a debugger"}
# Frames in which the main thread looks again and again whether its children still live: file, functions, what it does.
_PARENTS: Final = (
    ("torch/utils/data/dataloader.py", {"_try_get_data", "_get_data"}, "the workers of its DataLoader"),
    ("torch/distributed/elastic/agent/server/api.py", {"_invoke_run"}, "the ranks that it has started"),
    ("torch/distributed/elastic/multiprocessing/api.py", {"wait"}, "the ranks that it has started"),
    ("torch/multiprocessing/spawn.py", {"join"}, "the processes that it has started"),
)
# What a wait within the process is for: the innermost frame with such a file and function decides.
_OBJECTS: Final = (
    ("queue.py", {"get"}, "an item of a queue"),
    ("queue.py", {"put"}, "room in a queue"),
    ("multiprocessing/queues.py", {"get"}, "an item of a queue between processes"),
    ("multiprocessing/pool.py", {"get", "wait", "next"}, "a result of a process pool"),
    ("concurrent/futures/_base.py", {"result", "exception", "wait", "as_completed"}, "the result of a future"),
    ("threading.py", {"join", "_wait_for_tstate_lock", "_shutdown"}, "the end of a thread"),
    ("multiprocessing/popen_fork.py", {"wait", "poll"}, "the end of a child"),
    ("subprocess.py", {"wait", "_wait", "communicate", "_communicate"}, "the end of a child"),
    ("threading.py", {"wait", "wait_for"}, "a condition or an event"),
)


class Link(NamedTuple):
    """One process, or one of its threads, among those that wait for each other.

    `who` names it.  `does`: what it does, as a predicate: `sleeps`, `waits for a lock`.  `place`: where in the code, or
    empty.  `awaits`: how it waits for the next one, to be followed by its name: `waits in all_reduce for`.  `fails`: it
    is itself what is wrong, whoever waits for it: a process that is stopped, or stuck in the kernel.  `ends`: what ends
    its wait without any thread of the job, or that it runs; empty: only other threads of the job can end it.
    """

    who: str
    does: str
    place: str = ""
    awaits: str = "waits for"
    fails: bool = False
    ends: str = ""

    @property
    def predicate(self) -> str:
        """`sleeps at f.py:3 step`."""
        return f"{self.does}{',' if ', ' in self.does else ''} at {self.place}" if self.place else self.does


def headline(chain: Sequence[Link], back: int | None = None, ends: str = "") -> str:
    """The sentence, without a full stop; empty for an empty chain.  `chain`: from the suspect to the last one that is
    waited for; `back`: the place in the chain of the one for which the last one waits in turn; `ends`: what follows."""
    if not chain:
        return ""
    first, last = chain[0], chain[-1]
    if back is not None and len(chain) > back + 1:
        return _bounded(_deadlock(chain, back))
    if len(chain) == 1:
        return _bounded(f"{first.who} {first.predicate}{ends}")
    if last.fails:
        return _bounded(f"{last.who} {last.predicate}, and {first.who} waits for it")
    parts = [f"{first.who} {first.awaits} {chain[1].who}"]
    between = chain[1:-1]
    if len(chain) > LINKS:
        parts.append(f"at the end of a chain of {len(chain)} of which the last, {last.who}, {last.predicate}")
        return _bounded(", ".join(parts))
    parts += [f"which {link.awaits} {after.who}" for link, after in zip(between, chain[2:], strict=True)]
    return _bounded(", ".join([*parts, f"which {last.predicate}{ends}"]))


def _deadlock(chain: Sequence[Link], back: int) -> str:
    """`deadlock between rank 0 and rank 1: rank 0 waits in broadcast for ..., rank 1 waits in all_reduce for ...`."""
    circle = chain[back:]
    names = [link.who for link in circle]
    named = f"{', '.join(names[:-1])} and {names[-1]}"
    if len(circle) > LINKS:
        named = f"{len(circle)} that wait for each other, among them {names[0]} and {names[-1]}"
    waits = "" if len(circle) > 2 else f": {names[0]} {circle[0].predicate}, {names[1]} {circle[1].predicate}"
    outside = "" if not back else f", for which {chain[0].who} waits"
    return f"deadlock between {named}{outside}{waits}"


def _bounded(sentence: str) -> str:
    shown = printable(sentence)
    return shown if len(shown) <= LENGTH else shown[: LENGTH - 3] + "..."


# --- what a process or a thread does ----------------------------------------------------------------------------------


def awaited_children(change: Change) -> str:
    """The children for which its main thread waits, as a phrase; empty where its stack shows none."""
    return next((what for file, names, what in _PARENTS if change.inside(file, names)), "")


def process_link(change: Change, world: World, who: str, alone: bool = False) -> Link:
    """What the main thread of this process does, as far as it was observed.  `alone`: there are no other ranks."""
    process = world.processes.get(change.pid)
    main = process.threads[0] if process and process.threads else None
    place, program = _place(change.main), change.seen.stat.name
    state = change.seen.stat.state
    if change.gone:
        return Link(who, "has ended")
    if change.is_stopped:
        return Link(who, STOPPED[state], place, fails=True, ends="SIGCONT" if state == "T" else "the debugger")
    if (change.waits_for_ranks or not alone) and (collective := _collective(change)):
        return Link(who, f"waits in {collective} for the other ranks", place, f"waits in {collective} for")
    if state == "D" and (main is None or main.call is None or main.call.kind != "child"):
        stuck = f"is stuck in the kernel in {change.seen.wchan or 'an unknown function'}"
        return Link(who, stuck, place, fails=True, ends="the kernel")
    if change.cpu >= BUSY_CPU or (change.stack is None and change.cpu_all >= BUSY_CPU):
        return Link(who, "computes", place, ends=RUNS)
    if children := awaited_children(change):
        return Link(who, f"waits for {children}", place, "waits for its child")
    if main is None:
        kernel = f" in {change.seen.wchan}" if change.seen.wchan else ""
        return Link(who, f"waits in the kernel{kernel}", place)
    link = thread_link(main, change.pid, change.main, world, who)
    return link if link.place or program in who else link._replace(does=f"{link.does} in the program {program}")


def _place(stack: Thread | None) -> str:
    return stack.location if stack and stack.frames else ""


def thread_link(thread: WaitingThread, pid: int, stack: Thread | None, world: World, who: str) -> Link:
    """What one thread does."""
    place, call = _place(stack), thread.call
    if thread.running:
        return Link(who, "computes", place, ends=RUNS)
    if call is None:
        return Link(who, "waits" if place else "waits for something unknown", place, ends="unknown")
    if call.kind == "sleep":
        return Link(who, "sleeps", place, ends="its timer")
    if call.kind == "child":
        child = f"its child {thread.child}" if thread.child else "a child"
        return Link(who, f"waits for {child}", place, "waits for its child")
    target = _target(thread, call, pid, stack, world)
    foreign = OUTSIDE if thread.shared and thread.shared in world.outside else ""
    return Link(who, f"waits {target}", place, ends=foreign or _ends(thread, call, target))


def _ends(thread: WaitingThread, call: Call, target: str) -> str:
    """What ends such a wait without any thread of the job."""
    if "outside the job" in target or "for a connection on" in target:
        return OUTSIDE
    if call.kind == "restart" or thread.timed:
        return "its timeout"
    kinds = ("the file", "the device", "the terminal", "timer")
    found = next((kind for kind in kinds if kind in target), "")
    return found or ("the kernel" if call.kind in ("other", "device") else "")


def _collective(change: Change) -> str:
    """The collective in which its main thread waits; empty if it is in none."""
    if not change.is_in_collective or change.main is None:
        return ""
    found = recognized.collective(change.main.frames)
    return found.name.rpartition(".")[2] if found else "the backward pass"


def _target(thread: WaitingThread, call: Call, pid: int, stack: Thread | None, world: World) -> str:
    """What it waits for, after `waits`."""
    if call.kind == "futex":
        return f"for {_object(stack)}"
    if call.kind == "lock":
        others = sorted(world.locks.get(thread.lock, set()) - {pid})
        held = f"that process {others[0]} holds" if others else "that it holds itself through another open file"
        return f"for a file lock {held if thread.lock in world.locks else 'that somebody holds'}"
    if call.kind == "signal":
        return "for a signal"
    if call.kind == "restart":
        return "for a timer"
    if call.kind in ("in", "out", "accept", "poll", "select", "epoll"):
        return _descriptors(thread, call, pid, stack, world)
    return f"in the system call {call.name}"


def _object(stack: Thread | None) -> str:
    """The Python object for which a thread waits in a futex."""
    for frame in stack.frames if stack else ():
        if not frame.library:
            break
        for file, functions, what in _OBJECTS:
            if frame.file.endswith(f"/{file}") and frame.name.rpartition(".")[2] in functions:
                return what
    return "a lock"


def _descriptors(thread: WaitingThread, call: Call, pid: int, stack: Thread | None, world: World) -> str:
    opened = world.processes[pid].fds if pid in world.processes else {}
    ends = [(opened.get(fd), mode) for fd, mode in thread.fds]
    if len(ends) == 1 and ends[0][0] is not None and ends[0][0].kind == "epoll":
        ends = [(opened.get(fd), mode) for fd, mode in ends[0][0].members]
    found = [text for end, mode in ends if (text := _end(end, mode, call, pid, world))]
    if not ends:
        return "for a timer" if thread.timed else "for no descriptor at all"
    if len(found) == 1:
        return found[0]
    return f"for one of {len(ends)} descriptors" + (f", among them {found[0].removeprefix('for ')}" if found else "")


def _end(end: Descriptor | None, mode: str, call: Call, pid: int, world: World) -> str:
    """One descriptor for which a thread waits, after `waits`."""
    if end is None:
        return ""
    if end.kind == "socket":
        found = world.sockets.get(end.key)
        return "for a socket" if found is None else _socket(found, mode, call, pid, world)
    if end.kind == "pipe":
        what = "for data from a pipe" if "r" in mode else "for room in a pipe"
        needed = "w" if "r" in mode else "r"
        holders = {p for p, held in world.holders.get(end.key, {}).items() if needed in held}
        outside = needed in world.outside.get(end.key, "")
        return what + _held(holders, pid, "" if outside else "; nobody has its other end")
    names = {"file": f"for the file {end.key}", "terminal": "for input from the terminal", "eventfd": "for an event"}
    names |= {"device": f"for the device {end.key}", "timerfd": "for a timer", "signalfd": "for a signal"}
    names |= {"pidfd": f"for the end of process {end.pid}"}
    return names.get(end.kind, f"for {end.key}")


def _socket(found: Socket, mode: str, call: Call, pid: int, world: World) -> str:
    if found.listens:
        return f"for a connection on {found.local}"
    holders = set(world.holders.get(Connections(world).other_end(found) or "", {}))
    if found.kind != "tcp":
        return "for an answer on a Unix socket" + _held(holders, pid, ", whose other end is outside the job")
    if found.state.startswith("SYN"):
        return f"for the connection to {found.remote}" + _held(holders, pid, ", which is outside the job")
    what = "for a reply from" if "r" in mode else "to send to"
    return f"{what} {found.remote}" + _held(holders, pid, ", which is outside the job")


def _held(holders: set[int], pid: int, nobody: str) -> str:
    if not holders:
        return nobody
    others = sorted(holders - {pid})
    return f" of process {others[0]}" if others else ", whose other end it holds itself"
