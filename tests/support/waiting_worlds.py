"""Small worlds of processes that wait for each other: simulated in every schedule, and shown as the kernel shows them.

A thread is a short program of operations on locks, shared locks, pipes, sockets, event descriptors, file locks,
children, timers and stops; it may also fork a process of the plan, which is unborn until then.  `State.successors` has
everything that may happen next, with what processes outside the job may do; `shown` makes the `World` that an
observation of that state would have.  The simulation knows nothing of the rules of the proof.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from waitproof import calls
from waitproof.calls import Call
from waitproof.stacks import Frame, Stack, Thread
from waitproof.waits import empty
from waitproof.world import GONE, Descriptor, Interrupts, Socket, WaitingProcess, WaitingThread, World

Op = tuple[Any, ...]
End = tuple[str, int, str]  # kind, number and mode of what a process has open: ("pipe", 0, "r"), ("socket", 0, "a")
OUTSIDE: Final = 999
_CALLS: Final = {call.name: call for call in calls.table("x86_64").values()}
_CALL_OF: Final = {
    "lock": "futex",
    "shared": "futex",
    "timed": "futex",
    "read": "read",
    "write": "write",
    "send": "sendto",
    "receive": "recvfrom",
    "child": "wait4",
    "any": "wait4",
    "flock": "fcntl",
    "await": "read",
    "sleep": "nanosleep",
    "poll": "poll",
    "epoll": "epoll_wait",
    "pidfd": "poll",
    "served": "poll",
    "pause": "pause",
    "take": "recvmsg",
}
_WORKER: Final = (
    Frame("wait", "/usr/lib/python3.11/multiprocessing/connection.py", 930),
    Frame("_worker_loop", "/x/torch/utils/data/_utils/worker.py", 250),
)
_OWN: Final = (Frame("train", "/home/me/train.py", 12),)


class Plan(NamedTuple):
    """What never changes.  `programs`: the operations of each thread, and the process that it belongs to.

    `sharing`: by shared lock, the processes that map it.  `foreign`: what processes outside the job have open too.
    `handling`: processes that handle SIGUSR1; `reaping`: SIGCHLD.  `tcp`: the connections that are TCP.
    """

    programs: tuple[tuple[int, tuple[Op, ...]], ...]
    parents: tuple[int | None, ...]
    sharing: tuple[frozenset[int], ...]
    foreign: frozenset[Op]
    handling: frozenset[int]
    reaping: frozenset[int]
    python: frozenset[int]
    tcp: frozenset[int]


class State(NamedTuple):
    """`at`: by thread, the index of its operation, or None once it has ended.  `held`: the locks that are held.
    `content`: what has something in it.  `files`: by file, the process that has locked it, or None.  `life`: by
    process, `unborn`, `alive`, `zombie` or `gone`.  `interrupted`: processes with a SIGCHLD that nobody has noticed.
    `outer`: the ends of pipes and sockets that processes outside the job have.  `flying`: those that are being passed,
    each with the process that it is for, or OUTSIDE: they are open, and no table shows them."""

    plan: Plan
    at: tuple[int | None, ...]
    held: frozenset[Op]
    content: frozenset[Op]
    ends: frozenset[tuple[int, End]]
    files: tuple[int | None, ...]
    life: tuple[str, ...]
    parents: tuple[int | None, ...]
    stopped: frozenset[int]
    interrupted: frozenset[int]
    outer: frozenset[End]
    flying: frozenset[tuple[int, End]]

    def op(self, thread: int) -> Op | None:
        at, program = self.at[thread], self.plan.programs[thread][1]
        return None if at is None else program[at] if at < len(program) else ("end",)

    def open(self, end: End) -> bool:
        """Whether a process of the job, or one outside, has this end, or somebody is about to receive it."""
        return end in self.outer or any(one == end for _, one in (*self.ends, *self.flying))

    # --- what a thread can do -----------------------------------------------------------------------------------------

    def can_run(self, thread: int) -> bool:
        """Whether it is on a processor, or will be without anybody's help."""
        process, op = self.plan.programs[thread][0], self.op(thread)
        if op is None or process in self.stopped or self.life[process] != "alive":
            return False
        return op[0] in ("sleep", "timed") or process in self.interrupted or self.ready(process, op)

    def ready(self, process: int, op: Op) -> bool:
        kind, number = op[0], op[1] if len(op) > 1 else None
        match kind:
            case "lock" | "shared":
                return op[:2] not in self.held
            case "read" | "served":
                return ("pipe", number) in self.content or not self.open(("pipe", op[1], "w"))
            case "write":
                return ("pipe", number) not in self.content or not self.open(("pipe", op[1], "r"))
            case "receive":
                return ("socket", number, op[2]) in self.content or not self.open(("socket", op[1], other(op[2])))
            case "send":
                peer = other(op[2])
                return ("socket", number, peer) not in self.content or not self.open(("socket", op[1], peer))
            case "await":
                return ("event", number) in self.content
            case "poll" | "epoll":
                return any(self.ready(process, ("read", pipe)) for pipe in op[1])
            case "child":
                return self.life[op[1]] != "alive" or self.parents[op[1]] != process
            case "any":
                own = [self.life[child] for child, parent in enumerate(self.parents) if parent == process]
                return "zombie" in own or "alive" not in own
            case "pidfd":
                return self.life[op[1]] != "alive"
            case "flock":
                return self.files[op[1]] in (None, process)
            case "pause":
                return False
            case "take":
                return any(of == process for of, _ in self.flying)
        return True

    def successors(self) -> Iterator[tuple[int | None, State]]:
        """Every next state, with the thread that has moved; None: something outside has."""
        for thread in range(len(self.at)):
            if self.can_run(thread):
                yield thread, self.step(thread)
        for thread, (process, _) in enumerate(self.plan.programs):
            waits = self.op(thread) is not None and process not in self.stopped and self.life[process] == "alive"
            if waits and process in self.plan.handling:
                yield thread, self._next(thread)  # the call fails with EINTR
        yield from ((None, state) for state in self._outside())

    def _outside(self) -> Iterator[State]:
        """What processes outside the job may do: use what they have, close it, give it to a process of the job that
        takes descriptors, and receive what they were sent."""
        taking = {of for of, program in self.plan.programs if ("take",) in program and self.life[of] == "alive"}
        for end in self.outer:
            left = self._replace(outer=self.outer - {end})
            yield left
            yield from (left._replace(flying=self.flying | {(process, end)}) for process in taking)
        for to, end in self.flying:
            if to == OUTSIDE:
                yield self._replace(flying=self.flying - {(to, end)}, outer=self.outer | {end})
        for one in (*self.outer, *self.plan.foreign):
            match one:
                case ("pipe", number, "w"):
                    yield self._replace(content=self.content | {("pipe", number)})
                case ("pipe", number, "r"):
                    yield self._replace(content=self.content - {("pipe", number)})
                case ("socket", number, side):
                    yield self._replace(content=self.content | {("socket", number, other(side))})
                    yield self._replace(content=self.content - {("socket", number, side)})
                case ("event", _):
                    yield self._replace(content=self.content | {one})
                case ("shared", _):
                    yield self._replace(held=self.held - {one})
                case ("file", number) if self.files[number] == OUTSIDE:
                    yield self._replace(files=put(self.files, number, None))

    def step(self, thread: int) -> State:
        process, op = self.plan.programs[thread][0], self.op(thread)
        assert op is not None
        now = self._next(thread)
        if not self.ready(process, op):  # a timer, or a signal
            return now._replace(interrupted=now.interrupted - {process}) if process in self.interrupted else now
        match op:
            case ("lock" | "shared" | "timed", number):
                name = "lock" if op[0] == "timed" else op[0]
                return now._replace(held=now.held | {(name, number)})
            case ("unlock" | "unshare", number):
                return now._replace(held=now.held - {("lock" if op[0] == "unlock" else "shared", number)})
            case ("read" | "served", number) if (process, ("pipe", number, "r")) in now.ends:
                return now._replace(content=now.content - {("pipe", number)})
            case ("write", number) if now.open(("pipe", number, "r")) and (process, ("pipe", number, "w")) in now.ends:
                return now._replace(content=now.content | {("pipe", number)})
            case ("receive", number, side):
                return now._replace(content=now.content - {("socket", number, side)})
            case ("send", number, side) if now.open(("socket", number, other(side))):
                return now._replace(content=now.content | {("socket", number, other(side))})
            case ("await", number):
                return now._replace(content=now.content - {("event", number)})
            case ("post", number):
                return now._replace(content=now.content | {("event", number)})
            case ("close", end):
                return now._replace(ends=now.ends - {(process, end)})
            case ("child", child):
                return now._reaped(process, [child])
            case ("any",):
                return now._reaped(process, range(len(now.life)), most=1)
            case ("flock", number):
                return now._replace(files=put(now.files, number, process))
            case ("funlock", number) if now.files[number] == process:
                return now._replace(files=put(now.files, number, None))
            case ("hand", end) if (process, end) in now.ends:
                return now._replace(flying=now.flying | {(OUTSIDE, end)})
            case ("take",):
                end = min(end for of, end in now.flying if of == process)
                return now._replace(flying=now.flying - {(process, end)}, ends=now.ends | {(process, end)})
            case ("stop", target) if process in above(now.parents, target) and now.life[target] == "alive":
                return now._replace(stopped=now.stopped | {target})
            case ("continue", target) if process in above(now.parents, target):
                return now._replace(stopped=now.stopped - {target})
            case ("fork", child) if now.life[child] == "unborn":
                inherited = {(child, end) for of, end in now.ends if of == process}
                return now._replace(life=put(now.life, child, "alive"), ends=now.ends | inherited)
            case ("exit",):
                return now._ended(process)
            case ("end",):
                left = any(at is not None for n, at in enumerate(now.at) if self.plan.programs[n][0] == process)
                return now if left else now._ended(process)
        return now

    def _next(self, thread: int) -> State:
        at = self.at[thread]
        assert at is not None
        return self._replace(at=put(self.at, thread, at + 1 if at < len(self.plan.programs[thread][1]) else None))

    def _ended(self, process: int) -> State:
        at = tuple(None if self.plan.programs[n][0] == process else one for n, one in enumerate(self.at))
        life, parents, parent = list(self.life), list(self.parents), self.parents[process]
        life[process] = "gone" if parent is None else "zombie"
        for child, of in enumerate(parents):
            if of == process:  # ftrun adopts it
                parents[child] = None
                life[child] = "gone" if life[child] == "zombie" else life[child]
        interrupted = self.interrupted | ({parent} & self.plan.reaping if parent is not None else set())
        return self._replace(
            at=at,
            ends=frozenset((of, end) for of, end in self.ends if of != process),
            files=tuple(None if holder == process else holder for holder in self.files),
            life=tuple(life),
            parents=tuple(parents),
            stopped=self.stopped - {process},
            interrupted=interrupted - {process},
            flying=frozenset((to, end) for to, end in self.flying if to != process),
        )

    def _reaped(self, process: int, children: Any, most: int = 9) -> State:
        zombies = [c for c in children if self.life[c] == "zombie" and self.parents[c] == process][:most]
        return self._replace(life=tuple("gone" if n in zombies else one for n, one in enumerate(self.life)))


def other(side: str) -> str:
    return "b" if side == "a" else "a"


def put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def above(parents: tuple[int | None, ...], process: int) -> Iterator[int]:
    while (parent := parents[process]) is not None:
        yield parent
        process = parent


# --- random worlds ----------------------------------------------------------------------------------------------------


def made(chance: random.Random) -> State:
    """A world of one to three processes with one or two threads each, of which most wait for each other."""
    number = chance.choice((1, 1, 2, 2, 2, 3))
    parents = (None, *(chance.choice((*range(n), None)) for n in range(1, number)))
    threads = [n for n in range(number) for _ in range(chance.choice((1, 1, 2)))]
    ends, foreign, outer = set[tuple[int, End]](), set[Op](), set[End]()
    for kind, modes in (("pipe", "rw"), ("pipe", "rw"), ("socket", "ab")):
        which = 1 if (kind, 0, modes[0]) in {end for _, end in ends} else 0
        for mode in modes:
            holders = chance.sample(range(number), chance.randint(1, number))
            ends |= {(process, (kind, which, mode)) for process in holders}
            outer |= {(kind, which, mode)} if chance.random() < 0.08 else set()
    passing = chance.random() < 0.27
    if passing and number > 1:  # what one gives away and waits for, another one may be given
        ends = {one for one in ends if one[1][:2] != ("pipe", 0)} | {(0, ("pipe", 0, mode)) for mode in "rw"}
    ends |= {(process, ("event", 0, "rw")) for process in range(number) if chance.random() < 0.7}
    for one in (("event", 0), ("shared", 0), ("file", 0)):
        foreign |= {one} if chance.random() < 0.08 else set()
    python = frozenset(n for n in range(number) if chance.random() < 0.5)
    sharing = frozenset(chance.sample(range(number), chance.randint(1, number)))
    programs = []
    for process in threads:
        have = [end for of, end in sorted(ends) if of == process]
        about = process, have, parents, sharing, python
        program = tuple(_operation(chance, *about) for _ in range(chance.randint(1, 3)))
        programs.append((process, _passing(chance, have) if passing and chance.random() < 0.6 else program))
    plan = Plan(
        tuple(programs),
        parents,
        (sharing,),
        frozenset(foreign),
        frozenset(n for n in range(number) if chance.random() < 0.05),
        frozenset(n for n in range(number) if chance.random() < 0.15),
        python,
        frozenset({0} if chance.random() < 0.5 else ()),
    )
    held: set[Op] = {("lock", n) for n in range(number) if chance.random() < 0.6} | {("shared", 0)}
    content: set[Op] = {("pipe", n) for n in (0, 1) if chance.random() < 0.3}
    content |= {("socket", 0, side) for side in "ab" if chance.random() < 0.3}
    file = chance.choice((None, *range(number)))
    file = OUTSIDE if ("file", 0) in foreign else file
    stopped = frozenset(n for n in range(number) if chance.random() < 0.15)
    start, life = (0,) * len(programs), ("alive",) * number
    nothing = frozenset[Any]()
    held_by_all = frozenset(held), frozenset(content), frozenset(ends), (file,)
    return State(plan, start, *held_by_all, life, parents, stopped, nothing, frozenset(outer), nothing)


def made_with_fork(chance: random.Random) -> State:
    """A process that waits, and one that forks another one: that has what its parent may have closed since."""
    parents = (None, chance.choice((None, 0)), 1)
    both = [("pipe", 0, "w"), ("socket", 0, "b")]
    ends = {(0, ("pipe", 0, "r")), (0, ("socket", 0, "a")), *((1, end) for end in both)}
    ends |= {(0, end) for end in both if chance.random() < 0.8}
    sharing = frozenset({0} | ({1, 2} if chance.random() < 0.7 else set()))
    waits: Op = chance.choice((("read", 0), ("poll", (0,)), ("receive", 0, "a"), ("shared", 0), ("lock", 0)))
    left = [("close", end) for end in both if chance.random() < 0.9]
    then: Op = chance.choice((("lock", 1), ("lock", 1), ("pause",), ("any",), ("child", 2)))
    acts: list[Op] = [("write", 0), ("send", 0, "b")] * 2 + [("lock", 2), ("sleep",), ("exit",)]
    acts += [("unshare", 0)] if 1 in sharing else []
    before: list[Op] = [("sleep",)] if chance.random() < 0.3 else []
    programs = (
        (0, (waits,)),
        (1, (*before, ("fork", 2), *left, then)),
        (2, (*[("sleep",)] * chance.randint(0, 3), chance.choice(acts), chance.choice(acts))),
    )
    none = frozenset[Any]()
    tcp = frozenset({0} if chance.random() < 0.5 else ())
    plan = Plan(programs, parents, (sharing,), none, none, none, none, tcp)
    held = frozenset[Op]({("lock", 0), ("lock", 1), ("shared", 0)})
    life = ("alive", "alive", "unborn")
    return State(plan, (0, 0, 0), held, none, frozenset(ends), (None,), life, parents, none, none, none, none)


def _operation(
    chance: random.Random,
    process: int,
    have: list[End],
    parents: tuple[int | None, ...],
    sharing: frozenset[int],
    python: frozenset[int],
) -> Op:
    pipes = {mode: [n for kind, n, m in have if (kind, m) == ("pipe", mode)] for mode in "rw"}
    sides = [m for kind, _, m in have if kind == "socket"]
    children = [n for n, parent in enumerate(parents) if parent == process]
    below = [n for n in range(len(parents)) if process in above(parents, n)]
    choices: list[Op] = [("lock", process)] * 3 + [("unlock", process), ("funlock", 0), ("flock", 0), ("pause",)]
    choices += [("exit",), ("sleep",), ("timed", process)] if chance.random() < 0.3 else []
    choices += [("shared", 0), ("shared", 0), ("unshare", 0)] if process in sharing else []
    choices += [("read", n) for n in pipes["r"]] * 2 + [("write", n) for n in pipes["w"]] * 2
    choices += [(kind, tuple(pipes["r"])) for kind in ("poll", "epoll") if pipes["r"]]
    choices += [("served", n) for n in pipes["r"] if process in python]
    choices += [(kind, 0, side) for side in sides for kind in ("receive", "receive", "send")]
    choices += [("await", 0), ("post", 0)] if ("event", 0, "rw") in have else []
    choices += [("child", child) for child in children] + ([("any",)] if children else [])
    choices += [("pidfd", n) for n in range(len(parents)) if n != process]
    choices += [(kind, n) for n in below for kind in ("stop", "continue")]
    choices += [("close", end) for end in have if end[0] != "event"]
    return chance.choice(choices)


def _passing(chance: random.Random, have: list[End]) -> tuple[Op, ...]:
    """A program that gives a descriptor to a process outside the job, or takes one from it, and then uses it or waits
    for whoever has it."""
    given = [end for end in have if end[0] != "event"]
    if not given or chance.random() < 0.5:
        return ("take",), ("write", chance.choice((0, 0, 1)))
    end = ("pipe", 0, "w") if ("pipe", 0, "w") in given else chance.choice(given)
    return ("hand", end), chance.choice((("read", 0), ("read", 0), ("read", 1), ("close", end)))


# --- as the kernel shows it -------------------------------------------------------------------------------------------


def pid_of(process: int) -> int:
    return 100 * (process + 1)


def tid_of(plan: Plan, thread: int) -> int:
    """The first thread of a process is its main thread."""
    process = plan.programs[thread][0]
    before = sum(of == process for of, _ in plan.programs[:thread])
    return pid_of(process) + before


def shown(state: State, runs: tuple[int, ...]) -> tuple[World, dict[int, Stack]]:
    """The observation, and the stacks.  `runs`: how often each thread has run."""
    plan, world = state.plan, empty(frozenset())
    stacks: dict[int, Stack] = {}
    for process, life in enumerate(state.life):
        if life != "alive":
            continue
        pid, parent = pid_of(process), state.parents[process]
        fds = _descriptors(state, process)
        own = [n for n, (of, _) in enumerate(plan.programs) if of == process]
        threads = [_thread(state, n, runs[n], fds) for n in own if state.at[n] is not None or tid_of(plan, n) == pid]
        signals = {10} if process in plan.handling else set()
        caught = frozenset(signals | ({17} if process in plan.reaping else set()))
        world.processes[pid] = WaitingProcess(
            fds,
            threads=tuple(threads),
            name="p",
            start=1,
            parent=1 if parent is None else pid_of(parent),
            interrupts=Interrupts(caught),
        )
        if process in plan.python:
            operations = {tid_of(plan, n): state.op(n) or ("end",) for n in own}
            seen = [_WORKER if operations[t.tid][0] == "served" else _OWN for t in threads]
            found = tuple(Thread(t.tid, "t", False, False, s) for t, s in zip(threads, seen, strict=True))
            stacks[pid] = Stack(found, found[0])
        for end in fds.values():
            holders = world.holders.setdefault(end.key, {})
            holders[pid] = "".join(sorted({*holders.get(pid, ""), *end.mode}))
    for number, sharing in enumerate(plan.sharing):
        for process in sharing:
            if state.life[process] == "alive":
                world.holders.setdefault(f"map:{number}", {})[pid_of(process)] = "rw"
    for one in (*state.outer, *plan.foreign):
        match one:
            case ("pipe", number, mode):
                key = f"pipe:[{number}]"
                world.outside[key] = world.outside.get(key, "") + mode
            case ("socket", number, side):
                world.outside[_socket(number, side)] = "rw"
            case ("event", number):
                world.outside[f"eventfd:{number}"] = "rw"
            case ("shared", number):
                world.outside[f"map:{number}"] = "rw"
    world.sockets.update(_sockets(state))
    for to, _ in state.flying:
        if to == OUTSIDE:
            world.doubts["descriptor"] = "a process may be about to receive descriptors"
        else:
            world.receiving.add(pid_of(to))
    for number, holder in enumerate(state.files):
        if holder is not None:
            who = OUTSIDE if holder == OUTSIDE else pid_of(holder)
            world.locks[str(number)] = {who}
            for process in range(len(state.life)):
                world.blockers[pid_of(process), str(number)] = {who}
    zombies = {n: state.parents[n] for n, life in enumerate(state.life) if life == "zombie"}
    world.zombies.update({(pid_of(n), 1): pid_of(parent) for n, parent in zombies.items() if parent is not None})
    return world, stacks


def torn(listed: State, state: State, runs: tuple[int, ...]) -> tuple[World, dict[int, Stack]]:
    """The observation, if the processes were listed in an earlier state: one that has started since is found among
    those outside the job, and one that has ended since is known only by its number."""
    world, stacks = shown(state, runs)
    for process, (then, now) in enumerate(zip(listed.life, state.life, strict=True)):
        pid, parent = pid_of(process), listed.parents[process]
        if then == "unborn" and now == "alive":
            del world.processes[pid]
            for key, holders in world.holders.items():
                if mode := holders.pop(pid, ""):
                    world.outside[key] = world.outside.get(key, "") + mode
        elif then == "alive" and now != "alive":
            above = 1 if parent is None else pid_of(parent)
            world.processes[pid] = WaitingProcess({}, GONE, start=1, parent=above)
    return world, stacks


def _socket(number: int, side: str) -> str:
    return f"socket:[{2 * number + 'ab'.index(side) + 1}]"


def _sockets(state: State) -> Iterator[tuple[str, Socket]]:
    for process in range(len(state.life)):  # over which it takes descriptors from a process outside the job
        yield f"socket:[{70 + process}]", Socket("unix", state="ESTABLISHED", peer=f"socket:[{90 + process}]")
    for number in {end[1] for _, end in state.ends if end[0] == "socket"}:
        for side in "ab":
            if not state.open(("socket", number, side)):
                continue
            peer = state.open(("socket", number, other(side)))
            status = "ESTABLISHED" if peer else "CLOSE_WAIT"
            if number in state.plan.tcp:
                ports = {"a": f"127.0.0.1:{5000 + number}", "b": f"127.0.0.1:{6000 + number}"}
                yield _socket(number, side), Socket("tcp", ports[side], ports[other(side)], status)
            else:
                yield _socket(number, side), Socket("unix", state=status, peer=_socket(number, other(side)) * peer)


def _descriptors(state: State, process: int) -> dict[int, Descriptor]:
    """Pipes from 10, sockets from 20, event descriptors from 30, pidfds from 40; 50 is an epoll with all pipes."""
    fds: dict[int, Descriptor] = {}
    for of, (kind, number, mode) in state.ends:
        if of == process and kind == "pipe":
            fds[10 + 2 * number + "rw".index(mode)] = Descriptor("pipe", f"pipe:[{number}]", mode)
        elif of == process and kind == "socket":
            fds[20 + 2 * number + "ab".index(mode)] = Descriptor("socket", _socket(number, mode))
        elif of == process:
            fds[30 + number] = Descriptor("eventfd", f"eventfd:{number}")
    for target in range(len(state.life)):
        fds[40 + target] = Descriptor("pidfd", f"pidfd:{process}/{target}", pid=pid_of(target))
    readable = [(fd, "r") for fd, end in fds.items() if end.kind == "pipe" and end.mode == "r"]
    polled = {
        pipe
        for of, program in state.plan.programs
        if of == process
        for op in program
        if op[0] == "epoll"
        for pipe in op[1]
    }
    complete = all(10 + 2 * pipe in fds for pipe in polled)  # a file that was closed stays in it where others have it
    fds[70] = Descriptor("socket", f"socket:[{70 + process}]")
    fds[50] = Descriptor("epoll", f"epoll:{process}", members=tuple(readable), complete=complete)
    return fds


def _thread(state: State, number: int, runs: int, fds: dict[int, Descriptor]) -> WaitingThread:
    plan, op, tid = state.plan, state.op(number), tid_of(state.plan, number)
    process = plan.programs[number][0]
    found = WaitingThread(tid, None, state="S", start=1, runs=runs, line=f"{op} {state.at[number]}", name="t")
    if process in state.stopped:
        return found._replace(state="T")
    if op is None:
        return found._replace(state="Z")
    if op[0] not in ("sleep", "timed") and state.can_run(number):
        return found._replace(state="R", running=True)
    call: Call = _CALLS[_CALL_OF[op[0]]]
    found = found._replace(call=call)
    match op[0]:
        case "shared":
            return found._replace(shared=f"map:{op[1]}", at=1)
        case "timed" | "sleep":
            return found._replace(timed=True, left=5.0)
        case "read":
            return found._replace(fds=((10 + 2 * op[1], "r"),))
        case "served":
            return found._replace(fds=((10 + 2 * op[1], "r"),), timed=True, left=None)
        case "write":
            return found._replace(fds=((11 + 2 * op[1], "w"),))
        case "receive" | "send":
            return found._replace(fds=((20 + 2 * op[1] + "ab".index(op[2]), "r" if op[0] == "receive" else "w"),))
        case "await":
            return found._replace(fds=((30 + op[1], "r"),))
        case "poll":
            return found._replace(fds=tuple((10 + 2 * pipe, "r") for pipe in op[1]))
        case "epoll":
            return found._replace(fds=((50, "rw"),))
        case "pidfd":
            return found._replace(fds=((40 + op[1], "r"),))
        case "take":
            return found._replace(fds=((70, "r"),))
        case "child":
            return found._replace(child=pid_of(op[1]))
        case "flock":
            return found._replace(lock=str(op[1]), fds=((60, "w"),))
    return found
