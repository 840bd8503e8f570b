"""When a handler of a signal may end a wait.  Pure.

A handler of Python runs in its main thread, between two steps of the interpreter: a call of the system or a wait for a
lock is interrupted for it.  It may do whatever its process can: set an event, put an item into a queue, release a lock,
write to a pipe.  So it may end the wait of its main thread, if that is for something that the own process can give, and
the wait of any other process for this one.  It does not run while the main thread is in the code of a collective or of
a backward pass, which waits for other ranks without the interpreter; and in the loops of recognized.py it only raises.

A rank that has stepped, and whose main thread waits for an event, may be kept until it is stopped: SIGTERM sets that.
"""

from collections.abc import Callable, Container, Sequence
from typing import Final

from waitproof import handled, recognized
from waitproof.handled import TERMINATE
from waitproof.recognized import Presumed
from waitproof.stacks import Frame
from waitproof.world import ThreadId, WaitingProcess, WaitingThread, World

# Functions of the kernel in which a parent waits until its child has executed a program (vfork(2)).
_VFORK: Final = frozenset({"kernel_clone", "_do_fork", "do_fork", "wait_for_vfork_done"})


class Handlers:
    """`frames`: the Python frames of a thread.  `mains`: the main threads of Python, which in a program that embeds it
    may be others than those of their processes.  `keeping`: the threads that keep the lock of their interpreter.
    `python`: the processes whose stacks were read.  `obeying`: those that obey ftrun.  `presumes_closed`: as in
    wakers.py.  `stepped`: the ranks of which a step has ended: SIGTERM, SIGINT and SIGHUP end their job."""

    def __init__(
        self,
        world: World,
        frames: Callable[[int, int], Sequence[Frame]],
        mains: Container[ThreadId],
        keeping: Container[ThreadId],
        python: Container[int],
        obeying: Container[int],
        presumes_closed: bool,
        stepped: Container[int],
    ) -> None:
        self._world, self._frames, self._mains, self._presumes_closed = world, frames, mains, presumes_closed
        self._keeping, self._python, self._obeying, self._stepped = keeping, python, obeying, stepped
        blocked = [pid for pid, process in world.processes.items() if any(held_by_child(t) for t in process.threads)]
        self._trained = {pid for pid in world.processes if any(above in stepped for above in world.line(pid))}
        self._not_executed = {pid for pid, process in world.processes.items() if process.parent in blocked}

    def ends(self, pid: int, process: WaitingProcess, thread: WaitingThread) -> str | None:
        """Why a signal may end the wait of this thread, whatever it waits for; None: no signal may."""
        assert process.interrupts is not None
        assert thread.call is not None
        caught, call = process.interrupts.caught, thread.call
        if process.interrupts.timers:
            return "may be woken by a timer of its process"
        if alarms := handled.alarms(caught, self._presumes_closed or pid in self._obeying):
            return woken(alarms[0])
        python = pid in self._python
        if self._awaits_end(pid, thread):
            return None
        awaits = call.kind == "signal" or thread.masked or (call.kind in ("poll", "select") and not thread.fds)
        if call.name == "rt_sigtimedwait" or (awaits and not thread.fds and self._is_deliberate(pid, thread)):
            return "waits for a signal"
        if awaits and (signals := handled.awaited(caught, python)):
            return f"waits for a signal, like {signals[0]}, which its process handles"
        asked, _ = self.asking(pid, process)
        return woken(asked[0]) if asked and not python else None

    def _awaits_end(self, pid: int, thread: WaitingThread) -> bool:
        """Whether this is a side thread of a rank that has stepped, or of a process below one, and waits only for
        signals that end the job: it saves a last checkpoint then.  Not where the main thread may have joined it."""
        is_main = thread.tid == pid or (pid, thread.tid) in self._mains
        only = bool(thread.awaited) and thread.awaited <= handled.LAST and not thread.timed
        awaited = self._awaits_stop(pid) or recognized.awaits_thread(self._frames(pid, pid))
        return only and not is_main and self.has_trained(pid) and not awaited

    def _awaits_stop(self, pid: int) -> bool:
        """Whether this rank has stepped and may wait on purpose until it is stopped: its main thread waits for an event
        or a condition, outside of a step and of the work of a DataLoader, or what it runs is not known, as
        that of the main interpreter beside another one."""
        frames = self._frames(pid, pid)
        works = recognized.trains(frames) or recognized.works_for_loader(frames)
        unknown = not frames and pid in self._python and not self._presumes_closed
        return pid in self._stepped and (unknown or recognized.awaits_event(frames)) and not works

    def has_trained(self, pid: int) -> bool:
        """Whether this process is a rank that has stepped, or a descendant of one."""
        return pid in self._trained

    def _is_deliberate(self, pid: int, thread: WaitingThread) -> bool:
        """Whether it waits for a signal on purpose, as nobody does by mistake: `sleep infinity` keeps a container for
        its user.  Not a thread that keeps the lock of its interpreter, nor a process that has not executed its program
        yet, whose parent cannot go on."""
        return not self._presumes_closed and (pid, thread.tid) not in self._keeping and pid not in self._not_executed

    def asking(self, pid: int, process: WaitingProcess) -> tuple[list[int], set[int]]:
        """The signals that ask this process to end, that it handles, and that may come from outside the job; and who
        sends it the others.

        torch has each worker of a DataLoader end at SIGTERM, which its parent sends; who stops a job asks the command.
        In a step of a known library SIGTERM ends no wait (recognized.py), nor in or below a rank that has
        stepped, unless it waits for an event.
        """
        assert process.interrupts is not None
        asked = handled.asking(process.interrupts.caught, pid in self._python)
        if pid in self._trained and not self._awaits_stop(pid):
            asked -= handled.LAST
        if self._presumes_closed:
            return sorted(asked - {TERMINATE}), set()
        frames = self._frames(pid, pid)
        if TERMINATE in asked and (recognized.serves_loader(frames) or recognized.trains(frames)):
            return sorted(asked - {TERMINATE}), {self._world.processes[pid].parent} & self._world.processes.keys()
        return sorted(asked), set()

    def runs(self, pid: int, process: WaitingProcess, thread: WaitingThread, presumed: Presumed | None) -> int:
        """The signal whose handler may run in this thread while it waits; 0: there is none."""
        is_main = thread.tid == pid or (pid, thread.tid) in self._mains
        known = presumed is not None and not presumed.inherits
        if not is_main or known or pid not in self._python:
            return 0
        asked, _ = self.asking(pid, process)
        # In a collective and in a backward pass none runs before the wait has ended.
        return asked[0] if asked and not recognized.common_call(self._frames(pid, thread.tid)) else 0


def held_by_child(thread: WaitingThread) -> bool:
    """Whether a child uses the memory of this thread's process, and it waits for that to end."""
    calls = ("vfork", "clone", "clone3")
    return thread.state == "D" and thread.wchan in _VFORK and thread.call is not None and thread.call.name in calls


def woken(signal: int) -> str:
    """The reason of a wait that this signal may end."""
    return f"may be woken by signal {signal}, which its process handles"
