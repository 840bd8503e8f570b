"""Whether the devices are free again, between the end of one attempt and the start of the next.  Pure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ftrun.messages.probe import Device

# Memory growth that is ignored: contexts of the driver itself come and go.  A wrong "held" isolates a node.
TOLERANCE = 256 << 20  # bytes, or
SHARE = 0.02  # of the device's memory, whichever is more
UNLISTED = "not listed any more"


class DeviceHeld(NamedTuple):
    """A device that is not known to be free.

    `certain`: these processes hold it, or its memory was not released, or the driver reports (`health`) that the device
    is broken.  Otherwise it does not answer, which proves nothing: a broken tool does not make a broken node.
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
    device_pids: Collection[int],
    alive: Callable[[int], bool],
) -> list[DeviceHeld]:
    """The devices that an ended attempt still holds, or that do not answer.

    `pids`: its processes; `device_pids`: processes that were on a device while they were alive; `used`: the bytes in
    use before the command first ran.  A device that is not in `used` is checked by its processes alone.  Memory is not
    checked while another living process is on the device, because that may use it.
    """
    found = []
    for device in devices:
        holders = tuple(pid for pid in device.pids if pid in pids or (pid in device_pids and not alive(pid)))
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
