"""The training of a job of `bin/prove chaos --ranks` or `--groups`: its shape, its options, and the faults that it does
to itself, as plain values.  It follows from a seed and an index alone.
"""

import random
from typing import Any, NamedTuple

from proof.chaos.companions import COMPANIONS

Record = dict[str, Any]


class Inner(NamedTuple):
    """A fault that the training does to itself: once, at this moment, from this step on."""

    kind: str
    rank: int
    moment: str
    step: int


class RankJob(NamedTuple):
    """`ranks`: of all members.  `same`: all ranks hold the same state, and so may begin with the snapshot of another.
    `swallows`: the training has `except Exception` around its collective; `workers`: each rank has its own processes
    that prepare a step, as a DataLoader has.  `beside` and `rewrites`: as of `plan.Training`; it then reports no
    checkpoints by the hooks, and ftrun watches the file."""

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
    beside: tuple[str, ...] = ()
    rewrites: bool = False

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.number}"

    def plan(self) -> Record:
        """As the training gets it."""
        names = ("steps", "pace", "keep_every", "save_every", "same", "swallows", "workers", "beside", "rewrites")
        given: Record = {name: getattr(self, name) for name in names}
        return given | {"faults": [fault._asdict() for fault in self.inner], "shards": self.ranks}


AT_A_STEP = (
    *("killed", "killed", "exits", "raises", "raises", "retries", "retries", "stops"),
    *("keeps the GIL", "waits for a lock", "leaves a daemon", "exits with 0"),
)
BETWEEN = ("killed", "killed", "exits", "raises", "stops")
# Options that make ftrun run a helper; {} is the folder of the job.
HELPERS = (
    *(("metrics-file", "{}/metrics.prom"), ("on-event", "true"), ("idle-timeout", "1h")),
    *(("state-dir", "{}/state"), ("prefix-ranks", "")),
)


def options(chance: random.Random, local: int, restarts: int) -> tuple[tuple[str, str], ...]:
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


def inner(chance: random.Random, ranks: int, steps: int) -> tuple[Inner, ...]:
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


def with_what_users_have(chance: random.Random, made: RankJob) -> RankJob:
    """The same with processes and threads beside the ranks, saves in place, and a rank whose exit hangs."""
    beside = tuple(chance.sample(sorted(COMPANIONS), chance.randint(0, 2)))
    faults, given = made.inner, made.options
    if chance.random() < 0.15:
        moment, step = chance.choice(("step", "end")), chance.randrange(made.steps)
        faults += (Inner("exit hangs", chance.randrange(made.ranks), moment, step),)
    if rewrites := chance.random() < 0.2:
        given += (("progress", "{}/checkpoints/latest-*"),)
    return made._replace(inner=faults, options=given, beside=beside, rewrites=rewrites)
