"""The accelerators, as the probe tells of them: which there are, how they are used, what is wrong with them, and
whether they are free after a kill."""

import os
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final

from ftrun.config import Settings
from ftrun.core import events as ev
from ftrun.core.idle import Use
from ftrun.core.policy import Policy
from ftrun.core.values import Device, Fault
from ftrun.host import devices as host
from ftrun.host import procfs
from ftrun.host.helpers import Helpers, Message
from ftrun.recovery import clock

DEVICE_FILES: Final = host.DRIVERS  # without one there is nothing to probe
VISIBLE: Final = {"nvidia": "CUDA_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"}
PERIOD: Final = 10.0  # s
SILENCE: Final = 25.0  # s; a driver call that takes longer is taken for stuck
STALE: Final = 20.0  # s; what the probe said longer ago than that, or than three periods, is not how it is now
LOOKS: Final = 256  # at devices, that one sample has
PIDS: Final = 4096  # of the dead that the probe is told of: a pipe holds 64 KiB
FILE: Final = "devices.json"  # in the run dir: what the probe saw last


class Probing:
    """`known`: the devices as the probe saw them last.  `on`: there is something to probe.  `problems`: a line each;
    those of `aloud` are for the operator's screen too.  `checks`: its first look comes before the first start."""

    def __init__(self, settings: Settings, policy: Policy, helpers: Helpers, run_dir: str, period: float) -> None:
        self._policy, self._helpers, self._run_dir, self._period = policy, helpers, run_dir, period
        self.known: list[dict[str, Any]] = []
        self.problems: list[tuple[str, str]] = []
        self._seen_at = 0.0
        self._looks: deque[Use] = deque(maxlen=LOOKS)  # since the last sample
        self._used: dict[str, int] | None = None  # before the command used any
        self._freeing = False
        self._removed: frozenset[str] = frozenset()
        self._begun = 0  # probes
        self._standing: set[tuple[str, str]] = set()  # faults that were told, by device and code
        self._broken: dict[str, str] = {}  # what their driver said of those that could not work at the first look
        self._started = False  # the command, once
        self.aloud: set[str] = set()
        self._least = settings["min-devices"].value
        self._kind = kind = settings["probe"].value
        self._table = settings["fault-table"].value
        self.on = kind not in ("off", "auto") or (kind == "auto" and any(map(os.path.exists, DEVICE_FILES)))
        self.checks = self.on and policy.checks_devices and host.hidden() is None
        if self.on:
            self.start()

    def start(self) -> None:
        words = [self._kind, str(min(PERIOD, self._period)), self._table or "", f"{self._run_dir}/{FILE}"]
        self._helpers.want("probe", *words, silence=SILENCE)

    # --- what it says -----------------------------------------------------------------------------------------------

    def hear(self, message: Message, now: float, barred: Collection[str] = ()) -> ev.Event | None:
        """`barred`: devices that the platform permits no start on; the probe may call them well."""
        match message["event"]:
            case "devices":
                return self._see(message["devices"], now)
            case "ready":
                self._begun += 1
            case "present" if self.checks and not self._started:
                return self._present(message["devices"], now)
            case "checked" if self.checks:
                return ev.Checked(now, _well(message, barred), clock())
            case "fault":
                return self._fault(message, now)
            case "free" if self._freeing:
                self._freeing = False
                held, silent = (
                    tuple(_held(one) for one in message[which] if one["device"] not in self._removed)
                    for which in ("held", "silent")
                )
                if self._policy.device_timeout is None:
                    held, silent = (), ()  # nobody wants to know
                return ev.Released(now, held, silent, _well(message, barred), clock())
            case "none":
                self._helpers.drop("probe")
                self.known = []
                if self._kind != "auto":
                    self.problems.append(("probe", str(message["why"])))
                if self._least is not None:
                    self._no_devices(str(message["why"]))
                if self._freeing:
                    self._freeing = False
                    return ev.Released(now)
                return ev.Checked(now) if self.checks else None
        return None

    def _no_devices(self, why: str) -> None:
        what = f"--min-devices {self._least} has no effect, no device is seen ({why})"
        self.aloud.add(what)
        self.problems.append(("probe", what))

    def _present(self, devices: list[dict[str, Any]], now: float) -> ev.Event:
        """The first look at them, and nothing of ours uses them yet."""
        self._broken = {str(d["id"]): str(d["health"]) for d in devices if d["broken"]}
        used = {str(d["id"]): int(d["memory_used"]) for d in devices if d["memory_used"] is not None}
        if used and self._used is None:
            self._used = used
        return ev.Found(now, _usable(devices))

    def _fault(self, message: Message, now: float) -> ev.Event | None:
        """One that was there before us is not new, nor is one that a probe tells again because it is new itself.

        What comes before the first start stands before it: the core is asked whether the command can start on that
        device.  One that has to be reset before it answers cannot work, however severe its code is elsewhere."""
        device, code, severity = str(message["device"]), str(message["code"]), str(message["severity"])
        if message["gone"]:
            self._standing.discard((device, code))
            return None
        old = bool(message.get("old"))
        if old and (device, code) in self._standing:
            return None
        self._standing.add((device, code))
        if self.checks and (not self._started or (old and self._begun == 1)):
            why = str(message["why"])
            if device in self._broken and severity in ("minor", "major"):
                severity, why = "critical", f"{why}; it does not work before that: {self._broken[device]}"
            return ev.Faulted(now, Fault(device, code, severity, why), clock(), standing=True)
        told = Fault(device, code, "warning" if old and self._begun == 1 else severity, str(message["why"]))
        return ev.Faulted(now, told, clock())

    def _see(self, devices: list[dict[str, Any]], now: float) -> ev.Event | None:
        before = [device["id"] for device in self.known]
        looks = [_use(device) for device in devices if _ours(device)]
        used = {str(d["id"]): int(d["memory_used"]) for d in devices if d["memory_used"] is not None}
        found = _usable(devices)
        self._looks.extend(looks)  # not before all of it was understood
        self.known, self._seen_at = devices, now
        if self._used is None:
            self._used = used
        return None if before == [device["id"] for device in devices] else ev.Found(now, found)

    def spawning(self) -> None:
        self._started = True

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def ascend_ids(self) -> dict[int, str]:
        return {int(d["index"]): str(d["id"]) for d in self.known if d["vendor"] == "ascend"}

    def index(self, device: str) -> int | None:
        return next((int(d["index"]) for d in self.known if d["id"] == device), None)

    def uses(self, now: float) -> tuple[Use, ...]:
        """All looks since the last sample, or the last one; nothing of a probe that has been silent."""
        looks = tuple(self._looks)
        self._looks.clear()
        if looks or now - self._seen_at > max(3 * self._period, STALE):
            return looks
        return tuple(_use(device) for device in self.known if _ours(device))

    def release(self, dead: Sequence[int], command: int, removed: Sequence[str], now: float) -> ev.Released | None:
        """Whether the devices are free: at once where there are none, else later."""
        if not self._helpers.runs("probe") or not self.known:
            return ev.Released(now)
        self._freeing, self._removed = True, frozenset(removed)
        asked = {
            "ask": "free",
            "pids": [command, *list(dead)[-PIDS:]],
            "used": {name: used for name, used in (self._used or {}).items() if name not in self._removed},
            "timeout": self._policy.device_timeout or 0.0,
            "removed": list(removed),
        }
        self._helpers.tell("probe", asked)
        return None


def _usable(devices: list[dict[str, Any]]) -> tuple[Device, ...]:
    """What nobody can name nobody can use."""
    return tuple(Device(str(d["id"]), VISIBLE[d["vendor"]], str(d["visible"])) for d in devices if d["visible"])


def _well(message: Message, barred: Collection[str]) -> tuple[str, ...]:
    return tuple(str(device) for device in message["well"] if device not in barred)


def _ours(device: dict[str, Any]) -> bool:
    """Whether it may be the job that uses it.  A driver may list nobody, or by the numbers of the host."""
    above = [_below_us(pid) for pid in device["pids"]]
    return not above or any(found is not False for found in above)


def _use(device: dict[str, Any]) -> Use:
    return Use(*(device[name] for name in ("id", "util", "memory_util", "power", "traffic")))


def _below_us(pid: int) -> bool | None:
    """None: there is no such process, or none any more."""
    while pid not in (0, 1, os.getpid()):
        process = procfs.stat(pid)
        if process is None:
            return None
        pid = process.parent
    return pid == os.getpid()


def _held(one: dict[str, Any]) -> str:
    """One device that is not free, or not known to be, for a person."""
    if not one["pids"] and one["memory_used"] is None:
        return f"{one['device']} ({one['health'] or 'its memory is not told'})"
    pids = ", ".join(map(str, one["pids"])) or "nobody that is seen"
    used = "" if one["memory_used"] is None else f", {int(one['memory_used']) >> 20} MiB in use"
    return f"{one['device']} by {pids}{used}"
