"""What one job is, and what is known of it when it is over: plain values.

A job is made from a seed and an index alone: the same two give the same job, on any machine.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from proof.chaos.companions import COMPANIONS

Mode = Literal["pid1", "subreaper"]
Record = dict[str, Any]


class Fault(NamedTuple):
    """`kind` is one of `faults.KINDS`.  It is injected `after` s after the next record named `on` (none: after the
    fault before it) and, if it is one that ends, undone `lasting` s later.  `what`: its signal, target or value."""

    kind: str
    on: str
    after: float
    lasting: float = 0.0
    what: str = ""


class Training(NamedTuple):
    """`failures`: its own failures, as (start, kind, steps after the one it resumed at).  `term`: its reaction to
    SIGTERM.  `reports`: it reports its checkpoints by the hooks; else ftrun watches the files.  `beside`: of
    `companions.COMPANIONS`.  `rewrites`: it also saves into one and the same file, in place."""

    steps: int
    pace: float
    every: int
    code: int
    term: Literal["default", "save", "ignore_term"]
    reports: bool
    children: tuple[str, ...]
    failures: tuple[tuple[int, str, int], ...]
    beside: tuple[str, ...] = ()
    rewrites: bool = False


class Job(NamedTuple):
    """`place`: its environment, one of `PLACES`.  `hang`: the timeout, in s."""

    seed: int
    number: int
    mode: Mode
    place: str
    options: tuple[tuple[str, str], ...]
    hang: float
    max_restarts: int
    training: Training
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        return f"{self.seed}:{self.number}"


class Injected(NamedTuple):
    """A fault that was injected: from `at` to `until` by the clock of the ftrun number `run`, during the start
    `attempt` (0: none yet).  `pid` is that of its target, as seen from outside."""

    fault: Fault
    at: float
    run: int
    attempt: int
    pid: int = 0
    until: float = 0.0


class Run(NamedTuple):
    """One ftrun.  `code`: as in a shell; None: it did not end in time.  `killed`: by the chaos.  `decisions`: what its
    PID 1 decided on, None: not kept; `late`: for how long, in s, the harness itself was not awake."""

    records: tuple[Record, ...]
    code: int | None
    killed: bool = False
    decisions: bytes | None = None
    stderr: str = ""
    late: float = 0.0

    @property
    def refused(self) -> bool:
        """It started nothing, or could not be started itself (1)."""
        return self.code in (1, 2, 125) and not self.records


class Outcome(NamedTuple):
    """`attempts`: what the training recorded; `left`: processes; `beats`: beat folders; `verdict`: the termination
    message; `orders`: exit codes of ftctl; `copied`: a run dir on a slow disk equals the local one; `unread`: lines of
    the records that are invalid."""

    job: Job
    runs: tuple[Run, ...]
    injected: tuple[Injected, ...] = ()
    attempts: tuple[Record, ...] = ()
    left: tuple[str, ...] = ()
    beats: tuple[str, ...] = ()
    verdict: Record | None = None
    orders: tuple[int, ...] = ()
    copied: bool = True
    unread: int = 0
    seconds: float = 0.0


CHILDREN = ("plain", "daemon", "session", "stopped", "ignore_term")
FAILURES = ("sleeps", "stops", "never ends", "raises", "exits", "segfaults", "fails")
MOMENTS = ("", "", "started", "spawned", "first_beat", "progress", "suspect", "stopping", "exited", "restart", "killed")
HELPERS = ("messenger", "checkpoint_watcher", "sampler", "evidence", "output", "state_store", "metrics", "probe")
KILLING = ("KILL", "SEGV", "TERM", "ABRT")
PASSED = ("HUP", "USR1", "USR2", "WINCH")
ENDING = ("TERM", "INT", "QUIT")
Maker = Callable[[random.Random, str, float], Fault]


def _one(kind: str, *what: str, longest: float = 0.0) -> Maker:
    """A fault of that kind, about one of `what`, that lasts up to so many seconds."""

    def make(chance: random.Random, on: str, after: float) -> Fault:
        lasting = round(chance.uniform(0.2, longest), 2) if longest else 0.0
        return Fault(kind, on, after, lasting, chance.choice(what) if what else "")

    return make


FTRUN_KILLED = _one("ftrun killed")
# Which faults a job may have: those of any place, by weight, and those that need surroundings of their own.
ANYWHERE: Sequence[tuple[int, Maker]] = (
    (5, _one("command killed", *KILLING)),
    (3, _one("command stopped")),
    (3, _one("child signalled", "KILL", "STOP", "TERM", "USR1", "SEGV")),
    (5, FTRUN_KILLED),
    (6, _one("helper killed", *HELPERS)),
    (4, _one("helper stopped", *HELPERS, longest=3.0)),
    (3, _one("container stopped", "signals", "freezer", longest=2.5)),
    (1, _one("container stopped", "signals", "freezer", longest=14.0)),  # so long that it is recorded
    (2, _one("termination signal", *ENDING)),
    (3, _one("signal forwarded", *PASSED)),
    (2, _one("operator request", "restart", "restart", "resume", "stop")),
    (1, _one("operator request", "pause", longest=2.0)),
)
PLACES: dict[str, Sequence[Maker]] = {
    "plain": (),
    "small disk": (_one("disk full", longest=3.0),),
    "locked disk": (_one("run dir read-only", longest=3.0),),
    "small memory": (_one("/dev/shm full", longest=3.0),),
    "few processes": (_one("no more processes", longest=2.0),),
    "few files": (_one("no more descriptors", "0", "1", "2", longest=2.0),),
    "moving clock": (_one("clock jumps", "+3600", "-3600", "+864000", "-864000", "+0"),),
    "other uptime": (),
    "masked /proc": (),
    "hidden /proc": (),
    "slow checkpoints": (_one("disk unresponsive", longest=1.2), _one("disk unresponsive", longest=4.0)),
    "slow logs": (_one("disk unresponsive", longest=4.0),),
    "slow run dir": (_one("disk unresponsive", longest=4.0), _one("disk unresponsive", longest=1.2)),
    "slow state": (_one("disk unresponsive", longest=4.0),),
    "devices": (
        _one("device fault", "94", "94", "8", "13", "13", "43", "79", "12345"),
        _one("device fault", "94", "8", "40"),
        _one("driver blocked", longest=2.0),
    ),
}
OFTEN = {"plain": 4, "devices": 4}  # how many times as often as each other place


def job(seed: int, index: int) -> Job:
    chance = random.Random(f"{seed}:{index}")
    place = chance.choices(list(PLACES), [OFTEN.get(name, 1) for name in PLACES])[0]
    mode: Mode = chance.choice(("pid1", "subreaper"))
    training = _training(chance, place)
    hang, restarts = chance.choice((1.5, 2.0)), chance.randint(1, 3)
    options = _options(chance, place, training, hang, restarts)
    faults = _faults(chance, place, "log-dir" in dict(options))
    return Job(seed, index, mode, place, options, hang, restarts, training, faults)


def _training(chance: random.Random, place: str) -> Training:
    number = chance.choice((0, 0, 1, 1, 2))
    failures = tuple((start, chance.choice(FAILURES), chance.randint(1, 40)) for start in range(1, number + 1))
    return Training(
        steps=chance.randint(60, 110),
        pace=chance.choice((0.015, 0.025, 0.04)),
        every=chance.randint(3, 12),
        code=chance.choice((0, 0, 0, 0, 3)),
        term=chance.choice(("default", "save", "ignore_term")),
        reports=chance.random() < 0.6,
        children=tuple(chance.sample(CHILDREN, chance.randint(0, 3))),
        failures=failures,
        beside=tuple(chance.sample(sorted(COMPANIONS), chance.randint(0, 2))),
        rewrites=chance.random() < 0.2,
    )


def _options(
    chance: random.Random, place: str, training: Training, hang: float, restarts: int
) -> tuple[tuple[str, str], ...]:
    """`{folder}` stands for the folder of the job."""
    given: dict[str, Any] = {
        "restart-on": chance.choice(("hang,fault", "hang,failure", "hang,fault,failure", "hang,fault,failure")),
        "max-restarts": restarts,
        "hang-timeout": f"{round(hang * 1000)}ms",
        "start-timeout": "8s",
        "grace": chance.choice(("off", "300ms", "1s")),
        "stop-grace": chance.choice(("500ms", "1s")),
        "backoff": chance.choice(("off", "100ms", "200ms")),
        "probe": "off",
    }
    if not training.reports:
        given["progress"] = "{folder}/checkpoints/*.json"
    if place == "slow logs" or (place in ("plain", "small memory", "slow checkpoints") and chance.random() < 0.4):
        given["log-dir"] = "{folder}/logs"
    if place == "devices":
        given |= {"restart-on": "hang,fault,failure", "probe": "nvidia", "check-devices": "off"}
        given |= {"heal": chance.choice(("true", "true", "sleep 0.2", "false"))}
        given |= {"heal-timeout": "4s", "device-timeout": "4s"}
    if place == "slow state" or chance.random() < 0.25:
        given["state-dir"] = "{folder}/state"
    if chance.random() < 0.2:
        given["idle-timeout"] = "1m"
    if chance.random() < 0.1:
        given["metrics"] = "127.0.0.1:0"
    return tuple((name, str(value)) for name, value in given.items())


def _faults(chance: random.Random, place: str, logs: bool) -> tuple[Fault, ...]:
    """With a log dir each ftrun has a run dir of its own, and goes on from nothing: none is killed there."""
    special = PLACES[place]
    anywhere = [(weight, make) for weight, make in ANYWHERE if not (logs and make is FTRUN_KILLED)]
    makers = chance.choices([make for _, make in anywhere], [weight for weight, _ in anywhere], k=chance.randint(2, 4))
    for _ in range(chance.randint(1, 2) if special else 0):
        makers.insert(chance.randint(0, len(makers)), chance.choice(special))
    if place == "other uptime":
        makers.insert(chance.randint(0, len(makers)), FTRUN_KILLED)
    moments = [(chance.choice(MOMENTS), chance.choice((0.0, 0.0, 0.6, 1.2)) * chance.random()) for _ in makers]
    return tuple(make(chance, on, round(after, 3)) for make, (on, after) in zip(makers, moments, strict=True))
