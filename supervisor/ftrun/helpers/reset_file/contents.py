"""Parses `reset.json`, and the variables that name the ranks of this container, into values.

MindCluster mounts it into the container, as a file of a ConfigMap or of the host (its ResetCmInfo names the fields):
RankList (RankId, LogicId, Status, Policy, ErrorCode, ErrorCodeHex), RetryTime, FaultFlushing, GracefulExit,
RestartFaultProcess, and others that are not needed here; before the first fault `{"status": "initializing"}`.  The
meaning of GracefulExit and RetryTime for the command is in core/machine/requests.py.  Two components write the file,
and any field may be missing or null:
- ClusterD, for recovery of processes: FaultFlushing while it collects, then ranks with Status `fault` and nothing
  else, LogicId 0 and no code.  The processes are to be killed at this status, and started again when it is gone.  With
  RestartFaultProcess it stays, and the processes of these ranks alone are to be replaced at once.
- the device plugin, for a hot reset: Status `unrecovered` until the container's processes are gone and the chip is
  reset, then `recovered` or `failed`, which is final; codes in ErrorCodeHex (`80C98002,8C204E00`), ErrorCode is left
  empty.  All chips that are reset together are listed, those without a fault have no code.  Policy is what it plans:
  with `restart_request` the chip needs no reset, and the step is to be executed again.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from ftrun.core.rules import fault_codes
from ftrun.core.rules.fault_codes import FaultEntry
from ftrun.core.rules.fault_history import NO_CODE
from ftrun.messages.codec import LARGEST as LARGEST_NUMBER
from ftrun.messages.healing import Contents, RankFault

FAULT: Final = "fault"
UNDER_WAY: Final = (FAULT, "unrecovered", "failed")  # nothing may be started on a chip with such a status
AGAIN: Final = "restart_request"  # the policy of a chip that needs no reset
REQUEST: Final = "request"  # in place of a class
MAX_FAULTS: Final = 256  # in a message: a line is limited to 64 KiB
CODE: Final = 64  # characters
LARGEST: Final = 1 << 32  # number of a rank or chip
NODE_NUMBERS: Final = ("NODE_RANK", "GROUP_RANK", "MS_NODE_RANK", "VC_TASK_INDEX")
SIZES: Final = ("LOCAL_WORLD_SIZE", "MS_LOCAL_WORKER", "MA_NUM_GPUS")
MAX_RANKS: Final = 4096  # ranks of one container; a larger number is invalid


def parse(
    content: bytes, local: Collection[int] | None, entry_of: Callable[[str], FaultEntry]
) -> tuple[Contents, list[str]]:
    """The state in the file, and why entries were dropped.  ValueError or RecursionError: it is incomplete, or of
    another format."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    listed = _get(found, "RankList", list, [])
    flushing = _get(found, "FaultFlushing", bool, False)
    retries = int(_get(found, "RetryTime", int, 0))
    if abs(retries) > LARGEST_NUMBER:  # beyond the range of a message
        raise ValueError("RetryTime is out of range")
    faults: list[RankFault] = []
    faults_without_code: list[RankFault] = []
    dropped, clear = [], not flushing
    for number, entry in enumerate(listed):
        try:
            rank, logic, status, policy, codes = _rank(entry)
        except ValueError as reason:
            dropped.append(f"RankList[{number}]: {reason}")
            continue
        if status not in UNDER_WAY or (local is not None and rank not in local):
            continue
        clear = False
        place = None if local is None else sorted(local).index(rank)
        asked = REQUEST if policy == AGAIN and status == "unrecovered" else ""
        if not codes:
            fault = RankFault(rank, logic, NO_CODE, entry_of(NO_CODE).severity, status, asked, place)
            (faults if status == FAULT else faults_without_code).append(fault)
        for code in codes:
            found_entry = entry_of(code)
            retry = asked or found_entry.retry
            faults.append(RankFault(rank, logic, code, found_entry.severity, status, retry, place))
    if not faults:  # the faulty chip belongs to another container, and those here are reset together with it
        faults = faults_without_code
    state = Contents(
        flushing=flushing,
        graceful=bool(_get(found, "GracefulExit", int, 0)),
        faults=tuple(faults[:MAX_FAULTS]),
        clear=clear,
        retry_time=retries,
        one_process=_get(found, "RestartFaultProcess", bool, False),
    )
    return state, dropped


def _get(found: Mapping[str, Any], name: str, kind: type, absent: Any) -> Any:
    value = found.get(name)
    if value is None:
        return absent
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {json.dumps(value)[:40]}")
    return value


def _rank(entry: object) -> tuple[int, int, str, str, list[str]]:
    """Rank, logic id, status, policy and codes of an entry; ValueError if it is invalid."""
    if not isinstance(entry, dict):
        raise ValueError("it is not an object")
    rank, logic = _get(entry, "RankId", int, None), _get(entry, "LogicId", int, 0)
    status = _get(entry, "Status", str, None)
    if rank is None or isinstance(rank, bool) or status is None:
        raise ValueError("it has no RankId, or no Status")
    if max(abs(rank), abs(logic)) > LARGEST:  # a line is limited to 64 KiB
        raise ValueError("its RankId or LogicId is out of range")
    numbers = _get(entry, "ErrorCode", list, [])
    if not all(type(code) is int and code >= 0 for code in numbers):
        raise ValueError(f"ErrorCode is {json.dumps(numbers)[:40]}")
    texts = entry.get("ErrorCodeHex") or ""
    texts = [texts] if isinstance(texts, str) else texts  # a list if another component writes the file
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"ErrorCodeHex is {json.dumps(texts)[:40]}")
    code_texts = [code_text for text in texts for code_text in re.split(r"[\s,;\[\]\"']+", text)]
    codes = [fault_codes.normal(code)[:CODE] for code in [f"{number:08X}" for number in numbers] + code_texts if code]
    return rank, int(logic), status, _get(entry, "Policy", str, ""), list(dict.fromkeys(codes))


def local_ranks(
    environment: Mapping[str, str], started: int | None = None, member: int | None = None
) -> frozenset[int] | None:
    """The local ranks; None if the environment does not determine them.  `started`: so many are started by ftrun.
    `member`: the number of this container in its group, for an environment without one.  RANK is the number of this
    process or, where Ascend's operator lists the devices of the pod in LOCAL_RANK (`0,1,2,3`), of this pod."""
    rank, size = _first(environment, ("RANK",)), _first(environment, SIZES)
    local = environment.get("LOCAL_RANK", "").strip()
    if started is None and rank is not None and re.fullmatch(r"\d+", local, re.ASCII):
        return frozenset({rank})
    node = _first(environment, NODE_NUMBERS)
    node = member if node is None else node
    if node is None and (started is not None or "," in local):
        node = rank
    size = started or size
    if node is not None and size is not None and 0 < size <= MAX_RANKS:
        return frozenset(range(node * size, (node + 1) * size))
    return frozenset({rank}) if rank is not None and node is None and size in (None, 1) else None


def _first(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The value of the first variable that is a number."""
    values = (environment.get(name, "").strip() for name in names)
    return next((int(value) for value in values if re.fullmatch(r"\d{1,9}", value, re.ASCII)), None)
