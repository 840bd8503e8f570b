"""Which type of value each field of a record has, so that no reader meets another one, whatever a damaged file says.

How large a number is, and whether a text is a time, is checked where it is used.
"""

from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final[Mapping[tuple[type, ...], str]] = {
    (str,): "time event address advice by cause checkpoint device evidence exception helper mechanism node phase "
    "reason report retry rule rung section severity source then traceback verdict version what why",
    (int, float): "mono age cpu for grace io limit longest notice seconds seen step_time stood usual work",
    (int,): "attempt consecutive count epoch exit_code forked left local_rank member memory of oom_kills pid rank "
    "ready round signal start_cnt step warm working world_size low high",
    (bool,): "ok open preexisting waits",
    (list,): "command culprits pids stack",
    (dict,): "output",
    (int, str): "code",  # of a process, or of a device
    (str, int, float): "wait",
    (int, list): "devices processes ranks",
}
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    name: types for types, names in _NAMES.items() for name in names.split()
}
SHAPES: Final = 1000  # that are remembered
_right: set[tuple[object, ...]] = set()  # the names and types of records without a damaged value: a run has few of them


def checked(found: dict[str, Any]) -> dict[str, Any]:
    """The record without the fields whose value has another type than ftrun writes: they count as missing."""
    shape = (*found, *map(type, found.values()))
    if shape in _right:
        return found
    kept = {name: value for name, value in found.items() if _fits(name, value)}
    if len(kept) == len(found) and list not in shape and len(_right) < SHAPES:
        _right.add(shape)
    return kept


def _fits(name: str, value: Any) -> bool:
    types = TYPES.get(name)
    if types is None or value is None:
        return True
    return type(value) in types and (type(value) is not list or all(isinstance(one, str | int) for one in value))
