"""What the members of a group wait for: between their messengers, and in two files of each run dir through which a
messenger and the helper `evidence` of its node exchange it.

A member that stands still sends its `Waits` to rank 0, which merges them (core/group/waits.py) and sends a
`WaitsAnswer` to each.  Neither has a command line, an environment or a path: only process and rank numbers, the ends of
connections, and for each process one sentence with a line of code.
"""

import json
from typing import Final

from ftrun.core.group.waits import Waits, WaitsAnswer
from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Codec, Malformed, Value, one_line, parse_object

OWN_FILE: Final = "waits.json"  # the `Waits` of this member, written by the helper `evidence`
ANSWER_FILE: Final = "group_waits.json"  # the last `WaitsAnswer` of rank 0, written by the messenger
WAITS: Final = b"waits"  # from a member: its `Waits`
ANSWER: Final = b"answer"  # from rank 0: its `WaitsAnswer`
LIMIT: Final = 24_000  # bytes of either
LEAST: Final = 2_000  # bytes of the waits of a member in the largest group
TOGETHER: Final = 4 << 20  # bytes of the waits of all members
TEXT: Final = 240  # characters of a sentence
WORD: Final = 64  # characters of an address, a fingerprint, a wave


class LookMembership(NamedTuple):
    """Where a member's looks belong.  `folder`: the run dir, with both files.  `epoch`: the start of the group."""

    folder: str
    member: int
    size: int
    epoch: int


def share(size: int) -> int:
    """The bytes that the waits of one member may have, in a group of that size."""
    return max(LEAST, min(LIMIT, TOGETHER // size))


def dump(value: Waits | WaitsAnswer) -> bytes:
    return json.dumps(_CODEC.plain(value), separators=(",", ":")).encode("ascii")


def dump_waits(waits: Waits, size: int) -> bytes:
    """The waits as at most `share(size)` bytes: processes for which there is no room are left out, and count as
    open."""
    content = dump(waits)
    if len(content) <= share(size):
        return content
    return dump(waits._replace(processes=(), links=(), why="it has too many connections or processes to be compared"))


def load_waits(content: bytes, member: int, size: int) -> Waits:
    """The waits of that member; Malformed if they are of another member, or not consistent."""
    waits = _load(Waits, content, share(size))
    if waits.member != member:
        raise Malformed("they are not the waits of that member")
    words = (waits.wave, waits.fingerprint, *(end for link in waits.links for end in (link.local, link.remote)))
    if any(len(word) > WORD for word in words):
        raise Malformed("a word is too long")
    processes, links = range(len(waits.processes)), range(len(waits.links))
    if not all(
        all(index in processes for index in process.needs) and all(index in links for index in process.links)
        for process in waits.processes
    ) or not all(index in processes for link in waits.links for index in link.holders):
        raise Malformed("an index is out of range")
    return waits


def load_answer(content: bytes) -> WaitsAnswer:
    return _load(WaitsAnswer, content, LIMIT)


def _load(kind: type[Value], content: bytes, limit: int) -> Value:
    return _CODEC.value(kind, parse_object(content, limit))


_CODEC: Final = Codec(lambda text: one_line(text[:TEXT]))
