"""Numbers for a person."""

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """`0-6, 8`: in order, without gaps."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
