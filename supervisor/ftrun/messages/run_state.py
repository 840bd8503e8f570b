"""What `state.json` has beside the ledger: pid1/state_file.py writes it, and records/files/state.py reads it.

Fields that are not known are left out, and most have a default, since another version of ftrun may have written the
file.  Times are CLOCK_MONOTONIC seconds.
"""

from collections.abc import Mapping
from typing import Any, Final

from ftrun.core.group.messages import EpochRun
from ftrun.core.machine.states import Finish, Job, Paused, Pending, Restart, Stopping, Suspect, Want
from ftrun.core.machine.values import Attempt, Finding, LocalRank, LookState, NextStart, Standstill
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.table import Rounds
from ftrun.core.rules.liveness import Limits
from ftrun.messages.codec import Codec, Malformed

LARGEST: Final = 1e15  # of any number that is read


class RunFacts(NamedTuple):
    """What does not change while this ftrun, process `pid` of that `boot`, runs.  `part`: its phase, where several run
    in sequence.  `member`: which one it is in a group, or of the tasks of a job; empty if it is alone.  `sources`:
    where each timeout comes from.  `options`: the value and the source of those that do not have their default;
    `meanings`: what they mean in this run, where the value does not say it."""

    version: str = ""
    pid: int | None = None
    pid_start: int | None = None
    boot: str = ""
    began: str = ""
    command: tuple[str, ...] = ()
    part: str = ""
    node: str = ""
    member: str = ""
    limits: Limits | None = None
    sources: Mapping[str, str] = {}
    options: Mapping[str, tuple[str, str]] | None = None
    meanings: Mapping[str, str] = {}
    max_restarts: int | None = None
    restart_on: tuple[str, ...] | None = None
    state_dir: str | None = None


class RoundStatus(NamedTuple):
    """The round of the ranks at work, or (`stage` settling or meeting) the one that has ended; `awaited`: the ranks
    that are waited for; `lacks_culprit`: a hang was declared, and another member of the group may name its cause."""

    number: int
    stage: str
    rung: str | None
    replacing: tuple[int, ...]
    awaited: tuple[int, ...]
    why: str
    since: float
    began: float
    lacks_culprit: bool = False


class SpinStatus(NamedTuple):
    """The rank that looks have found to compute since `since`, with nothing to be seen outside; `still`: since when it
    has stood still."""

    rank: int | None
    still: float
    since: float
    why: str
    on_device: bool = False


class AttemptStatus(NamedTuple):
    """The facts about an attempt that the beat folder does not have."""

    number: int
    pid: int
    spawned_at: float
    moved: bool = False
    stopped_at: float | None = None
    aways: tuple[tuple[float, float], ...] = ()
    first_beat: float | None = None
    idle_since: float | None = None
    idle_raised: float = 0.0
    active_at: float = 0.0
    accelerator: bool = False
    processes: tuple[LocalRank, ...] = ()
    wait: str = ""
    look_failed: str = ""
    stalled: Standstill | None = None
    spin: SpinStatus | None = None
    rounds: RoundStatus | None = None


class WantStatus(NamedTuple):
    """`want`: keep, again or finish.  The other fields are those of `Restart` or of `Finish`."""

    want: str = "keep"
    reason: str = ""
    consecutive: int = 0
    code: int | None = None
    verdict: str = ""
    why: str = ""


class OrderStatus(NamedTuple):
    """The current order of the group."""

    what: str
    why: str = ""


class JobStatus(NamedTuple):
    """The state of the job.  `since`: when its present phase or stage began; `spare`: it waits for the place of another
    member; `awaits`: the answers that its first start waits for, by the names of `Pending`."""

    phase: str = ""
    stage: str | None = None
    deadline: float | None = None
    want: WantStatus = WantStatus()
    held: str | None = None
    paused: Paused | None = None
    finding: Finding | None = None
    group: OrderStatus | None = None
    attempt: AttemptStatus | None = None
    since: float | None = None
    spare: bool = False
    awaits: tuple[str, ...] = ()


class RunState(NamedTuple):
    """`pid`, `pid_start`: of the command; `group`: its process group, as host/leftovers.py notes it; `imports`: what a
    later ftrun may import in advance; `ran`: in which epoch of its group this ftrun, or else an earlier one in this
    run dir, took part last."""

    beat_dir: str | None = None
    pid: int | None = None
    pid_start: int | None = None
    group: object = None
    ended: bool = False
    succeeded: bool = False
    run: RunFacts = RunFacts()
    next_start: NextStart | None = None
    imports: object = None
    ran: EpochRun | None = None
    now: JobStatus = JobStatus()


def job_status(job: Job, since: float, spare: bool) -> JobStatus:
    phase = job.phase
    attempt: Attempt | None = getattr(phase, "attempt", None)
    return JobStatus(
        phase=type(phase).__name__.lower(),
        stage=phase.stage if isinstance(phase, Stopping) else None,
        deadline=phase.deadline,
        want=_want(job.want),
        held=job.held,
        paused=job.paused and job.paused._replace(faults=()),
        finding=phase.finding if isinstance(phase, Suspect) else None,
        group=job.order and OrderStatus(job.order.what, job.order.why),
        attempt=attempt and _attempt(attempt),
        since=since,
        spare=spare,
        awaits=tuple(sorted(phase.awaits)) if isinstance(phase, Pending) else (),
    )


def read(found: dict[str, Any]) -> RunState:
    """From the JSON values; Malformed if one is not as ftrun writes it."""
    return _CODEC.value(RunState, found)


def _want(want: Want) -> WantStatus:
    if isinstance(want, Restart):
        return WantStatus("again", want.reason, want.consecutive)
    if isinstance(want, Finish):
        return WantStatus("finish", code=want.code, verdict=want.verdict, why=want.message)
    return WantStatus()


def _attempt(attempt: Attempt) -> AttemptStatus:
    return AttemptStatus(
        number=attempt.number,
        pid=attempt.pid,
        spawned_at=attempt.spawned_at,
        moved=attempt.moved,
        stopped_at=attempt.stopped_at,
        aways=attempt.aways,
        first_beat=attempt.first_beat,
        idle_since=attempt.idle.idle_since,
        idle_raised=attempt.idle.raised,
        active_at=attempt.idle.active_at,
        accelerator=attempt.idle.accelerator,
        processes=attempt.processes,
        wait=attempt.look.wait,
        look_failed=attempt.look.failed,
        stalled=attempt.stalled,
        spin=_spin(attempt.look),
        rounds=_round(attempt.rounds) if attempt.rounds.is_open else None,
    )


def _spin(look: LookState) -> SpinStatus | None:
    if look.still is None or look.spin is None:
        return None
    return SpinStatus(look.spin.rank, look.still.since, look.spin.since, look.spin.why, look.spin.on_device)


def _round(rounds: Rounds) -> RoundStatus:
    late = [member.rank for member in rounds.members if member.state in ("leaving", "ending", "starting")]
    return RoundStatus(
        number=rounds.number,
        stage=rounds.stage,
        rung=rounds.rung,
        replacing=tuple(member.rank for member in rounds.members if member.local_rank in rounds.replacing),
        awaited=tuple(late) if rounds.is_under_way else (),
        why=rounds.why,
        since=rounds.since,
        began=rounds.began,
        lacks_culprit=rounds.lacks_culprit,
    )


def _number(found: object) -> float:
    if not isinstance(found, int | float) or isinstance(found, bool) or not abs(found) <= LARGEST:
        raise Malformed("not a number")
    return float(found)


_CODEC: Final = Codec(checks={float: _number}, tolerant=True)
