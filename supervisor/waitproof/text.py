"""Parts of sentences, made from values."""

from collections.abc import Sequence


def rank(number: int | None) -> str:
    """The name of a rank; None: the command.  A negative number stands for a process without RANK, -1 - pid."""
    if number is None:
        return "the command"
    return f"process {-1 - number} (no RANK)" if number < -1 else "the touch file" if number == -1 else f"rank {number}"


def threads(names: Sequence[str], most: int) -> str:
    """`thread 'a'`, or `3 threads ('a', 'b', ...)` with the first `most` of these names."""
    if len(names) == 1:
        return names[0]
    named = list(dict.fromkeys(name.removeprefix("thread ") for name in names))
    return f"{len(names)} threads ({', '.join(named[:most])}{', ...' if len(named) > most else ''})"


def printable(text: str) -> str:
    """The text on one line, with every character that a terminal would act upon written as an escape sequence."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
