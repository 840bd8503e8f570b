"""Whether the devices are free again: what is decided between the end of one attempt and the start of the next."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ftrun.messages.probe import Device

# Memory that is not held against anybody: contexts of the driver itself come and go.  A wrong "held" isolates a node.
TOLERANCE = 256 << 20  # bytes, or
SHARE = 0.02  # of the device's memory, whichever is more
UNLISTED = "not listed any more"


class DeviceHeld(NamedTuple):
    """A device that is not seen to be free.

    `certain`: these processes hold it, or its memory did not come back, or the driver says (`health`) that the device
    is broken.  Otherwise nobody answers for it, which proves nothing: a broken tool is no broken node.
    """

    device: str
    pids: tuple[int, ...]
    memory_used: int | None
    health: str | None
    certain: bool = True


def devices_held(
    devices: Sequence[Device],
    pids: Collection[int],
    used: Mapping[str, int],
    ours: Collection[int],
    alive: Callable[[int], bool],
) -> list[DeviceHeld]:
    """Those of `devices` that an ended attempt still holds, or that nobody answers for.

    `pids` are its processes; `ours` those that were seen on a device while they lived; `used` the bytes in use before
    the command first ran: a device that is not in it is judged by processes alone.  Memory is not judged while somebody
    else who lives is on the device: it may be his.
    """
    found = []
    for device in devices:
        holders = tuple(pid for pid in device.pids if pid in pids or (pid in ours and not alive(pid)))
        shared = any(pid not in pids and alive(pid) for pid in device.pids)
        known = device.id in used
        seen = bool(holders) or (known and (device.broken or (not shared and _more(device, used[device.id]))))
        if seen or (known and device.memory_used is None):
            found.append(DeviceHeld(device.id, holders, device.memory_used, device.health, seen))
    there = {device.id for device in devices}
    listed = any(not device.silent for device in devices)  # a driver that answers for others has left it out
    return found + [DeviceHeld(name, (), None, UNLISTED, listed) for name in used if name not in there]


def _more(device: Device, before: int) -> bool:
    return (device.memory_used or 0) > before + max(TOLERANCE, SHARE * (device.memory_total or 0))
