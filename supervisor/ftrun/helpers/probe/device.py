"""What a probe says of accelerators, whatever their vendor."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from ftrun.messages.probe import Device


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
