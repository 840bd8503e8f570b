"""The platforms, in the order in which they are tried."""

from typing import Final

from ftrun.platforms.base import Membership, Platform, Surroundings
from ftrun.platforms.kubernetes import KUBERNETES
from ftrun.platforms.modelarts import MODELARTS
from ftrun.platforms.slurm import SLURM
from ftrun.platforms.torchrun import TORCHRUN
from ftrun.platforms.volcano import VOLCANO

PLATFORMS: Final[tuple[Platform, ...]] = (SLURM, MODELARTS, KUBERNETES, VOLCANO, TORCHRUN)

# MA_SCHEDULE_CNT comes first, since ftrun sets it for its command; so does NODE_NAME, which users set in a pod.
SCHEDULES: Final = tuple(filter(None, dict.fromkeys(one.schedules for one in (MODELARTS, *PLATFORMS))))
JOBS: Final = tuple(filter(None, dict.fromkeys(one.job for one in PLATFORMS)))
TASKS: Final = tuple(filter(None, dict.fromkeys(one.task for one in PLATFORMS)))
NODES: Final = tuple(filter(None, dict.fromkeys(one.node for one in (KUBERNETES, *PLATFORMS))))


def discover(at: Surroundings) -> Membership | None:
    """The membership that the first matching platform reports."""
    return next((found for one in PLATFORMS if (found := one.membership(at)) is not None), None)
