"""Which ranks of the job run in this container, as far as its environment says."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

NODES: Final = ("NODE_RANK", "GROUP_RANK", "MS_NODE_RANK", "VC_TASK_INDEX")
SIZES: Final = ("LOCAL_WORLD_SIZE", "MS_LOCAL_WORKER", "MA_NUM_GPUS")
LARGEST: Final = 4096  # ranks of one container; a number above it is none of these


def local_ranks(environment: Mapping[str, str]) -> frozenset[int] | None:
    """None: nothing says it.

    RANK is the number of this process, or of this pod: Ascend's operator sets it so, and lists the pod's devices in
    LOCAL_RANK (`0,1,2,3`).  With several ranks to a container and no LOCAL_RANK it may be either, so it says nothing.
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
    """The first of them that is a number."""
    words = (environment.get(name, "").strip() for name in names)
    return next((int(word) for word in words if re.fullmatch(r"\d{1,9}", word, re.ASCII)), None)
