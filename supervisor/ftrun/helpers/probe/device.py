"""What a probe says of accelerators, whatever their vendor."""

from collections.abc import Collection, Sequence
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
    recovery: str | None = None  # what the driver says would cure it: none, reset, reboot, drain, drain_reset, imex
    remapped_rows: int | None = None
    ecc_errors: int | None = None  # uncorrectable ones since the driver was loaded
    health: str | None = None  # ok, or the driver's word for what it is instead
    visible: str | None = None  # what names it in this process's CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES
    answers: bool = True  # it said something in this look: no answer is no fault
    broken: bool = False  # the driver says that it is lost, or of no use before it is reset
    examined: bool = True  # `health` and all faults that it has were asked for, and told, in this look

    @property
    def silent(self) -> bool:
        return not self.answers


class DeviceFault(NamedTuple):
    """`code` as the vendor writes it: an Xid number, an Ascend code in hexadecimal; or a state that the driver says the
    device is in, `recovery:<word>` or `lost`.  `gone`: no longer so.  `old`: so when the device was first looked at."""

    device: str
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    code: str
    text: str = ""
    gone: bool = False
    old: bool = False


class Unavailable(Exception):
    """One line: why there is nothing to probe."""


class Vendor(Protocol):
    """Calls may block for ever in a driver: this runs in a process of its own, and its silence is noticed."""

    pace: float  # s at least between looks while something is waited for

    @property
    def problems(self) -> Sequence[str]:
        """A line each."""

    def check(self) -> Sequence[Device]:
        """All that this job may use, asked for nothing but their health, so that it takes as little time as it can."""

    def devices(self, urgent: str = "") -> Sequence[Device]:
        """All that this job may use, as they are now.  One that fell off the bus is there with its `health`.

        `urgent`: what is asked for first, even where that is otherwise asked seldom: `faults`, or the `use` of the
        device by memory and processes, or `both`.
        """

    def faults(self) -> Sequence[DeviceFault]:
        """What is new since the last call."""

    def present(self, device: str) -> Collection[str]:
        """The codes that this one had when it was last heard."""

    def close(self) -> None: ...
