"""What one job of `bin/prove chaos --groups` or `--ranks` is, and what is known of it when it is over: plain values.

A job is a group of two or three ftruns, each in a container with two fake devices on a host of its own, whose ranks can
recover.  Its size is fixed or MIN:MAX, with or without a spare.  With `--ranks` it is one ftrun, which is no group.  It
follows from a seed and an index alone.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from proof.chaos import plan, rank_plan
from proof.chaos.plan import ENDING, HELPERS, KILLING, Fault, Job, Maker, Mode, Record, _one
from proof.chaos.rank_plan import RankJob

LOCAL = 2  # ranks and devices of each member
FOR_EVER = 1e6  # s that a fault lasts which nothing undoes


class Shape(NamedTuple):
    """`least`: MIN; 0 if the size is fixed."""

    size: int
    least: int = 0
    spares: int = 0

    @property
    def places(self) -> int:
        return self.size - self.spares

    @property
    def option(self) -> str:
        return f"{self.least}:{self.size}" if self.least else str(self.size)


SHAPES = (
    *(Shape(2), Shape(2), Shape(3)),
    *(Shape(2, 1), Shape(3, 2), Shape(3, 1), Shape(3, 2)),
    *(Shape(3, 0, 1), Shape(3, 0, 1), Shape(3, 1, 1), Shape(2, 0, 1)),
)


class GroupFault(NamedTuple):
    """`fault` strikes `member`; one of a rank strikes that with the local number `rank`.  Of an ftrun that is killed,
    `back` says whether its container comes back after `away` s: "again" (in place), "anew" (another one, in the next
    schedule), or "" (never)."""

    fault: Fault
    member: int
    rank: int = 0
    back: str = ""
    away: float = 0.0


class GroupJob(NamedTuple):
    """`base`: its training, the options of all members, and the faults that the training does to itself.  `devices`:
    the ranks are one for each device, and ftrun goes on without a device that does not heal.  `shares`: the members
    share the state dir.  `moves`: member 0 has a name, so that a new one can start on another host."""

    base: RankJob
    shape: Shape
    devices: bool
    outer: tuple[GroupFault, ...]
    shares: bool = False
    moves: bool = False

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def is_group(self) -> bool:
        return self.shape.size > 1

    @property
    def local(self) -> int:
        """The ranks of a member that has a place, in a complete group."""
        return self.base.ranks // self.shape.places

    def has(self, member: int | None, kinds: Sequence[str]) -> bool:
        """Whether it plans such a fault of this member, or of any."""
        return any(one.fault.kind in kinds and member in (None, one.member) for one in self.outer)

    def container(self) -> Job:
        """As the surroundings of one member need it."""
        idle = plan.Training(0, 0.0, 1, 0, "default", True, (), ())
        base = self.base
        mode: Mode = "pid1" if self.is_group or base.number % 2 else "subreaper"
        return Job(base.seed, base.number, mode, "devices", base.options, 5.0, base.max_restarts, idle, ())


class GroupRun(NamedTuple):
    """One ftrun: of `member`, in its container number `container`.  `code`: as in a shell; None: it did not end in
    time.  `killed`: by the chaos.  `began`: when it was started; `decisions`: what its PID 1 decided on, as
    kept_decisions.py writes it; `over`: when the harness saw its end."""

    member: int
    container: int
    records: tuple[Record, ...]
    code: int | None
    killed: bool
    began: float
    verdict: Record | None
    stderr: str
    decisions: bytes
    over: float = float("inf")


class GroupOutcome(NamedTuple):
    """`runs`: in the order of their ends.  `struck`: the faults that happened, with `kind`; `member` of those from
    outside, `pid` there of the process that they struck, and `answer` of ftctl (its exit code).  `steps`, `rounds`:
    what the training wrote; `final`: the values at the end, by rank; `left`: processes, files and folders; `lost`:
    members whose container did not come back; `late`: for how long, in s, the harness slept."""

    job: GroupJob
    runs: tuple[GroupRun, ...]
    struck: tuple[Record, ...]
    steps: tuple[Record, ...]
    rounds: tuple[Record, ...]
    final: dict[int, int]
    left: tuple[str, ...]
    lost: tuple[int, ...]
    seconds: float
    late: float

    @property
    def last(self) -> tuple[GroupRun, ...]:
        """The last ftrun of each member, which need not be the one that ended last."""
        newest = {run.member: run for run in sorted(self.runs, key=lambda run: run.began)}
        return tuple(run for run in self.runs if newest[run.member] is run)


OF_DEVICES: Sequence[tuple[int, Maker]] = (
    (4, _one("device fault", "94", "94", "8", "13", "43", "79", "12345")),
    (3, _one("device asks for a reset", longest=6.0)),
)
LINK_CUT, CONGESTED, BLOCKED = "link cut", "link congested", "ftrun's traffic blocked"
NETWORK = (LINK_CUT, CONGESTED, BLOCKED)
DISK_FULL, READ_ONLY = "disk full", "disk read-only"
DISKS = (DISK_FULL, READ_ONLY)
REPLACED, MACHINE_LOST = "member 0 replaced while it lives", "machine lost"
TWO_LOST, ALL_SUSPENDED = "two members lost together", "all suspended"
SUSPENSIONS = (ALL_SUSPENDED, "container stopped")
FOLDER_STALLS, FOLDER_AWAY = "shared folder stalls", "shared folder goes away"
FOLDER_LOCKED, FOLDER_LIES = "shared folder read-only", "shared folder lies about times"
FOLDER = (FOLDER_STALLS, FOLDER_AWAY, FOLDER_LOCKED, FOLDER_LIES)
RESET, TORN, OTHER_POD = "platform resets a chip", "reset.json torn", "platform schedules another pod"
NEW_PROCESS = "platform asks for a new process"
FAULTY_PROCESS = "platform reports a faulty process"
OF_RANKS = ("memory fault", "platform asks for a retry", NEW_PROCESS)
PLATFORM = (*OF_RANKS, RESET, FAULTY_PROCESS)
RESET_FILE = (*PLATFORM, TORN, OTHER_POD)  # what is written into reset.json


def _network(kind: str, *what: str) -> Maker:
    """Mostly for less than `--hang-timeout`, sometimes for longer than `--peer-timeout`, and sometimes for ever."""

    def make(chance: random.Random, on: str, after: float) -> Fault:
        usual = round(chance.uniform(0.2, 4.0), 2)
        lasting = chance.choice((*[usual] * 8, 8.0, 18.0, 30.0, FOR_EVER))
        return Fault(kind, on, after, lasting, chance.choice(what))

    return make


def _disk(kind: str, *what: str) -> Maker:
    def make(chance: random.Random, on: str, after: float) -> Fault:
        lasting = chance.choice((*[round(chance.uniform(0.2, 4.0), 2)] * 4, FOR_EVER))
        return Fault(kind, on, after, lasting, chance.choice(what))

    return make


OUTER: Sequence[tuple[int, Maker]] = (
    (3, _network(LINK_CUT, "down", "silent")),
    (2, _one(CONGESTED, "slow", "lossy", longest=5.0)),
    (3, _network(BLOCKED, "sent")),
    (2, _disk(DISK_FULL, "run", "state")),
    (3, _disk(READ_ONLY, "run", "state", "reports")),
    (3, _one("operator request", "stop")),
    *((1, _one(kind, longest=4.0)) for kind in RESET_FILE),
    (1, _one(NEW_PROCESS, longest=4.0)),
    (4, _one("command killed", *KILLING)),
    (2, _one("command stopped")),
    (5, _one("ftrun killed")),
    (4, _one("helper killed", "messenger", "messenger", *HELPERS)),
    (3, _one("helper stopped", "messenger", *HELPERS, longest=3.0)),
    (2, _one("container stopped", "signals", "freezer", longest=2.5)),
    (1, _one("termination signal", *ENDING)),
    (2, _one("operator request", "restart", "restart", "resume")),
    (1, _one("operator request", "pause", longest=2.0)),
    (2, _one("/dev/shm full", longest=3.0)),
    (2, _one("standby killed")),
    (1, _one("driver blocked", longest=2.0)),
    *OF_DEVICES,
)
MOMENTS = (
    "",
    "spawned",
    "first_beat",
    "progress",
    "recovering",
    "recovering",
    "recovered",
    "restart",
    "stopping",
    "fault",
)


def job(seed: int, index: int) -> GroupJob:
    chance = random.Random(f"groups:{seed}:{index}")
    shape = chance.choice(SHAPES)
    devices = chance.random() < 0.4
    ranks, restarts = LOCAL * shape.places, chance.randint(2, 4)
    steps = chance.randint(30, 70)
    base = RankJob(
        seed,
        index,
        ranks,
        steps,
        chance.choice((0.015, 0.03, 0.05)),
        chance.choice((1, 1, 1, 2)),
        chance.choice((4, 7)),
        # Where the number of ranks may change, any of them goes on with the state of any other.
        bool(shape.least) or devices or chance.random() < 0.5,
        chance.random() < 0.25,
        chance.random() < 0.25,
        _options(chance, shape, devices, restarts),
        restarts,
        rank_plan.inner(chance, ranks, steps)[: chance.randint(0, 3)],
    )
    outer = _outer(chance, shape, devices)
    if any(one.fault.kind in DISKS and one.fault.what == "state" for one in outer):
        options = dict(base.options) | {"state-dir": "{}/state"}
        base = base._replace(options=tuple(options.items()))
    return GroupJob(base, shape, devices, outer)


def _options(chance: random.Random, shape: Shape, devices: bool, restarts: int) -> tuple[tuple[str, str], ...]:
    given = dict(rank_plan.options(chance, LOCAL, restarts))
    given |= {"restart-on": chance.choice(("hang,fault", *["hang,fault,failure"] * 6))}
    given |= {"standby": chance.choice(("off", "1", "2", "2")), "stop-grace": "2s"}
    given |= {"probe": "nvidia", "check-devices": chance.choice(("on", "off"))}
    given |= {"heal": chance.choice(("true", "true", "sleep 0.2", "false"))}
    given |= {"heal-timeout": "8s", "device-timeout": "8s"}
    given |= {"start-timeout": "30s"}
    if devices:
        given |= {"nproc-per-node": "gpu", "min-devices": "1", "heal": chance.choice(("true", "false", "false"))}
    if shape.spares:
        given |= {"spares": str(shape.spares)}
    if (shape.least or devices) and chance.random() < 0.5:
        given |= {"scale-out": "checkpoint"}
    # A fixed group waits for the container that comes back; the others may go on before it does.
    given |= {"wait-peer": "6s" if shape.least or shape.spares else "25s", "peer-timeout": "15s"}
    return tuple(given.items())


def _outer(chance: random.Random, shape: Shape, devices: bool) -> tuple[GroupFault, ...]:
    """One fault at least is of a device where ftrun may go on without it."""
    made = []
    for number in range(chance.randint(2, 5)):
        among = OF_DEVICES if devices and number == 0 else OUTER
        (make,) = chance.choices([make for _, make in among], [weight for weight, _ in among])
        after = round(chance.choice((0.0, 0.0, 0.6, 1.2)) * chance.random(), 3)
        fault = make(chance, chance.choice(MOMENTS), after)
        member, rank = chance.randrange(shape.size), chance.randrange(LOCAL)
        # What stays away for ever would only end a fixed group, which one job in ten may.
        may_stay = shape.least or shape.spares or chance.random() < 0.1
        back = chance.choice(("again", "anew", "anew", *([""] if may_stay else [])))
        made.append(GroupFault(fault, member, rank, back, round(chance.uniform(0.0, 3.0), 2)))
    return tuple(made)


# --- one ftrun --------------------------------------------------------------------------------------------------------

SUSPENDED, OF_A_WORKER = "container stopped", "child signalled"
LONGER = {**dict.fromkeys(OF_RANKS, 2.0), "/dev/shm full": 6.0}  # s
ALONE = (
    *("command killed", "command killed", "two killed", "command stopped"),
    *("helper killed", "helper killed", "standby killed", "/dev/shm full", *OF_RANKS),
    *(SUSPENDED, OF_A_WORKER, OF_A_WORKER),
)
OF_A_ROUND = (
    "first_beat",
    "progress",
    "recovering",
    "recovering",
    "rank_spawned",
    "rank_exited",
    "recovered",
    "restart",
)


def ranks_job(seed: int, index: int) -> GroupJob:
    """One ftrun, with two to four ranks."""
    chance = random.Random(f"ranks:{seed}:{index}")
    ranks, steps, restarts = chance.randint(2, 4), chance.randint(14, 30), chance.randint(2, 3)
    base = RankJob(
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
        rank_plan.options(chance, ranks, restarts),
        restarts,
        rank_plan.inner(chance, ranks, steps),
    )
    outer = [fault for _ in range(chance.randint(0, 2)) for fault in _alone(chance, ranks)]
    signalled = any(one.fault.kind == OF_A_WORKER for one in outer)
    base = rank_plan.with_what_users_have(chance, base._replace(workers=base.workers or signalled))
    return GroupJob(base, Shape(1), False, tuple(outer))


def _alone(chance: random.Random, ranks: int) -> tuple[GroupFault, ...]:
    kind, rank, on = chance.choice(ALONE), chance.randrange(ranks), chance.choice(OF_A_ROUND)
    after = round(chance.choice((0.0, 0.02, 0.3)) * chance.random(), 3)
    if kind == "two killed":
        killed = Fault("command killed", on, after, what="KILL")
        return GroupFault(killed, 0, rank), GroupFault(killed._replace(on="", after=0.0), 0, (rank + 1) % ranks)
    lasting = LONGER.get(kind, 0.0)
    what = {"command killed": "KILL", "helper killed": chance.choice(HELPERS)}.get(kind, "")
    if kind == SUSPENDED:  # also for longer than `--hang-timeout`
        lasting, what = chance.choice((1.0, 2.5, 8.0)), chance.choice(("signals", "freezer"))
    if kind == OF_A_WORKER:
        what = chance.choice(("KILL", "STOP", "TERM", "USR1", "SEGV"))
    return (GroupFault(Fault(kind, on, after, lasting, what), 0, rank),)
