"""Recorded trainings: the seconds between the movements of one rank, the same at every run: 10,000 of them,
fewer where the steps are very long.

Each is its step (10 % more or less) and what is added to some; its name is the seed.
"""

import os
import random
from collections.abc import Callable, Iterator

STEPS = 1_100 if os.environ.get("FTRUN_HYPOTHESIS") == "fast" else 10_000

Recorder = Callable[[random.Random], Iterator[float]]


def about(chance: random.Random, seconds: float) -> float:
    return seconds * chance.uniform(0.9, 1.1)


def steady(step: float, steps: int = STEPS) -> Recorder:
    return lambda chance: (about(chance, step) for _ in range(steps))


def first(*slow: float, step: float = 1.0) -> Recorder:
    return lambda chance: (slow[i] if i < len(slow) else about(chance, step) for i in range(STEPS))


def every(n: int, shortest: float, longest: float, step: float = 0.5, since: int = 1) -> Recorder:
    """One step in n takes longer by so much: evaluation, a checkpoint, the end of an epoch."""
    return lambda chance: (
        about(chance, step) + (chance.uniform(shortest, longest) if i >= since and i % n == 0 else 0.0)
        for i in range(STEPS)
    )


def drift(start: float, end: float) -> Recorder:
    return lambda chance: (about(chance, start + (end - start) * i / STEPS) for i in range(STEPS))


def noise(median: float, sigma: float) -> Recorder:
    """Log-normal: data of very different lengths, a shared file system."""
    return lambda chance: (median * chance.lognormvariate(0.0, sigma) for _ in range(STEPS))


# In none of these is a step longer than max(30 s, 10 x the 99th percentile) of those before it, once 100 were seen, or
# before that than max(300 s, 30 x the slowest of the first 10).
USUAL: dict[str, Recorder] = {
    "steady and fast": steady(0.05),
    "steady and slow": steady(20.0),
    # ftrun looks almost twenty times in each of these steps: 2,000 of them need more decisions than 10,000 others.
    "very slow": steady(400.0, min(STEPS, 2_000)),
    "a slow first step": first(300.0),
    "a second step that compiles again": first(5.0, 200.0),
    "ten steps that warm up": first(300.0, *[60.0] * 9),
    "evaluation every 50 steps": every(50, 55.0, 65.0),
    "evaluation every 100 steps": every(100, 20.0, 29.0),
    "evaluation every 101 steps": every(101, 20.0, 29.0),
    "evaluation every 500 steps": every(500, 20.0, 29.0),
    "evaluation every 500 slow steps": every(500, 30.0, 44.0, step=5.0),
    "checkpoints every 30 steps": every(30, 5.0, 120.0),
    "checkpoints every 250 steps": every(250, 2.0, 29.0),
    "three times as slow": drift(5.0, 15.0),
    "three times as fast": drift(15.0, 5.0),
    "three times as slow at once": lambda chance: (about(chance, 5.0 if i < STEPS / 2 else 15.0) for i in range(STEPS)),
    "heavy noise": noise(1.0, 1.0),
    "heavier noise": noise(0.3, 1.2),
    "50 fast steps, then a rollout": lambda chance: (
        about(chance, 45.0 if i % 51 == 50 else 0.1) for i in range(STEPS)
    ),
    "an epoch ends every 1,000 steps": every(1000, 20.0, 29.0),
}
# In these one is, again and again: the two promises contradict each other, and the first of its kind is suspected.
RARE: dict[str, Recorder] = {
    "evaluation every 100 steps": every(100, 54.0, 60.0),
    "evaluation every 101 steps": every(101, 54.0, 60.0),
    "long evaluation every 500 steps": every(500, 250.0, 300.0),
    "long evaluation every 50 steps": every(50, 500.0, 590.0),
    "an epoch ends every 1,000 steps": every(1000, 100.0, 130.0),
    "evaluation every 20 steps, from the 150th on": every(20, 54.0, 60.0, since=150),
    "barely longer than the limit": every(150, 30.0, 32.0),
}


def recorded(name: str, shape: Recorder) -> list[float]:
    return list(shape(random.Random(name)))
