"""Client of the helper that reads the requests of MindCluster to this container (`reset.json`)."""

import os
from typing import Final

from ftrun.accelerators.table import ASCEND
from ftrun.config.derived import reset_file
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Fault, UsableDevice
from ftrun.core.rules.fault_history import NO_CODE
from ftrun.host.clock import clock
from ftrun.messages import healing as messages
from ftrun.pid1.clients.base import Client

LOOK: Final = 0.5  # s between two reads of the platform's file
# MindCluster's agent ends the processes for any code, and only then the device plugin resets the chip.  So a fault that
# is harmless by the table is recovered in place too; otherwise the reset would wait forever.
SEVERITIES: Final = {"warning": "minor", "unknown": "minor", "user": "minor+user"}
PROCESS: Final = "process"  # RestartFaultProcess: what may cure the fault is a new process of that rank alone
FAULTY: Final = "fault"  # the status that ClusterD gives to such ranks
FAILED: Final = "failed"  # the status of a chip that the platform has reset in vain: it does not heal (ModelArts)


class ResetFileClient(Client[messages.ResetEvent]):
    name = "reset_file"
    events = messages.RESET_EVENTS

    def start(self) -> None:
        self._refusal: str | None = None  # why the platform permits no start
        self._ends = False  # the platform asks for the end of a running command
        self._retries: int | None = None  # highest reported number of rescheduled pods of this job
        settings = self.context.settings
        arguments = [str(reset_file(settings)), str(LOOK), str(settings.fault_table or "")]
        group = self.context.group
        arguments += [str(self.context.policy.ranks or ""), "" if group is None else str(group.rank)]
        self.context.helpers.add(self.name, *arguments)

    def handle(self, message: messages.ResetEvent, now: float) -> list[ev.Event]:
        return self._changed(message, now) if isinstance(message, messages.Contents) else []

    def permitted(self, now: float) -> ev.StartPermission:
        """Whether the platform permits a start.  Faults of devices that the job runs without do not count."""
        ledger, blocked = self.context.ledger, self.context.blocked_devices
        without = bool(blocked) and blocked <= set(ledger.removed if ledger is not None else ())
        return ev.StartPermission(now, None if without else self._refusal, self._ends)

    def _changed(self, message: messages.Contents, now: float) -> list[ev.Event]:
        context = self.context
        ids = {device.index: device.id for device in context.devices if device.vendor == ASCEND.name}
        found = {}
        for one in message.faults:
            # Without a code the number of the chip has no meaning.
            device = f"rank{one.rank}" if one.code == NO_CODE else ids.get(one.logic, f"npu{one.logic}")
            severity = "critical" if one.status == FAILED else SEVERITIES.get(one.severity, one.severity)
            why = f"the platform reports rank {one.rank} as {one.status}"
            retry = one.retry or (PROCESS if message.one_process and one.status == FAULTY else "")
            found[device, one.code, retry, one.status == FAILED] = Fault(
                device, one.code, severity, why, retry, one.rank, one.local
            )
        self._refusal = None if message.clear else "a rank of this container has status fault"
        context.blocked_devices = frozenset(fault.device for fault in found.values())
        if message.flushing:
            self._refusal, context.blocked_devices = "it flushes faults", frozenset()
        self._ends = message.graceful and not context.policy.membership.group
        if self._ends:
            self._refusal, context.blocked_devices = "all processes of the job are to end (GracefulExit)", frozenset()
        events: list[ev.Event] = [self.permitted(now)]
        if not ids and (visible := os.environ.get(ASCEND.visible)):  # no probe has reported the devices
            devices = tuple(UsableDevice(f"npu{name}", ASCEND.visible, name) for name in visible.split(","))
            events.append(ev.DevicesFound(now, devices))
        new = [fault for key, fault in found.items() if key not in context.asked]
        events += [ev.FaultReported(now, fault, clock()) for fault in new]
        # After the faults of this node, which restart the command anyway.
        events += self._rescheduled(message.retry_time, now)
        context.reported, context.asked = frozenset(fault.key for fault in found.values()), frozenset(found)
        return events

    def _rescheduled(self, retries: int | None, now: float) -> list[ev.Event]:
        """The first number is the state at the start of ftrun.  A group learns of a lost pod from its members."""
        before = self._retries
        if retries is not None:
            self._retries = max(retries, before or 0)
        if retries is None or before is None or retries <= before or self.context.policy.membership.group:
            return []
        return [ev.Rescheduled(now, f"the platform has scheduled a pod of this job again (RetryTime {retries})")]
