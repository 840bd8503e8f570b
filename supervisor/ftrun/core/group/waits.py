"""Which processes of a group wait for each other for ever, over all of its members.  Pure.

Each member that stands still publishes its `Waits`: its processes that cannot run unless one of them, or another
member, ends their wait.  `dead` merges them: a connection that leads out of one member leads into another member if
that one shows the same connection from its own end.  What leads anywhere else, or to a member that has not answered,
may end the wait.

The clocks of the members cannot be compared, so one answer of each proves nothing: A may have been waiting when it
looked, and B later.  Therefore there are waves (`Waves`).  A new one begins once the answers to the one before form a
closed world, and an answer counts for a wave only if the look began after its member had learned of that wave.  If the
answers to two waves in a row are the same, all these threads were blocked at the moment between the two waves, and no
data was on its way.  That can never change by itself.
"""

from collections.abc import Mapping
from typing import Final, Literal

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import sentences

HANDSHAKE: Final = 2  # bytes: the kernel counts the SYN of a connection at one of its ends, and not at the other
NAMED: Final = 3  # ranks in a sentence
REASONS: Final = 16  # members whose reasons are passed on
ProcessPlace = tuple[int, int]  # member, and index of its process


class OutsideLink(NamedTuple):
    """A TCP connection whose other end is not in the process tree of its member.  `holders`: the indexes of the
    processes that have it open.  `moved`: bytes received, and sent and acknowledged.  `closed`: only these processes
    have it open, and no data waits in it, in either direction.

    `launchers`: only launchers of ranks have it open, like torchrun, which never stand still: each tells the others of
    its kind again and again that it lives.  Between two of them, data says nothing about ranks."""

    local: str
    remote: str
    holders: tuple[int, ...] = ()
    moved: int = 0
    closed: bool = False
    launchers: bool = False


class BlockedProcess(NamedTuple):
    """A process of which no thread can run by itself.  `needs`: the processes of the same member, and `links`: the
    connections to other members, that may end one of its waits.  `listens`: so may a rank of the job that connects.

    `rank`: None if the process is no rank.  `text`: what its main thread waits for; `collective`: the name of the
    collective in which it waits, or empty.  `stopped`: it is stopped by a signal."""

    pid: int
    rank: int | None = None
    text: str = ""
    collective: str = ""
    stopped: bool = False
    needs: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    listens: bool = False


class Waits(NamedTuple):
    """What a member has seen in one look.  `wave`: the last one that it knew before the look began.  `fingerprint`: a
    hash over all threads of `processes`, which is equal for two looks if none of them has run in between.

    `processes`: empty if the job moves.  `size`: the number of ranks of the job, if it is known.  `why`: why the ranks
    of this member may go on by themselves, or empty."""

    member: int
    epoch: int
    wave: str
    fingerprint: str = ""
    processes: tuple[BlockedProcess, ...] = ()
    links: tuple[OutsideLink, ...] = ()
    size: int | None = None
    why: str = ""


class Deadlock(NamedTuple):
    """A proof over several members.  `fingerprints`: by member.  `member`, `pid`, `rank`: where the deadlock is;
    `mechanism`: what waits for what, in a sentence."""

    fingerprints: Mapping[int, str]
    member: int
    pid: int
    rank: int | None
    mechanism: str


class Proved(NamedTuple):
    """A deadlock that two waves have shown.  `own`: the fingerprint of the waits of the member that receives this, or
    empty; `all`: of all members."""

    own: str
    all: str
    member: int
    pid: int
    rank: int | None
    mechanism: str


class WaitsAnswer(NamedTuple):
    """What rank 0 tells one member about the waits of all.  `suspected`: the fingerprint of this member's waits, if
    they are part of a deadlock that this wave has to confirm; otherwise empty.  `reasons`: by member, why its ranks may
    go on; of the first members that say so."""

    epoch: int = 0
    wave: str = ""
    suspected: str = ""
    proved: Proved | None = None
    reasons: tuple[tuple[int, str], ...] = ()


class Waves(NamedTuple):
    """The state of the proof at rank 0.  `waits`: the latest answer of each member to this wave; `before`: the
    deadlock that the wave before has found."""

    epoch: int
    number: int = 1
    waits: Mapping[int, Waits] = {}
    before: Deadlock | None = None
    deadlock: Deadlock | None = None


def take(waves: Waves, waits: Waits, prefix: str, names: Mapping[int, str]) -> Waves:
    """The state after an answer.  `prefix`: unique for this process at rank 0, in the names of its waves.  An answer to
    another wave changes nothing but that it revokes a proof that it contradicts."""
    if waits.epoch != waves.epoch:
        return waves
    known = waves.deadlock
    if known is not None and known.fingerprints.get(waits.member) not in (None, waits.fingerprint):
        return Waves(waves.epoch, waves.number + 1)
    if waits.wave != wave_name(waves, prefix):
        return waves
    waves = waves._replace(waits={**waves.waits, waits.member: waits})
    found = deadlock(waves.waits, names)
    if found is None or known is not None:
        return waves
    before = waves.before
    if before is not None and found.fingerprints.items() <= before.fingerprints.items():
        return waves._replace(deadlock=found)
    if before is not None and not before.fingerprints.keys() <= waves.waits.keys():
        return waves  # the others have not answered to this wave yet
    return Waves(waves.epoch, waves.number + 1, before=found)


def wave_name(waves: Waves, prefix: str) -> str:
    return f"{prefix}:{waves.number}"


def answer(waves: Waves, prefix: str, member: int) -> WaitsAnswer:
    reasons = tuple((number, waits.why) for number, waits in sorted(waves.waits.items()) if waits.why)
    before, found, proved = waves.before, waves.deadlock, None
    if found is not None:
        prints = found.fingerprints
        together = ";".join(f"{number}:{prints[number]}" for number in sorted(prints))
        proved = Proved(prints.get(member, ""), _hash(together), found.member, found.pid, found.rank, found.mechanism)
    suspected = before.fingerprints.get(member, "") if before is not None else ""
    return WaitsAnswer(waves.epoch, wave_name(waves, prefix), suspected, proved, reasons[:REASONS])


def _hash(text: str) -> str:
    import hashlib  # here, since it loads OpenSSL, which PID 1 does without: only the evidence helper comes here

    return hashlib.sha256(text.encode()).hexdigest()[:32]


# --- the merged graph -------------------------------------------------------------------------------------------------


def dead(members: Mapping[int, Waits]) -> dict[ProcessPlace, frozenset[ProcessPlace]]:
    """The processes that can never run again, if all answers hold at the same time; each with those that it needs."""
    ends = _ends(members)
    needs: dict[ProcessPlace, frozenset[ProcessPlace]] = {}
    for member, waits in members.items():
        for index, process in enumerate(waits.processes):
            found = _needs(members, ends, member, process)
            if found is not None:
                needs[member, index] = found
    waiting: dict[ProcessPlace, list[ProcessPlace]] = {}
    for node, others in needs.items():
        for other in others:
            waiting.setdefault(other, []).append(node)
    running = [other for other in waiting if other not in needs]
    for node in running:
        for other in waiting.get(node, ()):
            if needs.pop(other, None) is not None:
                running.append(other)
    return needs


def deadlock(members: Mapping[int, Waits], names: Mapping[int, str]) -> Deadlock | None:
    """The deadlock over several members, if there is one that contains a rank.  `names`: of the nodes."""
    needs = dead(members)
    ranks = [node for node in needs if _process(members, node).rank is not None]
    if not ranks:
        return None
    culprit = min(ranks, key=lambda node: _naming_order(members, node))
    involved = {member for member, _ in _reachable(needs, culprit)}
    if len(involved) < 2:
        return None
    prints = {member: members[member].fingerprint for member in sorted(involved)}
    process = _process(members, culprit)
    return Deadlock(prints, culprit[0], process.pid, process.rank, _sentence(members, names, needs, culprit))


def _ends(members: Mapping[int, Waits]) -> dict[tuple[str, str], list[tuple[int, OutsideLink]]]:
    found: dict[tuple[str, str], list[tuple[int, OutsideLink]]] = {}
    for member, waits in members.items():
        for link in waits.links:
            found.setdefault((link.local, link.remote), []).append((member, link))
    return found


def _needs(
    members: Mapping[int, Waits],
    ends: Mapping[tuple[str, str], list[tuple[int, OutsideLink]]],
    member: int,
    process: BlockedProcess,
) -> frozenset[ProcessPlace] | None:
    """The processes that may end a wait of this one; None if something else may."""
    waits, found = members[member], {(member, index) for index in process.needs}
    for index in process.links:
        link = waits.links[index]
        others = ends.get((link.remote, link.local), [])
        if len(others) != 1 or len(ends[link.local, link.remote]) != 1:
            return None  # it does not lead to a member, or it is not certain to which one
        ((other, end),) = others
        if other == member:
            return None
        matches = link.launchers and end.launchers
        if not matches and (not (link.closed and end.closed) or abs(link.moved - end.moved) > HANDSHAKE):
            return None
        found |= {(other, holder) for holder in end.holders}
    if process.listens:
        ranks = {p.rank: (m, n) for m, w in members.items() for n, p in enumerate(w.processes) if p.rank is not None}
        sizes = {w.size for w in members.values()}
        if len(sizes) != 1 or ranks.keys() != set(range(waits.size or 0)):
            return None  # some ranks of the job have not answered
        found |= set(ranks.values())
    return frozenset(found)


def _reachable(needs: Mapping[ProcessPlace, frozenset[ProcessPlace]], start: ProcessPlace) -> list[ProcessPlace]:
    found = dict.fromkeys([start])
    for node in (queue := [start]):
        fresh = sorted(needs[node] - found.keys())
        found.update(dict.fromkeys(fresh))
        queue += fresh
    return list(found)


def _process(members: Mapping[int, Waits], node: ProcessPlace) -> BlockedProcess:
    return members[node[0]].processes[node[1]]


# --- the sentence -----------------------------------------------------------------------------------------------------


def _naming_order(members: Mapping[int, Waits], node: ProcessPlace) -> tuple[bool, bool, int, int]:
    """The order in which ranks are named: one that is stopped, one that is in no collective, the lowest."""
    process = _process(members, node)
    kinds = [one.collective for waits in members.values() for one in waits.processes if one.rank is not None]
    usual: Literal[0] | int = kinds.count(process.collective)
    return not process.stopped, bool(process.collective), usual, process.rank or 0


def _sentence(
    members: Mapping[int, Waits],
    names: Mapping[int, str],
    needs: Mapping[ProcessPlace, frozenset[ProcessPlace]],
    culprit: ProcessPlace,
) -> str:
    def who(node: ProcessPlace) -> str:
        rank = _process(members, node).rank
        where = names.get(node[0]) or f"member {node[0]}"
        return f"{sentences.rank(rank)} on {where}" if rank is not None else f"a process on {where}"

    reached = _reachable(needs, culprit)
    ranks = sorted(
        (n for n in reached if _process(members, n).rank is not None), key=lambda n: _naming_order(members, n)
    )
    calls = {_process(members, node).collective for node in ranks}
    others = sorted({node[0] for node in ranks} - {culprit[0]})
    shown = [culprit, *[node for node in ranks if node[0] in others]]
    parts = [f"{who(node)} {_process(members, node).text}" for node in shown[:NAMED]]
    if "" not in calls and len(calls) > 1:
        differing = {(_process(members, node).collective): node for node in reversed(ranks)}
        parts = [f"{who(node)} {_process(members, node).text}" for node in sorted(differing.values())]
        return f"collective mismatch over nodes: {', '.join(parts[:NAMED])}"
    if _process(members, culprit).stopped:
        return ", and ".join([f"{who(culprit)} is stopped by SIGSTOP", *parts[1:]])
    return f"deadlock over nodes: {', and '.join(parts)}, each of which needs the other"
