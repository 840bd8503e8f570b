"""A group of containers on hosts that trains, and the checks of how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from support.group_work import Book
from support.hosts import Container, Hosts
from support.runs import DEADLINE, FTRUN, HOUSE, wait_for

WORK = (sys.executable, str(HOUSE / "tests" / "support" / "group_work.py"))
TRAIN = (sys.executable, str(HOUSE / "tests" / "support" / "group_train.py"))
OPTIONS = ("--restart-on", "hang,fault,failure", "--backoff", "100ms", "--grace", "1s")


class Group:
    """One container on each host, with the same command: `program`, the folder that all share, and `arguments`."""

    def __init__(
        self,
        hosts: Hosts,
        *arguments: str,
        program: Sequence[str] = WORK,
        options: Sequence[str] = (),
        size: int = 0,
        wait: str = "20s",
        shape: str = "",
        ftrun: Sequence[str] = FTRUN,
    ) -> None:
        """`size`: if the group does not use all hosts.  `shape`: of --group-size, if it is no number.  `ftrun`: a
        changed one."""
        self.hosts, self.size, self._shape, self._ftrun = hosts, size or hosts.size, shape, ftrun
        self.folder = hosts.folder / "shared"
        self.folder.mkdir()
        self.book = Book(self.folder)
        self.command = [*program, str(self.folder), *arguments]
        self.options, self.wait = [*OPTIONS, *options], wait
        self.gone: set[int] = set()  # ranks whose container is not started again

    def start(self, rank: int, again: bool = False, options: Sequence[str] = (), **environment: str) -> Container:
        """`again`: in the same container.  `environment`: the variables of a scheduler."""
        given = [*self.hosts.group(rank, self._shape or self.size, wait=self.wait), *self.options, *options]
        variables = {"WORLD_SIZE": str(self.size), **environment}
        words = [*given, "--", *self.command]
        return self.hosts.start(rank, *words, again=again, environment=variables, ftrun=self._ftrun)

    def begin(self) -> list[Container]:
        for rank in range(self.size):
            self.start(rank)
        return self.hosts.last

    def rank(self, rank: int) -> Container:
        """The newest container of this rank."""
        return next(container for container in self.hosts.last if container.rank == rank)

    def until_started(self, epoch: int, timeout: float = DEADLINE, nodes: int = 0) -> None:
        """`nodes`: if not all members have a place in the epoch."""
        ranks = list(range(nodes or self.size))
        self._until(lambda: self.book.ranks("start", epoch) == ranks, f"all ranks of epoch {epoch}", timeout)

    def until_step(self, step: int, timeout: float = DEADLINE) -> None:
        self._until(lambda: self.book.step >= step, f"step {step}", timeout)

    def _until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        def reached() -> bool:
            assert condition() or not all(container.ended for container in self.hosts.last), "all containers ended"
            return condition()

        try:
            wait_for(reached, what, timeout)
        except AssertionError as problem:
            raise AssertionError(f"{problem}; {self.log()}") from None

    def finish(self) -> None:
        """WORK may end successfully now."""
        (self.folder / "enough").touch()

    def must_end(self, code: int, epochs: Sequence[int], timeout: float = DEADLINE) -> None:
        """All containers end with that code, after these epochs, and without a violation."""
        self.ended(timeout)
        wrong = self.wrong()
        if not wrong and (self.codes[0], self.book.epochs) != (code, [*epochs]):
            wrong = [f"all ended with {self.codes[0]} after the epochs {self.book.epochs}, not {code} after {epochs}"]
        assert not wrong, "\n".join([*wrong, self.log()])

    def must_succeed(self, epochs: Sequence[int], timeout: float = DEADLINE) -> None:
        """What must hold of a `must_end` where WORK may end successfully from now on."""
        self.finish()
        self.must_end(0, epochs, timeout)

    def ended(self, timeout: float) -> bool:
        """Whether all containers ended within that time."""
        until = time.monotonic() + timeout
        while not (over := all(one.ended for one in self.hosts.last)) and time.monotonic() < until:
            time.sleep(0.05)
        return over

    @property
    def codes(self) -> list[int]:
        """The exit codes of the containers that were not removed."""
        return [one.wait() for one in self.hosts.last if one.rank not in self.gone]

    def wrong(self) -> list[str]:
        """The violations at the end of a run."""
        left = [one.rank for one in self.hosts.last if not one.ended]
        if left:
            return [f"still running after the deadline: ranks {left}", *self.book.wrong()]
        found = list(self.book.wrong())
        codes = self.codes
        if len(set(codes)) != 1:
            return [*found, f"codes {codes}"]
        if codes[0] == 0:
            found += [*self._unfinished(), *self._waiting()]
        else:
            verdicts = {one.verdict.get("verdict") for one in self.hosts.last if one.rank not in self.gone}
            found += [] if len(verdicts) == 1 else [f"verdicts {verdicts}"]
        return found

    def _unfinished(self) -> list[str]:
        finished = self.book.named("finished", epoch=self.book.epochs[-1])
        ranks = sorted(line["rank"] for line in finished)
        if ranks != sorted(line["rank"] for line in self.book.named("start", epoch=self.book.epochs[-1])):
            return [f"code 0, and of the last epoch only {ranks} finished"]
        results = {(line["step"], line.get("digest")) for line in finished}
        return [] if len(results) == 1 else [f"not the same result: {results}"]

    def _waiting(self) -> list[str]:
        """After a success no member may time out at the end."""
        problems = [(one.rank, str(r.get("what"))) for one in self.hosts.last for r in one.named("problem")]
        return [f"rank {rank}: {what}" for rank, what in problems if what.startswith("not completed at the end")]

    def log(self) -> str:
        lines = "\n".join(str(line) for line in self.book.lines)
        return f"\n{lines}\n\n{self.hosts.log()}"
