"""Whether a hang or a failure comes again at the same place in the code."""

import re
from typing import Final

from ftrun.core.text.sentences import ordinal_word

PLACE: Final = re.compile(r"[^\s():;,]+\.[A-Za-z_]\w*:\d+")  # a line of a file: the first one is the innermost
_ENDING: Final = re.compile(rf"; (\w+ (?:hang|failure) at {PLACE.pattern})$")
MOST: Final = 16  # of the last ones that are remembered


def place(text: str) -> str:
    """The innermost place in the code, as `train.py:68`; empty where the text names none."""
    named = PLACE.search(text)
    return "" if named is None else named[0]


def sentence(number: int, what: str, where: str, step: int | None = None) -> str:
    """`third hang at train.py:68, step 101`; empty for the first one, and where the place is unknown."""
    if not where or number < 2:
        return ""
    return f"{ordinal_word(number)} {what} at {where}" + ("" if step is None else f", step {step}")


def parted(why: str) -> tuple[str, str]:
    """What the order of a group says, without the sentence at its end, and that sentence."""
    named = _ENDING.search(why)
    return (why, "") if named is None else (why[: named.start()], named[1])


def remembered(before: tuple[str, ...], what: str, where: str) -> tuple[tuple[str, ...], str]:
    """The places that are remembered, with this one, and the sentence about it."""
    if not where:
        return before, ""
    one = f"{what} at {where}"
    after = (*before, one)[-MOST:]
    return after, sentence(after.count(one), what, where)
