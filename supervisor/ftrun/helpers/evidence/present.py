"""The present Python stacks of all processes of a job, none of which is stopped: for `ftctl stacks`, and as a program
for the messenger, which answers other members of the group: `present RUN_DIR [RANK]`.
"""

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ftrun.core.machine.values import TOUCH
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import sentences
from ftrun.core.text.sentences import printable, several, short
from ftrun.helpers.evidence import blocking_calls, job_processes, processes
from ftrun.helpers.evidence.processes import ProcessState
from ftrun.host import procfs
from ftrun.messages.codec import DECODABLE
from ftrun.records.files import state
from ftrun.records.present.own_ranks import ENDED
from ftrun.records.present.run_snapshot import read_snapshot
from waitproof import procfs as waitproof_procfs
from waitproof import stacks
from waitproof.stacks import Stack, Thread

SECONDS: Final = 60.0  # for all processes; one takes 20 ms
COMMANDS: Final = 1.0  # s; reading a command line may block for ever
NAMED: Final = 10  # processes that are listed in a line
SCHEMA: Final = 1


class NoStacks(Exception):
    """One line: why there are none."""


class ProcessStacks(NamedTuple):
    """`rank`: the rank whose heartbeats it sends.  `missing`: why there is no stack."""

    seen: ProcessState
    rank: int | None
    command: str
    stack: Stack | None
    missing: str | None

    @property
    def pid(self) -> int:
        return self.seen.stat.pid


def observe(path: str, rank: int | None) -> list[ProcessStacks]:
    """The processes of the run in this run dir, of one rank if given; NoStacks."""
    ranks = {one.pid: one.rank for one in read_snapshot(path).ranks if one.state not in ENDED}
    if rank is not None and rank not in ranks.values():
        raise NoStacks(f"{path}: no rank {rank} runs" + (f"; these do: {_every(ranks.values())}" if ranks else ""))
    return _processes(_root(path), ranks, rank)


def _root(path: str) -> int:
    """The pid of the command in this PID namespace, or of a rank of it: one that failed may be waited for."""
    found = state.load(path).rest
    pid, attempt = found.pid, found.now.attempt
    if found.ended or pid is None:
        raise NoStacks(f"{path}: no command runs" + (": the run has ended" if found.ended else ""))
    process = procfs.stat(pid)
    if process is not None and process.start == found.pid_start and not process.ended:
        return pid
    mark = os.fsencode(f"FTRUN_BEAT_DIR={found.beat_dir}")
    for rank in attempt.processes if attempt is not None else ():
        if rank.exited_at is None and mark in procfs.environment(rank.pid):
            return rank.pid
    raise NoStacks(
        f"{path}: the command, process {pid}, is gone or in another PID namespace; run ftctl in its container"
    )


def _every(ranks: Collection[int]) -> str:
    """`0-6, 8`, then the processes without RANK; `--rank` takes the number of one of those as well."""
    numbers, others = [n for n in ranks if n >= TOUCH], sorted((n for n in ranks if n < TOUCH), reverse=True)
    return ", ".join([*filter(None, [_ranges(numbers)]), *(f"{number}: {sentences.rank(number)}" for number in others)])


def _processes(root: int, ranks: Mapping[int, int], rank: int | None) -> list[ProcessStacks]:
    """The processes, those that send heartbeats of a rank first."""
    everyone = processes.observe(job_processes.members(root, None)).processes.values()
    standbys = {one.stat.pid for one in everyone if job_processes.is_standby(one.stat.pid, one.stat.state)}
    seen = [one for one in everyone if one.stat.pid not in standbys - {root, *ranks}]
    if rank is not None:
        root = next(pid for pid, number in ranks.items() if number == rank)
        members = waitproof_procfs.below(root, (one.stat for one in seen))
        seen = [one for one in seen if one.stat.pid in members]
    seen.sort(key=lambda one: (one.stat.pid not in ranks, ranks.get(one.stat.pid, 0), one.stat.pid))
    pids = [one.stat.pid for one in seen]
    commands: dict[int, str] = {}
    task = blocking_calls.Task(partial(blocking_calls.read_commands, pids, commands))
    found = stacks.collect(stacks.program(), pids, SECONDS)
    task.wait(COMMANDS)
    return [
        ProcessStacks(one, ranks.get(pid), commands.get(pid, ""), found.found.get(pid), found.missing.get(pid))
        for one, pid in zip(seen, pids, strict=True)
    ]


# --- as text -----------------------------------------------------------------------------------------------------


def lines(found: list[ProcessStacks], all_threads: bool) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[ProcessStacks]] = {}
    for process in found:
        if process.stack is not None:
            groups.setdefault(_frames(process.stack.main), []).append(process)
    for number, (frames, members) in enumerate(sorted(groups.items(), key=lambda one: len(one[1]))):
        if number:
            yield ""
        yield f"{_who(members)}:"
        yield from (f"    {frame}" for frame in frames)
        for stack in [process.stack for process in members if process.stack] if all_threads else ():
            for thread in stack.threads:
                if thread is not stack.main:
                    yield f"  thread {thread.tid or ''} {thread.name}{', active' if thread.active else ''}:"
                    yield from (f"    {frame}" for frame in _frames(thread))
    if groups:
        yield ""
    yield from _missing(found)


def _frames(thread: Thread | None) -> tuple[str, ...]:
    """The lines of the stack of a thread, the innermost frame first."""
    if thread is None or not thread.frames:
        return ("no Python frame",)
    return tuple(frame.full for frame in thread.frames)


def _ranges(numbers: Iterable[int]) -> str:
    """`0-6, 8`: in order, without gaps."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _who(members: list[ProcessStacks]) -> str:
    named = [process.rank for process in members if process.rank is not None and process.rank >= 0]
    others = [process for process in members if process.rank is None or process.rank < 0]
    parts = [f"rank{'s' if len(named) > 1 else ''} {_ranges(named)}"] if named else []
    return ", ".join([*parts, *_named(others)])


def _named(members: list[ProcessStacks]) -> list[str]:
    shown = [
        f"{f'process {one.pid}' if one.rank is None else sentences.member(one.rank, one.pid)} "
        f"({short(one.command or one.seen.stat.name, 60)})"
        for one in members[:NAMED]
    ]
    return shown + ([f"{len(members) - NAMED} more"] if len(members) > NAMED else [])


def _missing(found: list[ProcessStacks]) -> Iterator[str]:
    why: dict[str, list[ProcessStacks]] = {}
    for process in found:
        if process.missing is not None:
            why.setdefault(process.missing, []).append(process)
    for reason, members in why.items():
        explained = f"{reason}: {stacks.permission()}" if reason == stacks.REFUSED else reason
        yield f"no stack of {several(len(members), 'process')}, {explained}: {', '.join(_named(members))}"


# --- as JSON -----------------------------------------------------------------------------------------------------


def document(process: ProcessStacks) -> dict[str, Any]:
    stack = process.stack
    document = {
        **{name: getattr(process.seen.stat, name) for name in ("pid", "parent", "name", "state", "start")},
        "wchan": process.seen.wchan,
        "rank": process.rank,
        "command": process.command,
        "threads": [{**thread._asdict(), "main": thread is stack.main} for thread in stack.threads] if stack else [],
        "missing": process.missing,
    }
    found: dict[str, Any] = DECODABLE.plain(document)
    return found


def main(argv: Sequence[str]) -> int:
    path, *rank = argv
    try:
        found = observe(path, int(rank[0]) if rank else None)
    except Exception as error:
        print(printable(str(error)))
        return 1
    print(time.strftime("as of %Y-%m-%d %H:%M:%S UTC\n", time.gmtime()))
    for line in lines(found, bool(rank)):
        print(printable(line))
    return 0
