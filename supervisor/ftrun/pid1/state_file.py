"""`state.json`: the state from which the next ftrun of this run dir continues, and which other programs read."""

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ftrun import __version__
from ftrun.config.derived import meanings, state_dir
from ftrun.config.option_table import OPTIONS, Settings
from ftrun.core.group.messages import EpochRun
from ftrun.core.machine.restarting import is_spare
from ftrun.core.machine.states import Done, Job, Launching, Watched
from ftrun.core.rules.policy import Policy
from ftrun.core.text import redaction
from ftrun.core.text.sentences import short
from ftrun.host import clock, leftovers, procfs, start_count
from ftrun.messages.run_state import RunFacts, RunState, job_status
from ftrun.pid1.bootstrap import Setup, local_ranks

if TYPE_CHECKING:
    from ftrun.config.group_config import Group
    from ftrun.core.rules.standby import NextStart
    from ftrun.pid1.launching import StandbyRequest
    from ftrun.pid1.standby import Standbys

PAUSE: Final = 0.2  # s between two saves for figures alone
OPTION: Final = 1000  # characters; of the text of a longer option only the beginning and the end are saved
TIMEOUTS: Final = ("hang-timeout", "start-timeout", "idle-timeout")


class StateFile:
    """Saves changes of the phase at once, and changes of figures alone at most every `PAUSE` seconds.  `due`: when
    `follow` has to be called next, also if the job has not changed."""

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        command: Sequence[str],
        standbys: "StandbyRequest | None" = None,
        group: "Group | None" = None,
    ) -> None:
        self._setup, self._journal, self._tree, self._policy = setup, setup.journal, setup.tree, policy
        self._run = _run(setup.settings, policy, command, group)
        self._group = leftovers.Recorder()
        self._request = standbys
        self._next_start: NextStart | None = None
        self._ran = setup.buried
        self._saved: Job | None = None
        self._saved_at = 0.0
        self._at: tuple[object, ...] = ()  # the phase and its stage
        self._since = 0.0
        self.due: float | None = None

    @property
    def _standbys(self) -> "Standbys | None":
        return None if self._request is None else self._request.standbys

    def follow(self, job: Job, now: float) -> None:
        """Save what has changed; `job` is the present one."""
        if self._standbys is not None and self._standbys.next_start != self._next_start:
            self.save(job, False)
            return
        if job is self._saved and self.due is None:
            return
        before, self.due = self._saved, None
        if before is not None and _shape(before) == _shape(job):
            if before.ledger == job.ledger:
                return
            if now < self._saved_at + PAUSE:
                self.due = self._saved_at + PAUSE
                return
        self.save(job, False)

    def save(self, job: Job, durable: bool) -> None:
        """`durable`: the state is on disk when this returns."""
        self._saved, self._saved_at, self.due = job, time.monotonic(), None
        at = type(job.phase), getattr(job.phase, "stage", None)
        if at != self._at:
            self._at, self._since = at, self._saved_at
        self._next_start = None if self._standbys is None else self._standbys.next_start
        spare = is_spare(job, self._policy)
        if job.ledger.epoch and (spare or isinstance(job.phase, Launching | Watched)):
            self._ran = EpochRun(job.ledger.epoch, self._setup.life)
        process = procfs.stat(self._tree.command) if self._tree.command else None
        more = RunState(
            beat_dir=self._setup.beats.path,
            pid=process.pid if process else None,
            pid_start=process.start if process else None,
            group=self._group.follow(process, self._saved_at),
            ended=isinstance(job.phase, Done),
            succeeded=isinstance(job.phase, Done) and job.phase.code == 0,
            run=self._run,
            next_start=self._next_start,
            imports=self._setup.imports if self._standbys is None else self._standbys.kept,
            ran=self._ran,
            now=job_status(job, self._since, spare),
        )
        self._journal.save(job.ledger, more._asdict(), durable)


def _shape(job: Job) -> tuple[object, ...]:
    """The part of the state whose changes are saved at once: everything except the figures."""
    phase, ledger = job.phase, job.ledger
    attempt = getattr(phase, "attempt", None)
    counts = ledger.start_cnt, ledger.hang, ledger.fault, ledger.failure
    saved = ledger.best_checkpoint, ledger.last_checkpoint  # the next ftrun resumes there if this one is killed
    facts: tuple[object, ...] = ()
    if attempt is not None:
        idle = attempt.idle
        facts = attempt.number, attempt.pid, attempt.moved, attempt.stopped_at, attempt.aways, attempt.stalled
        facts += idle.idle_since, idle.raised, idle.accelerator, attempt.processes, attempt.look.wait
        facts += attempt.rounds, attempt.look.failed
    return type(phase), getattr(phase, "stage", None), job.want, job.held, job.paused, job.order, counts, saved, facts


def _run(settings: Settings, policy: Policy, command: Sequence[str], group: "Group | None") -> RunFacts:
    me = procfs.stat(os.getpid())
    asked = settings.nproc_per_node
    ranks = None if asked is None else local_ranks(asked)
    return RunFacts(
        version=__version__,
        pid=os.getpid(),
        pid_start=me.start if me else None,
        boot=procfs.boot_id(),
        began=clock.timestamp(),
        command=tuple(redaction.redact_command(command)),
        part=policy.membership.phase,
        node=policy.membership.node,
        member=start_count.member(group and group.rank),
        limits=policy.limits,
        sources={name: settings[name].source for name in TIMEOUTS},
        options={  # `ftctl explain` adds the others
            option.name: (short(redaction.redact_option(option.name, given.text), OPTION), given.source)
            for option in OPTIONS
            if (given := settings[option.name]).source != "default"
        },
        meanings={
            name: short(redaction.redact_option(name, text), OPTION)
            for name, text in meanings(settings, policy, ranks, group and group.size).items()
        },
        max_restarts=policy.max_restarts,
        restart_on=tuple(sorted(policy.restart_on)),
        state_dir=os.path.abspath(kept) if (kept := state_dir(settings)) else None,
    )
