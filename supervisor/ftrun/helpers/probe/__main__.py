"""Says how the accelerators are: `python -m ftrun.helpers.probe KIND PERIOD`, started by PID 1.

KIND is auto, nvidia or ascend; PERIOD is in seconds.  JSON lines come out on stdout, ASCII:
    {"event": "ready", "vendors": [V, ...]}      those that are probed
    {"event": "none", "why": TEXT}               instead: there is nothing to probe, and it ends
    {"event": "devices", "mono": T, "devices": [{...}, ...]}      every PERIOD; fields as in `Device`; T:
                                                 time.monotonic() at the end of the look
    {"event": "fault", "device": ID, "code": C, "text": TEXT, "gone": B}      within about TURN
    {"event": "free", "ok": true}                the answer to a request, as is
    {"event": "free", "ok": false, "held": [{"device": ID, "pids": [...], "memory_used": N, "health": H}, ...]}
    {"event": "problem", "what": TEXT}           one line for a person, each at most once
Requests come in on stdin, a JSON object a line:
    {"ask": "devices"}                           look now
    {"ask": "free", "pids": [...], "used": {ID: BYTES, ...}, "timeout": S}    say when the devices are free (free.py),
                                                 or after S seconds that they are not; a later one takes its place
It ends with 0 when stdin ends or nobody reads any more, with 1 after a problem that it did not expect.

A call to a driver may block for ever.  All of them are made here, by the one thread that also says `devices`: as long
as those lines come, the driver answers, and when they stay away that is what PID 1 has to know.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from ftrun.helpers.probe.device import Device, Unavailable, Vendor
from ftrun.helpers.probe.free import held

KINDS: Final = ("nvidia", "ascend")
# s between questions for faults, since only requests can be waited for; and between looks while devices are to become
# free.
TURN: Final = 0.2
LINE_LIMIT: Final = 1 << 20  # bytes of a request


class Asked(NamedTuple):
    """A request to say when the devices are free."""

    pids: Collection[int]
    used: Mapping[str, int]
    until: float


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; we end with PID 1
    try:
        kind, period = argv
        vendors, why = _open(kind)
        if not vendors:
            _say("none", why="; ".join(why))
            return 0
        _say("ready", vendors=list(vendors))
        Probe(list(vendors.values()), float(period)).run()
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:
        try:
            _say("problem", what=f"accelerators are not seen: {error!r}")
        except OSError:
            pass
        return 1
    return 0


def _open(kind: str) -> tuple[dict[str, Vendor], list[str]]:
    """Those that are there; why the others are not."""
    found, why = {}, []
    for name in KINDS if kind == "auto" else [kind]:
        try:
            found[name] = import_module(f"ftrun.helpers.probe.{name}").open(os.environ)
        except Unavailable as reason:
            why.append(str(reason))
    return found, why


class Probe:
    """Looks every `period` seconds, and when asked to."""

    def __init__(self, vendors: Sequence[Vendor], period: float) -> None:
        self._vendors, self._period = vendors, period
        self._due = 0.0  # of the next look that is told
        self._asked: Asked | None = None
        self._ours: set[int] = set()  # pids that were seen on a device while they lived
        self._told: set[str] = set()  # problems
        self._rest = b""

    def run(self) -> None:
        """Until stdin ends."""
        os.set_blocking(1, True)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        wait = 0.0
        while True:
            if poll.poll(1000 * wait):
                content = os.read(0, 65536)
                if not content:
                    return
                self._take(content)
            self._faults()
            now = time.monotonic()
            if now >= self._due or self._asked:
                self._look(told=now >= self._due)
            wait = TURN if self._asked else max(0.0, min(TURN, self._due - time.monotonic()))

    def _take(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content).split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            raise ValueError("a request without an end")
        for line in lines:
            try:
                request = json.loads(line)
                if request["ask"] == "devices":
                    self._due = 0.0
                elif request["ask"] == "free":
                    until = time.monotonic() + float(request["timeout"])
                    self._asked = Asked(frozenset(map(int, request["pids"])), dict(request["used"]), until)
                else:
                    raise ValueError(request["ask"])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                self._problem(f"a request that is none: {error!r}")

    def _faults(self) -> None:
        for vendor in self._vendors:
            for fault in vendor.faults():
                _say("fault", **fault._asdict())
            for what in getattr(vendor, "problems", ()):
                self._problem(what)

    def _look(self, told: bool) -> None:
        devices = [device for vendor in self._vendors for device in vendor.devices()]
        now = time.monotonic()
        self._ours |= {pid for device in devices for pid in device.pids if _alive(pid)}
        if told:
            self._due = now + self._period
            _say("devices", mono=now, devices=[device._asdict() for device in devices])
        if self._asked:
            self._judge(self._asked, devices, now)

    def _judge(self, asked: Asked, devices: Sequence[Device], now: float) -> None:
        still = held(devices, asked.pids, asked.used, self._ours, _alive)
        if not still:
            _say("free", ok=True)
        elif now >= asked.until:
            _say("free", ok=False, held=[one._asdict() for one in still])
        else:
            return
        self._asked = None

    def _problem(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _say("problem", what=what)


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _say(event: str, **more: Any) -> None:
    content = json.dumps({"event": event} | more).encode("ascii") + b"\n"
    while content:
        content = content[os.write(1, content) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
