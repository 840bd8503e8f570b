"""The hang rule that needs no heartbeats: the command reads and writes nothing, and its accelerators do not change.

It follows the rule of ModelArts: no process I/O over several periods, then a utilisation whose variance and median do
not change over a window.  A waiting collective spins at 100 % utilisation with little power and hardly any memory
traffic, so a constant utilisation alone proves neither work nor a hang: power, memory use and PCIe traffic decide.
"""

from collections.abc import Iterable
from typing import Final

from ftrun.core.named_tuple import NamedTuple

WINDOW: Final = 60  # samples
OUTLIER: Final = 4.0  # a range of more than 4 spreads means that the device did other work in between
SAMPLES: Final = 4  # the least number of quiet samples for a conclusion


class DeviceUse(NamedTuple):
    """One sample of one device: percent, percent, watts, bytes per second; None: the device does not report it."""

    id: str
    util: float | None = None
    memory_util: float | None = None
    power: float | None = None
    traffic: float | None = None


class TreeSample(NamedTuple):
    """What the whole tree did in the `seconds` up to `at`: the cores used by main threads, the bytes per second read
    and written, and the samples of the devices that it may use, of which there may be none."""

    at: float
    seconds: float
    cpu: float
    io: float
    devices: tuple[DeviceUse, ...] = ()


class Thresholds(NamedTuple):
    """From where on activity counts as work; keep-alives, log lines and watchdogs cause less.  The power of a device is
    compared with the range that it showed in this attempt."""

    cpu: float = 0.05  # cores
    io: float = 16_384.0  # bytes per second
    util_spread: float = 2.0  # percentage points of standard deviation, or between two medians
    memory_util: float = 3.0  # percent
    power: float = 0.7  # of the highest power that the device has drawn in this attempt
    # The highest to the lowest power of a device in this attempt, from where on drawing almost the highest is work: one
    # that has only ever waited has a smaller range.
    power_ratio: float = 3.0
    traffic: float = 1e6  # bytes per second


class Range(NamedTuple):
    """The range of power that a device drew in this attempt."""

    least: float
    most: float


class Idle(NamedTuple):
    """What the samples of an attempt have shown.  `idle_since`: the tree has been idle since then; None: it works.
    `accelerator`: the job has used one.  `raised`: evidence found this idle time harmless, so that it may last at least
    so many seconds."""

    idle_since: float | None = None
    raised: float = 0.0
    idle_samples: tuple[TreeSample, ...] = ()
    powers: tuple[tuple[str, Range], ...] = ()
    accelerator: bool = False
    # For the rule over all containers of a group: the same three, from the devices alone, regardless of I/O.
    device_samples: tuple[TreeSample, ...] = ()
    unchanged_since: float | None = None
    unchanged_raised: float = 0.0
    active_at: float = 0.0  # when the tree last read or wrote, or its devices worked


def idle_for(idle: Idle, now: float) -> float:
    """For how many seconds this tree has been idle; 0 while it works, or before that is known."""
    return 0.0 if idle.idle_since is None or len(idle.idle_samples) < SAMPLES else max(0.0, now - idle.idle_since)


def unchanged_for(idle: Idle, now: float) -> float:
    """For how many seconds the devices of this container have been unchanged; 0 if it has used none.  The rule over all
    containers checks nothing else, since a hanging container may still write logs."""
    if idle.unchanged_since is None or len(idle.device_samples) < SAMPLES or not idle.accelerator:
        return 0.0
    return max(0.0, now - idle.unchanged_since)


def observe(idle: Idle, sample: TreeSample, thresholds: Thresholds) -> Idle:
    """Add a sample: the idle time continues, begins or ends.

    CPU use counts as work, unless a device is in use: then it may be a busy wait for that device.
    """
    in_use = any((use.util or 0.0) > 0 for use in sample.devices)
    powers = _powers(dict(idle.powers), sample.devices)
    idle = idle._replace(powers=tuple(sorted(powers.items())), accelerator=idle.accelerator or in_use)
    idle = _observe_devices(idle, sample, powers, thresholds)
    samples = (*idle.idle_samples, sample)[-WINDOW:]
    if sample.io >= thresholds.io:
        idle = idle._replace(active_at=sample.at)
    if sample.io >= thresholds.io or (not in_use and sample.cpu >= thresholds.cpu):
        return idle._replace(idle_since=None, idle_samples=(), raised=0.0)
    if any(
        _is_working(samples, device, powers.get(device), thresholds) for device in {use.id for use in sample.devices}
    ):
        return idle._replace(idle_since=None, idle_samples=(sample,), raised=0.0, active_at=sample.at)
    since = sample.at - sample.seconds if idle.idle_since is None else idle.idle_since
    return idle._replace(idle_since=since, idle_samples=samples)


def _observe_devices(idle: Idle, sample: TreeSample, powers: dict[str, Range], thresholds: Thresholds) -> Idle:
    samples = (*idle.device_samples, sample)[-WINDOW:]
    devices = {use.id for use in sample.devices}
    if not devices or any(_is_working(samples, device, powers.get(device), thresholds) for device in devices):
        return idle._replace(device_samples=(sample,) if devices else (), unchanged_since=None, unchanged_raised=0.0)
    since = sample.at - sample.seconds if idle.unchanged_since is None else idle.unchanged_since
    return idle._replace(device_samples=samples, unchanged_since=since)


def _powers(so_far: dict[str, Range], uses: Iterable[DeviceUse]) -> dict[str, Range]:
    for use in uses:
        if use.power is not None:
            least, most = so_far.get(use.id, (use.power, use.power))
            so_far[use.id] = Range(min(least, use.power), max(most, use.power))
    return so_far


def _is_working(samples: tuple[TreeSample, ...], device: str, power: Range | None, thresholds: Thresholds) -> bool:
    """Whether the device works: it moves memory or data, draws power while it is used, or its figures have changed."""
    uses = [use for sample in samples for use in sample.devices if use.id == device]
    now = [use for use in samples[-1].devices if use.id == device]
    if any((u.memory_util or 0) >= thresholds.memory_util or (u.traffic or 0) >= thresholds.traffic for u in now):
        return True
    strong = [u for u in now if u.util and power and (u.power or 0) >= thresholds.power * power.most]
    if strong and power:  # a device that has only ever spun in a wait is at its highest power as well
        changes = _is_varied((use.power for use in uses), power.most / 20)
        if changes or power.most >= thresholds.power_ratio * power.least or any(u.memory_util is None for u in strong):
            return True
    return _is_varied((use.util for use in uses), thresholds.util_spread)


def _is_varied(values: Iterable[float | None], spread: float) -> bool:
    """Whether the values differ: by their deviation, by the medians of their two halves, or by one outlier, which many
    other values would hide."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return False
    half, mean = len(known) // 2, sum(known) / len(known)
    deviation = (sum((value - mean) ** 2 for value in known) / len(known)) ** 0.5
    outlier = max(known) - min(known) > OUTLIER * spread
    return outlier or deviation > spread or abs(median(known[:half]) - median(known[half:])) > spread


def median(values: Iterable[float]) -> float:
    """The median of at least one value.  The statistics module would load more code than PID 1 itself."""
    known = sorted(values)
    return (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
