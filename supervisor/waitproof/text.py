"""Parts of sentences, made from values."""


def rank(number: int | None) -> str:
    """The name of a rank; None: the command.  A negative number stands for a process without RANK, -1 - pid."""
    if number is None:
        return "the command"
    return f"process {-1 - number} (no RANK)" if number < -1 else "the touch file" if number == -1 else f"rank {number}"


def printable(text: str) -> str:
    """The text on one line, with every character that a terminal would act upon written as an escape sequence."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def seconds(value: float) -> str:
    """`0.5s`, `41s`, `3m 20s`, `1h 5m`."""
    if value < 10:
        return f"{value:.1f}s".replace(".0s", "s")
    minutes, rest = divmod(round(value), 60)
    if minutes < 2:
        return f"{60 * minutes + rest}s"
    if minutes < 120:
        return f"{minutes}m {rest}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if minutes else f"{hours}h"
