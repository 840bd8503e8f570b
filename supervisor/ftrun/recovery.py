"""What heals, remembers and permits: the helpers `heal`, `platform` and `keeper`, and the probe's word on a fault.

Like the other aides nothing in here waits: questions go out, and events come back.
"""

import json
import os
import time
from collections.abc import Collection
from typing import Any, Final

from ftrun.config import Settings
from ftrun.core import events as ev
from ftrun.core import exitcode, masking
from ftrun.core.history import NO_CODE, Clock, Occurrence, Schedule
from ftrun.core.policy import Policy
from ftrun.core.values import Device, Fault, Ledger
from ftrun.derived import reset_file, state_dir
from ftrun.host import procfs
from ftrun.host.helpers import Helpers, Message
from ftrun.wire import records

LOOK: Final = 0.5  # s between looks at the platform's file
SPARE: Final = 10.0  # s before the core gives up, in which the healers have to say what they know
ASCEND: Final = "ASCEND_RT_VISIBLE_DEVICES"
# MindCluster's agent ends the processes whatever the code is, and the device plugin resets the chip only then: what a
# table calls harmless is recovered in place too, else the reset would wait for ever.
OBEYED: Final = {"warning": "minor", "unknown": "minor", "user": "minor+user"}
DRIFT: Final = 30.0  # s by which the clocks of two nodes may differ
SENT: Final = 64  # faults that the keeper is told of: a pipe holds 64 KiB
Event = ev.Event


def clock() -> Clock:
    boot = procfs.read("/proc/sys/kernel/random/boot_id") or b""
    return Clock(time.time(), boot.decode("ascii", "replace").strip(), time.clock_gettime(time.CLOCK_BOOTTIME))


class Recovery:
    """`problems` are for a record: the helper's name and one line."""

    def __init__(self, settings: Settings, policy: Policy, helpers: Helpers, mark: dict[str, str]) -> None:
        self._policy, self._helpers, self._mark = policy, helpers, mark
        self._key = f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
        self._began = time.time()
        self._command, self._table = settings["heal"].value, settings["fault-table"].value
        self._fault: Fault | None = None  # the one that is being healed
        self._asked_at = 0.0
        self._waits: set[str] = set()  # for whose word: heal, probe, platform
        self._platform: set[tuple[str, str]] = set()  # faults that the platform reports, by device and code
        self._hold: str | None = None  # why the platform permits no start
        self._ends = False  # it wants a command that runs to end
        self._retries: int | None = None  # pods of this job that it has scheduled again, the most that it ever said
        self._held_for: set[str] = set()  # devices that this is about
        self._kept: object = None  # of the ledger, by the keeper
        self._ledger: Ledger | None = None
        self._again: set[Occurrence] = set()  # told once more
        self._final: str | None = None
        self._last: set[str] = set()  # words that are waited for at the end
        self._verdict: dict[str, object] | None = None  # until the keeper has it: it may begin, or begin again
        self.problems: list[tuple[str, str]] = []
        self._folder = state_dir(settings)
        if self._folder is not None:
            helpers.want("keeper", self._folder)
        self.remembers = self._folder is None  # all that there is to remember
        if (reset := reset_file(settings)) is not None:
            helpers.want("platform", reset, str(LOOK), *([self._table] if self._table else []))

    # --- what they say ----------------------------------------------------------------------------------------------

    def hear(self, name: str, message: Message, now: float, ids: dict[int, str]) -> list[Event]:
        """`ids`: of Ascend devices, by logical number."""
        match name, message["event"]:
            case "platform", "platform":
                return self._platform_says(message, now, ids)
            case "keeper", "kept":
                return self._remember(message["history"], now)
            case "keeper", "shared":
                return [_shared(message["verdict"], now)]
            case "heal", "healed":
                return self._answered("heal", bool(message["ok"]), message["why"], now)
            case "heal", "ended" if "heal" in self._waits:
                return self._answered("heal", False, "the healer died", now)
            case "probe", "ready":
                self._ask_probe(now)
            case "probe", "clear":
                return self._answered("probe", bool(message["ok"]), message.get("why"), now)
            case "probe", "none" if "probe" in self._waits:
                return self._answered("probe", False, str(message["why"]), now)
            case "keeper", "told":
                self._verdict = None
                self._last.discard("told")
            case "farewell", "parted":
                self._last.discard("parted")
                for one in message["failed"]:
                    self.problems.append((name, f"{masking.text(one['what'])}: {one['why']}"))
                for what in message["late"]:
                    self.problems.append((name, f"{masking.text(what)}: not done in time; it goes on without us"))
            case "farewell", "ended":
                self._last.discard("parted")
        return []

    def _platform_says(self, message: Message, now: float, ids: dict[int, str]) -> list[Event]:
        found = {}
        for one in message["faults"]:
            device, code, severity = ids.get(int(one["logic"]), f"npu{one['logic']}"), str(one["code"]), one["severity"]
            if code == NO_CODE:
                device = f"rank{one['rank']}"  # the number of a chip means nothing then
            severity = OBEYED.get(severity, severity)
            found[device, code] = Fault(
                device, code, severity, f"the platform has rank {one['rank']} as {one['status']}"
            )
        self._hold = None if message["clear"] else "a rank of this container has status fault"
        self._held_for = {fault.device for fault in found.values()}
        if message["flushing"]:
            self._hold, self._held_for = "it flushes faults", set()
        self._ends = bool(message["graceful"]) and not self._policy.group
        if self._ends:
            self._hold, self._held_for = "all processes of the job are to end (GracefulExit)", set()
        events: list[Event] = self.permitted(now)
        if not ids and (words := os.environ.get(ASCEND)):  # no probe says which there are
            events.append(ev.Found(now, tuple(Device(f"npu{word}", ASCEND, word) for word in words.split(","))))
        events += [ev.Faulted(now, fault, clock()) for place, fault in found.items() if place not in self._platform]
        events += self._rescheduled(message["retry_time"], now)  # for a fault here the command starts again anyway
        self._platform = set(found)
        if self._fault is not None and "platform" in self._waits and self._fault.place not in found:
            events += self._answered("platform", True, None, now)
        return events

    @property
    def held_for(self) -> Collection[str]:
        """Devices that the platform permits no start on."""
        return self._held_for

    def permitted(self, now: float) -> list[Event]:
        """Whether the platform permits a start: what it has against devices that the job does without is no matter."""
        removed = self._ledger.removed if self._ledger is not None else ()
        without = bool(self._held_for) and self._held_for <= set(removed)
        return [ev.Held(now, None if without else self._hold, self._ends)]

    def _rescheduled(self, retries: int | None, now: float) -> list[Event]:
        """What the platform said at first is how it was when we came.  A group learns such a loss from its members."""
        before = self._retries
        if retries is not None:
            self._retries = max(retries, before or 0)
        if retries is None or before is None or retries <= before or self._policy.group:
            return []
        return [ev.Rescheduled(now, f"the platform has scheduled a pod of this job again (RetryTime {retries})")]

    def _remember(self, history: dict[str, Any], now: float) -> list[Event]:
        if self._verdict is not None:
            self._tell_verdict(self._verdict)
        occurrences = tuple(map(records.load_occurrence, history["faults"]))
        schedules = tuple(map(_schedule, history["schedules"]))
        ours = next((one for one in schedules if one.key == self._key), None)
        newest = set(self._ledger.occurrences[-1:]) if self._ledger is not None else set()
        unheard = newest.difference(occurrences, self._again)  # told to one that was dying
        self._again |= unheard
        heard = ours is not None and (self._final is None or ours.failed == _failed(self._final))
        if self._ledger is not None and (not heard or unheard):
            self._kept = None  # it knows nothing of us, or not all: it has begun, or begun again
            self.keep(self._ledger, self._final)
        self.remembers = True
        if ours is not None and not unheard and self._final is not None and ours.failed == _failed(self._final):
            self._last.discard("kept")
        others = tuple(s for s in schedules if s.key != self._key)
        return [ev.Remembered(now, occurrences, others)]

    # --- healing ----------------------------------------------------------------------------------------------------

    def heal(self, fault: Fault, index: int | None, probed: bool, now: float) -> list[Event]:
        """Answered by `Healed`: once the command has ended well, and all that reported the fault say it is gone."""
        self._fault, self._asked_at = fault, now
        self._waits = {name for name, on in (("heal", self._command is not None), ("probe", probed)) if on}
        if fault.place in self._platform:
            self._waits.add("platform")
        if self._command is not None:
            self._helpers.drop("probe")  # it holds the devices open: they could not be reset
            told = {"FAULT_DEVICE": fault.device, "FAULT_CODE": fault.code, "FAULT_SEVERITY": fault.severity}
            if index is not None:
                told["FAULT_INDEX"] = str(index)
            work = {
                "command": self._command,
                "timeout": max(self._policy.heal_timeout - SPARE, self._policy.heal_timeout / 2),
                # With what marks all that is below us, so that what a killed healer leaves is known for ours.
                "environment": {f"FTRUN_{name}": text for name, text in told.items()} | self._mark,
            }
            self._helpers.want("heal", json.dumps(work), once=True, lasting=True)  # it ends all that it has started
        elif probed:
            self._ask_probe(now)
        return self._done(now)

    def _answered(self, who: str, well: bool, why: str | None, now: float) -> list[Event]:
        if self._fault is None or who not in self._waits:
            return []
        if not well:
            self._fault, self._waits = None, set()
            return [ev.Healed(now, False, why)]
        self._waits.discard(who)
        return self._done(now)

    def _done(self, now: float) -> list[Event]:
        if self._waits:
            return []
        self._fault = None
        return [ev.Healed(now, True)]

    def give_up(self) -> None:
        """Nothing is to be healed any more: what is still at it is ended."""
        self._fault, self._waits = None, set()
        self._helpers.drop("heal")

    @property
    def healing(self) -> bool:
        """Whether its command runs, as far as is known."""
        return "heal" in self._waits

    @property
    def heals(self) -> bool:
        """Whether it has a command for that, which the probe must not stand in the way of."""
        return self._command is not None

    @property
    def needs_probe(self) -> bool:
        """Whether the probe, ended for the healer, is to come back."""
        return self._fault is None or "heal" not in self._waits

    def _ask_probe(self, now: float) -> None:
        if self._fault is None or "probe" not in self._waits or "heal" in self._waits:
            return
        left = self._asked_at + self._policy.heal_timeout - min(SPARE, self._policy.heal_timeout / 4) - now
        asked = {"ask": "clear", "device": self._fault.device, "code": self._fault.code, "timeout": max(left, 1.0)}
        self._helpers.tell("probe", asked)

    # --- remembering ------------------------------------------------------------------------------------------------

    def keep(self, ledger: Ledger, final: str | None = None) -> None:
        """Have the keeper keep what it has to know of this ledger; `final`: the verdict, at the end."""
        final = final or self._final  # a record may follow the last
        self._ledger, self._final = ledger, final
        reached = ledger.reached and (self.remembers or final is not None)  # beyond what, is not known before
        kept = (ledger.start_cnt, ledger.occurrences, reached, ledger.faulted, ledger.best_checkpoint, final)
        if kept == self._kept or not self._helpers.runs("keeper"):
            return
        self._kept = kept
        schedule = {
            "key": self._key,
            "count": ledger.schedule_cnt,
            "node": self._policy.node,
            "wall": self._began,
            "best_step": ledger.best_step,
            "best_checkpoint": ledger.best_checkpoint,
            "progressed": reached,
            "faulted": ledger.faulted,
            "failed": _failed(final),
            "phase": self._policy.phase,
            "job": ledger.job,
        }
        faults = [records.occurrence(one) for one in ledger.occurrences[-SENT:]]
        self._helpers.tell("keeper", {"ask": "keep", "faults": faults, "schedule": schedule})

    def consult(self, schedule_cnt: int, now: float) -> list[Event]:
        if not self._helpers.runs("keeper"):
            return [ev.Shared(now)]
        self._helpers.tell("keeper", {"ask": "shared", "schedule_cnt": schedule_cnt, "since": self._began - DRIFT})
        return []

    # --- the end ----------------------------------------------------------------------------------------------------

    def part(self, verdict: dict[str, object] | None, work: dict[str, object] | None) -> None:
        """The last requests: `verdict` for the other ftruns, `work` for the end of the container."""
        if self._folder is not None:
            self._last.add("kept")
        if verdict is not None and self._folder is not None:
            self._last.add("told")
            self._verdict = verdict
            if self.remembers:
                self._tell_verdict(verdict)
        if work is not None:
            self._helpers.want("farewell", json.dumps(work), once=True)
            self._last.add("parted")

    def _tell_verdict(self, verdict: dict[str, object]) -> None:
        self._helpers.tell("keeper", {"ask": "verdict", "verdict": verdict, "since": self._began - DRIFT})

    @property
    def waits_for(self) -> set[str]:
        """Of the last requests: `kept`, `told`, `parted`."""
        return self._last


def _failed(verdict: str | None) -> bool:
    return verdict not in (None, exitcode.SUCCEEDED, exitcode.STOPPED)


def _schedule(found: dict[str, Any]) -> Schedule:
    names = ("key", "node", "wall", "best_step", "best_checkpoint", "progressed", "faulted")
    return Schedule(
        number=int(found["count"]),
        failed=found.get("failed") is True,
        phase=str(found.get("phase", "")),
        job=str(found.get("job", "")),
        **{n: found[n] for n in names},
    )


def _shared(verdict: dict[str, Any] | None, now: float) -> ev.Shared:
    if verdict is None:
        return ev.Shared(now)
    node, device = str(verdict["node"]), verdict.get("device")
    why = f"{verdict['why']} (on {node})"
    return ev.Shared(now, int(verdict["exit_code"]), str(verdict["verdict"]), why, node, device and str(device))
