"""A server that speaks the protocol of NCCL's RAS (src/ras/client_support.cc of NCCL 2.29), and its answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
HASH = 0x27A079B828FF1A75


class At(NamedTuple):
    """A member of a communicator.  `silent`: its process does not answer."""

    pid: int
    all_reduce: int = 100
    broadcast: int = 4
    silent: bool = False
    host: str = "127.0.0.1"
    error: int = 0
    ends: bool = False

    def count(self, kind: str) -> int:
        return {"AllReduce": self.all_reduce, "Broadcast": self.broadcast}.get(kind, 0)


def in_json(members: Sequence[At], name: int = HASH, dead: bool = False) -> str:
    def described(number: int, at: At, status: dict[str, Any]) -> dict[str, Any]:
        place = {"rank": number, "host": at.host, "pid": at.pid, "cuda_dev": number, "nvml_dev": number}
        return {**place, "status": status}

    active, absent = [], []
    for number, at in enumerate(members):
        if at.silent:
            absent.append(described(number, at, {"unresponsive": True, "considered_dead": dead}))
            continue
        flags = {"finalize_called": at.ends, "destroy_flag": False, "abort_flag": False}
        one = described(number, at, {"init_state": 0, "async_error": at.error, **flags})
        active.append({**one, "collective_counts": {kind: at.count(kind) for kind in KINDS}})
    communicator = {
        "hash": f"{name:#x}",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(members),
        "ranks_count": len(active),
        "missing_ranks_count": len(absent),
        "ranks": active,
        "missing_ranks": absent,
    }
    head = {"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000}
    rest = {"timestamp": "2025-12-19 13:06:53", "communicators_count": 1, "communicators": [communicator]}
    return json.dumps({**head, **rest, "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}, indent=2) + "\n"


def in_text(members: Sequence[At], name: int = HASH) -> str:
    """The verbose text: members are listed where they are fewer than half, or alone."""
    active = [(number, at) for number, at in enumerate(members) if not at.silent]
    absent = [(number, at) for number, at in enumerate(members) if at.silent]
    differing = [kind for kind in KINDS if len({at.count(kind) for _, at in active}) > 1]
    errors = "INCOMPLETE" if absent else "MISMATCH" if differing else "OK"
    lines = [
        "NCCL version 2.26.2 compiled with CUDA 12.8",
        "CUDA runtime version 12080, driver version 13000",
        "",
        "Job summary",
        "===========",
        "",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"      1  {len(members):9}            1  {len(members):9}  {len(members):7}",
        "",
        "Communicators... (0.00s)",
        "=============",
        "",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
        f"    0         1         1  {len(members):8}  {len(members):8}  {len(members):8}   RUNNING  {errors}",
        "",
        "Errors",
        "======",
        "",
    ]

    def place(number: int, at: At) -> str:
        return f"GPU {number} (NVML {number + 1}) managed by process {at.pid} on node {at.host}"

    if absent:
        lines += ["INCOMPLETE", f"  Missing communicator data from {len(absent)} job process"]
        lines += [f"  Process {at.pid} on node {at.host} managing GPU {number}" for number, at in absent]
        lines += ["", f"#0-0 ({name:016x}) INCOMPLETE", f"  Missing communicator data from {len(absent)} ranks"]
        lines += [f"  Rank {number} -- {place(number, at)}" for number, at in absent]
        lines += [""]
    lines += ["Warnings", "========", ""]
    if differing:
        lines += [f"#0-0 ({name:016x}) MISMATCH"]
    for kind in differing:
        lines += [f"  Communicator ranks have different {kind} operation counts"]
        by_count: dict[int, list[tuple[int, At]]] = {}
        for number, at in active:
            by_count.setdefault(at.count(kind), []).append((number, at))
        for count, them in sorted(by_count.items(), key=lambda item: -len(item[1])):
            did = f"launched up to operation {count}" if count else "not launched any operations"
            if len(them) == 1:
                lines += [f"  Rank {them[0][0]} has {did} -- {place(*them[0])}"]
                continue
            lines += [f"  {len(them)} ranks have {did}"]
            if len(them) < len(members) / 2:
                lines += [f"  Rank {number} -- {place(number, at)}" for number, at in them]
    return "\n".join([*lines, "", ""])


class Ras:
    """A server on `port`, else on a free one, of this machine, until the end of the `with`.

    `answers`: what `STATUS` is answered by, in turn, the last one again and again.  `json`: whether it knows
    `SET FORMAT`.  `silent`: it accepts and says nothing; `pause`: seconds between two bytes of an answer.
    """

    def __init__(
        self,
        *answers: str,
        json: bool = True,
        silent: bool = False,
        pause: float = 0.0,
        greeting: str = "",
        port: int = 0,
    ) -> None:
        self.answers, self.commands = list(answers), list[str]()
        self._json, self._silent, self._pause = json, silent, pause
        self._greeting = greeting or "SERVER PROTOCOL 2\n"
        self._end = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", port))
        self._threads = list[threading.Thread]()
        self._open = list[socket.socket]()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()
        return str(host), int(port)

    @property
    def variable(self) -> dict[str, str]:
        return {"NCCL_RAS_ADDR": "{}:{}".format(*self.address)}

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client has closed it
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _begin(self, what: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=what, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        while not self._end.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    command = line.decode().rstrip("\r\n")
                    self.commands.append(command)
                    if not self._silent and not self._answer(connection, command.lower()):
                        return
            except OSError:
                pass  # the client has closed it

    def _answer(self, connection: socket.socket, command: str) -> bool:
        """Whether the connection goes on."""
        if command.startswith("client protocol "):
            connection.sendall(self._greeting.encode())
        elif command.startswith("timeout ") or (command.startswith("set format ") and self._json):
            connection.sendall(b"OK\n")
        elif command in ("status", "verbose status"):
            content = (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]).encode()
            if not self._pause:
                connection.sendall(content)
            for place in range(len(content) if self._pause else 0):
                if self._end.wait(self._pause):
                    break
                connection.sendall(content[place : place + 1])
            return False
        else:
            connection.sendall(f"ERROR: Unknown command {command}\n".encode())
        return True
