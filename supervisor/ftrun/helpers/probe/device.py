"""The interface between the probe and its vendors, and what the states and the codes of a device mean."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from ftrun.accelerators.table import BY_NAME
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules.fault_codes import FaultTable, look_up, normal, parse
from ftrun.host import safe_files
from ftrun.messages.probe import Device, Occupied

# Memory growth that is ignored: contexts of the driver itself come and go.  A wrong "held" isolates a node.
TOLERANCE: Final = 256 << 20  # bytes, or
SHARE: Final = 0.02  # of the device's memory, whichever is more
SEVERE: Final = ("major", "critical")
UNLISTED: Final = "not listed any more"
LOST: Final = "lost"  # the code of a device that the driver has lost
RECOVERY: Final = "recovery:"  # with the driver's recovery action: the code of a device that needs that action
NO_ACTION: Final = (None, "none")
LONGEST: Final = 1 << 20  # bytes of a site's file


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


# --- whether a device is free and healthy, and whether a fault is over; pure ------------------------------------------


def devices_held(
    devices: Sequence[Device],
    pids: Collection[int],
    used: Mapping[str, int],
    device_pids: Collection[int],
    alive: Callable[[int], bool],
) -> tuple[list[Occupied], list[Occupied]]:
    """The devices that an ended attempt still holds, and those that do not answer, which proves nothing.

    A device is held if these processes hold it, if its memory was not released, or if the driver reports that it is
    broken.  `pids`: the attempt's processes; `device_pids`: processes that were on a device while they were alive;
    `used`: the bytes in use before the command first ran.  Memory is not checked of a device that is not in `used`, nor
    while another living process is on it.
    """
    held, silent = [], []
    for device in devices:
        holders = tuple(pid for pid in device.pids if pid in pids or (pid in device_pids and not alive(pid)))
        shared = any(pid not in pids and alive(pid) for pid in device.pids)
        known = device.id in used
        occupied = Occupied(device.id, holders, device.memory_used, device.health)
        if holders or (known and (device.broken or (not shared and _has_grown(device, used[device.id])))):
            held.append(occupied)
        elif known and device.memory_used is None:
            silent.append(occupied)
    listed = {device.id for device in devices}
    unlisted = [Occupied(name, (), None, UNLISTED) for name in used if name not in listed]
    if any(device.answers for device in devices):  # a driver that answers for others has left it out
        return held + unlisted, silent
    return held, silent + unlisted


def _has_grown(device: Device, before: int) -> bool:
    return (device.memory_used or 0) > before + max(TOLERANCE, SHARE * (device.memory_total or 0))


def reason_not_cleared(
    device: Device | None, code: str, present: Collection[str], new: Collection[str], table: FaultTable
) -> str:
    """Why this fault is not over on this device; empty if it is over.  `present`: its current codes; `new`: those
    reported since the request that still last.  An Xid never ends, so only a later one counts against the device."""
    if device is None:
        return UNLISTED
    if not device.answers:
        return str(device.health)
    reported = {normal(one) for one in present}
    if LOST in reported:
        return LOST
    if normal(code) in reported:
        return f"{code} is still reported"
    severe = sorted(one for one in new if one not in present and look_up(table, one).severity in SEVERE)
    if severe:
        return f"{severe[0]} was reported since"
    recovery = device.recovery
    if recovery not in NO_ACTION and look_up(table, f"{RECOVERY}{recovery}").severity != "warning":
        return f"the driver asks for: {recovery}"
    return ""


def is_healthy(device: Device, present: Collection[str]) -> bool:
    """Whether this sample shows a healthy device without any fault; a state that was not read counts as unhealthy.
    `present`: the codes in its last answer."""
    answered = device.answers and device.examined and device.health == "ok"
    return answered and not present and device.recovery in NO_ACTION


class LastingStates:
    """States that are faults for as long as they last, of all devices.  Those of a device that does not answer are
    kept.  `lost`, `reset`: the driver's texts for a device that it has lost, and for one that must be reset."""

    def __init__(self, lost: str, reset: str) -> None:
        self._of_text = {lost: LOST, reset: f"{RECOVERY}reset"}
        self._codes: dict[str, frozenset[str]] = {}

    def of(self, device: str) -> Collection[str]:
        return self._codes.get(device, frozenset())

    def update(self, devices: Sequence[Device]) -> list[DeviceFault]:
        """The changes; states that were present in the first sample of a device are `old`."""
        now = {device.id: self._current(device) for device in devices}
        changes = []
        for name in dict.fromkeys((*self._codes, *now)):
            before, after = self._codes.get(name), now.get(name) or frozenset()
            known = before or frozenset()
            changes += [DeviceFault(name, code, old=before is None) for code in sorted(after - known)]
            changes += [DeviceFault(name, code, gone=True) for code in sorted(known - after)]
        self._codes = {name: codes for name, codes in now.items() if codes is not None}
        return changes

    def _current(self, device: Device) -> frozenset[str] | None:
        """The current codes; None: unknown so far."""
        before = self._codes.get(device.id)
        if (code := self._of_text.get(device.health or "")) is not None:
            return (before or frozenset()) | {code}
        if device.health != "ok":
            return before
        return frozenset() if device.recovery in NO_ACTION else frozenset({f"{RECOVERY}{device.recovery}"})


# --- the fault tables of core/rules/fault_codes.py --------------------------------------------------------------------


def built_in_table(vendor: str) -> FaultTable:
    return parse(Path(BY_NAME[vendor].faults).read_text(encoding="utf-8"))


def load_table(vendor: str, site: str, problem: Callable[[str], None]) -> FaultTable:
    """The table of a vendor, in which the entries of a site's file, if there is one, replace the built-in ones.  A file
    that is unreadable or malformed is a problem and is not used."""
    table = dict(built_in_table(vendor))
    try:
        content = safe_files.read_bounded(site, LONGEST) if site else b""
        for code, entry in parse(content.decode("utf-8")).items():
            table[code] = entry if entry.why else entry._replace(why=f"listed in {site}")
    except (OSError, ValueError) as error:
        problem(f"the fault table {site} is not used: {error}")
    return table
