"""Many members that say the same, one after the other."""

from collections.abc import Iterable

from ftrun.core.fleet import Effect, Gone, Reported, decide, gather
from ftrun.core.group import Report, State, Trouble


class Many:
    def __init__(self, size: int) -> None:
        self.size, self.now, self.seq = size, 0.0, 0
        self.fleet = gather(0.0, size, 600.0, 10.0)
        self.lives = [f"life{rank}" for rank in range(size)]

    def reports(self, state: State, epoch: int, ranks: Iterable[int], trouble: Trouble | None = None) -> list[Report]:
        self.seq += 1
        return [Report(r, self.lives[r], self.seq, f"node-{r}", f"boot-{r}", epoch, state, trouble) for r in ranks]

    def hear(self, reports: Iterable[Report]) -> list[Effect]:
        said: list[Effect] = []
        for report in reports:
            self.now += 1e-4
            self.fleet, effects = decide(self.fleet, Reported(self.now, report))
            said += effects
        return said

    def all(
        self, state: State, epoch: int = 0, but: tuple[int, ...] = (), only: tuple[int, ...] = (), life: str = ""
    ) -> list[Effect]:
        ranks = only or [rank for rank in range(self.size) if rank not in but]
        for rank in ranks if life else ():
            self.lives[rank] = life
        return self.hear(self.reports(state, epoch, ranks))

    def trouble(self, rank: int) -> list[Effect]:
        trouble = Trouble("hang", "no step for 60s", 0.0, rank, 7)
        return self.hear(self.reports("stopping", self.fleet.epoch, (rank,), trouble))

    def gone(self, rank: int) -> list[Effect]:
        self.fleet, effects = decide(self.fleet, Gone(self.now, rank, self.lives[rank], "its connection closed", True))
        return list(effects)
