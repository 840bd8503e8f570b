"""Whether a fault is over and whether a device is healthy, before work is started on it again.  Pure."""

from collections.abc import Collection

from ftrun.core.rules.fault_codes import Table, look_up, normal
from ftrun.helpers.probe.lasting_states import LOST, RECOVERY
from ftrun.messages.probe import Device

SEVERE = ("major", "critical")


def reason_not_cleared(
    device: Device | None, code: str, present: Collection[str], new: Collection[str], table: Table
) -> str:
    """Why this fault is not over on this device; empty if it is over.

    `present`: its current codes; `new`: those reported since the request that still last.  An Xid never ends, so only a
    later one counts against the device.  The driver must not request a recovery action either.
    """
    if device is None:
        return "not listed any more"
    if device.silent:
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
    if recovery not in (None, "none") and look_up(table, f"{RECOVERY}{recovery}").severity != "warning":
        return f"the driver asks for: {recovery}"
    return ""


def is_healthy(device: Device, present: Collection[str]) -> bool:
    """Whether this look found a healthy device without any fault; a state that was not read counts as unhealthy.
    `present`: the codes in its last answer."""
    answered = device.answers and device.examined and device.health == "ok"
    return answered and not present and device.recovery in (None, "none")
