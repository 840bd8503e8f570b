"""Messages between PID 1 and the helper `telemetry` (`--otlp`, `--journal`)."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Exports(NamedTuple):
    """Where the records go.  `otlp`: the URL of a collector, empty: none; `journal`: to journald.  The helper gets it
    in a file that only it can read, since a URL may hold a secret.  `job`, `node`: of the run; `schedule`: its
    number."""

    otlp: str
    journal: bool
    job: str
    node: str
    schedule: str
    beat_dir: str


Event = Problem
EVENTS: Final[Protocol[Event]] = Protocol("event", Problem)
