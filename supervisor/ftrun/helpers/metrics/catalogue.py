"""The table of all metrics: the name as Prometheus sees it, the type, the labels, and the meaning.

docs/metrics.md shows this table.  Names and units are by https://prometheus.io/docs/practices/naming/.
"""

from typing import Final, Literal, NamedTuple

RANKS: Final = 64  # with more ranks on this node there are no series for single ranks
DEVICES: Final = 64
PHASES: Final = (*("launching", "starting", "running", "suspect", "stopping", "healing", "waiting", "done", "cut off"),)
CAUSES: Final = ("hang", "fault", "failure")
REASONS: Final = (*CAUSES, "manual", "peer")
WHYS: Final = ("startup", "hang", "redone", "stopping", "healing", "waiting", "paused")
STATES: Final = ("starting", "moving", "section", "done", "gone")


class Metric(NamedTuple):
    """An `info` is always 1; its labels carry the information."""

    name: str
    kind: Literal["gauge", "counter", "info"]
    labels: tuple[str, ...]
    help: str


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values)


METRICS: Final = (
    Metric(
        "ftrun_info",
        "info",
        ("version", "part"),
        "The version of ftrun, and which of several commands in sequence runs.",
    ),
    Metric("ftrun_up", "gauge", (), "Whether an ftrun is running in this run dir."),
    Metric("ftrun_phase", "gauge", ("phase",), f"1 for the current phase, 0 for all others: {_listed(PHASES)}."),
    Metric("ftrun_attempt", "gauge", (), "Number of this start of the command in this pod."),
    Metric("ftrun_restarts_total", "counter", ("reason",), f"Restarts in this run dir, by reason: {_listed(REASONS)}."),
    Metric("ftrun_restarts_in_a_row", "gauge", ("cause",), f"Restarts without progress so far: {_listed(CAUSES)}."),
    Metric("ftrun_restarts_left", "gauge", ("cause",), "Restarts left in the budget; absent if it is unlimited."),
    Metric("ftrun_step", "gauge", (), "The current step of training; absent if no steps are reported."),
    Metric("ftrun_step_seconds", "gauge", (), "Time per step, over this attempt."),
    Metric("ftrun_ranks", "gauge", ("state",), f"Ranks on this node, by state: {_listed(STATES)}."),
    Metric("ftrun_lowest_step", "gauge", (), "The lowest step of all ranks on this node."),
    Metric("ftrun_highest_step", "gauge", (), "The highest step of all ranks on this node."),
    Metric("ftrun_slowest_step_seconds", "gauge", (), "Time per step of the slowest rank."),
    Metric(
        "ftrun_slowest_rank", "gauge", (), "Number of the rank at the lowest step; -1 - pid: a process without RANK."
    ),
    Metric(
        "ftrun_stalest_rank",
        "gauge",
        (),
        "Number of the rank that is closest to its timeout; -1: the touch file; -1 - pid: no RANK.",
    ),
    Metric("ftrun_stalest_age_seconds", "gauge", (), "Silence of the rank that is closest to its timeout."),
    Metric(
        "ftrun_stalest_limit_seconds", "gauge", (), "Its timeout: after a silence of this length the rank is suspected."
    ),
    Metric("ftrun_checkpoint_step", "gauge", (), "Step of the last checkpoint."),
    Metric("ftrun_checkpoint_age_seconds", "gauge", (), "Time since the last checkpoint."),
    Metric(
        "ftrun_lost_seconds_total", "counter", ("why",), f"Time that led to no kept step, by reason: {_listed(WHYS)}."
    ),
    Metric("ftrun_wall_seconds_total", "counter", (), "Time in which an ftrun was running in this run dir."),
    Metric("ftrun_goodput_ratio", "gauge", (), "Share of the time in this run dir that led to kept steps."),
    Metric(
        "ftrun_timeout_seconds",
        "gauge",
        ("rule", "source"),
        "A timeout in force (hang, start, section, idle) and its source; absent if it is off.",
    ),
    Metric("ftrun_paused", "gauge", (), "Whether verdicts are held back, for a debugger."),
    Metric("ftrun_device_info", "info", ("device", "name"), "An accelerator of this node."),
    Metric(
        "ftrun_device_utilization_ratio", "gauge", ("device",), "Utilization of the device as its driver reports it."
    ),
    Metric("ftrun_device_memory_used_bytes", "gauge", ("device",), "Memory in use on the device."),
    Metric("ftrun_device_memory_total_bytes", "gauge", ("device",), "Memory of the device."),
    Metric("ftrun_device_power_watts", "gauge", ("device",), "Power draw of the device."),
    Metric("ftrun_device_age_seconds", "gauge", ("device",), "Time since the probe last read the device."),
    Metric("ftrun_rank_step", "gauge", ("rank",), f"Step of a rank; for up to {RANKS} ranks on this node."),
    Metric("ftrun_rank_step_seconds", "gauge", ("rank",), f"Time per step of a rank; for up to {RANKS} ranks."),
    Metric("ftrun_rank_age_seconds", "gauge", ("rank",), f"Silence of a rank; for up to {RANKS} ranks."),
    Metric(
        "ftrun_rank_limit_seconds", "gauge", ("rank",), f"Timeout of a rank for that silence; for up to {RANKS} ranks."
    ),
    Metric(
        "ftrun_verdict_info", "info", ("verdict", "exit_code"), "The verdict at the end of the run; absent until then."
    ),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
COUNTERS: Final = frozenset(metric.name for metric in METRICS if metric.kind == "counter")


def table() -> list[str]:
    """As rows of Markdown."""
    rows = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return rows
