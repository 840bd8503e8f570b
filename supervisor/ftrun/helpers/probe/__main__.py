"""Report the state of the accelerators: `python -m ftrun.helpers.probe KIND PERIOD [TABLE [FILE]]`, started by PID 1.

KIND is auto, nvidia or ascend; PERIOD is in seconds; TABLE is a site's file of fault codes, whose entries replace the
built-in ones (core/rules/fault_codes.py), if it is not empty; FILE receives the last `devices` message for other
readers.  Requests and messages are in messages/probe.py: first `Ready`, or `Absent`, after which the helper exits; then
`Present`, `Fault`s and `DevicesChecked`, from the shortest check that shows the health of the devices; then `Devices`
every PERIOD.  A `Fault` is sent within about TURN after the driver reports it, or after the look that finds it.  The
`silent` devices of `Freed` do not answer, which does not prevent `ok` (device_release.py); device_health.py decides
which devices are healthy, and when a fault is over.  A later `Free` replaces an earlier one.  The helper exits with 0
when stdin or the reader is closed, and with 1 after an unexpected error.

A driver call may block forever.  All calls are made here, by the same thread that sends `devices`: while these messages
arrive the driver answers, and their absence tells PID 1 that it does not.
"""

import math
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Final, NamedTuple

from ftrun.accelerators.table import BY_NAME
from ftrun.core.rules.fault_codes import Table, look_up
from ftrun.helpers.lines import write
from ftrun.helpers.probe import tables
from ftrun.helpers.probe.device import DeviceFault, Unavailable, Vendor
from ftrun.helpers.probe.device_health import is_healthy, reason_not_cleared
from ftrun.helpers.probe.device_release import devices_held
from ftrun.host import safe_files
from ftrun.messages import probe as messages
from ftrun.messages.codec import EXACT, Malformed
from ftrun.messages.helpers import REQUEST_LIMIT, Problem
from ftrun.messages.probe import Device, Health, Occupied

# s between queries for faults, because only requests can be polled; also the least time between looks while devices are
# expected to become free.
TURN: Final = 0.2
CLEARING: Final = 0.5  # s between looks while a fault is expected to end


class Freeing(NamedTuple):
    """A request to report when the devices are free, and which of the `removed` ones are healthy."""

    pids: Collection[int]
    used: Mapping[str, int]
    until: float
    removed: Collection[str]


class Clearing(NamedTuple):
    """A request to report when a fault is over.  `new`: codes reported on its device since then that still last."""

    device: str
    code: str
    until: float
    new: set[str]


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; this helper ends with PID 1
    try:
        kind, period, table, file = (*argv, "", "")[:4]
        vendors, why = _open(kind)
        if not vendors:
            _send(messages.Absent("; ".join(why)))
            return 0
        _send(messages.Ready(tuple(vendors)))
        Probe(vendors, {name: _table(name, table) for name in vendors}, float(period), file).run()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        try:
            _send(Problem(f"the accelerators cannot be probed: {error!r}"))
        except OSError:
            pass
        return 1
    return 0


def _open(kind: str) -> tuple[dict[str, Vendor], list[str]]:
    """The vendors whose driver is present, and why the others are not."""
    found, why = {}, []
    for name in BY_NAME if kind == "auto" else [kind]:
        try:
            found[name] = import_module(BY_NAME[name].probe).open(os.environ)
        except Unavailable as reason:
            why.append(str(reason))
    return found, why


def _table(vendor: str, path: str = "") -> Table:
    built_in = tables.built_in(vendor)
    try:
        return built_in | tables.site(path) if path else built_in
    except (OSError, ValueError) as error:
        _send(Problem(f"the fault table {path} is not used: {error}"))
        return built_in


class Probe:
    """Reads the devices every `period` seconds, on request, and soon after a fault, when more may have changed."""

    def __init__(self, vendors: Mapping[str, Vendor], tables: Mapping[str, Table], period: float, file: str) -> None:
        self._vendors, self._tables, self._period, self._file = vendors, tables, period, file
        self._pace = max(vendor.pace for vendor in vendors.values())
        self._due = 0.0  # time of the next look that is reported
        self._next = math.inf  # time of the next look that is not reported
        self._looked = -math.inf
        self._freeing: Freeing | None = None
        self._clearing: Clearing | None = None
        self._device_pids: set[int] = set()  # pids that were on a device while they were alive
        self._reported_problems: set[str] = set()  # problems
        self._buffer = b""

    def run(self) -> None:
        """Until stdin ends."""
        os.set_blocking(1, True)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        self._check()
        wait = 0.0
        while True:
            if poll.poll(1000 * wait):
                content = os.read(0, 65536)
                if not content:
                    return
                self._receive(content)
            self._faults()
            now = time.monotonic()
            if now >= min(self._due, self._next):
                self._look(reported=now >= self._due)
            wait = max(0.0, min(TURN, min(self._due, self._next) - time.monotonic()))

    def _check(self) -> None:
        """The first check, for which PID 1 may wait before the first start."""
        devices = [device for vendor in self._vendors.values() for device in vendor.check()]
        self._looked = time.monotonic()
        health = (Health(*(getattr(device, name) for name in Health._fields)) for device in devices)
        _send(messages.Present(tuple(health)))
        self._faults()
        _send(messages.Checked(tuple(device.id for device in devices if self._is_healthy(device))))

    def _receive(self, content: bytes) -> None:
        *lines, self._buffer = (self._buffer + content).split(b"\n")
        if len(self._buffer) > REQUEST_LIMIT:
            raise ValueError("a request is too long")
        for line in lines:
            try:
                self._handle(messages.REQUESTS.load(line))
            except Malformed as why:
                self._problem(f"malformed request: {why}")

    def _handle(self, request: messages.Request) -> None:
        match request:
            case messages.Look():
                self._due = 0.0
            case messages.Free(pids, used, timeout, removed):
                self._freeing = Freeing(frozenset(pids), used, time.monotonic() + timeout, frozenset(removed))
                self._next = 0.0
            case messages.Clear(device, code, timeout):
                self._clearing = Clearing(device, code, time.monotonic() + timeout, set())
                self._next = 0.0

    def _faults(self) -> None:
        for name, vendor in self._vendors.items():
            for fault in vendor.faults():
                self._fault(fault, self._tables[name])
            for what in vendor.problems:
                self._problem(what)

    def _fault(self, fault: DeviceFault, table: Table) -> None:
        severity, why = look_up(table, fault.code)
        _send(messages.Fault(*fault, severity, why))
        self._next = min(self._next, self._looked + max(TURN, self._pace))
        if self._clearing and fault.device == self._clearing.device and not fault.old:
            (self._clearing.new.discard if fault.gone else self._clearing.new.add)(fault.code)

    def _look(self, reported: bool) -> None:
        urgent = ""
        if self._freeing is not None:
            urgent = "both" if self._freeing.removed else "use"
        if self._clearing is not None:
            urgent = "faults"
        devices = [device for vendor in self._vendors.values() for device in vendor.devices(urgent)]
        self._looked, self._next = time.monotonic(), math.inf
        self._faults()
        now = time.monotonic()
        self._device_pids |= {pid for device in devices for pid in device.pids if _alive(pid)}
        if reported:
            self._due = now + self._period
            seen = messages.Devices(now, tuple(devices))
            _send(seen)
            if self._file:
                self._write_file(seen)
        if self._freeing and self._check_freeing(self._freeing, devices, now):
            self._freeing = None
        if self._clearing and self._check_clearing(self._clearing, devices, now):
            self._clearing = None
        if self._freeing or self._clearing:
            self._next = min(self._next, now + max(TURN if self._freeing else CLEARING, self._pace))

    def _write_file(self, seen: messages.Devices) -> None:
        try:
            with open(safe_files.create(f"{self._file}.new"), "w", encoding="ascii") as stream:
                stream.write(EXACT.dump(seen))
            os.rename(f"{self._file}.new", self._file)
        except OSError as error:
            self._problem(f"{self._file}: {error.strerror}")

    def _check_freeing(self, request: Freeing, devices: Sequence[Device], now: float) -> bool:
        """Whether the request is finished."""
        still = devices_held(devices, request.pids, request.used, self._device_pids, _alive)
        removed = [device for device in devices if device.id in request.removed]
        unknown = any(device.answers and not device.examined for device in removed)  # the tool is slow
        if (still or unknown) and now < request.until:
            return False
        seen, silent = (
            tuple(Occupied(one.device, one.pids, one.memory_used, one.health) for one in still if one.certain is sure)
            for sure in (True, False)
        )
        occupied = {one.device for one in still}
        healthy = tuple(device.id for device in removed if device.id not in occupied and self._is_healthy(device))
        _send(messages.Freed(not seen, seen, silent, healthy))
        return True

    def _is_healthy(self, device: Device) -> bool:
        return is_healthy(device, self._vendors[device.vendor].present(device.id))

    def _check_clearing(self, request: Clearing, devices: Sequence[Device], now: float) -> bool:
        """Whether the request is finished."""
        device = next((device for device in devices if device.id == request.device), None)
        vendor = device.vendor if device else ""
        present = self._vendors[vendor].present(request.device) if device else ()
        why = reason_not_cleared(device, request.code, present, request.new, self._tables.get(vendor, {}))
        if not why:
            _send(messages.Cleared(True))
        elif now >= request.until:
            _send(messages.Cleared(False, why))
        else:
            return False
        return True

    def _problem(self, what: str) -> None:
        if what not in self._reported_problems:
            self._reported_problems.add(what)
            _send(Problem(what))


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _send(message: messages.Event) -> None:
    write(messages.EVENTS.dump(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
