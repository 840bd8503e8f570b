"""What one job of `bin/prove chaos --ranks` is, and what is known of it when it is over: plain values.

A job follows from a seed and an index alone.
"""

import random
from typing import Any, NamedTuple

Record = dict[str, Any]


class Inner(NamedTuple):
    """A fault that the training does to itself: once, at this moment, from this step on."""

    kind: str
    rank: int
    moment: str
    step: int


class Outer(NamedTuple):
    """A fault from outside, `after` s after the next record named `on`.  `rank`: of a rank's process."""

    kind: str
    rank: int
    on: str
    after: float


class RankJob(NamedTuple):
    """`same`: all ranks hold the same state, and so may begin with the snapshot of another.  `swallows`: the training
    has `except Exception` around its collective; `workers`: each rank has its own processes that prepare a step, as a
    DataLoader has.  `members`: how many ftruns there are, a group if several; `ranks` are those of all of them."""

    seed: int
    number: int
    ranks: int
    steps: int
    pace: float
    keep_every: int
    save_every: int
    same: bool
    swallows: bool
    workers: bool
    options: tuple[tuple[str, str], ...]
    max_restarts: int
    inner: tuple[Inner, ...]
    outer: tuple[Outer, ...]
    members: int = 1

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.number}"

    def plan(self) -> Record:
        """As the training gets it."""
        names = ("steps", "pace", "keep_every", "save_every", "same", "swallows", "workers")
        given: Record = {name: getattr(self, name) for name in names}
        return given | {"faults": [fault._asdict() for fault in self.inner]}


class RankOutcome(NamedTuple):
    """`code`: as in a shell; None: it did not end in time.  `struck`: the faults that happened, with `kind`; `steps`,
    `rounds`: what the training wrote; `final`: the values of the ranks at the end; `left`: processes and folders."""

    job: RankJob
    code: int | None
    records: tuple[Record, ...]
    struck: tuple[Record, ...] = ()
    steps: tuple[Record, ...] = ()
    rounds: tuple[Record, ...] = ()
    final: tuple[int | None, ...] = ()
    verdict: Record | None = None
    left: tuple[str, ...] = ()
    stderr: str = ""
    seconds: float = 0.0


AT_A_STEP = (
    *("killed", "killed", "exits", "raises", "raises", "retries", "retries", "stops"),
    *("keeps the GIL", "waits for a lock", "leaves a daemon", "exits with 0"),
)
BETWEEN = ("killed", "killed", "exits", "raises", "stops")
SHM_FULL = "/dev/shm full"
OUTER = (
    *("rank killed", "rank killed", "two ranks killed", "rank stopped"),
    *("helper killed", "helper killed", "standby killed", SHM_FULL),
)
# What MindCluster's reset.json reports of a rank, and what recovers it: a retry, a retry, a new process.
PLATFORM = ("memory fault", "platform asks for a retry", "platform asks for a new process")
# Options that make ftrun run a helper; {} is the folder of the job.
HELPERS = (
    *(("metrics-file", "{}/metrics.prom"), ("on-event", "true"), ("idle-timeout", "1h")),
    *(("state-dir", "{}/state"), ("prefix-ranks", "")),
)
MOMENTS = ("first_beat", "progress", "recovering", "recovering", "rank_spawned", "rank_exited", "recovered", "restart")


def job(seed: int, index: int) -> RankJob:
    chance = random.Random(f"ranks:{seed}:{index}")
    ranks, steps, restarts = chance.randint(2, 4), chance.randint(14, 30), chance.randint(2, 3)
    return RankJob(
        seed,
        index,
        ranks,
        steps,
        chance.choice((0.005, 0.015, 0.03)),
        chance.choice((1, 1, 1, 2)),
        chance.choice((4, 7, 100)),
        chance.random() < 0.5,
        chance.random() < 0.25,
        chance.random() < 0.25,
        _options(chance, ranks, restarts),
        restarts,
        _inner(chance, ranks, steps),
        _outer(chance, ranks),
    )


def _options(chance: random.Random, local: int, restarts: int) -> tuple[tuple[str, str], ...]:
    given: dict[str, Any] = {
        "nproc-per-node": local,
        "restart-on": chance.choice(("hang,fault", *["hang,fault,failure"] * 4)),
        "max-restarts": restarts,
        "recover": chance.choice((*["retry,rank"] * 6, "rank", "retry", "none")),
        "recover-timeout": chance.choice(("5s", "8s")),
        "standby": chance.choice(("off", "off", "1", str(local))),
        "hang-timeout": "5s",
        "start-timeout": "60s",
        "grace": chance.choice(("off", "500ms")),
        "backoff": chance.choice(("off", "100ms")),
        "probe": "off",
    }
    for name, value in HELPERS:
        if chance.random() < 0.3:
            given[name] = value
    return tuple((name, str(value)) for name, value in given.items())


def _inner(chance: random.Random, ranks: int, steps: int) -> tuple[Inner, ...]:
    faults = []
    for _ in range(chance.randint(1, 2)):
        step, rank = chance.randint(0, steps - 1), chance.randrange(ranks)
        if chance.random() < 0.1:
            victims = chance.sample(range(ranks), 2)
            faults += [Inner("killed with another", victim, "step", step) for victim in victims]
            continue
        moment = chance.choice(("step", "step", "step", "keep", "leave", "restore", "go"))
        if moment == "step":
            faults.append(Inner(chance.choice(AT_A_STEP), rank, moment, step))
        elif moment == "keep":
            faults.append(Inner(chance.choice((*BETWEEN, "dies in the snapshot")), rank, moment, step))
        else:  # it needs another fault, which ends a round
            kinds = (*BETWEEN, "ignores the fence") if moment == "leave" else BETWEEN
            faults.append(Inner(chance.choice(kinds), rank, moment, 0))
            other = (rank + chance.randrange(1, ranks)) % ranks
            faults.append(Inner(chance.choice(("retries", "retries", "killed", "raises")), other, "step", step))
    return tuple(faults)


def _outer(chance: random.Random, ranks: int) -> tuple[Outer, ...]:
    return tuple(
        Outer(
            chance.choice((*OUTER, *PLATFORM)),
            chance.randrange(ranks),
            chance.choice(MOMENTS),
            round(chance.choice((0.0, 0.02, 0.3)) * chance.random(), 3),
        )
        for _ in range(chance.randint(0, 2))
    )
