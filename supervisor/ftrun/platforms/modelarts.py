"""ModelArts, which runs on Volcano."""

from typing import Final

from ftrun.platforms.base import Membership, Platform, Surroundings, names, number
from ftrun.platforms.volcano import task

HANG_MINUTES: Final = "MA_HANG_DETECT_TIME"  # what `--idle-timeout auto` means
END_GRACE: Final = "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS"  # s for the work at the end; -1 or unset: no limit


def membership(at: Surroundings) -> Membership | None:
    size = number(at.environment, "MA_NUM_HOSTS")
    if size is None:
        return None
    host = next(iter(names(at.environment.get("VC_WORKER_HOSTS", ""))), None)
    return Membership("ModelArts", size, task(at.environment), host, host or "")


MODELARTS: Final = Platform(
    name="on ModelArts",
    membership=membership,
    variables=("MA_NUM_HOSTS", "VC_TASK_INDEX", "VK_TASK_INDEX", "VC_WORKER_HOSTS"),
    schedules=("MA_SCHEDULE_CNT", 0),
    job="MINDX_TASK_ID",
    task=None,  # that of Volcano
    node=None,
)
