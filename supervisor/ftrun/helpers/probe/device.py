"""The interface between the probe and its vendors."""

from collections.abc import Collection, Sequence
from typing import Protocol

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.probe import Device


class DeviceFault(NamedTuple):
    """`code` as the vendor writes it: an Xid number, an Ascend code in hexadecimal; or a state that the driver reports,
    `recovery:<action>` or `lost`.  `gone`: the fault is over.  `old`: it was present at the first look."""

    device: str
    code: str
    gone: bool = False
    old: bool = False


class Unavailable(Exception):
    """Why there is nothing to probe, in one line."""


class Vendor(Protocol):
    """Calls may block forever in a driver: they run in a separate process, whose silence is noticed."""

    pace: float  # least time in seconds between looks while a request is pending

    @property
    def problems(self) -> Sequence[str]:
        """One line for each problem."""

    def check(self) -> Sequence[Device]:
        """All devices that this job may use, with their health only, as fast as possible."""

    def devices(self, urgent: str = "") -> Sequence[Device]:
        """All devices that this job may use, as they are now; a lost one has its `health`.

        `urgent`: what is read first, even if it is otherwise read rarely: `faults`, or the `use` of the device by
        memory and processes, or `both`.
        """

    def faults(self) -> Sequence[DeviceFault]:
        """The faults that are new or over since the last call."""

    def present(self, device: str) -> Collection[str]:
        """The fault codes in the last answer for this device."""

    def close(self) -> None: ...
