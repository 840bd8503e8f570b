"""A training in simulated time, watched as `pid1/loop.py` watches: the real digest of the hooks and the real `decide`.

Time is what the test says; 10,000 steps take a moment.
"""

from collections.abc import Iterable

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job, Launching, Running, Starting
from ftrun.core.machine.values import Ledger, Rank
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy
from ftrun_hooks import layout as at
from ftrun_hooks._beat import Silences

NS = 1e9
LATE = 0.001  # s; poll wakes so much later at most
AUTO = Policy(limits=Limits(hang=None, start=None, section=None, auto=True, idle=1800.0))


class Worker:
    """One rank: it claims its slot at once and beats after each of these silences, as `ftrun_hooks.beat` does."""

    def __init__(self, number: int, steps: Iterable[float], now: float) -> None:
        self.number, self.steps, self.claimed_at, self.moved_at = number, iter(steps), now, now
        self.words = memoryview(bytearray(at.SLOT_WORDS * at.WORD)).cast("Q")
        self.digester, self.long, self.moved = Silences(), list[int](), 0
        self.left = self.digester.batch
        self._next()

    def _next(self) -> None:
        step = next(self.steps, None)
        self.ended = step is None
        self.silence = step or 0.0
        self.next_at = float("inf") if self.ended else self.moved_at + self.silence

    def beat(self) -> bool:
        """Whether the bell rings."""
        self.moved_at, self.moved = self.next_at, self.moved + 1
        nanoseconds = int(self.silence * NS)
        if nanoseconds > at.SHORT:
            self.long.append(nanoseconds)
        self.left -= 1
        rings = False
        if self.left <= 0:
            rings, self.long = self.digester.digest(self.words, self.long), []
            self.left = self.digester.batch
        self._next()
        return rings

    def seen(self, now: float) -> Rank:
        return Rank(
            self.number,
            pid=100 + self.number,
            claimed_at=self.claimed_at,
            alive_at=now,
            moved_at=self.moved_at if self.moved else None,
            step=self.moved if self.moved else None,
            intervals=self.words[at.INTERVALS],
            usual=self.words[at.USUAL] / NS,
            longest=self.words[at.LONGEST] / NS,
            slowest_start=self.words[at.SLOWEST_START] / NS,
        )


class Training:
    """`records`: of the attempt."""

    def __init__(self, policy: Policy = AUTO, ledger: Ledger | None = None) -> None:
        self.policy, self.job, self.now = policy, Job(ledger=ledger or Ledger()), 0.0
        self.records: list[tuple[str, dict[str, object]]] = []
        self.workers: list[Worker] = []
        self._happens(ev.Started(self.now))

    def named(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.records if name == event]

    def start(self, *ranks: Iterable[float]) -> "Training":
        """One series a rank."""
        assert isinstance(self.job.phase, Launching)
        self._happens(ev.CommandSpawned(self.now, 100))
        self.workers = [Worker(number, steps, self.now) for number, steps in enumerate(ranks)]
        self._look()
        return self

    def run(self, steps: int | None = None) -> "Training":
        """Until the first rank has moved so often, or its series ends."""
        first = self.workers[0]
        while not first.ended and (steps is None or first.moved < steps):
            self.step()
        return self

    def step(self) -> None:
        """The next thing that happens: a movement, or a read of the heartbeats."""
        worker = min(self.workers, key=lambda one: one.next_at)
        assert isinstance(self.job.phase, Starting | Running), "nothing is suspected by the time alone"
        due = self.job.phase.deadline
        if due is not None and due <= worker.next_at:
            self.now = due + LATE
            self._look()
            return
        self.now = worker.next_at
        if worker.beat():
            self._look()

    def stalled_after(self) -> float:
        """No rank moves again: after how many seconds a person is told of it, once within three hours."""
        for worker in self.workers:
            worker.next_at = float("inf")
        since, before = max(worker.moved_at for worker in self.workers), len(self.named("stalled"))
        told = list[float]()
        while self.now < since + 10_800.0:
            self.step()
            told += [self.now - since] * (len(self.named("stalled")) - before - len(told))
        (after,) = told
        return after

    def _look(self) -> None:
        self._happens(ev.BeatsRead(self.now, tuple(worker.seen(self.now) for worker in self.workers)))

    def _happens(self, event: ev.Event) -> None:
        self.job, effects = decide(self.job, event, self.policy)
        self.records += [(e.event, dict(e.fields)) for e in effects if isinstance(e, do.Persist)]
