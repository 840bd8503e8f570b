"""Messages between PID 1 and the helper `probe`, which observes the accelerators."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem, Ready


class Device(NamedTuple):
    """One sample of one device (a MIG instance or a chip counts as one).  None: the driver does not report the value.

    `id` is permanent (a UUID, or `card-chip`).  `util`, `memory_util` in percent, `power` in watts, `clock` in
    MHz, memory in bytes, `traffic` over PCIe in bytes per second, `pids` as numbered in this PID namespace.
    """

    vendor: str
    id: str
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    name: str
    util: float | None = None
    memory_util: float | None = None
    power: float | None = None
    clock: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    traffic: float | None = None
    pids: tuple[int, ...] = ()
    recovery: str | None = None  # the cure, by the driver: none, reset, reboot, drain, drain_reset, imex
    health: str | None = None  # ok, or the state that the driver reports
    visible: str | None = None  # its name in this process's CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES
    answers: bool = True  # it answered in this sample; a missing answer is not a fault
    broken: bool = False  # the driver reports it as lost, or as needing a reset
    examined: bool = True  # `health` and all faults were queried and sent in this sample


class Occupied(NamedTuple):
    """A device that is not known to be free, and its users as far as they are known."""

    device: str
    pids: tuple[int, ...]
    memory_used: int | None
    health: str | None


class DeviceIdentity(NamedTuple):
    """What a device tells of itself only while it answers: fields of `Device`."""

    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    id: str
    name: str


class KnownDevices(NamedTuple):
    """The helper's last argument: the devices that an earlier helper of this ftrun has reported; none at first."""

    devices: tuple[DeviceIdentity, ...] = ()


class Free(NamedTuple):
    """From PID 1: report when these `pids` hold no device, or after `timeout` s that they do.  `used`: bytes in use on
    each device before the command ran.  `removed`: the command runs without these; report which of them are healthy."""

    pids: tuple[int, ...]
    used: dict[str, int]
    timeout: float
    removed: tuple[str, ...] = ()


class Clear(NamedTuple):
    """From PID 1: report when this fault is over, or after `timeout` s that it is not."""

    device: str
    code: str
    timeout: float


class Absent(NamedTuple):
    """Instead of `Ready`: there is nothing to probe, and the helper ends."""

    why: str


class Present(NamedTuple):
    """The first, short check: the devices that are present, with their health and memory only."""

    devices: tuple[Device, ...]


class Checked(NamedTuple):
    """The first check is over, and all its faults were sent.  `well`: healthy devices without any fault."""

    well: tuple[str, ...]


class Devices(NamedTuple):
    """Sent every period.  `mono`: time.monotonic() at the end of the sample.  `well`: healthy devices without a fault,
    as far as they were examined last."""

    mono: float
    devices: tuple[Device, ...]
    well: tuple[str, ...] = ()


class FaultChanged(NamedTuple):
    """A device fault has appeared, or has `gone`.  `old`: it was present in the first sample of the device.  `retry`:
    the class of a fault that a retry may cure (`fault_codes.RETRIES`)."""

    device: str
    code: str
    gone: bool
    old: bool
    severity: str
    why: str
    retry: str = ""


class Freed(NamedTuple):
    """Answer to `Free`.  `ok`: no device is `held`.  `silent`: devices that do not answer.  `well`: removed devices
    that are healthy and free."""

    ok: bool
    held: tuple[Occupied, ...]
    silent: tuple[Occupied, ...]
    well: tuple[str, ...]


class Cleared(NamedTuple):
    """Answer to `Clear`."""

    ok: bool
    why: str | None = None


ProbeRequest = Free | Clear
ProbeEvent = Ready | Absent | Present | Checked | Devices | FaultChanged | Freed | Cleared | Problem
REQUESTS: Final[Protocol[ProbeRequest]] = Protocol("ask", ProbeRequest)
EVENTS: Final[Protocol[ProbeEvent]] = Protocol("event", ProbeEvent)
