"""Where the time of a run went: time that led to kept steps, and lost time by reason.  Durations are seconds."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.durations import seconds

TRACE: Final = 64  # points at most
SHOWN: Final = 3  # reasons in a sentence
NO_GOODPUT: Final = "no step and no checkpoint has been seen"
Trace = tuple[tuple[float, int], ...]  # (work of the attempt until then, the step that it had first reached)


class LostTime(NamedTuple):
    """Lost time by reason.  `startup`: an attempt up to its first heartbeat, or to an end without one.  `hang`: silence
    up to the verdict.  `redone`: work that was lost and has been done again, or has to be.  `discarded`: work
    that the run had not saved when it ended without success.  `recovery`: from a fault that ended no
    attempt, or from the verdict of a hang, until all ranks moved in the next round.  `stopping`: from a verdict, or the
    end of the command, until the tree is dead and the devices are free.  `waiting`: for the backoff, the platform or
    other nodes.  `paused`: the command stood still while the operator had paused the verdicts, or by the user's job
    control, or it was suspended together with ftrun.
    """

    startup: float = 0.0
    hang: float = 0.0
    redone: float = 0.0
    discarded: float = 0.0
    recovery: float = 0.0
    stopping: float = 0.0
    healing: float = 0.0
    waiting: float = 0.0
    paused: float = 0.0


class RestartCounts(NamedTuple):
    """All restarts in this run dir, by reason."""

    hang: int = 0
    fault: int = 0
    failure: int = 0
    manual: int = 0
    peer: int = 0
    returned: int = 0


class Account(NamedTuple):
    """All time in which an ftrun worked in this run dir: `wall` is the sum of `kept`, `lost`, `open` and `earlier`.

    Time counts as lost once that is certain, and stays lost.  `open`: undecided work of the current attempt; `trace`:
    its steps, where no checkpoint was ever `saved`.  `earlier`: undecided work of the attempt before, with its trace
    `past`; how much of it is done again shows at the next attempt's first step.  `begun`: the current attempt has
    moved.  `silent`: for how long the suspect has been silent.  `stepped`: there was a step or a checkpoint.

    `at`: the CLOCK_MONOTONIC time up to which all is counted, None: no time runs; later time goes `into` that field of
    `LostTime`, or into `open`.  Only the ftrun that wrote `at` and `into` may use them.
    """

    wall: float = 0.0
    kept: float = 0.0
    lost: LostTime = LostTime()
    restarts: RestartCounts = RestartCounts()
    open: float = 0.0
    trace: Trace = ()
    earlier: float = 0.0
    past: Trace = ()
    begun: bool = False
    saved: bool = False
    silent: float = 0.0
    stepped: bool = False
    into: str = ""
    at: float | None = None


class Figures(NamedTuple):
    """`wall` is the sum of `kept`, all `lost` time and `pending`, which may become either.  `goodput`: 0 to 1, where
    pending time counts as kept once the attempt has moved; None: there is none, without a step or a checkpoint.
    `wall`, `kept`, `lost` and `restarts` only ever rise."""

    wall: float
    kept: float
    lost: dict[str, float]
    pending: float
    goodput: float | None
    restarts: dict[str, int]


def figures(account: Account, now: float | None = None) -> Figures:
    """The figures at `now`, a CLOCK_MONOTONIC time of the boot in which the ftrun runs that wrote the account; None:
    the figures as written, for an ftrun that is gone."""
    since = 0.0 if now is None or account.at is None else max(0.0, now - account.at)
    lost, pending, wall = account.lost._asdict(), account.open + account.earlier, account.wall + since
    if account.into:
        lost[account.into] += since
    else:
        pending += since
    moved = account.begun or account.saved
    worked = account.kept + (pending if moved else account.earlier)
    goodput = min(1.0, worked / wall) if wall > 0 and (account.stepped or account.saved) else None
    return Figures(wall, account.kept, lost, pending, goodput, account.restarts._asdict())


def summary(found: Figures) -> str:
    """For the last line of a run: `goodput 93% of 2h 3m; lost 8m: 5m hang, 2m redone, 1m startup`.  Less than a
    thousandth of the time is left out."""
    least = max(0.05, found.wall / 1000)
    worth = sorted(((why, lost) for why, lost in found.lost.items() if lost >= least), key=lambda one: -one[1])
    if found.goodput is None:
        return f"lost {seconds(sum(found.lost.values()))}" if worth else ""
    percent = f"{100 * found.goodput:.0f}"
    if not worth:
        return f"goodput {percent}% of {seconds(found.wall)}"
    most = ", ".join(f"{seconds(lost)} {why}" for why, lost in worth[:SHOWN])
    percent = ">99" if percent == "100" else percent
    return f"goodput {percent}% of {seconds(found.wall)}; lost {seconds(sum(found.lost.values()))}: {most}"
