"""What PID 1 asks for: one JSON document."""

from typing import Any, NamedTuple

from ftrun.core.machine.values import Finding, Rank, Section
from ftrun.messages.codec import EXACT
from ftrun.messages.evidence import Question, RankSeen


class Request(NamedTuple):
    """Times are CLOCK_MONOTONIC seconds.  `root`: the command.  `spared`: processes that, with all below them, are not
    the job's.  `between`: from look to look.  `timeout`: for everything.  `patience`: the age of the silence, in
    seconds, up to which a wait that somebody outside the job may end clears it; None: no such wait does."""

    run_dir: str
    attempt: int
    finding: Finding
    root: int
    spared: frozenset[int]
    ranks: tuple[Rank, ...]
    now: float
    devices: tuple[dict[str, Any], ...]
    output: tuple[str, ...]
    between: float
    timeout: float
    patience: float | None = None

    @property
    def suspect(self) -> int:
        """The process that is suspected: the finding's, else the command."""
        return self.finding.pid or self.root

    @property
    def whole(self) -> bool:
        """Whether the whole tree is suspected, and not one process of it."""
        return self.finding.rank is None or not self.finding.pid

    @property
    def accelerated(self) -> bool:
        """Whether one of the devices is in use."""
        return any(isinstance(d.get("util"), int | float) and d["util"] > 0 for d in self.devices)


def parse(text: str) -> Request:
    """Malformed if it is not what PID 1 says."""
    question = EXACT.load(Question, text)
    ranks = tuple(map(_rank, question.ranks))
    devices = tuple(device._asdict() for device in question.devices)
    return Request(**question._asdict() | {"spared": frozenset(question.spared), "ranks": ranks, "devices": devices})


def _rank(seen: RankSeen) -> Rank:
    return Rank(
        seen.rank,
        seen.pid,
        seen.present,
        alive_at=seen.alive_at,
        moved_at=seen.moved_at,
        step=seen.step,
        done=seen.done,
        sections=tuple(Section(name, 0.0) for name in seen.sections),
    )
