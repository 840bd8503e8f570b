"""States of a device that are faults for as long as they last: news when they come, and when they go."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ftrun.helpers.probe.device import DeviceFault
from ftrun.messages.probe import Device

LOST = "lost"
RECOVERY = "recovery:"


class Words(NamedTuple):
    """What the driver says of a device that it has lost, and of one that has to be reset before it answers."""

    lost: str
    reset: str


class Standing:
    """Those of all devices, as far as they are known: what a device had that says nothing now is not gone."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._codes: dict[str, frozenset[str]] = {}
        self._index: dict[str, int] = {}

    def of(self, device: str) -> Collection[str]:
        return self._codes.get(device, frozenset())

    def look(self, devices: Sequence[Device]) -> list[DeviceFault]:
        """What has changed, with what was so at the first look at a device as `old`."""
        news = []
        self._index |= {device.id: device.index for device in devices}
        now = {device.id: self._now(device) for device in devices}
        for name, index in self._index.items():
            before, after = self._codes.get(name), now.get(name) or frozenset()
            for code in sorted(after - (before or frozenset())):
                news.append(DeviceFault(name, index, code, _text(code), old=before is None))
            for code in sorted((before or frozenset()) - after):
                news.append(DeviceFault(name, index, code, _text(code), gone=True))
        self._codes = {name: codes for name, codes in now.items() if codes is not None}
        self._index = {name: self._index[name] for name in now}
        return news

    def _now(self, device: Device) -> frozenset[str] | None:
        """None: nothing is known of it yet."""
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
