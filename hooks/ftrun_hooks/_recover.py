"""`@ft.recoverable`: the training function is called again in the living process after a fault of another rank."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
import traceback
from functools import wraps
from typing import Any, Callable, Iterable, TypeVar, cast
from weakref import ReferenceType, ref

from . import _torch_adapter as adapter
from ._control import LONGEST, ControlClient
from ._interrupt import Fenced, deferred, fenced_in
from ._section import close_all
from ._snapshot import Damaged, Snapshots, kept_step

Function = TypeVar("Function", bound=Callable[..., Any])


class Retry(BaseException):
    """`raise ft.Retry("why")`: this step failed for a passing reason, so all ranks leave it and try again.

    All ranks call their training function again in the same process, with the newest state that all of them have.  If
    that does not help, ftrun replaces the process of this rank, then restarts all of them.  It is no `Exception`, so
    that `except Exception` does not catch it.  Outside a recoverable function it ends the program like any exception.
    """


class Run:
    """What a recoverable training function receives: one round, i.e. one try of all ranks.

    `round` counts the rounds of this start of the job from 1.  `rank`, `world_size`: of this round.  `reason` is why
    the round began: `first`, `retry` (no process has ended) or `rank` (the process of at least one rank was
    replaced).
    """

    def __init__(
        self,
        number: int,
        reason: str,
        snapshots: Snapshots | None = None,
        client: ControlClient | None = None,
        leftovers: Leftovers | None = None,
    ) -> None:
        self.round, self.reason = number, reason
        self.rank, self.world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
        self.kept: dict[str, Any] = {}
        self._snapshots, self._client, self._leftovers = snapshots, client, leftovers
        self._source: tuple[int, int] | None = None  # the number of a snapshot, and the local rank that has it
        # Whether it still has to load the snapshot of another rank, and whether others still load its own.
        self._borrows = self._lends = False

    def keep(self, step: int, shard: str = "", **state: Any) -> bool:
        """Put the state after `step` steps into shared memory, from which a later round begins.  True if it is there.

        A value is anything with `state_dict` (a model, an optimizer, a sampler, ...), or a tensor, bytes, numbers,
        text, and dicts and lists of those.  Other values are pickled.  Tensors are copied, from any device, and not
        pickled.

        Guaranteed: a process that is killed within this call has its snapshot of before, whole.  An end of the round
        waits until this call is over.  Two snapshots are kept, so twice the memory is needed; where `/dev/shm` is too
        small it says so once and returns False from then on.  A snapshot outlives the process, but neither a restart
        of all ranks nor the container: **it is no checkpoint.**

        Ranks that give the same `shard` say that they hold the same state, e.g. `shard="all"` with DDP: then a rank
        without a snapshot begins with that of another rank of this node.  Until it has loaded it, the other rank keeps
        that snapshot beside its newest one.

        Outside ftrun it does nothing.  TypeError for a tensor that is spread over ranks (DTensor): keep `to_local()`.
        """
        if self._snapshots is None:
            return False
        with deferred:
            self._has_restored()  # a snapshot that was not loaded before this is not wanted
            if self._lends and self._client is not None and self._client.released >= self.round:
                self._lends = False
                self._snapshots.release()
            if self._leftovers is not None:
                self._leftovers.watch(state.values())
            return self._snapshots.keep(step, shard, state)

    def restore(self, checkpoint: Callable[[], int | None] | None = None, **targets: Any) -> int:
        """Load the state with which this round begins into `targets`, and return its step: how many steps are done.

        It is the newest step of which every rank has a snapshot, of its own or of the same `shard`.  The names are
        those of `keep`; a target has `load_state_dict`, or is a tensor, which is written in place.  Values of other
        names are in `run.kept` afterwards.

        Where there is no such step `checkpoint` is called, which loads the newest checkpoint and returns its step
        (None counts as 0).  Without it the result is 0, and nothing is loaded.  So it is in the first round, after a
        restart of all ranks, and outside ftrun.

        A snapshot that cannot be read is given up, and a `Retry` is raised.
        """
        if self._source is None or self._snapshots is None:
            return (checkpoint() or 0) if checkpoint is not None else 0
        number, source = self._source
        step = kept_step(number)
        if self._leftovers is not None:
            self._leftovers.watch(targets.values())
        try:
            self.kept = self._snapshots.load(number, source, targets)
        except Damaged as why:
            self._snapshots.forget()
            raise Retry(f"the snapshot of step {step} cannot be read: {why}") from None
        with deferred:
            self._has_restored()
        return step

    def _has_restored(self) -> None:
        if self._borrows and self._client is not None:
            self._borrows = False
            self._client.send("snapshot_restored", round=self.round)

    def check(self) -> None:
        """Leave here if the round has ended.  Only for threads of your own, and after code that caught BaseException:
        the main thread is interrupted without it."""
        if self._client is not None and self._client.fence >= self.round:
            raise Fenced(deferred.why)


def recoverable(function: Function) -> Function:
    """The function, called as `train()` with a first argument of its own, `run`, may be called again after a fault.

    Outside ftrun, under ftrun without --nproc-per-node, with `--recover none` and for a second call in a process it
    runs once like any function; it must be called in the main thread.

    **Guaranteed.**  When a rank dies, hangs or raises `Retry`, the function is left by an exception in each other
    rank and called again in the same process (same pid, same memory), once all ranks have left it: no two rounds ever
    run at once.  RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are those of the new round.  A rank that does not
    leave in time is replaced by a new process, and then all are restarted.  An exception of the function itself ends
    this rank's process, which is replaced; a broken connection or an error of a collective is a retry.

    **Torn down for you:** the process groups of torch.distributed, the local variables of the function and all it had
    called (the frames of the traceback), open sections, and CUDA's cache of free memory.  Reference cycles are
    collected at once where a value that was given to `run.keep` or `run.restore`, a socket of the round, or memory of a
    device still exists after that; others by Python in its own time.  After the function has returned: the threads of
    groups that it has destroyed.

    **Yours:** what the function put into global variables (a model there keeps its memory, and its process group
    open), threads, files, and processes that it started.  A DataLoader ends its workers when its iterator is dropped.
    `finally` blocks and context managers run when the function is left; they must not wait for other ranks.
    """

    @wraps(function)
    def run_rounds(*args: Any, **kwargs: Any) -> Any:
        return _Rounds.of_process(function).call(args, kwargs)

    return cast(Function, run_rounds)


class _Rounds:
    """The rounds of one call of a recoverable function."""

    used = False  # a process says hello once

    def __init__(self, function: Callable[..., Any], client: ControlClient | None) -> None:
        self._function, self._client = function, client
        self._snapshots = Snapshots.of_rank() if client is not None else None
        self._leftovers, self._rendezvous = Leftovers(), Rendezvous()

    @classmethod
    def of_process(cls, function: Callable[..., Any]) -> _Rounds:
        if cls.used or threading.current_thread() is not threading.main_thread():
            return cls(function, None)
        client = ControlClient.connect(adapter.abort)
        cls.used = client is not None
        return cls(function, client)

    def call(self, args: Any, kwargs: Any) -> Any:
        client, snapshots = self._client, self._snapshots
        if client is None or snapshots is None:
            return self._function(Run(_number("FTRUN_ROUND", 1), "first"), *args, **kwargs)
        adapter.prepare()
        client.start(_held(snapshots))
        run = Run(1, "first", snapshots, client, self._leftovers)
        if _number("FTRUN_ROUND", 1) > 1:  # this process replaces an earlier process of the rank
            run = self._next(RuntimeError("ftrun has closed the connection"))
        while True:
            returned, result, error = self._attempt(client, run, args, kwargs)
            if returned or os.getpid() != client.owner:
                break
            assert error is not None
            if not self._leaves(client, run, error):
                raise error
            run = self._next(self._leave(client, run, error))
        if os.getpid() == client.owner:
            client.finished = True
            client.send("function_finished", round=run.round)
            adapter.forget_ended_groups()
        elif error is not None:
            raise error  # a forked child is no rank
        return result

    def _attempt(
        self, client: ControlClient, run: Run, args: Any, kwargs: Any
    ) -> tuple[bool, Any, BaseException | None]:
        """Whether the function returned, with what, or the exception that ended it."""
        try:
            try:
                self._leftovers.begin()
                deferred.arm(sys._getframe())
                if not client.begin(run.round):
                    raise Fenced(deferred.why)
                return True, self._function(run, *args, **kwargs), None
            finally:
                deferred.disarm()
        except BaseException as error:
            deferred.disarm()  # the block above may have been interrupted itself
            return False, None, error
        finally:
            client.working = 0

    def _leaves(self, client: ControlClient, run: Run, error: BaseException) -> bool:
        """Whether this rank goes on in another round.  Its report lets the others leave the round at once."""
        if isinstance(error, Retry):
            client.send("asked_retry", round=run.round, why=str(error)[:LONGEST])
            return True
        if fenced_in(error) or (client.fence >= run.round and isinstance(error, Exception)):
            return True
        if isinstance(error, ConnectionError) or adapter.is_collective_error(error):
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            client.send("asked_retry", round=run.round, why=why[:LONGEST], collective=True)
            return True
        return False

    def _leave(self, client: ControlClient, run: Run, error: BaseException) -> BaseException:
        """Drop what the function has left behind, and wait at the barrier.  The exception to raise if no round
        follows."""
        if not fenced_in(error) and client.fence < run.round and os.environ.get("FTRUN_QUIET") != "1":
            print(f"[ftrun] rank {run.rank} leaves round {run.round}: {_line(error)}", file=sys.stderr, flush=True)
        line = _line(error)
        _drop_frames(error)
        run._client = run._snapshots = None  # a thread that still has it cannot keep anything
        run.kept = {}
        close_all()
        self._rendezvous.note()
        problem = adapter.end_groups()
        if problem is None:
            self._leftovers.collect()
            problem = adapter.give_memory_back()
        assert self._snapshots is not None
        client.send("left_round", round=run.round, held=_held(self._snapshots), problem=problem and problem[:LONGEST])
        return RuntimeError(f"the training function was left ({line}), and ftrun has ended the recovery")

    def _next(self, failure: BaseException) -> Run:
        """Wait for the next round.  Raises the failure if there is none."""
        client, snapshots = self._client, self._snapshots
        assert client is not None
        assert snapshots is not None
        order = client.orders.get()
        if order is None:
            raise failure
        os.environ.update({str(name): str(value) for name, value in order["variables"].items()})
        found = order["restore"]
        run = Run(int(order["round"]), str(order["reason"]), snapshots, client, self._leftovers)
        # All others belong to a round that has ended.
        snapshots.forget(but=None if found is None else int(found["step"]))
        if found is not None:
            run._source = int(found["step"]), int(found["source"])
            run._borrows = run._source[1] != snapshots.local_rank
            if order.get("lends"):
                run._lends = True
                snapshots.lend(run._source[0])
        self._rendezvous.wait(lambda: client.fence >= run.round)
        return run


def _drop_frames(error: BaseException) -> None:
    """Clear the local variables of all frames that the exception, and those before it, have passed."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < 64:
        one = waiting.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        waiting += [one.__cause__, one.__context__]
        if one.__traceback__ is not None:
            traceback.clear_frames(one.__traceback__)
            one.__traceback__ = None
    for one in seen:
        one.__cause__ = one.__context__ = None


def _held(snapshots: Snapshots) -> list[dict[str, object]]:
    return [{"step": number, "shard": shard} for number, shard in snapshots.held()]


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:LONGEST]


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else default


# --- the store of a round ---------------------------------------------------------------------------------------------


LONGEST_WAIT = 0.5  # s
PAUSES = 0.001, 0.02  # s between two attempts: the first one, and the longest


class Rendezvous:
    """Waits for the store of a round, which rank 0 serves at MASTER_ADDR and MASTER_PORT, before the function runs.

    A client of PyTorch's store that is refused tries again after about 0.5 s.  All ranks begin a round at the same
    time, so most of them could be refused.  Here they try more often, for 0.5 s at most.  They do so only where the
    round before has met at such a store, and never again once it was in vain: then the program does other things before
    it makes its groups.
    """

    def __init__(self) -> None:
        self._expected, self._in_vain = False, False

    def note(self) -> None:
        """The round is over, its process groups are not ended yet."""
        self._expected = str(adapter.store_port()) == os.environ.get("MASTER_PORT")

    def wait(self, is_over: Callable[[], bool]) -> None:
        """The next round has begun, with its environment.  Returns early if that is over."""
        if not self._expected or self._in_vain or os.environ.get("RANK") == "0":
            return
        try:
            host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
            # Addresses only: a name could take any time.
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (KeyError, OSError):
            return
        family, kind, _, _, address = found[0]
        end, (pause, longest) = time.monotonic() + LONGEST_WAIT, PAUSES
        while (left := end - time.monotonic()) > 0 and not is_over():
            with socket.socket(family, kind) as one:
                one.settimeout(left)
                if one.connect_ex(address) == 0:
                    return
            time.sleep(min(pause, left))
            pause = min(2 * pause, longest)
        self._in_vain = not is_over()


# --- what a round leaves behind ---------------------------------------------------------------------------------------


SLACK = 128 << 20  # bytes of a device that PyTorch may keep for itself, as the workspaces of cuBLAS


class Leftovers:
    """Whether a round has left something behind that only the collector of reference cycles can free.

    A collection takes 0.2 s in a process that has loaded PyTorch, most of it for PyTorch's own modules, and every rank
    would wait for it.  So it happens only if something of the round still exists: a socket that was opened in it (as
    the connections of a process group, for whose end the other ranks wait), a value that was given to `run.keep` or
    `run.restore`, or memory of a device.  What survives a collection is in use elsewhere: no later round collects for
    it.
    """

    def __init__(self) -> None:
        self._sockets: set[str] | None = None
        self._values: list[ReferenceType[Any]] = []
        self._survivors: list[ReferenceType[Any]] = []
        self._allocated: dict[int, int] = {}  # bytes by device, after the last collection

    def begin(self) -> None:
        """A round is about to begin."""
        self._sockets, self._values = _sockets(), []

    def watch(self, values: Iterable[object]) -> None:
        """These values are the state of the round, and shall not outlive it.  The first ones are enough."""
        if not self._values:
            for value in values:
                try:
                    self._values.append(ref(value))
                except TypeError:  # as numbers, lists and dicts
                    pass

    def collect(self) -> None:
        """The round is over, and nothing refers to its state any more but reference cycles."""
        if not self._are_there():
            return
        gc.collect()
        self._survivors = [one for one in self._survivors + self._values if one() is not None]
        self._allocated = adapter.allocated()

    def _are_there(self) -> bool:
        if "torch" not in sys.modules:
            return True  # a collection is cheap then
        known = {id(one()) for one in self._survivors}
        if any(value is not None and id(value) not in known for value in (one() for one in self._values)):
            return True
        if any(size > self._allocated.get(one, 0) + SLACK for one, size in adapter.allocated().items()):
            return True
        now = _sockets()
        return now is None or self._sockets is None or not now <= self._sockets


def _sockets() -> set[str] | None:
    """The open sockets of this process, or None where that is not known."""
    found = set()
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink("/proc/self/fd/" + name)
            except OSError:  # closed meanwhile, as the one of the folder
                continue
            if target.startswith("socket:"):
                found.add(target)
    except OSError:
        return None
    return found
