"""Durations as text."""


def step_duration(value: float) -> str:
    """The duration of a training step: `20ms`, `1.6s`."""
    return f"{1000 * value:.0f}ms" if value < 1 else seconds(value)


def seconds(value: float) -> str:
    """A duration for people: `0.5s`, `41s`, `3m 20s`, `1h 5m`."""
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
