"""What an examination of this container gives."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """`state` `missing`: ftrun does without; `warning`: it works, and not as well as it could.  `found`: what is
    here; `meaning`: for ftrun; `remedy`: what to do about it, empty where nothing needs to be done."""

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    meaning: str
    remedy: str = ""
