"""Standbys that are started in place of a process of the command, until they have answered."""

import select

from ftrun.core.rules import standby as rules
from ftrun.host.standby_process import StandbyProcess
from ftrun.pid1.standby_pool import Pool, Startable


class WarmStarts:
    """`starting`: standbys that were started and have not answered, by descriptor; `answers_due`: when they are late.
    `preparing`: the first start waits for its standbys."""

    def __init__(self, pool: Pool, poll: select.poll) -> None:
        self._pool, self._poll = pool, poll
        self._failures: dict[int, int] = {}  # in a row, by local rank
        self._refused: str | None = None  # why there is no standby in this attempt
        self._forked = 0  # of the standbys of the start under way
        self._outcomes: list[str] = []  # of the start under way: empty for a warm one, else why it is cold
        self.preparing = False
        self.starting: dict[int, StandbyProcess] = {}
        self.answers_due: float | None = None

    def take(self, local_rank: int, start: Startable) -> StandbyProcess | None:
        """The standby for this start, which is not one any more; None if there is none."""
        taken = self._pool.take(local_rank, start)
        if taken is None:
            waits = local_rank in self._pool.waiting
            self._outcomes.append(self._refused or ("it was still importing" if waits else "it was not ready"))
            return None
        self._forked += taken.forked
        return taken.process

    def begin(self, process: StandbyProcess, start: Startable, group: int, now: float) -> bool:
        """Start it; False if that is not possible, and it has ended."""
        try:
            process.start(start.environment, rules.OURS, rules.withheld(start.environment), group)
        except OSError as error:
            self._outcomes.append(f"it could not be started: {error.strerror}")
            process.kill()
            process.close()
            return False
        self.starting[process.answers] = process
        self._poll.register(process.answers, select.POLLIN)
        self.answers_due = now + rules.ANSWERING
        return True

    def answered(self, answers: int, now: float) -> bool | None:
        """Whether it is the command now; None: it has not answered yet."""
        process = self.starting[answers]
        content = process.read()
        if content is None and self.answers_due is not None and now < self.answers_due:
            return None
        warm = content == b"warm\n"
        if warm:
            self._failures.clear()
        _, _, why = (content or b"").decode("utf-8", "replace").strip().partition("\0")
        self._outcomes.append("" if warm else why or ("it ended" if content == b"" else "it did not answer"))
        self._poll.unregister(answers)
        del self.starting[answers]
        if not self.starting:
            self.answers_due = None
        if not warm:
            process.kill()
        process.close()
        return warm

    def abandon(self) -> None:
        """Some process cannot be started: end the standbys that were."""
        self.preparing = False
        for answers, process in self.starting.items():
            self._poll.unregister(answers)
            process.kill()
            process.close()
        self.starting, self.answers_due = {}, None
