"""A run as it stands, as values: what `ftctl status`, `top`, the page and the metrics show.  Times are seconds."""

from typing import NamedTuple


class Limit(NamedTuple):
    """One of the timeouts that are in force: `hang`, `start`, `section`, `idle`.  `seconds` None: it is off.

    `source`: where its value comes from, for a person: `default`, `option`, `environment`, `annotations`,
    `config file`, or `learned: ...`.
    """

    name: str
    seconds: float | None
    source: str


class RankNow(NamedTuple):
    """`moved` and `alive`: ago; None: never.  `step_time`: seconds a step, over this attempt.

    `state`: `starting`, `moving`, `section`, `done` or `gone`.  `age` of `limit`: of the rule that would be broken
    first; None where nothing is judged.
    """

    rank: int
    pid: int
    state: str
    step: int | None = None
    moved: float | None = None
    alive: float | None = None
    section: str | None = None
    rule: str | None = None
    age: float | None = None
    limit: float | None = None
    step_time: float | None = None


class DeviceNow(NamedTuple):
    """As the probe said `age` ago.  Memory in bytes, `power` in W, `util` in per cent; None: it does not say.

    `health`: `ok`, or the driver's word for what it is instead; `recovery`: what the driver says would cure it.
    """

    id: str
    name: str = ""
    util: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power: float | None = None
    age: float = 0.0
    index: int | None = None  # type: ignore[assignment]  # a tuple has a method of that name
    health: str | None = None
    recovery: str | None = None

    @property
    def unwell(self) -> str:
        """What its driver has against it; empty: nothing, or it has not been asked yet."""
        asks = "" if self.recovery in (None, "none") else f"the driver asks for: {self.recovery}"
        return ", ".join(filter(None, ("" if self.health in (None, "ok") else self.health, asks)))


class Problem(NamedTuple):
    """The last one: `cause` is hang, fault or failure; `why` a sentence; `report` a path, if there is one."""

    time: str
    attempt: int
    cause: str
    why: str
    report: str | None = None


class Snapshot(NamedTuple):
    """`alive`: an ftrun works in this run dir now.  `phase`: launching, starting, running, suspect, stopping, healing,
    waiting, done; or `cut off` where ftrun died without a verdict.

    `counts`: restarts in a row without progress, a cause; `left`: how many more there may be (None: no limit).
    After the end there are none of these: they are those of whoever begins anew.  `restarts`: of all time in this run
    dir, by reason, or without a `state.json` those among the newest records.  `reason`: empty, it is not known.

    A run that is cut off is told as it was at the end.  `deadline`: seconds until `next`, what comes then, in words.
    `lost`: seconds by why; `goodput`: 0 to 1, None before there is anything to say.
    """

    run_dir: str
    alive: bool
    phase: str
    attempt: int
    reason: str
    command: tuple[str, ...] = ()
    version: str = ""
    pid: int | None = None  # of the command
    part: str = ""  # of several commands in sequence, this one
    schedule_cnt: int | None = 1
    began: str | None = None  # ISO-8601
    wall: float | None = None
    up: float | None = None  # since this attempt's exec
    first_beat: float | None = None  # the longest that an earlier start took to its first beat
    paused: float | None = None  # since; no verdicts
    resumes: float | None = None  # in so long, by itself
    counts: dict[str, int] = {}  # noqa: RUF012 - a value, never changed
    left: dict[str, int | None] = {}  # noqa: RUF012
    restarts: dict[str, int] = {}  # noqa: RUF012
    step: int | None = None
    best_step: int | None = None
    step_time: float | None = None  # s
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    checkpoint_age: float | None = None
    ranks: tuple[RankNow, ...] = ()
    slowest: RankNow | None = None  # the lowest step
    stalest: RankNow | None = None  # the nearest to its limit
    limits: tuple[Limit, ...] = ()
    deadline: float | None = None
    next: str | None = None
    devices: tuple[DeviceNow, ...] = ()
    trouble: Problem | None = None
    lost: dict[str, float] = {}  # noqa: RUF012
    goodput: float | None = None
    verdict: str | None = None
    exit_code: int | None = None
    why: str | None = None
    since: float | None = None  # in this phase
    group: str | None = None  # how the group stands whose member it is
    problems: tuple[str, ...] = ()  # what could not be read, one line each
