"""A training in simulated time, watched as `pid1/loop.py` watches: the real digest of the hooks and the real `decide`.

Time is what the test says; 10,000 steps take a moment.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Done, Job, Launching, Stopping, Suspect
from ftrun.core.machine.values import Finding, Ledger, Rank, Section
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy
from ftrun_hooks import layout as at
from ftrun_hooks._silences import Silences

NS = 1e9
SECOND_LOOK = 3.0  # s after a suspicion, as `activity.BETWEEN`
LATE = 0.001  # s; poll wakes so much later at most
AUTO = Policy(limits=Limits(hang=3600.0, start=3600.0, start_given=False, section=3600.0, auto=True))


def promptly(found: float, limit: float) -> bool:
    return limit - LATE <= found <= limit + 2 * LATE


class Within(NamedTuple):
    """A stretch in a section before the step goes on: it has a deadline of its own and is no silence."""

    section: float
    silence: float


Step = float | Within


class Worker:
    """One rank: it claims its slot at once and beats after each of these silences, as `ftrun_hooks.beat` does."""

    def __init__(self, number: int, steps: Iterable[Step], now: float) -> None:
        self.number, self.steps, self.claimed_at, self.moved_at = number, iter(steps), now, now
        self.words = memoryview(bytearray(at.SLOT_WORDS * at.WORD)).cast("Q")
        self.digester, self.long, self.moved = Silences(), list[int](), 0
        self.left = self.digester.batch
        self._next()

    def _next(self) -> None:
        step = next(self.steps, None)
        self.ended = step is None
        self.section, self.silence = step if isinstance(step, Within) else (0.0, step or 0.0)
        self.next_at = float("inf") if self.ended else self.moved_at + self.section + self.silence

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
        inside = now < self.moved_at + self.section
        return Rank(
            self.number,
            pid=100 + self.number,
            claimed_at=self.claimed_at,
            alive_at=now,
            moved_at=self.moved_at if self.moved else None,
            step=self.moved if self.moved else None,
            credit=0.0 if inside else self.section,
            sections=(Section("evaluation", self.moved_at),) if inside else (),
            intervals=self.words[at.INTERVALS],
            usual=self.words[at.USUAL] / NS,
            longest=self.words[at.LONGEST] / NS,
            slowest_start=self.words[at.SLOWEST_START] / NS,
        )


class Suspicion(NamedTuple):
    now: float
    step: int  # of all in this attempt
    finding: Finding


class Training:
    """`suspicions` and `records` are those of all attempts.  `works`: what the second look at a suspect shows."""

    def __init__(self, policy: Policy = AUTO, ledger: Ledger | None = None, works: bool = False) -> None:
        self.policy, self.job, self.works, self.now = policy, Job(ledger=ledger or Ledger()), works, 0.0
        self.suspicions: list[Suspicion] = []
        self.records: list[tuple[str, dict[str, object]]] = []
        self.workers: list[Worker] = []
        self._happens(ev.Started(self.now))

    def named(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.records if name == event]

    @property
    def hung(self) -> bool:
        return isinstance(self.job.phase, Stopping | Done)

    def start(self, *ranks: Iterable[Step]) -> "Training":
        """The next attempt, one series a rank."""
        if isinstance(self.job.phase, Stopping):
            self.end()
        assert isinstance(self.job.phase, Launching)
        self._happens(ev.CommandSpawned(self.now, 100))
        self.workers = [Worker(number, steps, self.now) for number, steps in enumerate(ranks)]
        self._look()
        return self

    def run(self, steps: int | None = None) -> "Training":
        """Until the first rank has moved so often, or its series ends, or a hang was found."""
        first = self.workers[0]
        while not self.hung and not first.ended and (steps is None or first.moved < steps):
            self.step()
        return self

    def step(self) -> None:
        """The next thing that happens: a movement, or a look."""
        worker, due = min(self.workers, key=lambda one: one.next_at, default=None), self._due()
        if worker is None or (due is not None and due <= worker.next_at):
            assert due is not None, "it is not being watched"
            self._wake(due)
            return
        self.now = worker.next_at
        if worker.beat():
            self._look()

    def stop(self) -> None:
        """No rank moves again, and that is found."""
        for worker in self.workers:
            worker.next_at = float("inf")
        self.works = False
        while not self.hung:
            self.step()

    def end(self) -> None:
        """The tree of the attempt is dead."""
        self._happens(ev.TreeEnded(self.now))

    def found_after(self, stopped: int | None = None) -> float:
        """After how many seconds without a movement of this rank (all) somebody is suspected; changes nothing."""
        before = self.job, self.now, len(self.suspicions), len(self.records)
        since = max(w.moved_at for w in self.workers if stopped in (None, w.number))
        while not isinstance(self.job.phase, Suspect):
            due = self._due()
            assert due is not None, "it is not being watched"
            self.now = due + LATE
            seen = tuple(self._frozen(w, stopped in (None, w.number)) for w in self.workers)
            self._happens(ev.BeatsRead(self.now, seen))
        found = self.now - since
        self.job, self.now = before[:2]
        del self.suspicions[before[2] :], self.records[before[3] :]
        return found

    def _frozen(self, worker: Worker, stopped: bool) -> Rank:
        seen = worker.seen(worker.moved_at if stopped else self.now)
        return seen._replace(sections=()) if stopped else seen._replace(moved_at=self.now, credit=0.0, sections=())

    def sleep(self, seconds: float) -> None:
        """The machine is frozen, and all in it."""
        since, self.now = self.now, self.now + seconds
        for worker in self.workers:
            worker.silence, worker.next_at = worker.silence + seconds, worker.next_at + seconds
        self._happens(ev.WokeLate(self.now, since))

    def _due(self) -> float | None:
        if isinstance(self.job.phase, Suspect):
            return self.suspicions[-1].now + (SECOND_LOOK if self.job.phase.finding.learned else 0.0)
        return self.job.phase.deadline

    def _wake(self, now: float) -> None:
        self.now = now + LATE
        if isinstance(self.job.phase, Suspect):
            cleared = "it works" if self.works and self.job.phase.finding.learned else None
            self._happens(ev.EvidenceCollected(self.now, self._seen(), (), cleared))
        else:
            self._look()

    def _look(self) -> None:
        self._happens(ev.BeatsRead(self.now, self._seen()))

    def _seen(self) -> tuple[Rank, ...]:
        return tuple(worker.seen(self.now) for worker in self.workers)

    def _happens(self, event: ev.Event) -> None:
        self.job, effects = decide(self.job, event, self.policy)
        for effect in effects:
            if isinstance(effect, do.Persist):
                self.records.append((effect.event, dict(effect.fields)))
            if isinstance(effect, do.Investigate):
                moved = self.workers[0].moved if self.workers else 0
                self.suspicions.append(Suspicion(self.now, moved, effect.finding))
