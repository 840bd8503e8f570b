"""Reports the state of the accelerators: `probe KIND PERIOD [TABLE [FILE [KNOWN]]]`, started by PID 1.

KIND is auto or a vendor's name; PERIOD is in seconds; TABLE is a site's file of fault codes, whose entries replace the
built-in ones (core/rules/fault_codes.py), or empty; FILE receives the last `Devices` message for other readers; KNOWN
is a `KnownDevices` as JSON.  The messages are in messages/probe.py: first `Ready`, or `Absent`, after which the helper
exits; then `Present`, a `FaultChanged` for each fault, and `Checked`, from the shortest check that shows the health of
the devices; then `Devices` every PERIOD.  A `FaultChanged` is sent within about TURN after the driver reports it, or
after the sample that shows it.  A later `Free` replaces an earlier one.

A driver call may block forever.  All are made by the thread that sends `Devices`, whose absence shows PID 1 that the
driver does not answer.
"""

import math
import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

from ftrun.accelerators.table import BY_NAME
from ftrun.core.rules.fault_codes import FaultTable, look_up
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.probe import device as states
from ftrun.helpers.probe.device import DeviceFault, Unavailable, Vendor, load_table
from ftrun.host import safe_files
from ftrun.messages import probe as messages
from ftrun.messages.codec import EXACT
from ftrun.messages.helpers import Ready
from ftrun.messages.probe import Device

# s between queries for faults: requests of PID 1 wake this loop, drivers do not, so faults are read on a timer.  Also
# the least time between samples while devices are expected to become free.
TURN: Final = 0.2
CLEARING: Final = 0.5  # s between samples while a fault is expected to end


@helper(messages.EVENTS, messages.REQUESTS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    kind, period, table, file, reported = (*argv, *[""] * 5)[:5]
    known = EXACT.load(messages.KnownDevices, reported).devices if reported else ()
    vendors: dict[str, Vendor] = {}
    reasons = []
    for name in BY_NAME if kind == "auto" else [kind]:
        try:
            vendors[name] = import_module(BY_NAME[name].probe).open(os.environ, known)
        except Unavailable as reason:
            reasons.append(str(reason))
    if not vendors:
        lines.send(messages.Absent("; ".join(reasons)))
        return
    lines.send(Ready())
    fault_tables = {name: load_table(name, table, lines.problem) for name in vendors}
    Probe(lines, vendors, fault_tables, float(period), file).run()


class Probe:
    """Samples the devices every `period` seconds, on request, and soon after a fault, when more may have changed."""

    def __init__(
        self,
        lines: ProtocolLines,
        vendors: Mapping[str, Vendor],
        tables: Mapping[str, FaultTable],
        period: float,
        file: str,
    ) -> None:
        self._lines, self._vendors, self._tables, self._period, self._file = lines, vendors, tables, period, file
        self._pace = max(vendor.pace for vendor in vendors.values())
        self._report_due = 0.0  # time of the next sample that is reported
        self._extra_sample_due = math.inf  # time of the next sample that is not reported
        self._sampled_at = -math.inf
        self._freeing: tuple[messages.Free, float] | None = None  # with its deadline
        self._clearing: tuple[messages.Clear, float] | None = None
        self._new_codes: set[str] = set()  # codes reported since `_clearing` on its device that still last
        self._well: set[str] = set()  # ids of the devices that were healthy when they were examined last
        self._device_pids: set[int] = set()  # pids that were on a device while they were alive

    def run(self) -> None:
        """Run the probe until stdin ends."""
        self._check()
        wait = 0.0
        while True:
            requests = self._lines.requests(wait)
            if self._lines.ended:
                return
            for request in requests:
                self._handle(request)
            self._faults()
            now = time.monotonic()
            if now >= min(self._report_due, self._extra_sample_due):
                self._sample(reported=now >= self._report_due)
            wait = max(0.0, min(TURN, min(self._report_due, self._extra_sample_due) - time.monotonic()))

    def _check(self) -> None:
        """The first check, for which PID 1 may wait before the first start."""
        devices = [device for vendor in self._vendors.values() for device in vendor.check()]
        self._sampled_at = time.monotonic()
        self._lines.send(messages.Present(tuple(devices)))
        self._faults()
        self._lines.send(messages.Checked(tuple(device.id for device in devices if self._is_healthy(device))))

    def _handle(self, request: messages.ProbeRequest) -> None:
        now = time.monotonic()
        match request:
            case messages.Free():
                self._freeing, self._extra_sample_due = (request, now + request.timeout), 0.0
            case messages.Clear():
                self._clearing, self._extra_sample_due = (request, now + request.timeout), 0.0
                self._new_codes.clear()

    def _faults(self) -> None:
        for name, vendor in self._vendors.items():
            for fault in vendor.faults():
                self._fault(fault, self._tables[name])
            for what in vendor.problems:
                self._lines.problem(what)

    def _fault(self, fault: DeviceFault, table: FaultTable) -> None:
        severity, why, retry = look_up(table, fault.code)
        self._lines.send(messages.FaultChanged(*fault, severity, why, retry))
        self._extra_sample_due = min(self._extra_sample_due, self._sampled_at + max(TURN, self._pace))
        if self._clearing and fault.device == self._clearing[0].device and not fault.old:
            (self._new_codes.discard if fault.gone else self._new_codes.add)(fault.code)

    def _sample(self, reported: bool) -> None:
        urgent = ""
        if self._freeing is not None:
            urgent = "both" if self._freeing[0].removed else "use"
        if self._clearing is not None:
            urgent = "faults"
        devices = [device for vendor in self._vendors.values() for device in vendor.devices(urgent)]
        self._sampled_at, self._extra_sample_due = time.monotonic(), math.inf
        self._faults()
        now = time.monotonic()
        self._device_pids |= {pid for device in devices for pid in device.pids if _is_alive(pid)}
        if reported:
            self._report_due = now + self._period
            message = messages.Devices(now, tuple(devices), self._well_devices(devices))
            self._lines.send(message)
            if self._file:
                self._write_file(message)
        if self._freeing and self._answer_free(*self._freeing, devices, now):
            self._freeing = None
        if self._clearing and self._answer_clear(*self._clearing, devices, now):
            self._clearing = None
        if self._freeing or self._clearing:
            pace = max(TURN if self._freeing else CLEARING, self._pace)
            self._extra_sample_due = min(self._extra_sample_due, now + pace)

    def _well_devices(self, devices: Sequence[Device]) -> tuple[str, ...]:
        """The ids of the healthy devices; a device that this sample did not examine counts as before."""
        unexamined = {device.id for device in devices if device.answers and not device.examined}
        self._well &= unexamined
        self._well |= {device.id for device in devices if self._is_healthy(device)}
        return tuple(device.id for device in devices if device.id in self._well)

    def _write_file(self, message: messages.Devices) -> None:
        try:
            safe_files.replace(self._file, EXACT.dump(message).encode("ascii"), durable=False)
        except OSError as error:
            self._lines.problem(f"{self._file}: {error.strerror}")

    def _answer_free(self, request: messages.Free, until: float, devices: Sequence[Device], now: float) -> bool:
        """Whether the request is finished."""
        held, silent = states.devices_held(devices, request.pids, request.used, self._device_pids, _is_alive)
        removed = [device for device in devices if device.id in request.removed]
        unknown = any(device.answers and not device.examined for device in removed)  # the tool is slow
        if (held or silent or unknown) and now < until:
            return False
        occupied = {one.device for one in (*held, *silent)}
        healthy = tuple(device.id for device in removed if device.id not in occupied and self._is_healthy(device))
        self._lines.send(messages.Freed(not held, tuple(held), tuple(silent), healthy))
        return True

    def _is_healthy(self, device: Device) -> bool:
        return states.is_healthy(device, self._vendors[device.vendor].present(device.id))

    def _answer_clear(self, request: messages.Clear, until: float, devices: Sequence[Device], now: float) -> bool:
        """Whether the request is finished."""
        device = next((device for device in devices if device.id == request.device), None)
        vendor = device.vendor if device else ""
        present = self._vendors[vendor].present(request.device) if device else ()
        table = self._tables.get(vendor, {})
        why = states.reason_not_cleared(device, request.code, present, self._new_codes, table)
        if why and now < until:
            return False
        self._lines.send(messages.Cleared(not why, why or None))
        return True


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
