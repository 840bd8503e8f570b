"""The wait of each thread of the job, as the kernel shows it: the system call, its arguments, and their meaning.

Reading this may block while a process holds the lock of its own memory (execve(2) from a dead disk does), so it is done
in a separate thread; what does not arrive in time is unknown.  Open files never block and are read first.
"""

import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from waitproof import files, locks, mappings, procfs, same_objects, sockets, threads, timeouts
from waitproof.connections import Connections, sockets_of
from waitproof.mappings import Mappings
from waitproof.world import GONE, LATE, Descriptor, WaitingProcess, World, host

Members = tuple[tuple[tuple[int, str], ...], tuple[int, ...]]  # of an epoll descriptor: `members` and `inodes`
Listed = tuple[int, int]  # the parent of a process, and when it started
NOTHING: Final[Mapping[int, Listed]] = {}
PROCESSES: Final = 4096
OTHERS: Final = 4096  # processes outside the job that are searched for the other end of a pipe
SHARED: Final = ("pipe:", "socket:", "anon_inode:[eventfd]", "anon_inode:[eventpoll]")  # in which they may take part


def empty(group: frozenset[str]) -> World:
    return World(time.monotonic(), {}, {}, {}, {}, {}, group, {}, {}, set(), set(), {}, set(), set(), {}, {}, {})


def observe(
    world: World,
    pids: Sequence[int],
    excluded: Iterable[int] = (),
    in_group: bool = False,
    before: World | None = None,
    listed: Mapping[int, Listed] = NOTHING,
) -> None:
    """Fill `world` in the order of `pids`.  It may be copied before this returns, and is incomplete then.  `before`: an
    earlier observation; of the threads that have not run since, less is read.  `listed`: what is known of these
    processes also if they have ended since."""
    observe_job(world, pids, before, listed)
    observe_outside(world, excluded, in_group)


def observe_job(
    world: World, pids: Sequence[int], before: World | None = None, listed: Mapping[int, Listed] = NOTHING
) -> None:
    """Read the job's own processes, the first part of `observe`."""
    world.sockets.update(sockets.list_all(pids[0] if pids else os.getpid()))
    permitted = []
    for number, pid in enumerate(pids):
        parent, start = listed.get(pid, (0, 0))
        known = WaitingProcess({}, parent=parent, start=start)
        try:
            if number >= PROCESSES:
                raise OSError(0, "there are too many processes")
            world.processes[pid] = known._replace(fds=files.list_open(pid), problem=LATE)
            permitted.append(pid)
        except OSError as error:
            gone = (stat := procfs.stat(pid)) is None or stat.ended
            world.processes[pid] = known._replace(problem=GONE if gone else error.strerror or str(error))
    _name_shared_epolls(world)
    for pid, process in world.processes.items():
        for end in process.fds.values():
            holders = world.holders.setdefault(end.key, {})
            holders[pid] = "".join(sorted({*holders.get(pid, ""), *end.mode}))
    _mark_expiring(world)
    world.memory.update(same_objects.sharing_memory(permitted))
    held, blockers = locks.table()
    world.locks.update(held)
    world.blockers.update(blockers)
    reader = threads.ThreadReader({} if before is None else before.processes)
    tables = reader.mappings
    for pid in permitted:
        known, found = world.processes[pid], reader.process(pid, world.processes[pid].fds)
        if not found.start:  # it has ended
            found = found._replace(start=known.start, parent=known.parent, problem=GONE, threads=())
        world.processes[pid] = found
    shared = {thread.shared for process in world.processes.values() for thread in process.threads if thread.shared}
    for pid in permitted if shared else ():
        for key in shared & tables.shared(pid):
            world.holders.setdefault(key, {})[pid] = "rw"
    world.named.update(shared & tables.named)
    world.spawned.update(shared & tables.spawned)
    inodes = {thread.lock for process in world.processes.values() for thread in process.threads if thread.lock}
    world.lock_files.update(locks.open_files({pid: world.processes[pid].fds for pid in permitted}, inodes))


def observe_outside(world: World, excluded: Iterable[int] = (), in_group: bool = False) -> None:
    """Look for processes outside the job that may end one of its waits, the second part of `observe`.  `excluded`:
    ftrun's helpers.  `in_group`: also for those that may send over a connection to another member."""
    everyone = procfs.all_processes()
    world.zombies.update({(found.pid, found.start): found.parent for found in everyone if found.ended})
    world.rings.update({pid: rings for pid in world.processes if (rings := mappings.rings(pid))})
    connections = Connections(world)
    awaited = {key for process in world.processes.values() for key in _awaited_keys(world, process, connections)}
    if in_group:
        awaited |= {key for key, _ in connections.links()}
    if not awaited:
        return
    strangers = connections.strangers()
    pending, epolls = _pending(world), _awaited_epolls(world, awaited)
    mapped = any(key.startswith("map:") for key in awaited)
    parent = os.getppid()  # the adopter of the job's orphans
    others = [found for found in everyone if found.pid not in world.processes and found.pid != os.getpid()]
    for found in others[:OTHERS]:
        try:
            opened = files.list_open(found.pid, SHARED)
        except OSError as error:
            beside = found.parent == parent and found.pid not in excluded and not found.ended
            if beside or error.errno == errno.EOVERFLOW:
                world.doubts["descriptor"] = f"the open files of process {found.pid} cannot be read"
            continue
        for end in opened.values() if strangers else ():
            strangers.pop(end.key, None)
            # ftrun has it, too: the job has inherited it, as its output.
            strangers = {peer: own for peer, own in strangers.items() if own[0] != end.key}
        for end in opened.values():
            if end.key in awaited:
                world.outside[end.key] = world.outside.get(end.key, "") + end.mode
        for fd, end in opened.items() if epolls else ():
            for pid, own, key in epolls.get((end.members, end.inodes), ()) if end.kind == "epoll" else ():
                if len(same_objects.same_files([(pid, own), (found.pid, fd)])) == 1:
                    world.outside[key] = "rw"
        if any(end.key in pending or _receives(world, found.pid, fd, end.key) for fd, end in opened.items()):
            world.doubts["descriptor"] = f"process {found.pid} may be about to receive descriptors"
        for key in awaited & Mappings().shared(found.pid) if mapped else ():
            world.outside[key] = "rw"
    for _, pid in strangers.values():
        world.doubts["handed"] = f"process {pid} is connected to one that is not visible, which may have been handed it"
    if len(others) > OTHERS:
        world.doubts["descriptor"] = "there are too many processes outside the job"
    if (procfs.read("/proc/sys/fs/aio-nr", 64) or b"").strip() != b"0":
        world.doubts["eventfd"] = "asynchronous input or output of the kernel may signal it"
    for pid, process in world.processes.items():
        if any(_receives(world, pid, fd, end.key) for fd, end in process.fds.items()):
            world.receiving.add(pid)
    for key in pending:
        world.receiving.update(world.holders.get(key, ()))


def _awaited_epolls(world: World, awaited: set[str]) -> dict[Members, list[tuple[int, int, str]]]:
    """The epoll descriptors for which threads wait, each with its process first, by their members: each other process
    that has one open has the same members in it."""
    found = dict[Members, list[tuple[int, int, str]]]()
    for pid, process in world.processes.items():
        for fd, end in process.fds.items():
            if end.kind == "epoll" and end.key in awaited:
                found.setdefault((end.members, end.inodes), []).append((pid, fd, end.key))
    return found


def _name_shared_epolls(world: World) -> None:
    """Give an epoll descriptor that several processes have open one key: each of them may add something to it.  It has
    the same members in each of them."""
    alike = dict[object, list[tuple[int, int]]]()
    for pid, process in world.processes.items():
        for fd, end in process.fds.items():
            if end.kind == "epoll":
                alike.setdefault((end.members, end.inodes), []).append((pid, fd))
    for group in alike.values():
        several = len({pid for pid, _ in group}) > 1
        for same in same_objects.same_files(group) if several else ():
            key = world.processes[same[0][0]].fds[same[0][1]].key
            for pid, fd in same:
                fds = world.processes[pid].fds
                fds[fd] = fds[fd]._replace(key=key)


def _mark_expiring(world: World) -> None:
    """Mark the connections that end by themselves because the other end does not take what was sent: with
    TCP_USER_TIMEOUT, also if it lives and has no room (tcp(7))."""
    for pid, process in world.processes.items():
        for fd, end in process.fds.items():
            found = world.sockets.get(end.key)
            if found is not None and found.kind == "tcp" and found.unsent and not found.expires:
                try:
                    expires = timeouts.ends_unacknowledged(pid, fd)
                except OSError:
                    expires = True
                world.sockets[end.key] = found._replace(expires=expires)


def _pending(world: World) -> set[str]:
    """The Unix sockets that have not accepted a connection of the job yet: what it has sent is in no table."""
    peers = {s.peer for _, s in sockets_of(world, world.processes) if s.kind == "unix"}
    return {key for key in peers if key in world.sockets and world.sockets[key].listens}


def _receives(world: World, pid: int, fd: int, key: str) -> bool:
    """Whether descriptors are on their way to this socket, which no table shows as open."""
    found = world.sockets.get(key)
    waits = found is not None and found.kind == "unix" and bool(found.queued)
    return waits and "scm_fds: 0" not in files.information(pid, fd)


def group(excluded: Iterable[int]) -> frozenset[str]:
    """The hosts to which ftrun's own helpers are connected: the other members of the group."""
    found = sockets.list_all(os.getpid())
    own = (found.get(end.key) for pid in excluded for end in _visible_files(pid, ("socket:",)))
    return frozenset(host(s.remote) for s in own if s is not None and s.kind == "tcp" and not s.listens)


def _visible_files(pid: int, only: tuple[str, ...]) -> list[Descriptor]:
    """The open files of a process outside the job; empty if access is denied."""
    try:
        return [*files.list_open(pid, only).values()]
    except OSError:
        return []


def _awaited_keys(world: World, process: WaitingProcess, connections: Connections) -> set[str]:
    """The keys of the objects that may end the wait of a thread and that several processes can have: pipes, event
    descriptors, epoll descriptors, the other ends of connections, and shared mappings."""
    found = set()
    for thread in process.threads:
        if thread.shared:
            found.add(thread.shared)
        numbers = [fd for fd, _ in thread.fds]
        for fd in numbers:
            end = process.fds.get(fd)
            if end is None:
                continue
            if end.kind == "epoll":
                found.add(end.key)
                numbers += [member for member, _ in end.members if member not in numbers]
            elif end.kind in ("pipe", "eventfd"):
                found.add(end.key)
            elif end.kind == "socket" and end.key in world.sockets:
                found |= {end.key, connections.other_end(world.sockets[end.key]) or ""}
    return found - {""}
