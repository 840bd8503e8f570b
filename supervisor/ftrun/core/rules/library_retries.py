"""How long a communication library itself repeats what a faulty link did not deliver, from the variables that it reads.

It is the finest rung of recovery, and belongs to the library (MindCluster: operator-level online recovery).
"""

import re
from collections.abc import Mapping
from typing import Final

from ftrun.core.named_tuple import NamedTuple

# InfiniBand waits 4.096 us * 2^n for an acknowledgement (IBA 1.6, 9.7.6.1.3), and repeats so many times.
UNIT: Final = 4.096e-6  # s
TIMEOUT, COUNT = 20, 7  # the defaults of NCCL (from 2.23 on) and of HCCL
HOLD, INTERVAL, MOST = 5000, 1000, 1  # HCCL_OP_RETRY_PARAMS: ms, ms, times
RELAYED: Final = ("HCCL_OP_RETRY_ENABLE", "L0:0, L1:1, L2:1")  # as MindCluster's guide has it


class LibraryRetries(NamedTuple):
    """`seconds`: until the library gives up; `settings`: the variables that say so, as text."""

    library: str
    seconds: float
    settings: str = ""


def of_environment(environment: Mapping[str, str]) -> LibraryRetries:
    """The retries of HCCL, if a variable of it or of Ascend's toolkit is set, else of NCCL."""
    if any(name.startswith(("HCCL_", "ASCEND_")) for name in environment):
        return _hccl(environment)
    seconds = _delivery(environment, "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT")
    return LibraryRetries("NCCL", seconds, _settings(environment, "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"))


def _hccl(environment: Mapping[str, str]) -> LibraryRetries:
    """Each execution of an operator repeats its packets; with HCCL_OP_RETRY_ENABLE the operator itself is executed
    again, `MaxCnt` times, the first time after `HoldTime`, then in steps of `IntervalTime`."""
    delivery = _delivery(environment, "HCCL_RDMA_TIMEOUT", "HCCL_RDMA_RETRY_CNT")
    seconds = delivery
    if re.search(r"L\d:\s*1", environment.get("HCCL_OP_RETRY_ENABLE", "")):
        given = environment.get("HCCL_OP_RETRY_PARAMS", "")
        most, hold = _parameter(given, "MaxCnt", MOST, 10), _parameter(given, "HoldTime", HOLD, 60_000)
        interval = _parameter(given, "IntervalTime", INTERVAL, 60_000)
        seconds += hold / 1000 + most * delivery + (most - 1) * interval / 1000
    names = "HCCL_RDMA_TIMEOUT", "HCCL_RDMA_RETRY_CNT", "HCCL_OP_RETRY_ENABLE", "HCCL_OP_RETRY_PARAMS"
    return LibraryRetries("HCCL", seconds, _settings(environment, *names))


def _delivery(environment: Mapping[str, str], timeout: str, count: str) -> float:
    exponent, times = _number(environment.get(timeout), TIMEOUT, 24), _number(environment.get(count), COUNT, 7)
    return UNIT * float(1 << exponent) * times


def _number(text: str | None, default: int, most: int) -> int:
    """What the library would use for this text; a value that it refuses ends the program anyway."""
    found = text is not None and re.fullmatch(r"\s*(\d{1,9})\s*", text, re.ASCII)
    return min(int(found[1]), most) if found else default


def _parameter(text: str, name: str, default: int, most: int) -> int:
    found = re.search(rf"{name}:\s*(\d{{1,9}})", text, re.ASCII)
    return min(int(found[1]), most) if found else default


def _settings(environment: Mapping[str, str], *names: str) -> str:
    return " ".join(f"{name}={environment[name]}" for name in names if name in environment)
