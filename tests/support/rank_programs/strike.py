"""A failure or a hang of rank 1, in the first attempt: STRIKE=raise:STEP or STRIKE=hang:STEP."""

import os
import threading


def strike(step: int) -> None:
    how, _, at = os.environ.get("STRIKE", "").partition(":")
    place = os.environ["RANK"], os.environ["MA_PROC_START_CNT"], str(step)
    if not how or place != ("1", "1", at):
        return
    if how == "raise":
        raise ValueError("struck")
    threading.Event().wait()
