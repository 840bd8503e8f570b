"""A recoverable training of all ranks of `ftrun --nproc-per-node N fthang rank-...`, in plain Python.

Each rank fits the same line to its share of the points, and all add their gradients in each step, so that all ranks
have the same weights.  A failure of one rank changes neither the weights nor the loss of any step.
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import ftrun_hooks as ft
from ftrun.workload.kinds import FailureKind, When
from ftrun.workload.training import BEGINNING, POINTS, RATE, Checkpoint, Setting, newest, save, say

CONNECTING = 0.01  # seconds between two tries: rank 0 may listen later than the others connect
NUMBER = struct.Struct("=Q")


class Together:
    """The connections of this rank.  Use it with `with`, which closes them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._peers: dict[int, socket.socket] = {}  # of rank 0: by rank; of each other: rank 0

    def __enter__(self) -> "Together":
        address = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
        try:
            if self.size > 1 and self.rank == 0:
                self._accept(address[1])
            elif self.size > 1:
                self._connect(address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _accept(self, port: int) -> None:
        with socket.create_server(("", port)) as server:
            while len(self._peers) < self.size - 1:
                peer, _ = server.accept()
                self._peers[NUMBER.unpack(_exactly(peer, NUMBER.size))[0]] = peer

    def _connect(self, address: tuple[str, int]) -> None:
        while not self._peers:
            try:
                self._peers[0] = socket.create_connection(address)
            except ConnectionRefusedError:
                time.sleep(CONNECTING)
        self._peers[0].sendall(NUMBER.pack(self.rank))

    def __exit__(self, *error: object) -> None:
        for peer in self._peers.values():
            peer.close()

    def added(self, own: Sequence[float]) -> tuple[float, ...]:
        """The sum of the vectors of all ranks, added in the order of the ranks: the same bits at each rank, in each
        run.  Raises ConnectionError if a rank is gone."""
        packed = struct.Struct(f"={len(own)}d")
        if self.rank:
            self._peers[0].sendall(packed.pack(*own))
            return packed.unpack(_exactly(self._peers[0], packed.size))
        total = list(own)
        for rank in range(1, self.size):
            theirs = packed.unpack(_exactly(self._peers[rank], packed.size))
            total = [one + other for one, other in zip(total, theirs, strict=True)]
        for peer in self._peers.values():
            peer.sendall(packed.pack(*total))
        return tuple(total)


def _exactly(peer: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = peer.recv(size - len(content))
        if not piece:
            raise ConnectionResetError("another rank has closed its connection")
        content += piece
    return content


if TYPE_CHECKING:
    from ftrun_hooks import Run

STATE = struct.Struct("=3d")


class LineModel:
    """The weights and the loss, with the two methods that PyTorch's models have."""

    def __init__(self, loading: Callable[[], None]) -> None:
        self.state = BEGINNING
        self._loading = loading

    def state_dict(self) -> dict[str, bytes]:
        return {"state": STATE.pack(*self.state.weights, self.state.loss)}

    def load_state_dict(self, content: dict[str, bytes]) -> None:
        self._loading()
        slope, offset, loss = STATE.unpack(content["state"])
        self.state = self.state._replace(weights=(slope, offset), loss=loss)

    def train(self, share: list[tuple[float, float]], ranks: Together) -> None:
        slope, offset = self.state.weights
        errors = [(slope * x + offset - y, x) for x, y in share]
        own = sum(error * x for error, x in errors), sum(error for error, _ in errors), sum(e * e for e, _ in errors)
        along, constant, squares = (one / len(POINTS) for one in ranks.added(own))
        self.state = Checkpoint(self.state.step + 1, (slope - RATE * along, offset - RATE * constant), squares)


class _Failure:
    """What `kind` does, once, at each rank that `--rank` names.  If it happens between two rounds, another rank asks
    for a retry first."""

    def __init__(self, kind: FailureKind, setting: Setting, disturbed: bool) -> None:
        self._kind, self._setting = kind, setting
        self._pending = self._asks = disturbed

    def at(self, when: When, run: "Run", step: int = 0) -> None:
        """This moment has come: fail, if the failure is to happen then."""
        kind, setting = self._kind, self._setting
        asks = kind.between_rounds and run.rank == _asker(setting.ranks, run.world_size)
        if self._asks and asks and when is When.STEP and step >= setting.after:
            self._asks = False
            raise ft.Retry(f"rank {run.rank} asks for a retry")
        reached = step >= setting.after if when is When.STEP else when is When.LEAVE or run.round > 1
        if self._pending and when is kind.when and run.rank in setting.ranks and reached:
            self._pending = False
            say(f"rank {run.rank}: {kind.text(setting.value)}")
            kind.begin(setting)


def _asker(failing: frozenset[int], size: int) -> int:
    """The rank that asks for a retry: one that does not fail, if there is one."""
    after = (max(failing) + 1) % size
    return next((rank for rank in (after, *range(size)) if rank not in failing), after)


def train(kind: FailureKind, setting: Setting, disturbed: bool) -> None:
    """Train to the last step, however many rounds that takes.  Only the first process of a rank fails."""
    call: Callable[..., Checkpoint] = ft.recoverable(_train)
    state = call(_Failure(kind, setting, disturbed), setting)
    rank = os.environ.get("RANK", "0")
    slope, offset = state.weights
    say(f"rank {rank}: finished at step {state.step}, loss {state.loss:.6f}, weights {slope!r} {offset!r}")


def _train(run: "Run", failure: _Failure, setting: Setting) -> Checkpoint:
    failure.at(When.GO, run)
    model = LineModel(lambda: failure.at(When.RESTORE, run))

    def checkpoint() -> int:
        failure.at(When.RESTORE, run)
        model.state = newest(setting.folder) or BEGINNING
        return model.state.step

    step = run.restore(checkpoint, model=model)
    model.state = model.state._replace(step=step)
    say(f"rank {run.rank}, pid {os.getpid()}: round {run.round} ({run.reason}) begins with step {step}")
    try:
        with Together(run.rank, run.world_size) as ranks:
            _steps(run, model, ranks, failure, setting)
    except BaseException:
        failure.at(When.LEAVE, run)
        raise
    return model.state


def _steps(run: "Run", model: LineModel, ranks: Together, failure: _Failure, setting: Setting) -> None:
    share = POINTS[run.rank :: run.world_size]
    while model.state.step < setting.steps:
        failure.at(When.STEP, run, model.state.step)
        time.sleep(setting.step_time)
        model.train(share, ranks)
        state = model.state
        run.keep(state.step, shard="all", model=model)
        setting.beat(state.step)
        if run.rank == 0:
            say(f"step {state.step} loss {state.loss:.6f}")
            if state.step == setting.steps or state.step % setting.save_every == 0:
                ft.checkpoint(state.step, save(setting.folder, state))
