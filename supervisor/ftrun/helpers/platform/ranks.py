"""The ranks of the job that run in this container, according to its environment."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

NODES: Final = ("NODE_RANK", "GROUP_RANK", "MS_NODE_RANK", "VC_TASK_INDEX")
SIZES: Final = ("LOCAL_WORLD_SIZE", "MS_LOCAL_WORKER", "MA_NUM_GPUS")
LARGEST: Final = 4096  # ranks of one container; a larger number is invalid


def local_ranks(environment: Mapping[str, str]) -> frozenset[int] | None:
    """The local ranks; None if the environment does not determine them.

    RANK is the number of this process or of this pod: Ascend's operator sets it for the pod, and lists the devices of
    the pod in LOCAL_RANK (`0,1,2,3`).  With several ranks in a container and no LOCAL_RANK its meaning is ambiguous.
    """
    rank, size = _first(environment, ("RANK",)), _first(environment, SIZES)
    local = environment.get("LOCAL_RANK", "").strip()
    if rank is not None and re.fullmatch(r"\d+", local, re.ASCII):
        return frozenset({rank})
    node = _first(environment, NODES)
    if node is None and "," in local:
        node = rank
    if node is not None and size is not None and 0 < size <= LARGEST:
        return frozenset(range(node * size, (node + 1) * size))
    return frozenset({rank}) if rank is not None and node is None and size in (None, 1) else None


def _first(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The value of the first variable that is a number."""
    values = (environment.get(name, "").strip() for name in names)
    return next((int(value) for value in values if re.fullmatch(r"\d{1,9}", value, re.ASCII)), None)
