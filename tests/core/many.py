"""Many members with the same report, one after the other."""

from collections.abc import Iterable

from ftrun.core.group.coordinator import decide
from ftrun.core.group.membership import Effect, Reported, Shape, new_coordinator
from ftrun.core.group.messages import NodeFailure, Report, State
from ftrun.core.group.root_cause import MemberLost


class Many:
    def __init__(self, size: int) -> None:
        self.size, self.now, self.seq = size, 0.0, 0
        self.coordinator = new_coordinator(0.0, Shape(size), 600.0, 10.0)
        self.lives = [f"life{rank}" for rank in range(size)]

    def reports(
        self, state: State, epoch: int, ranks: Iterable[int], failure: NodeFailure | None = None
    ) -> list[Report]:
        self.seq += 1
        return [Report(r, self.lives[r], self.seq, f"node-{r}", f"boot-{r}", epoch, state, failure) for r in ranks]

    def hear(self, reports: Iterable[Report]) -> list[Effect]:
        found: list[Effect] = []
        for report in reports:
            self.now += 1e-4
            self.coordinator, effects = decide(self.coordinator, Reported(self.now, report))
            found += effects
        return found

    def all(
        self, state: State, epoch: int = 0, but: tuple[int, ...] = (), only: tuple[int, ...] = (), life: str = ""
    ) -> list[Effect]:
        ranks = only or [rank for rank in range(self.size) if rank not in but]
        for rank in ranks if life else ():
            self.lives[rank] = life
        return self.hear(self.reports(state, epoch, ranks))

    def fail(self, rank: int) -> list[Effect]:
        failure = NodeFailure("hang", "no step for 60s", 0.0, rank, 7)
        return self.hear(self.reports("stopping", self.coordinator.epoch, (rank,), failure))

    def gone(self, rank: int) -> list[Effect]:
        self.coordinator, effects = decide(
            self.coordinator, MemberLost(self.now, rank, self.lives[rank], "its connection closed", True)
        )
        return list(effects)
