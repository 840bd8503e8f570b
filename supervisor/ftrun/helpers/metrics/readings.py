"""Converts the snapshot of a run into readings of the metrics.  Pure; the number of readings is bounded."""

import math
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from ftrun.core.machine import values
from ftrun.helpers.metrics.catalogue import (
    CAUSES,
    DEVICES,
    PHASES,
    RANKS,
    REASONS,
    STATES,
    WHYS,
)
from ftrun.views.snapshot import DeviceNow, RankNow, Snapshot

TOUCH: Final = "touch"  # the label of the touch file, which has no rank
UNRANKED: Final = "none"  # processes without RANK, in the order of their pids: pids as labels would be unbounded


class Reading(NamedTuple):
    """`labels`: the label values, in the order of the catalogue."""

    name: str
    labels: tuple[str, ...]
    value: float


def readings(found: Snapshot) -> list[Reading]:
    """All readings.  An unknown value has none."""
    return [
        Reading(name, labels, float(value))
        for name, labels, value in (*_job(found), *_ranks(found), *_devices(found))
        if value is not None and math.isfinite(value)
    ]


OptionalReading = tuple[str, tuple[str, ...], float | None]


def _job(found: Snapshot) -> Iterable[OptionalReading]:
    yield "ftrun_info", (found.version, found.part), 1
    yield "ftrun_up", (), found.alive
    for phase in dict.fromkeys((*PHASES, found.phase)):
        yield "ftrun_phase", (phase,), phase == found.phase
    yield "ftrun_attempt", (), found.attempt
    for reason in REASONS:
        yield "ftrun_restarts_total", (reason,), found.restarts.get(reason, 0)
    for cause in CAUSES:
        yield "ftrun_restarts_in_a_row", (cause,), found.counts.get(cause, 0)
        yield "ftrun_restarts_left", (cause,), found.left.get(cause)
    yield "ftrun_step", (), found.step
    yield "ftrun_step_seconds", (), found.step_time
    yield "ftrun_checkpoint_step", (), found.checkpoint_step
    yield "ftrun_checkpoint_age_seconds", (), found.checkpoint_age
    for why in WHYS:
        yield "ftrun_lost_seconds_total", (why,), found.lost.get(why, 0.0)
    yield "ftrun_wall_seconds_total", (), found.wall
    yield "ftrun_goodput_ratio", (), found.goodput
    for limit in {limit.name: limit for limit in found.limits}.values():
        yield "ftrun_timeout_seconds", (limit.name, _source(limit.source)), limit.seconds
    yield "ftrun_paused", (), found.paused is not None
    if found.verdict is not None:
        code = "" if found.exit_code is None else str(found.exit_code)
        yield "ftrun_verdict_info", (found.verdict, code), 1


def _source(text: str) -> str:
    """The first clause of the source.  The rest is for a person, and changes with each snapshot."""
    return re.split("[,:;]", text, maxsplit=1)[0]


def _ranks(found: Snapshot) -> Iterable[OptionalReading]:
    states = [rank.state for rank in found.ranks]
    for state in STATES:
        yield "ftrun_ranks", (state,), states.count(state)
    steps = [rank.step for rank in found.ranks if rank.step is not None]
    yield "ftrun_lowest_step", (), min(steps, default=None)
    yield "ftrun_highest_step", (), max(steps, default=None)
    times = [rank.step_time for rank in found.ranks if rank.step_time is not None]
    yield "ftrun_slowest_step_seconds", (), max(times, default=None)
    if found.slowest is not None:
        yield "ftrun_slowest_rank", (), found.slowest.rank
    if found.stalest is not None:
        yield "ftrun_stalest_rank", (), found.stalest.rank
        yield "ftrun_stalest_age_seconds", (), found.stalest.age
        yield "ftrun_stalest_limit_seconds", (), found.stalest.limit
    if len(found.ranks) <= RANKS:
        unranked = sorted((rank.rank for rank in found.ranks if rank.rank < values.TOUCH), reverse=True)
        names = {values.TOUCH: TOUCH} | {rank: f"{UNRANKED}-{index}" for index, rank in enumerate(unranked)}
        for rank in found.ranks:
            yield from _rank(rank, names.get(rank.rank, str(rank.rank)))


def _rank(rank: RankNow, name: str) -> Iterable[OptionalReading]:
    labels = (name,)
    yield "ftrun_rank_step", labels, rank.step
    yield "ftrun_rank_step_seconds", labels, rank.step_time
    yield "ftrun_rank_age_seconds", labels, rank.age
    yield "ftrun_rank_limit_seconds", labels, rank.limit


def _devices(found: Snapshot) -> Iterable[OptionalReading]:
    for device in {device.id: device for device in found.devices[:DEVICES]}.values():
        yield from _device(device)


def _device(device: DeviceNow) -> Iterable[OptionalReading]:
    labels = (device.id,)
    yield "ftrun_device_info", (device.id, device.name), 1
    yield "ftrun_device_utilization_ratio", labels, None if device.util is None else device.util / 100
    yield "ftrun_device_memory_used_bytes", labels, device.memory_used
    yield "ftrun_device_memory_total_bytes", labels, device.memory_total
    yield "ftrun_device_power_watts", labels, device.power
    yield "ftrun_device_age_seconds", labels, device.age
