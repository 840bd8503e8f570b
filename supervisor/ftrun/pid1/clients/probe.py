"""Client of the probe, which reports the accelerators, their use and faults, and whether they are free after a kill."""

import os
from collections import deque
from collections.abc import Sequence
from typing import Final

from ftrun.accelerators.table import BY_NAME
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Fault, UsableDevice
from ftrun.core.rules.idle import DeviceUse
from ftrun.host import devices as host
from ftrun.host import procfs
from ftrun.host.clock import clock
from ftrun.messages import probe as messages
from ftrun.messages.codec import EXACT
from ftrun.messages.helpers import Ready
from ftrun.pid1.clients.base import Client, Context

PERIOD: Final = 10.0  # s
SILENCE: Final = 25.0  # s; a driver call that takes longer counts as stuck
STALE: Final = 20.0  # s; a report older than this, or than three periods, is outdated
SAMPLES: Final = 256  # samples of devices that one sample of the tree has at most
PIDS: Final = 4096  # of dead processes in one request: a pipe holds 64 KiB
FILE: Final = "devices.json"  # in the run dir: the last report of the probe


class ProbeClient(Client[messages.ProbeEvent]):
    """`checks`: the first start of the command waits for the first check of the devices."""

    name = "probe"
    requests, events = messages.REQUESTS, messages.EVENTS

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._seen_at: float | None = None  # when the last report came
        self._first_check_found = False  # whether the first check found devices
        self._samples: deque[DeviceUse] = deque(maxlen=SAMPLES)  # since the last sample
        self._used: dict[str, int] | None = None  # bytes in use before the command ran
        self._freeing = False
        self._removed: frozenset[str] = frozenset()
        self._begun = 0  # number of probes started
        self._present_faults: set[tuple[str, str]] = set()  # faults that are present, by device and code
        self._broken: dict[str, str] = {}  # the driver's text for the devices that could not work at the first check
        self._started = False  # whether the command was started
        self._min_devices, self._kind = settings.min_devices, settings.probe
        self.checks = context.policy.checks_devices and host.hiding_variable() is None
        context.uses = self._uses
        super().__init__(context)

    def start(self) -> None:
        context = self.context
        period, table = str(min(PERIOD, context.idle_period)), context.settings.fault_table or ""
        file = f"{context.work_dir.path}/{FILE}"
        # A GPU that was lost since the last helper ended, as during a healing, does not tell its UUID.
        identities = (messages.DeviceIdentity(one.index, one.id, one.name) for one in context.devices)
        known = EXACT.dump(messages.KnownDevices(tuple(identities)))
        context.helpers.add(self.name, self._kind, period, table, file, known, silence=SILENCE)

    def handle(self, message: messages.ProbeEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.Devices():
                return self._see(message.devices, message.well, now)
            case Ready():
                self._begun += 1
            case messages.Present(devices) if self.checks and not self._started:
                return [self._present(devices, now)]
            case messages.Checked(well) if self.checks:
                return [ev.DevicesChecked(now, self._permitted(well), clock())]
            case messages.FaultChanged():
                return self._fault(message, now)
            case messages.Freed() if self._freeing:
                return [self._freed(message, now)]
            case messages.Absent(why):
                return self._absent(why, now)
        return []

    def on_spawning(self) -> None:
        self._started = True

    def release(self, dead: Sequence[int], now: float) -> list[ev.Event]:
        """Request whether the devices are free: answered at once without devices, or else later."""
        context = self.context
        # An attempt may end before the first report; then the first check says whether there are devices.
        devices = self._first_check_found if self._seen_at is None else bool(context.devices)
        if not context.helpers.is_running(self.name) or not devices:
            return [ev.DevicesReleased(now)]
        removed = context.ledger.removed if context.ledger is not None else ()
        self._freeing, self._removed = True, frozenset(removed)
        pids = (context.command, *list(dead)[-PIDS:])
        used = {name: used for name, used in (self._used or {}).items() if name not in self._removed}
        self.send(messages.Free(pids, used, context.policy.limits.device_timeout or 0.0, tuple(removed)))
        return []

    # --- its messages -----------------------------------------------------------------------------------------------

    def _absent(self, why: str, now: float) -> list[ev.Event]:
        self.context.helpers.remove(self.name)
        self.context.devices = ()
        if self._kind != "auto":
            self.problem(why)
        if self._min_devices is not None:
            effect = f"--min-devices {self._min_devices} has no effect, because no device was found"
            self.problem(f"{effect} ({why})", printed=True)
        if self._freeing:
            self._freeing = False
            return [ev.DevicesReleased(now)]
        return [ev.DevicesChecked(now)] if self.checks else []

    def _present(self, devices: Sequence[messages.Device], now: float) -> ev.Event:
        """The first check of the devices, before the command uses them."""
        self._first_check_found = bool(devices)
        self._broken = {device.id: str(device.health) for device in devices if device.broken}
        self._used = self._used or _memory(devices) or None
        return ev.DevicesFound(now, _usable(devices))

    def _fault(self, message: messages.FaultChanged, now: float) -> list[ev.Event]:
        """A fault that existed before ftrun is not new, nor is one that a restarted probe reports again.

        For a fault before the first start the core decides whether the command can start on that device.  A device that
        needs a reset before it answers cannot work, whatever the severity of its code is otherwise."""
        device, code, severity, why = message.device, message.code, message.severity, message.why
        if message.gone:
            self._present_faults.discard((device, code))
            return []
        if message.old and (device, code) in self._present_faults:
            return []
        self._present_faults.add((device, code))
        before = message.old and self._begun == 1
        if self.checks and (not self._started or before):
            if device in self._broken and severity in ("minor", "major"):
                severity, why = "critical", f"{why}; the device does not work until then: {self._broken[device]}"
            return [ev.FaultReported(now, Fault(device, code, severity, why), clock(), preexisting=True)]
        if before:
            return [ev.FaultReported(now, Fault(device, code, severity, why, preexisting=True), clock())]
        return [ev.FaultReported(now, Fault(device, code, severity, why, message.retry), clock())]

    def _see(self, devices: tuple[messages.Device, ...], well: Sequence[str], now: float) -> list[ev.Event]:
        before = [device.id for device in self.context.devices]
        self._samples.extend(_use(device) for device in devices if _used_by_job(device))
        self.context.devices, self._seen_at = devices, now
        powers = {device.id: device.power for device in devices if device.power is not None}
        self.context.powers |= {id: max(power, self.context.powers.get(id, 0.0)) for id, power in powers.items()}
        if self._used is None:
            self._used = _memory(devices)
        ledger, policy = self.context.ledger, self.context.policy
        awaited = policy.scale_out and ledger is not None and bool(ledger.removed)
        if before == [device.id for device in devices] and not awaited:
            return []
        return [ev.DevicesFound(now, _usable(devices), self._permitted(well), clock())]

    def _freed(self, message: messages.Freed, now: float) -> ev.Event:
        self._freeing = False
        held, silent = (
            tuple(_occupied(one) for one in which if one.device not in self._removed)
            for which in (message.held, message.silent)
        )
        if self.context.policy.limits.device_timeout is None:
            held, silent = (), ()  # --device-timeout off
        return ev.DevicesReleased(now, held, silent, self._permitted(message.well), clock())

    def _permitted(self, devices: Sequence[str]) -> tuple[str, ...]:
        """The healthy devices without those that the platform bars from a start."""
        return tuple(device for device in devices if device not in self.context.blocked_devices)

    def _uses(self, now: float) -> tuple[DeviceUse, ...]:
        """All samples of the devices since the last call, or the last one; none if the probe was silent for long."""
        samples = tuple(self._samples)
        self._samples.clear()
        if samples or self._seen_at is None or now - self._seen_at > max(3 * self.context.idle_period, STALE):
            return samples
        return tuple(_use(device) for device in self.context.devices if _used_by_job(device))


def _usable(devices: Sequence[messages.Device]) -> tuple[UsableDevice, ...]:
    """The devices that have a name for the visibility variable; others cannot be selected."""
    return tuple(
        UsableDevice(one.id, BY_NAME[one.vendor].visible, one.visible)
        for one in devices
        if one.visible and one.vendor in BY_NAME
    )


def _memory(devices: Sequence[messages.Device]) -> dict[str, int]:
    """Bytes in use, for each device that reports them."""
    return {device.id: device.memory_used for device in devices if device.memory_used is not None}


def _used_by_job(device: messages.Device) -> bool:
    """Whether the job may be the one that uses it.  A driver may list no processes, or pids of the host."""
    known = [_is_descendant(pid) for pid in device.pids]
    return not known or any(found is not False for found in known)


def _use(device: messages.Device) -> DeviceUse:
    return DeviceUse(device.id, device.util, device.memory_util, device.power, device.traffic)


def _is_descendant(pid: int) -> bool | None:
    """None if the process does not exist."""
    while pid not in (0, 1, os.getpid()):
        process = procfs.stat(pid)
        if process is None:
            return None
        pid = process.parent
    return pid == os.getpid()


def _occupied(one: messages.Occupied) -> str:
    """Text on one device that is not free, or not known to be free."""
    if not one.pids and one.memory_used is None:
        return f"{one.device} ({one.health or 'memory use not reported'})"
    pids = ", ".join(map(str, one.pids)) or "no visible process"
    used = "" if one.memory_used is None else f", {one.memory_used >> 20} MiB in use"
    return f"{one.device} by {pids}{used}"
