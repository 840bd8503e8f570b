"""Sentences for a person, made from values."""

from collections.abc import Mapping

from ftrun.core.values import TOUCH, Finding, Section


def seconds(value: float) -> str:
    """A duration as a person writes it: `0.5s`, `41s`, `3m 20s`, `1h 5m`."""
    if value < 10:
        return f"{value:.1f}s".replace(".0s", "s")
    whole = round(value)
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 120:
        return f"{minutes}m {rest}s" if rest else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if minutes else f"{hours}h"


def ordinal(number: int) -> str:
    last = number % 10 if number % 100 not in (11, 12, 13) else 0
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def rank(number: int | None) -> str:
    if number is None:
        return "the command"
    return "the touch file" if number == TOUCH else f"rank {number}"


def finding(found: Finding) -> str:
    who, age = rank(found.rank), seconds(found.age)
    limit = seconds(found.limit) + (", learned" if found.learned else "")
    if found.rule == "idle":
        return f"the command has read and written nothing, and its devices did not change, for {age} (limit {limit})"
    if found.rule == "section":
        return f"{who} is in section {found.section!r} for {age} (limit {limit})"
    if found.rule == "start":
        return f"{who} gave no beat in its first {age} (limit {limit})"
    where = "" if found.step is None else f" at step {found.step}"
    return f"{who} stopped{where}, {age} ago (limit {limit})"


def evidence(seen: Mapping[str, object]) -> str:
    """Where it hangs, and where to read more; nothing if nobody knows."""
    where = f", at {seen['why']}" if seen.get("why") else ""
    return where + (f" (report: {seen['report']})" if seen.get("report") else "")


def sections(opened: tuple[Section, ...]) -> str:
    return " > ".join(s.name for s in opened)
