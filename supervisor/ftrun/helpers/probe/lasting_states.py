"""Device states that are faults for as long as they last; their begin and their end are reported."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ftrun.helpers.probe.device import DeviceFault
from ftrun.messages.probe import Device

LOST = "lost"
RECOVERY = "recovery:"


class StateTexts(NamedTuple):
    """The driver's texts for a device that it has lost, and for one that must be reset before it answers."""

    lost: str
    reset: str


class LastingStates:
    """The known states of all devices.  The states of a device that does not answer are kept."""

    def __init__(self, words: StateTexts) -> None:
        self._words = words
        self._codes: dict[str, frozenset[str]] = {}
        self._index: dict[str, int] = {}

    def of(self, device: str) -> Collection[str]:
        return self._codes.get(device, frozenset())

    def update(self, devices: Sequence[Device]) -> list[DeviceFault]:
        """The changes; states that were present at the first look at a device are `old`."""
        changes = []
        self._index |= {device.id: device.index for device in devices}
        now = {device.id: self._now(device) for device in devices}
        for name, index in self._index.items():
            before, after = self._codes.get(name), now.get(name) or frozenset()
            for code in sorted(after - (before or frozenset())):
                changes.append(DeviceFault(name, index, code, _text(code), old=before is None))
            for code in sorted((before or frozenset()) - after):
                changes.append(DeviceFault(name, index, code, _text(code), gone=True))
        self._codes = {name: codes for name, codes in now.items() if codes is not None}
        self._index = {name: self._index[name] for name in now}
        return changes

    def _now(self, device: Device) -> frozenset[str] | None:
        """The current codes; None: unknown so far."""
        before = self._codes.get(device.id)
        if device.health == self._words.lost:
            return (before or frozenset()) | {LOST}
        if device.health == self._words.reset:
            return (before or frozenset()) | {f"{RECOVERY}reset"}
        if device.health != "ok":
            return before
        return frozenset() if device.recovery in (None, "none") else frozenset({RECOVERY + str(device.recovery)})


def _text(code: str) -> str:
    return "GPU is lost" if code == LOST else f"GPU recovery action: {code.removeprefix(RECOVERY)}"
