"""Client of the helper that reads what MindCluster asks of this container (`reset.json`)."""

import os
from typing import Final

from ftrun.accelerators.ascend import ASCEND
from ftrun.config.derived import reset_file
from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Device, Fault
from ftrun.core.rules.fault_history import NO_CODE
from ftrun.host.clock import clock
from ftrun.messages import platform as messages
from ftrun.pid1.clients.base import Client

LOOK: Final = 0.5  # s between looks at the platform's file
# MindCluster's agent ends the processes whatever the code is, and the device plugin resets the chip only then: what a
# table calls harmless is recovered in place too, else the reset would wait for ever.
OBEYED: Final = {"warning": "minor", "unknown": "minor", "user": "minor+user"}


class Platform(Client[messages.Event]):
    name = "platform"
    events = messages.EVENTS

    def start(self) -> None:
        self._hold: str | None = None  # why the platform permits no start
        self._ends = False  # it wants a command that runs to end
        self._retries: int | None = None  # pods of this job that it has scheduled again, the most that it ever said
        table = self.context.settings["fault-table"].value
        words = [str(reset_file(self.context.settings)), str(LOOK), *([table] if table else [])]
        self.context.helpers.add(self.name, *words)

    def handle(self, message: messages.Event, now: float) -> list[ev.Event]:
        return self._platform(message, now) if isinstance(message, messages.Platform) else []

    def permitted(self, now: float) -> ev.StartHeld:
        """Whether the platform permits a start: what it has against devices that the job does without is no matter."""
        ledger, barred = self.context.ledger, self.context.barred
        without = bool(barred) and barred <= set(ledger.removed if ledger is not None else ())
        return ev.StartHeld(now, None if without else self._hold, self._ends)

    def _platform(self, message: messages.Platform, now: float) -> list[ev.Event]:
        context = self.context
        ids = {device.index: device.id for device in context.devices if device.vendor == ASCEND.name}
        found = {}
        for one in message.faults:
            # The number of a chip means nothing where there is no code.
            device = f"rank{one.rank}" if one.code == NO_CODE else ids.get(one.logic, f"npu{one.logic}")
            severity = OBEYED.get(one.severity, one.severity)
            why = f"the platform has rank {one.rank} as {one.status}"
            found[device, one.code] = Fault(device, one.code, severity, why)
        self._hold = None if message.clear else "a rank of this container has status fault"
        context.barred = frozenset(fault.device for fault in found.values())
        if message.flushing:
            self._hold, context.barred = "it flushes faults", frozenset()
        self._ends = message.graceful and not context.policy.group
        if self._ends:
            self._hold, context.barred = "all processes of the job are to end (GracefulExit)", frozenset()
        events: list[ev.Event] = [self.permitted(now)]
        if not ids and (words := os.environ.get(ASCEND.visible)):  # no probe says which there are
            events.append(
                ev.DevicesFound(now, tuple(Device(f"npu{word}", ASCEND.visible, word) for word in words.split(",")))
            )
        events += [
            ev.FaultReported(now, fault, clock()) for place, fault in found.items() if place not in context.reported
        ]
        events += self._rescheduled(message.retry_time, now)  # for a fault here the command starts again anyway
        context.reported = frozenset(found)
        return events

    def _rescheduled(self, retries: int | None, now: float) -> list[ev.Event]:
        """What the platform said at first is how it was when we came.  A group learns such a loss from its members."""
        before = self._retries
        if retries is not None:
            self._retries = max(retries, before or 0)
        if retries is None or before is None or retries <= before or self.context.policy.group:
            return []
        return [ev.Rescheduled(now, f"the platform has scheduled a pod of this job again (RetryTime {retries})")]
