"""torch's flight recorder: which rank has not reached which collective.

A process with `TORCH_WORKER_SERVER_SOCKET` answers HTTP on that Unix socket, from a thread of its own without the GIL
(torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp): `POST /handler/fr_trace_json` for gloo and CPU,
`dump_nccl_trace_json` for NCCL; a build without the handler answers 404.  A server that was started within a process,
whose environment cannot show it, listens on `$FTRUN_BEAT_DIR/torch-<pid>.sock`.  The lagging rank has the lower
`collective_seq_id`; an entry's `state` is always `scheduled` under gloo, so it is not used.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.evidence.blocking_calls import Task
from waitproof.procfs import environment

HANDLERS: Final = ("fr_trace_json", "dump_nccl_trace_json")
ANSWER: Final = 2.0  # s to wait for an answer, which usually takes 1 ms
SIZE: Final = 16 << 20  # bytes of an answer
SOCKETS: Final = 64
DEFAULT: Final = "default_pg"  # the process group of all ranks


class Collective(NamedTuple):
    """The last collective that a rank has entered; number 0: none yet.  `open`: the rank has not left it."""

    number: int
    name: str
    sizes: str
    open: bool


class FlightRecord(NamedTuple):
    """The answer of one process.  `last`: its last collective by process group.  `waiting`: point-to-point calls that
    it has not left."""

    pid: int
    last: dict[str, Collective]
    waiting: tuple[str, ...] = ()
    problem: str | None = None


def ask_all(pids: Iterable[int], ranks: Mapping[int, int]) -> dict[int, FlightRecord]:
    """The answers by rank.  `ranks` maps pids to ranks; for a pid that is not in it, RANK in its environment is used.

    A data worker inherits the socket path of the process that listens on it, so one request is sent to each path.
    """
    requests: dict[str, tuple[int | None, Task[FlightRecord]]] = {}
    for pid in pids:
        variables = environment(pid)
        path = _path(pid, variables)
        if path is not None and path not in requests and len(requests) < SOCKETS:
            text = variables.get("RANK", "")
            rank = ranks.get(pid, int(text) if text.isdecimal() else None)
            requests[path] = rank, Task(partial(ask, path))
    found = {}
    until = time.monotonic() + 2 * ANSWER
    for path, (rank, task) in requests.items():
        task.wait(until - time.monotonic())
        answer = task.value or FlightRecord(0, {}, problem=f"{path}: {task.problem or 'no answer'}")
        number = ranks.get(answer.pid, rank)
        if number is not None:
            found[number] = answer
    return found


def _path(pid: int, variables: Mapping[str, str]) -> str | None:
    """The socket of the worker server of this process, or of the ancestor from which it inherited the path."""
    if given := variables.get("TORCH_WORKER_SERVER_SOCKET"):
        return os.path.join(f"/proc/{pid}/cwd", given)
    own = f"{variables.get('FTRUN_BEAT_DIR', '/nowhere')}/torch-{pid}.sock"
    return own if os.path.exists(own) else None


def ask(path: str) -> FlightRecord:
    """The records of the process that listens there; OSError, ValueError or RecursionError if it does not
    answer in ANSWER s or the answer is malformed."""
    owner, problem, content = 0, None, []
    for handler in HANDLERS:
        owner, status, body = _post(path, handler)
        if status == 200:
            content.append(json.loads(body))
        elif status != 404:
            problem = f"{handler}: HTTP {status}"
    if not content and problem is None:
        problem = "this version of torch has no flight recorder"
    answers = [read(owner, found) for found in content]
    last = {group: at for answer in answers for group, at in answer.last.items()}
    return FlightRecord(owner, last, tuple(w for answer in answers for w in answer.waiting), problem)


def read(pid: int, found: dict[str, Any]) -> FlightRecord:
    """The content of one dump; ValueError if it is malformed."""
    last: dict[str, Collective] = {}
    waiting = []
    try:
        for entry in found.get("entries", ()):
            name, sizes = str(entry["profiling_name"]), json.dumps(entry.get("input_sizes"))
            if entry["is_p2p"]:
                waiting += [f"{name} {sizes}"] if not entry["retired"] else []
                continue
            group = str(entry["process_group"][1] or entry["process_group"][0])
            number = int(entry["collective_seq_id"])
            if group not in last or number >= last[group].number:
                last[group] = Collective(number, name, sizes, not entry["retired"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"not a flight recorder's dump: {error!r}") from None
    if not last and "pg_status" in found:
        last[DEFAULT] = Collective(0, "none", "", False)
    return FlightRecord(pid, last, tuple(waiting[-8:]))


def lagging_ranks(answers: Mapping[int, FlightRecord]) -> list[str]:
    """Which ranks have not reached which collective, one clause for each process group; also which ranks wait in
    different calls."""
    found = []
    for group in sorted({group for answer in answers.values() for group in answer.last}):
        at = {rank: answer.last[group] for rank, answer in sorted(answers.items()) if group in answer.last}
        ahead = max(collective.number for collective in at.values())
        leader = next(collective for collective in at.values() if collective.number == ahead)
        late = {rank: c for rank, c in at.items() if c.number < ahead}
        waiting = [rank for rank, c in at.items() if c.number == ahead and c.open]
        if late and waiting:
            lagging = ", ".join(f"rank {rank} (last in {c.number}, {c.name})" for rank, c in late.items())
            found.append(
                f"{lagging} has not reached collective {ahead}, {leader.name} of {group}, in which "
                f"{_ranks(waiting)} wait{'s' if len(waiting) == 1 else ''}"
            )
        elif len({(at[rank].name, at[rank].sizes) for rank in waiting}) > 1:
            calls = "; ".join(f"rank {rank} in {at[rank].name} {at[rank].sizes}" for rank in waiting)
            found.append(f"collective {ahead} of {group} differs between ranks: {calls}")
    return found


def mismatch(answers: Mapping[int, FlightRecord]) -> str:
    """A sentence if ranks of one process group wait in different collectives, or at different numbers of the same one;
    else empty."""
    for group in sorted({group for answer in answers.values() for group in answer.last}):
        at = {rank: answer.last[group] for rank, answer in sorted(answers.items()) if group in answer.last}
        waiting = {rank: collective for rank, collective in at.items() if collective.open}
        same_call = len({(one.number, one.name) for one in waiting.values()}) == 1
        calls: dict[str, list[int]] = {}
        for rank, one in sorted(waiting.items(), key=lambda item: (item[1].number, item[0])):
            sizes = f" of {one.sizes}" if same_call else ""
            calls.setdefault(f"{one.name.rpartition(':')[2]} #{one.number}{sizes}", []).append(rank)
        if len(calls) > 1:
            where = [(_ranks(ranks), len(ranks) > 1, call) for call, ranks in calls.items()]
            (who, several, call), *others = where
            parts = [f"{who} {'are' if several else 'is'} in {call}", *(f"{who} in {call}" for who, _, call in others)]
            return f"collective mismatch: {', '.join(parts)}" + (f" of {group}" if group != DEFAULT else "")
    return ""


def _ranks(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


def _post(path: str, handler: str) -> tuple[int, int, bytes]:
    """The pid of the listener, the HTTP status and the body.  HTTP/1.0: the end of the connection ends the body."""
    until = time.monotonic() + ANSWER / len(HANDLERS)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(until - time.monotonic())
        connection.connect(path)
        size = struct.calcsize("3i")
        owner = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
        connection.sendall(f"POST /handler/{handler} HTTP/1.0\r\nHost: ftrun\r\nContent-Length: 0\r\n\r\n".encode())
        content = bytearray()
        while len(content) < SIZE:
            connection.settimeout(max(0.001, until - time.monotonic()))
            if not (chunk := connection.recv(1 << 16)):
                break
            content += chunk
    head, _, body = bytes(content).partition(b"\r\n\r\n")
    fields = head.split(None, 2)
    if len(fields) < 2 or not fields[1].isdigit():
        raise ValueError("not an HTTP response")
    return owner, int(fields[1]), body
