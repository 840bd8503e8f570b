"""The policy and the restart budgets: what may be restarted, how often, after which delay, and what is progress."""

import re
from typing import Final

from ftrun.core.group.messages import SILENCE
from ftrun.core.machine.values import Attempt, Cause, Ledger, Rank, SavedFile
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.core.rules.idle import Thresholds
from ftrun.core.rules.liveness import Limits, time_awake

BACKOFF_LIMIT: Final = 60.0  # s
HOUR: Final = 3600.0
MOST_SAVED: Final = 64  # files that are kept in the ledger
_VARIES: Final = re.compile(r"(?<=/)tmp[a-z0-9_]{8}(?=[^/]*$)|\d+")  # a number, or a name by chance from `tempfile`
_WORDS: Final = ("step", "iter", "iteration", "checkpoint", "ckpt", "epoch")  # the first one that is there has the step
# Patterns are compiled at the first checkpoint: PID 1 loads this file before it starts the command.
_NAMED: Final = tuple(rf"(?a)(?:^|[^a-z]){word}s?[-_=.]?(\d{{1,18}})(?!\d)" for word in _WORDS)
_GLOBAL: Final = r"global(?=step|_step)_?"
_PLAIN: Final = r"(?a)^(?:[^_.].*[-_=])?(\d{1,18})$"  # `100`, `snapshot-100`, but not `llama3`
_PART: Final = r"(?a)(?:rank|shard|part|of|worker|stage|device|gpu)[-_=]?\d+$"  # of one checkpoint


class Membership(NamedTuple):
    """Which part of which job this ftrun is."""

    node: str = ""
    phase: str = ""  # one of several phases that run in sequence; each has a history of its own
    job: str = ""  # the name of this training job, from the platform or from --group-job
    shared: bool = False  # another ftrun of this job may already have reached a verdict
    recalls: bool = False  # the first start waits for what an earlier schedule has reached
    group: bool = False  # a member of a group: starts and verdicts are for all members
    member: int = 0  # its number there
    elastic: bool = False  # the number of members that work may change, and so may the place of this one
    ends_alone: bool = False  # the others go on when this member ends with a verdict about itself alone
    peer_timeout: float = SILENCE  # how long another member may be silent before it counts as lost


class Policy(NamedTuple):
    """What may be done about a job.  `max_restarts` None: no limit.  `stable_after`, `backoff`: in seconds."""

    restart_on: frozenset[str] = frozenset({"hang", "fault"})
    max_restarts: int | None = 3
    stable_after: float | None = HOUR
    backoff: float = 1.0
    files: bool = False  # checkpoint files are watched, and progress is measured by them
    work: Thresholds = Thresholds()
    limits: Limits = Limits(hang=HOUR, start=None, section=None, automatic=HOUR)
    membership: Membership = Membership()
    limit_fails: bool = False  # the hang limit ends the job as failed, instead of rescheduling it
    only_report_hangs: bool = False  # a hang ends nothing: the platform does not restart upon suspension
    min_devices: int | None = None  # so many must be left when a device that does not heal is removed
    scale_out: bool = False  # a removed device that is well again is used again at the next checkpoint
    unconditional: bool = False  # the failure limit passes the command's own code to the outer scheduler
    asks_platform: bool = False  # the first start, too, needs the platform's permission
    checks_devices: bool = False  # the first start waits for a check of the devices
    ranks: int | None = None  # that ftrun starts on this node; None: the command is one process
    rank_per_device: bool = False  # one for each device that the command has
    recover: frozenset[str] = frozenset()  # the rungs below the tree that may be used, where all ranks can recover


def local_ranks(ledger: Ledger, policy: Policy) -> int | None:
    """How many ranks the next start has on this node; None: the command is one process."""
    if policy.ranks is None or not policy.rank_per_device or ledger.visible is None:
        return policy.ranks
    return len(ledger.visible.names)


LIMIT: Final[dict[Cause, exit_codes.Verdict]] = {
    "hang": exit_codes.HANG_LIMIT,
    "fault": exit_codes.NODE_FAULT,
    "failure": exit_codes.FAILURE_LIMIT,
}


def is_exhausted(ledger: Ledger, cause: Cause, policy: Policy) -> bool:
    """Whether the restart budget for this cause is used up."""
    return policy.max_restarts is not None and ledger.count(cause) >= policy.max_restarts


def extent(ledger: Ledger) -> tuple[int, int]:
    """How far the job has got: one more than its highest step and its highest checkpoint, 0 where there is none."""
    step, checkpoint = ledger.best_step, ledger.best_checkpoint
    return 0 if step is None else step + 1, 0 if checkpoint is None else checkpoint + 1


def has_ended_before(ledger: Ledger) -> bool:
    """Whether an earlier attempt hung after it had trained to its end, and the job has got no further since."""
    return ledger.ended_at == extent(ledger)


def backoff(ledger: Ledger, cause: Cause, policy: Policy) -> float:
    """Seconds before the restart: 0 after a hang or a fault; after failures in a row it doubles, up to a minute."""
    if cause != "failure":
        return 0.0
    return min(policy.backoff * float(1 << min(max(ledger.failure - 1, 0), 30)), BACKOFF_LIMIT)


def progress(ledger: Ledger, attempt: Attempt, now: float, policy: Policy) -> str | None:
    """By what this attempt got further than all earlier ones: `checkpoint`, `step`, `save`, `stable` or None.

    Where checkpoints are reported, only a newer one counts: a job that dies between two checkpoints, at ever later
    steps, makes no progress (Cerebras assesses restarts this way).  Otherwise steps count, and files that the program
    saves by itself (`has_advanced`): a resumed program whose optimizer has no step count restarts at step 0.
    """
    newest = attempt.checkpoint
    if policy.files or newest is not None or ledger.best_checkpoint is not None:
        beyond = newest is not None and is_beyond(newest.checkpoint_step, ledger.best_checkpoint)
        return "checkpoint" if beyond else None
    if is_beyond(attempt.step, ledger.best_step):
        return "step"
    if not attempt.progressed and has_advanced(attempt):
        return "save"
    if ledger.best_step is not None:
        return None
    # Silence is not stability: where a program sends heartbeats, or must, only the time up to its last movement counts.
    beats = attempt.ranks or policy.limits.start is not None
    until = now if attempt.idle.idle_since is None else min(now, attempt.idle.idle_since)
    if beats:
        until = max((r.moved_at for r in attempt.ranks if r.moved_at), default=attempt.spawned_at)
    ran = time_awake(attempt.spawned_at, until, attempt.aways)
    return "stable" if policy.stable_after is not None and ran >= policy.stable_after else None


def with_progress(ledger: Ledger, attempt: Attempt, progressed: str | None) -> Ledger:
    """The ledger with the progress of this attempt; progress resets every count of restarts."""
    newest = attempt.checkpoint
    if progressed is not None:
        ledger = ledger._replace(hang=0, fault=0, failure=0, reached=True)
    if is_beyond(attempt.step, ledger.best_step):
        ledger = ledger._replace(best_step=attempt.step)
    if newest is not None and is_beyond(newest.checkpoint_step, ledger.best_checkpoint):
        path = newest.checkpoint_path or ledger.last_checkpoint  # the last one whose path is known
        ledger = ledger._replace(best_checkpoint=newest.checkpoint_step, last_checkpoint=path)
    if attempt.step is not None:
        ledger = ledger._replace(last_step=attempt.step)
    return ledger._replace(last_section=attempt.section, saved=with_saved(ledger.saved, attempt.ranks))


def is_beyond(value: int | None, best: int | None) -> bool:
    return value is not None and (best is None or value > best)


def step_of(path: str) -> int | None:
    """The step of a checkpoint file: the number after a word like `step` or `checkpoint`, in the name of the file or of
    the nearest folder that has one; else the one at the end of the name.  None: each save replaces the one before
    (`last.pt`)."""
    parts = [re.sub(_GLOBAL, "", part.lower()) for part in reversed(path.split("/")) if part]
    for part in parts:
        for pattern in _NAMED:
            if found := re.findall(pattern, part):
                return int(found[-1])
    stem = parts[0].partition(".")[0] if parts else ""
    plain = None if re.search(_PART, stem) else re.match(_PLAIN, stem)
    return int(plain[1]) if plain else None


# --- files that the program saves by itself -------------------------------------------------------------------------


def with_saved(saved: tuple[SavedFile, ...], ranks: tuple[Rank, ...]) -> tuple[SavedFile, ...]:
    """`saved` with the files that these ranks have saved since, each path once, the newest last."""
    fresh = {file.path: file for rank in ranks if rank.saved for file in rank.saved}
    if not fresh or set(saved).issuperset(fresh.values()):
        return saved
    kept = [file for file in saved if file.path not in fresh]
    return (*kept, *fresh.values())[-MOST_SAVED:]


def has_advanced(attempt: Attempt) -> bool:
    """Whether this attempt has saved newer state than all earlier ones: it resumed from the newest file of a series
    that earlier attempts saved, moved, and then saved a file of that series.

    A series is all files whose paths differ only in their numbers: `snapshot.pt` is a series, so are `epoch_1.pt` and
    `epoch_2.pt`, and so are temporary files that are moved to such names.  A new file alone is no progress, since a job
    that starts from scratch each time saves its first epoch again and again; nor is one after an older file was loaded,
    as by jobs that repeat what they once reached.  The loaded file must be the very version that was saved, since each
    attempt may rewrite and load a file.
    """
    now = {_series(file.path) for rank in attempt.ranks for file in rank.saved}
    if not now or not attempt.inherited:
        return False
    newest = {_series(file.path): file for file in attempt.inherited}
    resumed = [file for rank in attempt.ranks for file in rank.resumed]
    return any(_is_same(file, newest[series]) for series in now & newest.keys() for file in resumed)


def _series(path: str) -> str:
    return _VARIES.sub("#", path)


def _is_same(loaded: SavedFile, saved: SavedFile) -> bool:
    if saved.version.startswith("-"):  # a file that was still open when its save returned
        return loaded.path == saved.path or loaded.version.endswith(f".{saved.version[1:]}")
    return loaded.version == saved.version or loaded.version.startswith(f"{saved.version}.")
