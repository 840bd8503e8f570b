"""The table of all metrics (the name as Prometheus sees it, the meaning, the labels), and their readings.

docs/metrics.md shows this table.  Names and units are by https://prometheus.io/docs/practices/naming/.
"""

import math
import re
from collections.abc import Iterable
from typing import Final, Literal

from ftrun.core.machine import values
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.shared import RUNGS
from ftrun.core.text import states
from ftrun.messages import records
from ftrun.records.present.snapshot import Snapshot

RANKS: Final = 64  # with more ranks on this node there are no series for single ranks
DEVICES: Final = 64
PHASES: Final = tuple(states.RUN)
CAUSES: Final = ("hang", "fault", "failure")
REASONS: Final = (*CAUSES, "manual", "peer", "returned")
WHYS: Final = ("startup", "hang", "redone", "discarded", "recovery", "stopping", "healing", "waiting", "paused")
STATES: Final = tuple(states.RANKS)
WAITS: Final = ("waiting", "healing")  # phases in which no command runs, and which may last
TOUCH: Final = "touch"  # the label of the touch file, which has no rank
UNRANKED: Final = "none"  # processes without RANK, in the order of their pids: pids as labels would be unbounded


class Metric(NamedTuple):
    """An `info` is always 1; its labels carry the information."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["gauge", "counter", "info"]:
        if self.name.endswith("_total"):
            return "counter"
        return "info" if self.name.endswith("_info") else "gauge"


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values)


_RANK: Final = ("rank",)
_DEVICE: Final = ("device",)
METRICS: Final = (
    Metric("ftrun_info", "The version of ftrun, and which of several commands in sequence runs.", ("version", "part")),
    Metric("ftrun_up", "Whether an ftrun is running in this run dir."),
    Metric("ftrun_phase", f"1 for the current phase, 0 for all others: {_listed(PHASES)}.", ("phase",)),
    Metric("ftrun_start_time_seconds", "When this run began, as Unix time."),
    Metric(
        "ftrun_end_time_seconds",
        "When this run ended, as Unix time, with its verdict; absent until then.",
        ("verdict", "exit_code"),
    ),
    Metric("ftrun_waiting_seconds", "For how long no command has run, since something is waited for; else 0."),
    Metric("ftrun_lost_members", "Members of the group that are lost or without contact; absent outside a group."),
    Metric("ftrun_attempt", "Number of this start of the command in this pod."),
    Metric("ftrun_restarts_total", f"Restarts in this run dir, by reason: {_listed(REASONS)}.", ("reason",)),
    Metric("ftrun_restarts_in_a_row", f"Restarts without progress so far: {_listed(CAUSES)}.", ("cause",)),
    Metric("ftrun_restarts_left", "Restarts left in the budget; absent if it is unlimited.", ("cause",)),
    Metric("ftrun_round", "The round of ranks that can recover; absent where they cannot."),
    Metric("ftrun_recoveries_total", f"Recoveries without a restart of all, by rung: {_listed(RUNGS)}.", ("rung",)),
    Metric("ftrun_standbys_ready", "Processes of the next start whose imports are done (`--standby`)."),
    Metric("ftrun_standbys_wanted", "Processes of the next start; absent where it cannot be warm."),
    Metric("ftrun_warm_start_saved_seconds", "Time that the last warm start saved up to its first heartbeat."),
    Metric("ftrun_step", "The current step of training; absent if no steps are reported."),
    Metric("ftrun_step_seconds", "Time per step, over this attempt."),
    Metric("ftrun_ranks", f"Ranks on this node, by state: {_listed(STATES)}.", ("state",)),
    Metric("ftrun_stragglers", "Slow ranks on this node, against the median of the others, in a group of all members."),
    Metric("ftrun_lowest_step", "The lowest step of all ranks on this node."),
    Metric("ftrun_highest_step", "The highest step of all ranks on this node."),
    Metric("ftrun_slowest_step_seconds", "Time per step of the slowest rank."),
    Metric("ftrun_slowest_rank", "Number of the rank at the lowest step; -1 - pid: a process without RANK."),
    Metric(
        "ftrun_stalest_rank",
        "Number of the rank that is closest to its timeout, or silent for the longest time; -1: the touch file; "
        "-1 - pid: no RANK.",
    ),
    Metric("ftrun_stalest_age_seconds", "Silence of that rank."),
    Metric("ftrun_stalest_limit_seconds", "Silence after which that rank is suspected; absent if it has no timeout."),
    Metric(
        "ftrun_stalled_seconds", "For how long a rank has not moved, once that is unusually long and no hang; else 0."
    ),
    Metric("ftrun_checkpoint_step", "Step of the last checkpoint."),
    Metric("ftrun_checkpoint_age_seconds", "Time since the last checkpoint."),
    Metric("ftrun_lost_seconds_total", f"Time that led to no kept step, by reason: {_listed(WHYS)}.", ("why",)),
    Metric("ftrun_wall_seconds_total", "Time in which an ftrun was running in this run dir."),
    Metric("ftrun_goodput_ratio", "Share of the time that led to kept steps; absent before a step or checkpoint."),
    Metric(
        "ftrun_timeout_seconds",
        "A timeout in force (hang, start, section, device-wait, spin, idle) and its source; absent if it is off.",
        ("rule", "source"),
    ),
    Metric("ftrun_paused", "Whether verdicts are held back, for a debugger."),
    Metric("ftrun_device_info", "An accelerator of this node.", ("device", "name")),
    Metric("ftrun_device_utilization_ratio", "Utilization of the device as its driver reports it.", _DEVICE),
    Metric("ftrun_device_memory_used_bytes", "Memory in use on the device.", _DEVICE),
    Metric("ftrun_device_memory_total_bytes", "Memory of the device.", _DEVICE),
    Metric("ftrun_device_power_watts", "Power draw of the device.", _DEVICE),
    Metric("ftrun_device_age_seconds", "Time since the probe last read the device.", _DEVICE),
    Metric("ftrun_rank_step", f"Step of a rank; for up to {RANKS} ranks on this node, as all of single ranks.", _RANK),
    Metric("ftrun_rank_step_seconds", "Time per step of a rank.", _RANK),
    Metric("ftrun_rank_work_seconds", "Part of that in which it does not wait for others; absent if unknown.", _RANK),
    Metric("ftrun_rank_age_seconds", "Silence of a rank.", _RANK),
    Metric("ftrun_rank_limit_seconds", "Timeout of a rank for that silence.", _RANK),
    Metric(
        "ftrun_rank_straggler",
        "1 for a rank that is slow against the median of the others, with its place.",
        ("rank", "node", "device"),
    ),
    Metric("ftrun_verdict_info", "The verdict at the end of the run; absent until then.", ("verdict", "exit_code")),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
COUNTERS: Final = frozenset(metric.name for metric in METRICS if metric.kind == "counter")


class MetricReading(NamedTuple):
    """`labels`: the label values, in the order of the catalogue."""

    name: str
    labels: tuple[str, ...]
    value: float


def readings(found: Snapshot) -> list[MetricReading]:
    """All readings.  An unknown value has none."""
    return [
        MetricReading(name, labels, float(value))
        for name, labels, value in (*_job(found), *_ranks(found), *_devices(found))
        if value is not None and math.isfinite(value)
    ]


OptionalReading = tuple[str, tuple[str, ...], float | None]


def _job(found: Snapshot) -> Iterable[OptionalReading]:
    yield "ftrun_info", (found.version, found.part), 1
    yield "ftrun_up", (), found.alive
    for phase in dict.fromkeys((*PHASES, found.phase)):
        yield "ftrun_phase", (phase,), phase == found.phase
    yield "ftrun_start_time_seconds", (), records.seconds(found.began)
    yield "ftrun_waiting_seconds", (), (found.since or 0.0) if found.alive and found.phase in WAITS else 0.0
    yield "ftrun_lost_members", (), found.lost_members
    yield "ftrun_attempt", (), found.attempt
    for reason in REASONS:
        yield "ftrun_restarts_total", (reason,), found.restarts.get(reason, 0)
    for cause in CAUSES:
        yield "ftrun_restarts_in_a_row", (cause,), found.counts.get(cause, 0)
        yield "ftrun_restarts_left", (cause,), found.left.get(cause)
    yield "ftrun_round", (), found.round
    for rung in RUNGS:
        yield "ftrun_recoveries_total", (rung,), found.recovered.get(rung, 0)
    if (standbys := found.next_start) is not None:
        yield "ftrun_standbys_ready", (), standbys.ready
        yield "ftrun_standbys_wanted", (), standbys.of
        yield "ftrun_warm_start_saved_seconds", (), standbys.saved
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
        yield "ftrun_end_time_seconds", (found.verdict, code), records.seconds(found.ended)


def _source(text: str) -> str:
    """The first clause of the source.  The rest is for a person, and changes with each snapshot."""
    return re.split("[,:;]", text, maxsplit=1)[0]


def _ranks(found: Snapshot) -> Iterable[OptionalReading]:
    present = [rank.state for rank in found.ranks]
    for state in STATES:
        yield "ftrun_ranks", (state,), present.count(state)
    yield "ftrun_stragglers", (), sum(rank.straggler is not None for rank in found.ranks)
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
    yield "ftrun_stalled_seconds", (), 0.0 if found.stalled is None else found.stalled.age
    if len(found.ranks) <= RANKS:
        unranked = sorted((rank.rank for rank in found.ranks if rank.rank < values.TOUCH), reverse=True)
        names = {values.TOUCH: TOUCH} | {rank: f"{UNRANKED}-{index}" for index, rank in enumerate(unranked)}
        for rank in found.ranks:
            name = names.get(rank.rank, str(rank.rank))
            yield "ftrun_rank_step", (name,), rank.step
            yield "ftrun_rank_step_seconds", (name,), rank.step_time
            yield "ftrun_rank_age_seconds", (name,), rank.age
            yield "ftrun_rank_limit_seconds", (name,), rank.limit
            yield "ftrun_rank_work_seconds", (name,), rank.work
            if rank.straggler is not None:
                yield "ftrun_rank_straggler", (name, found.node, rank.device or ""), 1


def _devices(found: Snapshot) -> Iterable[OptionalReading]:
    for device in {device.id: device for device in found.devices[:DEVICES]}.values():
        labels = (device.id,)
        yield "ftrun_device_info", (device.id, device.name), 1
        yield "ftrun_device_utilization_ratio", labels, None if device.util is None else device.util / 100
        yield "ftrun_device_memory_used_bytes", labels, device.memory_used
        yield "ftrun_device_memory_total_bytes", labels, device.memory_total
        yield "ftrun_device_power_watts", labels, device.power
        yield "ftrun_device_age_seconds", labels, device.age
