"""Whether a fault is over, and whether a device is well: what is decided before work is started on it again."""

from collections.abc import Collection

from ftrun.core.rules.fault_codes import Table, look_up, normal
from ftrun.helpers.probe.lasting_states import LOST, RECOVERY
from ftrun.messages.probe import Device

GRAVE = ("major", "critical")


def unclear(device: Device | None, code: str, present: Collection[str], new: Collection[str], table: Table) -> str:
    """Why this code is not over on this device; empty: it is.

    `present` are the codes that it has now, `new` those that came since somebody asked and have not gone: an Xid never
    goes, so only a later one speaks against the device.  Nor must the driver ask for anything to be done.
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
    grave = sorted(one for one in new if one not in present and look_up(table, one).severity in GRAVE)
    if grave:
        return f"{grave[0]} came since"
    recovery = device.recovery
    if recovery not in (None, "none") and look_up(table, f"{RECOVERY}{recovery}").severity != "warning":
        return f"the driver asks for: {recovery}"
    return ""


def well(device: Device, present: Collection[str]) -> bool:
    """Whether this look at it saw a healthy device without any fault.  What was not asked, or not told, is no health:
    `present` are the codes that it had when it was last heard."""
    answered = device.answers and device.examined and device.health == "ok"
    return answered and not present and device.recovery in (None, "none")
