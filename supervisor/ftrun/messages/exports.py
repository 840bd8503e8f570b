"""Messages between PID 1 and the helpers that pass on what happens: `metrics`, `notifier` (`--on-event`,
`--webhook`) and `telemetry` (`--otlp`, `--journal`)."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Listening(NamedTuple):
    """`address` is HOST:PORT, with the actual port."""

    address: str


MetricsEvent = Listening | Problem
METRICS_EVENTS: Final[Protocol[MetricsEvent]] = Protocol("event", MetricsEvent)


class Destinations(NamedTuple):
    """Where to report the records of these names.  The helper gets it in a file that only it can read, since a command
    line is visible to all users, and a URL may hold a secret.  `job`, `node`: what the notification says of the run.
    `member`: of a group; None: there is none."""

    commands: tuple[str, ...]
    urls: tuple[str, ...]
    slack: bool
    names: tuple[str, ...]
    job: str
    node: str
    member: int | None = None


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
