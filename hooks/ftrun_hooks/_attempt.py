"""Which start of the command this is, and how far the earlier starts came."""

import os
from typing import NamedTuple, Optional


class Attempt(NamedTuple):
    """`start_cnt` counts the starts in this pod, `schedule_cnt` the pods of this job; both begin with 1."""

    start_cnt: int
    schedule_cnt: int
    reason: str
    last_step: Optional[int]
    last_checkpoint: Optional[str]
    last_section: Optional[str]
    is_restart: bool


def attempt() -> Attempt:
    """Read from the environment; a variable that is missing or malformed counts as in a first start."""
    start, schedule = _count("MA_PROC_START_CNT") or 1, _count("MA_SCHEDULE_CNT") or 1
    return Attempt(
        start_cnt=start,
        schedule_cnt=schedule,
        reason=os.environ.get("FTRUN_RESTART_REASON") or "first",
        last_step=_count("FTRUN_LAST_STEP"),
        last_checkpoint=os.environ.get("FTRUN_LAST_CHECKPOINT") or None,
        last_section=os.environ.get("FTRUN_LAST_SECTION") or None,
        is_restart=start > 1 or schedule > 1,
    )


def _count(name: str) -> Optional[int]:
    text = os.environ.get(name, "")
    # Nineteen digits fit into 64 bits, and are far below the length that int() itself refuses.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
