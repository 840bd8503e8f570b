"""`waitproof PID`: what every thread of a process tree waits for, and whether that can ever end.

Nothing is stopped, traced or changed.  The exit code is 0 if the wait may end, 3 if nothing can end it, and 2 if that
cannot be found out: a wrong argument, no such process, no permission, no py-spy, or no room for the answer.
"""

import argparse
import errno
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from waitproof import __version__, files, libraries, procfs, stacks, text, waits
from waitproof.proof import Facts, Proof, Walk, ranks_by_environment
from waitproof.text import printable

MAY_END, WRONG, NEVER_ENDS, INTERRUPTED = 0, 2, 3, 130
STACKS: Final = 20.0  # s for reading all stacks
NAMED: Final = 3  # threads that wait alike and are named
HELP: Final = """what every thread of a process tree waits for, and whether that can ever end

Two observations are compared; between them py-spy reads the Python stacks. Nothing is stopped, traced or changed.
The question is whether the main thread of PID, or that of a rank below it (a process with RANK), waits for ever."""
CODES: Final = """exit codes:
  0  the wait may end: something that can end it may still run
  3  nothing can end it: a deadlock
  2  that cannot be told: a wrong argument, no such process, no permission, py-spy is missing"""


OF_KERNEL: Final = 0x00200000  # PF_KTHREAD (include/linux/sched.h), in the field `flags` of proc_pid_stat(5)
DENIED: Final = "permission denied; run waitproof as the same user, or as root with the capability SYS_PTRACE"


class Wrong(Exception):
    """What a user has to know about the input, in one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(f"{message} (see waitproof --help)")


class Row(NamedTuple):
    """One thread.  `waits`: what it waits for; `open`: why it may run again, or empty.  `wakers`: the processes of
    which a thread may end its wait."""

    pid: int
    tid: int
    thread: str
    place: str
    waits: str
    open: str
    wakers: tuple[int, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = _options(arguments)
        walk, proof = examine(options.pid, options.seconds)
    except Wrong as error:
        print(f"waitproof: {printable(str(error))}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        print(
            json.dumps(document(walk, proof), indent=1) if options.json else "\n".join(lines(walk, proof)), flush=True
        )
    except BrokenPipeError:
        _discard()
    except OSError as error:
        _discard()
        print(f"waitproof: cannot write: {error.strerror}", file=sys.stderr)
        return WRONG
    return NEVER_ENDS if proof.open_reason is None else MAY_END


def _discard() -> None:
    """Write the rest nowhere, so that the interpreter does not complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def parser() -> argparse.ArgumentParser:
    found = _Parser("waitproof", description=HELP, epilog=CODES, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("pid", metavar="PID", type=int, help="the process; its descendants are examined, too")
    found.add_argument("--json", action="store_true", help="print one JSON object")
    found.add_argument("--seconds", type=float, default=1.0, help="between the two observations (default: 1)")
    found.add_argument("--version", action="version", version=f"waitproof {__version__}")
    return found


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser().parse_args(arguments)
    if not 0 < options.seconds <= 3600:
        raise Wrong(f"argument --seconds: not between 0 and 3600: {options.seconds:g}")
    return options


def examine(root: int, seconds: float = 1.0) -> tuple[Walk, Proof]:
    """Observe the process and its descendants twice, `seconds` apart; Wrong if that is not possible."""
    spy = stacks.program()
    if spy is None:
        raise Wrong("py-spy is not installed, without which no Python stack can be read: pip install py-spy")
    _check(root)
    started, before = time.monotonic(), waits.empty(frozenset())
    waits.observe(before, _members(root))
    found = stacks.collect(spy, list(before.processes), STACKS)
    code = libraries.of(before, found.found)
    time.sleep(max(0.0, started + seconds - time.monotonic()))
    after = waits.empty(frozenset())
    waits.observe(after, _members(root), before=before)
    if root not in after.processes:
        raise Wrong(f"process {root} has ended in the meantime")
    ranks = ranks_by_environment(after, Facts(root))
    walk = Walk(
        before, after, found.found, Facts(root, ranks, (root, *(pid for pid in ranks if pid != root))), code=code
    )
    return walk, walk.proof()


def _check(pid: int) -> None:
    found = procfs.stat(pid) if pid > 0 else None
    if found is None:
        raise Wrong(f"there is no process {pid}")
    if found.ended:
        raise Wrong(
            f"process {pid} ({found.name}) has ended, and its parent, process {found.parent}, has not awaited it"
        )
    _, fields = procfs.fields(f"/proc/{pid}/stat")
    if fields and int(fields[6]) & OF_KERNEL:
        raise Wrong(f"process {pid} ({found.name}) is a thread of the kernel: it runs no program")
    leader = int(procfs.status(pid).get("Tgid", pid))
    if leader != pid:
        raise Wrong(f"{pid} is a thread of process {leader}")
    try:
        files.list_open(pid, ("nothing",))
    except OSError as error:
        why = DENIED if error.errno in (errno.EACCES, errno.EPERM) else error.strerror or str(error)
        raise Wrong(f"process {pid} ({found.name}) cannot be read: {why}") from None
    if procfs.read(f"/proc/{pid}/syscall", 512) is None:
        raise Wrong(f"process {pid} ({found.name}) cannot be read: {DENIED}")


def _members(root: int) -> list[int]:
    """The process first, then its descendants, without this one."""
    everyone = [process for process in procfs.all_processes() if not process.ended]
    own = procfs.below(os.getpid(), everyone)
    return sorted(procfs.below(root, everyone) - own, key=lambda pid: (pid != root, pid))


def rows(walk: Walk) -> list[Row]:
    """The threads, in the order in which they were read."""
    describe, found = walk.describe, []
    for node, wakers in walk.wakers.items():
        waits = describe.waits(*node) if wakers.open_reason is None else ""  # else the reason says so itself
        own = describe.thread(*node), describe.place(*node), waits, walk.why_open(node)
        found.append(Row(*node, *own, (*sorted(wakers.pids),)))
    return found


# --- as text ----------------------------------------------------------------------------------------------------------


def lines(walk: Walk, proof: Proof) -> Iterable[str]:
    by_process: dict[int, list[Row]] = {pid: [] for pid in walk.world.processes}
    for row in rows(walk):
        by_process[row.pid].append(row)
    for pid, found in by_process.items():
        rank = walk.describe.who(pid)
        yield printable(f"{rank}, process {pid}" if rank.startswith("rank ") else rank)
        if problem := walk.world.processes[pid].problem:
            yield printable(f"  its threads are not known: {problem}")
        alike: dict[str, list[str]] = {}
        for row in found:
            place = f" at {row.place}" if row.place else ""
            waits = f"{row.waits}; {row.open}" if row.waits and row.open else row.waits or f"{row.open}{place}"
            alike.setdefault(waits if row.open else f"{waits}; nothing can end that", []).append(row.thread)
        for waits, threads in alike.items():
            yield printable(f"  {text.threads(threads, NAMED)}: {waits}")
    yield ""
    if proof.open_reason is None:
        yield printable(proof.mechanism)
        yield "Nothing can end this wait."
    else:
        yield printable(f"This wait may end: {proof.open_reason}.")


# --- as JSON ----------------------------------------------------------------------------------------------------------


def document(walk: Walk, proof: Proof) -> dict[str, Any]:
    """`ends`: whether the wait, or that of a thread, may end; `why`: what may end it.  `wakers`: the processes of which
    a thread may end the wait."""
    found: dict[int, list[dict[str, Any]]] = {pid: [] for pid in walk.world.processes}
    for row in rows(walk):
        thread = {"tid": row.tid, "name": row.thread, "place": row.place, "waits": row.waits}
        found[row.pid].append({**thread, "ends": bool(row.open), "why": row.open, "wakers": list(row.wakers)})
    shown = [
        {
            "pid": pid,
            "parent": process.parent,
            "name": process.name,
            "rank": process.rank,
            "problem": process.problem,
            "threads": found[pid],
        }
        for pid, process in walk.world.processes.items()
    ]
    never = proof.open_reason is None
    culprit = {"pid": proof.pid, "rank": proof.rank} if never else None
    why = {"ends": not never, "why": proof.open_reason or "", "mechanism": proof.mechanism, "culprit": culprit}
    return {**why, "processes": shown}
