"""What a probe says of accelerators, whatever their vendor."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Device(NamedTuple):
    """One look at one device (a MIG instance or a chip counts as one).  None: it does not say.

    `id` names it for good (a UUID, or `card-chip`).  `util`, `memory_util` in percent, `power` in watts, `clock` in
    MHz, memory in bytes, `traffic` over PCIe in bytes a second, `pids` as this PID namespace numbers them.
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
    recovery: str | None = None  # what the driver says would cure it: none, reset, reboot, drain
    remapped_rows: int | None = None
    ecc_errors: int | None = None  # uncorrectable ones since the driver was loaded
    health: str | None = None  # ok, or the driver's word for what it is instead


class DeviceFault(NamedTuple):
    """`code` as the vendor writes it: an Xid number, an Ascend code in hexadecimal.  `gone`: no longer reported."""

    device: str
    code: str
    text: str = ""
    gone: bool = False


class Unavailable(Exception):
    """One line: why there is nothing to probe."""


class Vendor(Protocol):
    """Calls may block for ever in a driver: this runs in a process of its own, and its silence is noticed."""

    def devices(self) -> Sequence[Device]:
        """All that this job may use, as they are now.  One that fell off the bus is there with its `health`."""

    def faults(self) -> Sequence[DeviceFault]:
        """What is new since the last call."""

    def close(self) -> None: ...
