"""Every metric that there is: its name as Prometheus sees it, its type, its labels, and what it says.

docs/metrics.md has this table.  Names and units are by https://prometheus.io/docs/practices/naming/.
"""

from typing import Final, Literal, NamedTuple

RANKS: Final = 64  # with more of them here there are no series of single ranks
DEVICES: Final = 64
PHASES: Final = (*("launching", "starting", "running", "suspect", "stopping", "healing", "waiting", "done", "cut off"),)
CAUSES: Final = ("hang", "fault", "failure")
REASONS: Final = (*CAUSES, "manual", "peer")
WHYS: Final = ("startup", "hang", "redone", "stopping", "healing", "waiting", "paused")
STATES: Final = ("starting", "moving", "section", "done", "gone")


class Metric(NamedTuple):
    """An `info` is always 1: what it says is in its labels."""

    name: str
    kind: Literal["gauge", "counter", "info"]
    labels: tuple[str, ...]
    help: str


def _words(words: tuple[str, ...]) -> str:
    return ", ".join(words)


METRICS: Final = (
    Metric("ftrun_info", "info", ("version", "part"), "The ftrun, and which of several commands in sequence this is."),
    Metric("ftrun_up", "gauge", (), "Whether an ftrun works in this run dir."),
    Metric("ftrun_phase", "gauge", ("phase",), f"1 for the phase it is in, 0 for all others: {_words(PHASES)}."),
    Metric("ftrun_attempt", "gauge", (), "Number of this start of the command in this pod."),
    Metric("ftrun_restarts_total", "counter", ("reason",), f"Restarts in this run dir, by reason: {_words(REASONS)}."),
    Metric("ftrun_restarts_in_a_row", "gauge", ("cause",), f"Restarts without progress so far: {_words(CAUSES)}."),
    Metric("ftrun_restarts_left", "gauge", ("cause",), "How many more there may be; absent where that has no limit."),
    Metric("ftrun_step", "gauge", (), "The step that training is at; absent where no steps are reported."),
    Metric("ftrun_step_seconds", "gauge", (), "Time a step, over this attempt."),
    Metric("ftrun_ranks", "gauge", ("state",), f"Ranks on this node, by state: {_words(STATES)}."),
    Metric("ftrun_lowest_step", "gauge", (), "The lowest step of all ranks on this node."),
    Metric("ftrun_highest_step", "gauge", (), "The highest step of all ranks on this node."),
    Metric("ftrun_slowest_step_seconds", "gauge", (), "Time a step of the rank that takes the longest."),
    Metric(
        "ftrun_slowest_rank", "gauge", (), "Number of the rank at the lowest step; -1 - pid: a process without RANK."
    ),
    Metric(
        "ftrun_stalest_rank",
        "gauge",
        (),
        "Number of the rank that is nearest to its limit; -1: the touch file; -1 - pid: no RANK.",
    ),
    Metric("ftrun_stalest_age_seconds", "gauge", (), "Silence of the rank that is nearest to its limit."),
    Metric("ftrun_stalest_limit_seconds", "gauge", (), "Its limit: a silence as long is a suspicion."),
    Metric("ftrun_checkpoint_step", "gauge", (), "Step of the last checkpoint."),
    Metric("ftrun_checkpoint_age_seconds", "gauge", (), "Time since the last checkpoint."),
    Metric("ftrun_lost_seconds_total", "counter", ("why",), f"Time that led to no kept step, by why: {_words(WHYS)}."),
    Metric("ftrun_wall_seconds_total", "counter", (), "Time in which an ftrun worked in this run dir."),
    Metric("ftrun_goodput_ratio", "gauge", (), "Time that led to kept steps, of all time in this run dir."),
    Metric(
        "ftrun_timeout_seconds",
        "gauge",
        ("rule", "source"),
        "A timeout in force (hang, start, section, idle) and where it comes from; absent where it is off.",
    ),
    Metric("ftrun_paused", "gauge", (), "Whether verdicts are held back, for a debugger."),
    Metric("ftrun_device_info", "info", ("device", "name"), "An accelerator of this node."),
    Metric("ftrun_device_utilization_ratio", "gauge", ("device",), "How busy its driver says that it is."),
    Metric("ftrun_device_memory_used_bytes", "gauge", ("device",), "Memory in use on the device."),
    Metric("ftrun_device_memory_total_bytes", "gauge", ("device",), "Memory of the device."),
    Metric("ftrun_device_power_watts", "gauge", ("device",), "Power that it draws."),
    Metric("ftrun_device_age_seconds", "gauge", ("device",), "How long ago the probe saw it."),
    Metric("ftrun_rank_step", "gauge", ("rank",), f"Step of a rank; for up to {RANKS} ranks on this node."),
    Metric("ftrun_rank_step_seconds", "gauge", ("rank",), f"Time a step of a rank; for up to {RANKS} ranks."),
    Metric("ftrun_rank_age_seconds", "gauge", ("rank",), f"Silence of a rank; for up to {RANKS} ranks."),
    Metric("ftrun_rank_limit_seconds", "gauge", ("rank",), f"Limit of that silence; for up to {RANKS} ranks."),
    Metric("ftrun_verdict_info", "info", ("verdict", "exit_code"), "How it ended; absent until then."),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
COUNTERS: Final = frozenset(metric.name for metric in METRICS if metric.kind == "counter")


def table() -> list[str]:
    """As rows of Markdown."""
    rows = ["| metric | type | labels | what it says |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return rows
