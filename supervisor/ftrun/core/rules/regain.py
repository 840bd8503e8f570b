"""When a device that was taken out (`--min-devices`) is used again at a checkpoint (`--scale-out checkpoint`).  Pure.

That costs a healthy job a restart.  So the device has to be well for STEADY seconds without a break, and the restart
comes with the next checkpoint after that.  Each device has it once in a pod (`Ledger.regained`): one that fails again
is used again only by a restart that happens anyway, or a device that fails and recovers in turn would restart the job
again and again.
"""

from collections.abc import Collection, Mapping
from typing import Final

from ftrun.core.named_tuple import NamedTuple

STEADY: Final = 60.0  # s


class Regain(NamedTuple):
    """`well`: devices without which the command runs, and since when each report has called them well.  `armed`: one of
    them has been well for long enough, and `checkpoint` was the newest one then."""

    well: Mapping[str, float] = {}
    armed: bool = False
    checkpoint: int | None = None

    def following(self, well: Collection[str], newest: int | None, now: float) -> "Regain":
        """The state after a report that calls these devices well; `newest`: the newest checkpoint."""
        since = {device: self.well.get(device, now) for device in well}
        if not any(now - at >= STEADY for at in since.values()):
            return Regain(since)
        return self._replace(well=since) if self.armed else Regain(since, True, newest)

    def is_due(self, newest: int | None) -> bool:
        """Whether a checkpoint has been saved since."""
        return self.armed and newest is not None and newest != self.checkpoint
