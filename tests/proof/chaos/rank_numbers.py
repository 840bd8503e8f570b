"""The arithmetic of the training in rank_work.py: exact, and a step cannot be left out, repeated or mixed unnoticed."""

PRIME = (1 << 61) - 1


def first_value(rank: int, same: bool) -> int:
    return 1 if same else rank + 1


def addend(value: int, step: int, rank: int) -> int:
    """What a rank adds to the sum of a step: small, so that the sum is exact in floating point."""
    return (value * (rank + 3) + step) % 10_007


def next_value(value: int, total: int, rank: int, same: bool) -> int:
    return (value * 31 + total * 7 + (0 if same else rank)) % PRIME


def final_values(ranks: int, steps: int, same: bool) -> list[int]:
    """Of a run without faults."""
    values = [first_value(rank, same) for rank in range(ranks)]
    for step in range(steps):
        total = sum(addend(value, step, rank) for rank, value in enumerate(values))
        values = [next_value(value, total, rank, same) for rank, value in enumerate(values)]
    return values
