"""What PID 1 asks for: one JSON document."""

import json
from typing import Any, NamedTuple

from ftrun.core.values import Finding, Rank, Section


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
    """ValueError, KeyError or TypeError if it is not what PID 1 says."""
    found = json.loads(text)
    finding = found["finding"]
    return Request(
        str(found["run_dir"]),
        int(found["attempt"]),
        Finding(**{name: finding[name] for name in Finding._fields if name in finding}),
        int(found["root"]),
        frozenset(int(pid) for pid in found.get("spared", ())),
        tuple(_rank(rank) for rank in found.get("ranks", ())),
        float(found["now"]),
        tuple(device for device in found.get("devices", ()) if isinstance(device, dict)),
        tuple(str(path) for path in found.get("output", ())),
        float(found.get("between", 3.0)),
        float(found.get("timeout", 25.0)),
        None if found.get("patience") is None else float(found["patience"]),
    )


def _rank(found: dict[str, Any]) -> Rank:
    return Rank(
        int(found["rank"]),
        int(found["pid"]),
        bool(found.get("present", True)),
        alive_at=found.get("alive_at"),
        moved_at=found.get("moved_at"),
        step=found.get("step"),
        done=bool(found.get("done", False)),
        sections=tuple(Section(str(name), 0.0) for name in found.get("sections", ())),
    )
