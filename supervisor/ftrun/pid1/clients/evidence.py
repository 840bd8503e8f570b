"""Client of the helper that looks at a job that stands still, and investigates one that is suspected to hang."""

import os
import stat as st
import time
from collections.abc import Sequence
from typing import Final

from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Job, Running, Starting, Suspect
from ftrun.core.machine.values import Attempt, Finding, Rank
from ftrun.core.rules import early_evidence
from ftrun.core.rules.hang_rules import needs_evidence
from ftrun.core.rules.liveness import is_same
from ftrun.host import mounts
from ftrun.messages import evidence as messages
from ftrun.messages.group_waits import LookMembership
from ftrun.pid1.clients.base import Client

OPTIONAL: Final = ("mechanism", "culprits")  # fields of the record that are absent where they are empty
RANKS: Final = 300  # in a request, those that stopped first: an argument of a command line holds 128 KiB
MARGIN: Final = 5.0  # s before PID 1 gives up, within which the helper has to report what it has
PIPE: Final = 65536  # bytes that a pipe takes at once (pipe(7))
LATE: Final = 2.0  # s after the timeout of a look, when it is ended


class EvidenceClient(Client[messages.EvidenceEvent]):
    name = "evidence"
    events = messages.EVENTS

    def start(self) -> None:
        self._finding: Finding | None = None
        self._early: Finding | None = None  # evidence about it is under way, and its limit has not passed
        self._again: tuple[Attempt, float] | None = None  # whose evidence is requested again; when it was first
        self._look_until: float | None = None  # when the look under way is late; None: there is none
        self._look_failed = ""  # the first problem with a look in this attempt, which was recorded
        self._told = False  # one was printed in this attempt
        self._epoch = 0  # of the group

    def look(self, attempt: Attempt) -> None:
        """Answered by `Looked`, unless an investigation ends the look, or the job has moved."""
        first = sorted(attempt.ranks, key=lambda rank: rank.claimed_at if rank.moved_at is None else rank.moved_at)
        now, context = time.monotonic(), self.context
        ranks = _states_of(attempt, first)
        request = messages.LookRequest(
            attempt.pid,
            now,
            context.excluded,
            ranks,
            context.devices,
            group=self._membership,
            powers=tuple(context.powers.items()),
        )
        self._look_until = now + request.timeout + LATE
        self._ask(request)

    def investigate(self, finding: Finding, attempt: Attempt) -> None:
        """Answered by `EvidenceCollected`; if the helper cannot be started, the deadline of the phase decides.
        Evidence about this finding that is under way is completed; a helper without an answer is started once more."""
        early, self._early = self._early, None
        self._finding, self._look_until = finding, None
        self._again = attempt, time.monotonic()
        if early is not None and is_same(early, finding) and self.context.helpers.is_running(self.name):
            line = messages.ON_TIME.dump(messages.Overdue(finding, time.monotonic(), _states(finding, attempt)))
            if len(line) <= PIPE:
                self.context.helpers.send(self.name, line)
                return
        self._ask(self._request(finding, attempt, self._again[1]))

    def investigate_early(self, finding: Finding, due: float, attempt: Attempt) -> None:
        """Collect evidence for a limit that passes only at `due`; it is answered after `investigate`."""
        self._early, self._finding, self._look_until = finding, None, None
        self._ask(self._request(finding, attempt, due)._replace(due=due))

    def _request(self, finding: Finding, attempt: Attempt, now: float) -> messages.EvidenceRequest:
        context = self.context
        return messages.EvidenceRequest(
            run_dir=context.work_dir.path,
            attempt=attempt.number,
            finding=finding,
            root=context.tree.command or attempt.pid,
            now=now,
            excluded=context.excluded,
            ranks=_states(finding, attempt),
            devices=context.devices,
            output=_output(),
            between=early_evidence.between(finding.limit),
            timeout=context.policy.limits.evidence_timeout - MARGIN,
            given=not self._needs_evidence(finding),
            group=self._membership,
            powers=tuple(context.powers.items()),
        )

    @property
    def _membership(self) -> LookMembership | None:
        group = self.context.group
        if group is None:
            return None
        return LookMembership(self.context.work_dir.path, group.rank, group.size, self._epoch)

    def _ask(self, request: messages.EvidenceRequest | messages.LookRequest) -> None:
        """Start the helper with this request; one that still runs is ended."""
        line = messages.REQUESTS.dump(request).decode().rstrip()
        self.context.helpers.add(self.name, line, once=True, expendable=True)

    def handle(self, message: messages.EvidenceEvent, now: float) -> list[ev.Event]:
        """Returns `EvidenceCollected` without the ranks, which the caller has to read."""
        match message:
            case messages.Reply() if self._finding is not None:
                self._finding = None
                work_dir, report = self.context.work_dir, message.report
                if report is not None:  # the path that the user gave
                    report = report.replace(work_dir.path, work_dir.given, 1)
                seen = message._replace(report=report)
                names = ("mechanism", "why", "cpu", "io", "processes", "report", "waits", "culprits")
                values = ((name, getattr(seen, name)) for name in names)
                fields = tuple((name, value) for name, value in values if name not in OPTIONAL or value)
                return [ev.EvidenceCollected(now, (), fields, message.cleared)]
            case messages.Looked() if self._look_until is not None:
                self._look_until = None
                return [message._replace(now=now)]
        return []

    def follow(self, job: Job, now: float, awaits_cause: bool) -> None:
        """A look whose answer is not awaited any more, since the job has moved or ends, is ended; so is evidence that
        was begun early."""
        self._epoch = job.ledger.epoch
        if not isinstance(job.phase, Suspect):
            self._again = None
        attempt = job.phase.attempt if isinstance(job.phase, Starting | Running) else None
        if self._look_until is not None and (attempt is None or attempt.look.begun is None):
            self._end_look()
        if self._early is not None and (attempt is None or attempt.early.finding is None):
            self._early = None
            self.context.helpers.remove(self.name)

    def on_spawning(self) -> None:
        self._look_failed, self._told = "", False

    @property
    def deadline(self) -> float | None:
        return self._look_until

    def settle(self, now: float) -> list[ev.Event]:
        if self._look_until is not None and now >= self._look_until:
            failed = self._failed("a look at it was not complete in time", now)
            self._end_look()
            return failed
        return []

    def _failed(self, why: str, now: float) -> list[ev.Event]:
        """The look under way has no result."""
        self.problem(why)
        self._look_until = None
        return [ev.Looked(now, self._look_failed, failed=True)]

    def problem(self, what: str, printed: bool = False) -> None:
        """A problem with a look is recorded once in an attempt.  The first from which it is not known whether the job
        hangs is printed."""
        if self._look_until is not None:
            if self._look_failed:
                return
            self._look_failed = what = f"{messages.UNKNOWN}: {what}"
        untold = what.startswith(messages.UNKNOWN) and not self._told
        self._told = self._told or untold
        super().problem(what, printed or untold)

    def _end_look(self) -> None:
        self._look_until = None
        self.context.helpers.remove(self.name)

    def on_end(self, now: float) -> list[ev.Event]:
        if self._look_until is not None:
            return self._failed("a look at it ended without a result", now)
        self._early = None  # it is collected when the limit has passed
        if self._finding is None:
            return []
        if self._again is not None:
            # The helper was killed, or has failed.  Without evidence a hang has no culprit, and all ranks would end.
            (attempt, asked), self._again = self._again, None
            request = self._request(self._finding, attempt, now)
            if (left := request.timeout - (now - asked)) > MARGIN:
                self._ask(request._replace(timeout=left))
                return []
        cleared = "no evidence could be collected" if self._needs_evidence(self._finding) else None
        self._finding = None
        return [ev.EvidenceCollected(now, (), (("evidence", "none could be collected"),), cleared)]

    def _needs_evidence(self, finding: Finding) -> bool:
        return needs_evidence(finding, self.context.policy.limits.idle_given)


def _states(finding: Finding, attempt: Attempt) -> tuple[messages.RankState, ...]:
    first = sorted(attempt.ranks, key=lambda rank: (rank.rank != finding.rank, rank.moved_at or 0.0))
    return _states_of(attempt, first)


def _states_of(attempt: Attempt, ranks: Sequence[Rank]) -> tuple[messages.RankState, ...]:
    """The states of the first of these ranks.  A rank that ftrun started is done once it has ended with 0, whatever it
    reported."""
    ended = {one.rank for one in attempt.processes if one.code == 0}
    return tuple(_state(rank, not rank.present and rank.rank in ended) for rank in ranks[:RANKS])


def _state(rank: Rank, ended: bool) -> messages.RankState:
    names, done = tuple(section.name for section in rank.sections), rank.done or ended
    return messages.RankState(rank.rank, rank.pid, rank.present, rank.alive_at, rank.moved_at, rank.step, done, names)


def _output() -> tuple[str, ...]:
    """The regular files that the command's output goes to; it has inherited the descriptors of ftrun."""
    try:
        return tuple(os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2) if _regular(fd))
    except OSError:
        return ()  # the command has unmounted /proc


def _regular(fd: int) -> bool:
    try:
        return mounts.is_on_network_volume(fd) or st.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
