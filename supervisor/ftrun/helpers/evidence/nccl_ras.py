"""NCCL's own view of its communicators, from the service RAS: which rank has not launched which collective, and which
processes do not answer.

RAS is on by default since NCCL 2.24.  A process of the job listens on `localhost:28028`, or where `NCCL_RAS_ADDR` says,
and answers a protocol of lines on TCP (src/ras/client.cc and client_support.cc of NCCL): each command is one line, and
the answer to `STATUS` ends with the connection.  From 2.28.7 on the answer may be JSON, which has all counts; the text
of earlier versions lists the ranks that are few.  A process in which RAS runs has a thread `NCCL RAS`.

A collective counts once a host has launched it.  So counts that differ and stand still say which rank is behind, but
prove no hang: it may wait for the device of one that is ahead, and that device may be at work.
"""

import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.sentences import printable
from waitproof import procfs
from waitproof.procfs import environment, own_number

PORT: Final = 28028
THREAD: Final = "NCCL RAS"
LEG: Final = 2  # s that RAS waits for the processes of the job
ANSWER: Final = 4.0  # s for all that is asked
SIZE: Final = 8 << 20  # bytes of an answer; about 12,000 ranks in JSON
LINE: Final = 1024  # bytes of the answer to a command
ADDRESSES: Final = 4  # that are asked in turn, until one answers
THREADS: Final = 4096  # whose names are read, in all
NAMED: Final = 8  # ranks in a sentence,
ELSEWHERE: Final = 2  # if one of them is at another node
SENTENCES: Final = 4
AGAIN: Final = 1.0  # s between two answers that have to agree
_RUNNING: Final = frozenset({0, 7})  # ncclSuccess, ncclInProgress
_HASH: Final = 16  # digits
_HEAD: Final = re.compile(r"#\d+-\d+ \(([0-9a-f]+)\) (\w+)")
_KIND: Final = re.compile(r"  Communicator ranks have different (?:collective|(\w+)) operation counts")
_MANY: Final = re.compile(r"  (\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_RANK: Final = re.compile(
    r"  Rank (\d+)( has launched up to operation (\d+)| has not launched any operations)? -- "
    r"(?:GPU .* managed by process (\d+) on node (\S+)|\[process information not found\])"
)


class CommunicatorMember(NamedTuple):
    """A rank of a communicator.  `number`: its place there; `rank`: its number in the job, if it is a rank of this
    node."""

    number: int
    pid: int = 0
    host: str = ""
    rank: int | None = None

    @property
    def name(self) -> str:
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"process {self.pid} on {self.host}" if self.pid > 0 else f"member {self.number}"


class LaunchCount(NamedTuple):
    """Members that have launched the same number of collectives of one kind.  `members`: empty where only their number
    is known."""

    launched: int
    number: int
    members: tuple[CommunicatorMember, ...]

    @property
    def names(self) -> str:
        numbers = [member.rank for member in self.members]
        if not numbers or self.number > (NAMED if None not in numbers else ELSEWHERE):
            return f"{self.number} ranks"
        if len(numbers) > 1 and None not in numbers:
            return f"ranks {', '.join(map(str, numbers))}"
        return ", ".join(member.name for member in self.members)


class Difference(NamedTuple):
    """Ranks of one communicator have launched different numbers of collectives of this kind.  `reached`: the highest
    count first."""

    kind: str
    reached: tuple[LaunchCount, ...]


class Communicator(NamedTuple):
    """`silent`: members whose process does not answer RAS.  `failed`: members with an error, and its number."""

    name: str
    differences: tuple[Difference, ...] = ()
    silent: tuple[CommunicatorMember, ...] = ()
    failed: tuple[tuple[CommunicatorMember, int], ...] = ()


class NcclView(NamedTuple):
    """One answer.  `counts`: the same as long as nothing is launched; empty where the answer does not show that.
    `stands`: an answer of a second earlier was the same.  `problem`: why there is none."""

    communicators: tuple[Communicator, ...] = ()
    counts: str = ""
    stands: bool = False
    problem: str | None = None


# --- what it says -----------------------------------------------------------------------------------------------------


def sentences_of(view: NcclView | None) -> list[str]:
    """Who does not answer, who is behind, and whose collectives do not match: a few clauses, the most telling first."""
    if view is None:
        return []
    silent = dict.fromkeys(member.name for one in view.communicators for member in one.silent)
    found = [f"{name} does not answer NCCL (RAS)" for name in list(silent)[:SENTENCES]]
    failed = [(member.name, code) for one in view.communicators for member, code in one.failed]
    found += [f"{name} has the error {code} of NCCL" for name, code in dict.fromkeys(failed)]
    found += [text for one in view.communicators if (text := _mismatch(one) or _behind(one))]
    return [printable(text) for text in dict.fromkeys(found)][:SENTENCES]


def culprits(view: NcclView | None) -> tuple[int, ...]:
    """The ranks of this node that are behind in a communicator and wait for nobody in another communicator, if two
    answers show the same and all those that are behind are fewer than half; else none."""
    if view is None or not view.stands:
        return ()
    late, ahead = set[CommunicatorMember](), set[CommunicatorMember]()
    for one in view.communicators:
        for difference in one.differences:
            first, *rest = difference.reached
            behind = sum(reached.number for reached in rest)
            if any(not reached.members for reached in rest) or 2 * behind >= first.number + behind:
                return ()
            late.update(member for reached in rest for member in reached.members)
            ahead.update(first.members)
    last = {(member.pid, member.host, member.rank) for member in late}
    last -= {(member.pid, member.host, member.rank) for member in ahead}
    ranks = [rank for _, _, rank in last if rank is not None]
    return tuple(sorted(ranks)) if len(ranks) == len(last) else ()


def _behind(one: Communicator) -> str:
    """`rank 1 (last in AllReduce 99) has not reached AllReduce 100 of communicator 27a0, in which rank 0 waits`."""
    if not one.differences:
        return ""
    first, *rest = one.differences[0].reached
    kind = one.differences[0].kind
    late = ", ".join(f"{reached.names} (last in {kind} {reached.launched})" for reached in rest)
    alone = len(rest) == 1 and rest[0].number == 1
    waits = "waits" if first.number == 1 else "wait"
    has = "has" if alone else "have"
    return (
        f"{late} {has} not reached {kind} {first.launched} of communicator {one.name}, in which {first.names} {waits}"
    )


def _mismatch(one: Communicator) -> str:
    """A sentence if members that are behind in one kind of collective are ahead in another; else empty."""
    ahead = {member: found for found in one.differences for member in found.reached[0].members}
    for found in one.differences:
        for reached in found.reached[1:]:
            for member in reached.members:
                other = ahead.get(member)
                if other is not None and other is not found:
                    first = found.reached[0]
                    are = "is" if first.number == 1 else "are"
                    return (
                        f"collective mismatch: {first.names} {are} in {found.kind} #{first.launched}, "
                        f"{member.name} in {other.kind} #{other.reached[0].launched} of communicator {one.name}"
                    )
    return ""


# --- what it answers --------------------------------------------------------------------------------------------------

RankOf = Callable[[str, int], int | None]  # the rank of the job with this host and pid


def read(text: str, rank_of: RankOf) -> NcclView | None:
    """The content of an answer, in JSON or text; None for a text that is neither."""
    start = text.find("{")
    if text.lstrip().startswith("{"):
        try:
            return _document(json.loads(text[start:]), rank_of)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
    return _text(text, rank_of) if text.startswith("NCCL version ") and "\nCommunicators..." in text else None


def _document(found: dict[str, Any], rank_of: RankOf) -> NcclView | None:
    """Only the communicators of which a rank of this node is a member: another job of this host may have answered."""
    communicators, counts = [], []
    for one in found["communicators"]:
        name = f"{int(one['hash'], 16):0{_HASH}x}"
        active = {_member(at, rank_of): at for at in one["ranks"]}
        absent = {_member(at, rank_of): at for at in one["missing_ranks"]}
        if all(member.rank is None for member in (*active, *absent)):
            continue
        launched = {member: _counts(at) for member, at in active.items()}
        status = [at["status"] for at in active.values()]
        ends = any(at["finalize_called"] or at["destroy_flag"] or at["abort_flag"] for at in status)
        silent = tuple(member for member, at in absent.items() if at["status"]["unresponsive"])
        failed = tuple(
            (member, code)
            for member, at in active.items()
            for code in (int(at["status"]["init_state"]), int(at["status"]["async_error"]))
            if code not in _RUNNING
        )
        communicators.append(Communicator(name, () if ends else _differences(launched), silent, failed))
        counts.append((name, [(member.number, *launched[member].items()) for member in sorted(launched)]))
    return NcclView(tuple(communicators), repr(sorted(counts)))


def _member(at: dict[str, Any], rank_of: RankOf) -> CommunicatorMember:
    host, pid = str(at["host"]), int(at["pid"])
    return CommunicatorMember(int(at["rank"]), pid, host, rank_of(host, pid))


def _counts(at: dict[str, Any]) -> dict[str, int]:
    return {str(kind): int(number) for kind, number in at["collective_counts"].items()}


def _differences(launched: Mapping[CommunicatorMember, Mapping[str, int]]) -> tuple[Difference, ...]:
    found = []
    for kind in dict.fromkeys(kind for counts in launched.values() for kind in counts):
        by_count: dict[int, list[CommunicatorMember]] = {}
        for member, counts in launched.items():
            by_count.setdefault(counts.get(kind, 0), []).append(member)
        if len(by_count) > 1:
            ordered = sorted(by_count.items(), reverse=True)
            found.append(Difference(kind, tuple(LaunchCount(n, len(who), tuple(who)) for n, who in ordered)))
    return tuple(found)


def _text(text: str, rank_of: RankOf) -> NcclView:
    """The sections of each communicator: `INCOMPLETE` lists members that do not answer, `MISMATCH` counts."""
    silent: dict[str, list[CommunicatorMember]] = {}
    counts: dict[tuple[str, str], dict[int, tuple[int, list[CommunicatorMember]]]] = {}
    name = section = kind = ""
    reached: list[CommunicatorMember] | None = None
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line):
            (name, section), kind, reached = head.groups(), "", None
        elif not line.startswith("  "):
            name = section = kind = ""
        elif section == "MISMATCH" and line.startswith("  Communicator ranks have"):
            found = _KIND.fullmatch(line)
            kind, reached = ("" if found is None else found[1] or "collective"), None
        elif kind and (many := _MANY.fullmatch(line)):
            reached = counts.setdefault((name, kind), {}).setdefault(int(many[2] or 0), (int(many[1]), []))[1]
        elif rank := _RANK.fullmatch(line):
            pid, host = int(rank[4] or 0), rank[5] or ""
            member = CommunicatorMember(int(rank[1]), pid, host, rank_of(host, pid))
            if section == "INCOMPLETE":
                silent.setdefault(name, []).append(member)
            elif kind and rank[2]:
                counts.setdefault((name, kind), {})[int(rank[3] or 0)] = (1, [member])
                reached = None
            elif kind and reached is not None:
                reached.append(member)
    names = dict.fromkeys([*silent, *(name for name, _ in counts)])
    made = []
    for name in names:
        differences = [
            Difference(kind, tuple(LaunchCount(n, by[n][0], tuple(by[n][1])) for n in sorted(by, reverse=True)))
            for (of, kind), by in counts.items()
            if of == name and len(by) > 1
        ]
        made.append(Communicator(name, tuple(differences), tuple(silent.get(name, ()))))
    return NcclView(tuple(made))


# --- asking -----------------------------------------------------------------------------------------------------------


def ask(pids: Iterable[int], ranks: Mapping[int, int]) -> NcclView | None:
    """The view of the first of these processes' services that answers, within ANSWER s; None where no process runs RAS.
    `ranks` maps pids to ranks."""
    until, problem = time.monotonic() + ANSWER, None
    rank_of = _rank_of(ranks)
    for address in _addresses(pids):
        for form in ("json", "text"):
            try:
                text = query(address, form, until)
            except OSError as error:
                problem = f"{address[0]}:{address[1]}: {error}"
                break
            if text is not None:
                view = read(text, rank_of)
                return view or NcclView(problem=f"{address[0]}:{address[1]}: the answer is not understood")
            problem = f"{address[0]}:{address[1]}: more than {SIZE >> 20} MiB"
    return None if problem is None else NcclView(problem=problem)


def watch(pids: Iterable[int], ranks: Mapping[int, int], publish: Callable[[NcclView], None]) -> None:
    """Publish the view, and once more a second later with whether it is still the same."""
    known = list(pids)
    first = ask(known, ranks)
    if first is None:
        return
    publish(first)
    if first.problem is None:
        time.sleep(AGAIN)
        second = ask(known, ranks)
        if second is not None and second.problem is None:
            publish(second._replace(stands=first == second))


def query(address: tuple[str, int], form: str, until: float) -> str | None:
    """The answer to `VERBOSE STATUS`; None if it is larger than SIZE.  OSError if it does not come by `until`, or if
    something else listens there."""
    with _connect(address, until) as connection:
        if not _command(connection, "CLIENT PROTOCOL 2", until).upper().startswith("SERVER PROTOCOL "):
            raise OSError("it is not RAS that answers")
        for command in (f"TIMEOUT {LEG}", f"SET FORMAT {form}"):
            _command(connection, command, until)  # an earlier version refuses a format, and answers in text
        connection.sendall(b"VERBOSE STATUS\n")
        content = bytearray()
        while chunk := _receive(connection, until):
            content += chunk
            if len(content) > SIZE:
                return None
    return content.decode("utf-8", "replace")


def _connect(address: tuple[str, int], until: float) -> socket.socket:
    """Connect, but only to this machine, since RAS listens there, whatever the variable of a rank says."""
    host, port = address
    found = dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    problem = OSError("it is no address of this machine")
    for number in filter(_is_here, found):
        try:
            return socket.create_connection((number, port), max(0.001, min(1.0, until - time.monotonic())))
        except OSError as error:
            problem = error
    raise problem


def _command(connection: socket.socket, command: str, until: float) -> str:
    """The line that answers this command."""
    connection.sendall(f"{command}\n".encode())
    content = b""
    while not content.endswith(b"\n"):
        chunk = _receive(connection, until)
        content += chunk
        if not chunk or len(content) > LINE:
            raise OSError("it is not RAS that answers")
    return content.decode("utf-8", "replace")


def _receive(connection: socket.socket, until: float) -> bytes:
    connection.settimeout(max(0.001, until - time.monotonic()))
    if time.monotonic() > until:
        raise TimeoutError("timed out")
    return connection.recv(1 << 16)


def _addresses(pids: Iterable[int]) -> list[tuple[str, int]]:
    """Where the services of these processes listen, each once."""
    found, left = list[tuple[str, int]](), THREADS
    for pid in pids:
        at = address(environment(pid).get("NCCL_RAS_ADDR"))
        if at is None or at in found or not _shares_network(pid):
            continue
        runs, left = _runs(pid, left)
        found += [at] if runs else []
        if left <= 0 or len(found) == ADDRESSES:
            break
    return found


def address(given: str | None) -> tuple[str, int] | None:
    """Where RAS listens with such a value of NCCL_RAS_ADDR; None for one that NCCL would not accept either."""
    if given is None:
        return "localhost", PORT
    found = re.fullmatch(r"\[([0-9A-Fa-f:.]+)(?:%\w+)?\]:(\d{1,5})|([^\s:\[\]]+):(\d{1,5})", given)
    if found is None:
        return None
    host, port = found[1] or found[3], int(found[2] or found[4])
    any_of = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return (any_of.get(host, host), port) if 0 < port < 65536 else None


def _runs(pid: int, most: int) -> tuple[bool, int]:
    """Whether RAS runs in this process, and how many of `most` threads were not looked at for that."""
    try:
        tids = os.listdir(f"/proc/{pid}/task")[:most]
    except OSError:
        return False, most
    for number, tid in enumerate(tids, 1):
        if (procfs.read(f"/proc/{pid}/task/{tid}/comm", 32) or b"").strip() == THREAD.encode():
            return True, most - number
    return False, most - len(tids)


def _shares_network(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _rank_of(ranks: Mapping[int, int]) -> RankOf:
    """The rank of a process of this node.  RAS has the number that a process has in its own PID namespace."""
    inner = {own_number(pid): rank for pid, rank in ranks.items()}
    here: dict[str, bool] = {}

    def rank_of(host: str, pid: int) -> int | None:
        if pid in inner and host not in here:
            here[host] = _is_here(host)
        return inner[pid] if pid in inner and here[host] else None

    return rank_of


def _is_here(host: str) -> bool:
    """Whether this is an address of this machine: only then a socket can be bound to it."""
    try:
        version = ipaddress.ip_address(host).version
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True
