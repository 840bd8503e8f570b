"""Whether rank 0 failed because another program took MASTER_PORT after ftrun had chosen it."""

import re
from typing import Final

from ftrun.core.rules.crash_causes import Traceback

IN_USE: Final = re.compile(r"EADDRINUSE|(?i:address (is )?already in use)")


def is_taken(cause: Traceback | None, port: int) -> bool:
    """True only if an exception of rank 0 itself says so, and names this port: torch's store and the sockets of Python
    do.  Another port is a matter of the program."""
    if cause is None or cause.rank != 0 or not port:
        return False
    texts = [f"{thrown.message} {thrown.more}" for thrown in cause.chain]
    return any(IN_USE.search(text) and re.search(rf"(?<!\d){port}(?!\d)", text) for text in texts)
