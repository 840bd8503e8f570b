"""Client of the helper that investigates a job that is suspected to hang."""

import os
import stat as st
import time
from collections.abc import Sequence
from typing import Final

from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Attempt, Finding, Rank
from ftrun.core.rules.liveness import longest_cleared_age
from ftrun.messages import evidence as messages
from ftrun.messages.codec import EXACT
from ftrun.pid1.clients.base import Client

BETWEEN: Final = 3.0  # s between the two samples of an investigation, and at most a quarter of the timeout
RANKS: Final = 300  # in a request, those that stopped first: an argument of a command line holds 128 KiB
MARGIN: Final = 5.0  # s before PID 1 gives up, within which the helper has to report what it has


class Evidence(Client[messages.Event]):
    name = "evidence"
    events = messages.EVENTS

    def start(self) -> None:
        self._finding: Finding | None = None

    def investigate(self, finding: Finding, attempt: Attempt, ranks: Sequence[Rank]) -> None:
        """Answered by `EvidenceCollected`; if the helper cannot be started, the deadline of the phase decides."""
        context = self.context
        first = sorted(ranks, key=lambda rank: (rank.rank != finding.rank, rank.moved_at or 0.0))[:RANKS]
        request = messages.Request(
            run_dir=context.work_dir.path,
            attempt=attempt.number,
            finding=finding,
            root=attempt.pid,
            now=time.monotonic(),
            excluded=tuple(context.helpers.pids),
            ranks=tuple(map(_state, first)),
            devices=context.devices,
            output=_output(),
            between=min(BETWEEN, finding.limit / 4),
            timeout=context.policy.evidence_timeout - MARGIN,
            patience=longest_cleared_age(finding, context.policy.limits),
        )
        self._finding = finding
        context.helpers.add(self.name, EXACT.dump(request), once=True)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        """Returns `EvidenceCollected` without the ranks, which the caller has to read."""
        match message:
            case messages.Reply() if self._finding is not None:
                self._finding = None
                work_dir, report = self.context.work_dir, message.report
                if report is not None:  # the path that the user gave
                    report = report.replace(work_dir.path, work_dir.given, 1)
                seen = message._replace(report=report)
                names = ("why", "cpu", "io", "processes", "report", "waits")
                fields = tuple((name, getattr(seen, name)) for name in names)
                return [ev.EvidenceCollected(now, (), fields, message.cleared)]
        return []

    def on_end(self, now: float) -> list[ev.Event]:
        if self._finding is None:
            return []
        # A learned timeout alone never kills a rank.
        cleared = "no evidence could be collected" if self._finding.learned else None
        self._finding = None
        return [ev.EvidenceCollected(now, (), (("evidence", "none could be collected"),), cleared)]


def _state(rank: Rank) -> messages.RankState:
    names = tuple(section.name for section in rank.sections)
    return messages.RankState(
        rank.rank, rank.pid, rank.present, rank.alive_at, rank.moved_at, rank.step, rank.done, names
    )


def _output() -> tuple[str, ...]:
    """The regular files that the command's output goes to; it has inherited the descriptors of ftrun."""
    return tuple(os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2) if _regular(fd))


def _regular(fd: int) -> bool:
    try:
        return st.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
