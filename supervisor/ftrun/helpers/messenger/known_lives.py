"""What a member knows of the ftruns that run its epoch, and may tell a new coordinator (`lives` of `MemberReport`)."""

from typing import Final

from ftrun.core.group.messages import GroupOrder, Life, MemberReport

NOTHING: Final[tuple[int, tuple[Life, ...]]] = (0, ())  # an epoch, and who runs it


class KnownLives:
    """The member keeps this knowledge when it follows another coordinator.  `joined`: whether a new container may join
    ranks that recover within an epoch, so that those who run it are not known."""

    def __init__(self, joined: bool) -> None:
        self._joined, self._known = joined, NOTHING
        # The other end of this connection, and of an earlier one, may know that nothing of the epoch runs here any
        # more.
        self._disclosed = self._disclosed_before = False

    def ordered(self, order: GroupOrder, report: MemberReport | None) -> None:
        """The coordinator has sent this order, after the last suspension of this process if there was one."""
        at_work = report is not None and report.state == "running" and report.epoch == report.ran == order.epoch
        if order.lives and at_work and not self._may_join(report):
            self._known = order.epoch, order.lives
            self._disclosed = self._disclosed_before = False

    def reported(self, report: MemberReport) -> None:
        """This is the state of the member now."""
        if self._may_join(report) or report.epoch > self._known[0]:
            self._known = NOTHING

    def sent(self, report: MemberReport) -> None:
        self._disclosed |= report.state in ("ready", "left")

    def connected(self) -> None:
        """The other end of a new connection may be another coordinator."""
        self._disclosed_before |= self._disclosed

    def stopped(self) -> None:
        """This process was suspended: a lease may be over, and another epoch may have begun."""
        self._known = NOTHING

    def of(self, report: MemberReport) -> tuple[Life, ...]:
        epoch, lives = self._known
        return lives if report.epoch == report.ran == epoch and not self._disclosed_before else ()

    def _may_join(self, report: MemberReport | None) -> bool:
        return self._joined and report is not None and report.rounds is not None
