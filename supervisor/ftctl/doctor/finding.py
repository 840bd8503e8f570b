"""The result of one check of `ftctl doctor`."""

from typing import Literal

from ftrun.core.named_tuple import NamedTuple


class CheckOutcome(NamedTuple):
    """`state` `missing`: ftrun works without it; `warning`: it works, but not as well as it could.  `found`: what is
    present; `meaning`: the consequence for ftrun; `remedy`: what to do about it; empty: nothing."""

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    meaning: str
    remedy: str = ""


def warn_if(condition: bool, name: str, found: str, meaning: str, remedy: str) -> CheckOutcome:
    """A warning with this remedy if the condition is true, else `ok`."""
    return (
        CheckOutcome(name, "warning", found, meaning, remedy) if condition else CheckOutcome(name, "ok", found, meaning)
    )
