"""Client of the helper that runs `--heal`; it also combines all answers on whether a device fault is over."""

from typing import Final

from ftrun.core.machine import events as ev
from ftrun.core.machine.values import Fault
from ftrun.messages import healing as messages
from ftrun.messages import probe
from ftrun.messages.codec import EXACT
from ftrun.messages.helpers import Ready
from ftrun.pid1.clients.base import Client

FINAL: Final = 1.0  # s at the end, in which a source says why the fault is not over, before the core gives up
FINAL_SHARE: Final = 0.1  # of a short time


class HealClient(Client[messages.HealEvent]):
    """Handles one fault at a time.  It is over when the command has succeeded, and the probe and the platform, if
    they have reported the fault, report that it is gone.  The probe holds the devices open, so it does not run beside
    the command."""

    name = "heal"
    events = messages.HEAL_EVENTS

    def start(self) -> None:
        self._fault: Fault | None = None
        self._requested_at = 0.0
        self._waits: set[str] = set()  # sources that have not answered yet: command, probe, platform
        self._probe_dropped = False
        self._command = self.context.settings.heal

    def heal(self, fault: Fault, now: float) -> list[ev.Event]:
        """Answered by `HealingFinished`."""
        context, policy = self.context, self.context.policy
        index = next((device.index for device in context.devices if device.id == fault.device), None)
        self._fault, self._requested_at, self._waits = fault, now, set()
        if index is not None:
            self._waits.add("probe")
        if fault.key in context.reported:
            self._waits.add("platform")
        if self._command is not None:
            self._waits.add("command")
            self._probe_dropped = "probe" in context.running
            context.helpers.remove("probe")  # it holds the devices open, so they could not be reset
            variables = {"FAULT_DEVICE": fault.device, "FAULT_CODE": fault.code, "FAULT_SEVERITY": fault.healing}
            if index is not None:
                variables["FAULT_INDEX"] = str(index)
            # With the marker of the process tree, so that processes of a killed healer are recognised.
            environment = {f"FTRUN_{name}": text for name, text in variables.items()} | context.tree.marker_environment
            timeout = policy.limits.heal_timeout
            remedy = EXACT.dump(messages.Remedy(self._command, timeout, self._until, environment))
            context.helpers.add(self.name, remedy, once=True, lasting=True)  # it ends all processes that it has started
        else:
            self._ask_probe(now)
        return self._outcome(now)

    def handle(self, message: messages.HealEvent, now: float) -> list[ev.Event]:
        match message:
            case messages.Healed(ok, why):
                return self._answered("command", ok, why, now)
        return []

    def on_end(self, now: float) -> list[ev.Event]:
        if "command" not in self._waits:
            return []
        self.context.tree.kill()  # the command is dead, so the tree holds only processes of a killed healer
        return self._answered("command", False, "the healer died", now)

    def handle_probe(self, message: object, now: float) -> list[ev.Event]:
        """Handle a message of the probe."""
        match message:
            case Ready():
                self._ask_probe(now)
            case probe.Cleared(ok, why):
                return self._answered("probe", ok, why, now)
            case probe.Absent(why):
                return self._answered("probe", False, why, now)
        return []

    def settle(self, now: float) -> list[ev.Event]:
        if self._probe_dropped and (self._fault is None or "command" not in self._waits):
            self._probe_dropped = False
            self.context.running["probe"].start()
        if self._fault is not None and self._fault.key not in self.context.reported:
            return self._answered("platform", True, None, now)
        return []

    def give_up(self) -> None:
        """Stop healing, and end the helper."""
        self._fault, self._waits = None, set()
        self.context.helpers.remove(self.name)

    def _answered(self, source: str, ok: bool, why: str | None, now: float) -> list[ev.Event]:
        if self._fault is None or source not in self._waits:
            return []
        if not ok:
            self._fault, self._waits = None, set()
            return [ev.HealingFinished(now, False, why)]
        self._waits.discard(source)
        return self._outcome(now)

    def _outcome(self, now: float) -> list[ev.Event]:
        if self._waits:
            return []
        self._fault = None
        return [ev.HealingFinished(now, True)]

    @property
    def _until(self) -> float:
        """When the sources have to answer: nearly the whole time is theirs."""
        timeout = self.context.policy.limits.heal_timeout
        return self._requested_at + timeout - min(FINAL, FINAL_SHARE * timeout)

    def _ask_probe(self, now: float) -> None:
        if self._fault is None or "probe" not in self._waits or "command" in self._waits:
            return
        request = probe.Clear(self._fault.device, self._fault.code, max(self._until - now, FINAL))
        self.context.helpers.send("probe", probe.REQUESTS.dump(request))
