"""Says how the accelerators are: `python -m ftrun.helpers.probe KIND PERIOD [TABLE [FILE]]`, started by PID 1.

KIND is auto, nvidia or ascend; PERIOD is in seconds; TABLE is a site's file of fault codes, which wins over ours
(core/rules/fault_codes.py), if it is not empty; FILE has the last `devices`, for those who read beside us.  What it is
asked and
says is in messages/probe.py: `Ready`, or `Absent`, and it ends; then `Present`, `Fault`s and `DevicesChecked`, by the
shortest
look that tells the health of the devices; then `Devices` every PERIOD.  A `Fault` comes within about TURN of the
driver's telling it, or of the look that finds it.  Nobody answers for the `silent` devices of `Freed`, which are no
reason against `ok` (free.py); clear.py says which devices are well, and when a fault is over.  A later `Free` takes the
place of an earlier one. It ends with 0 when stdin ends or nobody reads any more, with 1 after a problem that it did
not expect.

A call to a driver may block for ever.  All of them are made here, by the one thread that also says `devices`: as long
as those lines come, the driver answers, and when they stay away that is what PID 1 has to know.
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
from ftrun.helpers.probe.device_health import unclear, well
from ftrun.helpers.probe.device_release import devices_held
from ftrun.host import safe_files
from ftrun.messages import probe as messages
from ftrun.messages.codec import EXACT, Malformed
from ftrun.messages.helpers import REQUEST_LIMIT, Problem
from ftrun.messages.probe import Device, Health, Occupied

# s between questions for faults, since only requests can be waited for; and at least between looks while devices are to
# become free.
TURN: Final = 0.2
CLEARING: Final = 0.5  # s between looks while a fault is to be over


class Freeing(NamedTuple):
    """A request to say when the devices are free, and which of those that were `removed` are well."""

    pids: Collection[int]
    used: Mapping[str, int]
    until: float
    removed: Collection[str]


class Clearing(NamedTuple):
    """A request to say when a fault is over; the codes that have come on its device since, and not gone."""

    device: str
    code: str
    until: float
    new: set[str]


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; we end with PID 1
    try:
        kind, period, table, file = (*argv, "", "")[:4]
        vendors, why = _open(kind)
        if not vendors:
            _say(messages.Absent("; ".join(why)))
            return 0
        _say(messages.Ready(tuple(vendors)))
        Probe(vendors, {name: _table(name, table) for name in vendors}, float(period), file).run()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        try:
            _say(Problem(f"accelerators are not seen: {error!r}"))
        except OSError:
            pass
        return 1
    return 0


def _open(kind: str) -> tuple[dict[str, Vendor], list[str]]:
    """Those that are there; why the others are not."""
    found, why = {}, []
    for name in BY_NAME if kind == "auto" else [kind]:
        try:
            found[name] = import_module(BY_NAME[name].probe).open(os.environ)
        except Unavailable as reason:
            why.append(str(reason))
    return found, why


def _table(vendor: str, path: str = "") -> Table:
    ours = tables.ours(vendor)
    try:
        return ours | tables.site(path) if path else ours
    except (OSError, ValueError) as error:
        _say(Problem(f"the table of faults {path} is not used: {error}"))
        return ours


class Probe:
    """Looks every `period` seconds, when asked to, and soon after a fault: more may have changed."""

    def __init__(self, vendors: Mapping[str, Vendor], tables: Mapping[str, Table], period: float, file: str) -> None:
        self._vendors, self._tables, self._period, self._file = vendors, tables, period, file
        self._pace = max(vendor.pace for vendor in vendors.values())
        self._due = 0.0  # of the next look that is told
        self._next = math.inf  # of the next that is not
        self._looked = -math.inf
        self._freeing: Freeing | None = None
        self._clearing: Clearing | None = None
        self._ours: set[int] = set()  # pids that were seen on a device while they lived
        self._told: set[str] = set()  # problems
        self._rest = b""

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
                self._take(content)
            self._faults()
            now = time.monotonic()
            if now >= min(self._due, self._next):
                self._look(told=now >= self._due)
            wait = max(0.0, min(TURN, min(self._due, self._next) - time.monotonic()))

    def _check(self) -> None:
        """What PID 1 may wait for before the first start."""
        devices = [device for vendor in self._vendors.values() for device in vendor.check()]
        self._looked = time.monotonic()
        health = (Health(*(getattr(device, name) for name in Health._fields)) for device in devices)
        _say(messages.Present(tuple(health)))
        self._faults()
        _say(messages.Checked(tuple(device.id for device in devices if self._well(device))))

    def _take(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > REQUEST_LIMIT:
            raise ValueError("a request without an end")
        for line in lines:
            try:
                self._answer(messages.REQUESTS.load(line))
            except Malformed as why:
                self._problem(f"malformed request: {why}")

    def _answer(self, request: messages.Request) -> None:
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
        _say(messages.Fault(*fault, severity, why))
        self._next = min(self._next, self._looked + max(TURN, self._pace))
        if self._clearing and fault.device == self._clearing.device and not fault.old:
            (self._clearing.new.discard if fault.gone else self._clearing.new.add)(fault.code)

    def _look(self, told: bool) -> None:
        urgent = ""
        if self._freeing is not None:
            urgent = "both" if self._freeing.removed else "use"
        if self._clearing is not None:
            urgent = "faults"
        devices = [device for vendor in self._vendors.values() for device in vendor.devices(urgent)]
        self._looked, self._next = time.monotonic(), math.inf
        self._faults()
        now = time.monotonic()
        self._ours |= {pid for device in devices for pid in device.pids if _alive(pid)}
        if told:
            self._due = now + self._period
            seen = messages.Devices(now, tuple(devices))
            _say(seen)
            if self._file:
                self._show(seen)
        if self._freeing and self._judge_free(self._freeing, devices, now):
            self._freeing = None
        if self._clearing and self._judge_clear(self._clearing, devices, now):
            self._clearing = None
        if self._freeing or self._clearing:
            self._next = min(self._next, now + max(TURN if self._freeing else CLEARING, self._pace))

    def _show(self, seen: messages.Devices) -> None:
        try:
            with open(safe_files.create(f"{self._file}.new"), "w", encoding="ascii") as stream:
                stream.write(EXACT.dump(seen))
            os.rename(f"{self._file}.new", self._file)
        except OSError as error:
            self._problem(f"{self._file}: {error.strerror}")

    def _judge_free(self, asked: Freeing, devices: Sequence[Device], now: float) -> bool:
        """Whether that was the last word."""
        still = devices_held(devices, asked.pids, asked.used, self._ours, _alive)
        removed = [device for device in devices if device.id in asked.removed]
        unknown = any(device.answers and not device.examined for device in removed)  # the tool is slow
        if (still or unknown) and now < asked.until:
            return False
        seen, silent = (
            tuple(Occupied(one.device, one.pids, one.memory_used, one.health) for one in still if one.certain is sure)
            for sure in (True, False)
        )
        occupied = {one.device for one in still}
        healthy = tuple(device.id for device in removed if device.id not in occupied and self._well(device))
        _say(messages.Freed(not seen, seen, silent, healthy))
        return True

    def _well(self, device: Device) -> bool:
        return well(device, self._vendors[device.vendor].present(device.id))

    def _judge_clear(self, asked: Clearing, devices: Sequence[Device], now: float) -> bool:
        """Whether that was the last word."""
        device = next((device for device in devices if device.id == asked.device), None)
        vendor = device.vendor if device else ""
        present = self._vendors[vendor].present(asked.device) if device else ()
        why = unclear(device, asked.code, present, asked.new, self._tables.get(vendor, {}))
        if not why:
            _say(messages.Cleared(True))
        elif now >= asked.until:
            _say(messages.Cleared(False, why))
        else:
            return False
        return True

    def _problem(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _say(Problem(what))


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _say(message: messages.Event) -> None:
    write(messages.EVENTS.dump(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
