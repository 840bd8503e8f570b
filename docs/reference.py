"""Generates the reference from the code, and the pages of measurements: `python docs/reference.py`.  A test
compares them with the code."""

import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "supervisor"), str(HERE.parent / "hooks")]

from made import measured, records, run_dir, states, timeline, torchrun, verbs, wait_kinds  # noqa: E402

from ftrun.accelerators.table import VENDORS  # noqa: E402
from ftrun.config import option_table  # noqa: E402
from ftrun.core.rules import exit_codes  # noqa: E402
from ftrun.core.rules.hang_rules import RULES  # noqa: E402
from ftrun.platforms import JOBS, NODES, PLATFORMS, SCHEDULES, TASKS  # noqa: E402

SEEN = (
    (
        "MA_PROC_START_CNT",
        "1 or the incoming value, and one more at each start in this pod, over all ftruns and phases",
    ),
    (
        "MA_SCHEDULE_CNT",
        "the number of this schedule: passed on, else the scheduler's count of restarts + 1, else 1",
    ),
    ("FTRUN_RUN_DIR", "the run dir"),
    ("FTRUN_BEAT_DIR", "the beat folder; touching `touch` in it is a heartbeat"),
    ("FTRUN_RESTART_REASON", "first, hang, fault, failure, manual, peer or returned"),
    (
        "FTRUN_LAST_STEP",
        "the highest step of the earlier attempt, or with a state dir of an earlier schedule; absent if none",
    ),
    ("FTRUN_LAST_CHECKPOINT", "the newest checkpoint, also of an earlier schedule; absent if none"),
    ("FTRUN_EPOCH", "the number of this start of the whole group; absent without a group"),
    ("FTRUN_LAST_SECTION", "the outermost section in which the earlier attempt ended; absent if none"),
    ("FTRUN_ROUND", "of a rank that was started again alone: the round for which it was started"),
    ("PYTHONPATH", "with automatic heartbeats: a folder of ftrun before the given value"),
    (
        "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_WORLD_SIZE, "
        "ROLE_NAME, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, "
        "TORCHELASTIC_RUN_ID, TORCHELASTIC_USE_AGENT_STORE",
        "with `--nproc-per-node`: the place of a rank, as torchrun gives it",
    ),
    (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING, TORCH_NCCL_RETHROW_CUDA_ERRORS",
        "in a rank that can recover: 0 if not set",
    ),
    ("OMP_NUM_THREADS", "with several ranks: 1 if it is not set, as with torchrun"),
    (
        ", ".join(vendor.visible for vendor in VENDORS),
        "with `--min-devices`: without the devices that did not heal",
    ),
)
# What the probe of each vendor reads besides its `visible`, and for what.
PROBES = {
    "nvidia": (("CUDA_DEVICE_ORDER",), "which NVIDIA devices the probe reads"),
    "ascend": (
        ("ASCEND_VISIBLE_DEVICES", "LD_LIBRARY_PATH"),
        "which Ascend devices the probe reads, and with which library",
    ),
}
READ = (
    ("FTRUN_…", "the options above. An unknown name that is similar to one of them: exit 2"),
    (
        ", ".join(name for name, _ in SCHEDULES),
        "the number of this schedule; the first variable that is set counts",
    ),
    ("MA_HANG_DETECT_TIME", "minutes: the value of `--idle-timeout auto`"),
    (
        "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS",
        "how long ftrun waits for `--on-exit` and `--unmount`; -1: until they have ended",
    ),
    (", ".join(NODES), "the default of `--node-name`"),
    (
        ", ".join(JOBS),
        "the name of the job",
    ),
    *((", ".join(one.variables), f"the group, {one.name}") for one in PLATFORMS),
    (", ".join(TASKS), "the number of this task among several, for `phases.json`"),
    (
        "NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT, HCCL_RDMA_TIMEOUT, HCCL_RDMA_RETRY_CNT, HCCL_OP_RETRY_ENABLE, "
        "HCCL_OP_RETRY_PARAMS",
        "for `--link-timeout auto`: how long the communication library retries",
    ),
    (
        "RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MS_LOCAL_WORKER, MA_NUM_GPUS, GROUP_RANK, MS_NODE_RANK",
        "the ranks in this container; `reset.json` names ranks",
    ),
    (
        "RANK_ID, PADDLE_TRAINER_ID, OMPI_COMM_WORLD_RANK",
        "the rank of a process without RANK and LOCAL_RANK",
    ),
    (
        "RANK, WORLD_SIZE, LOCAL_WORLD_SIZE",
        "read from each process of the job as evidence of ranks on other nodes",
    ),
    *((", ".join((one.visible, *PROBES[one.name][0])), PROBES[one.name][1]) for one in VENDORS),
    ("TORCH_GLOO_LAZY_INIT", "whether ranks connect only when they need each other, for proofs"),
    ("TORCH_WORKER_SERVER_SOCKET", "the socket of torch's flight recorder, for evidence"),
    (
        "ASCEND_PROCESS_LOG_PATH, ASCEND_WORK_PATH",
        "in a rank: CANN's logs, for evidence; else `~/ascend/log`",
    ),
    ("NCCL_RAS_ADDR", "in a rank: where NCCL's RAS answers; `localhost:28028` by default"),
    ("PET_NPROC_PER_NODE, PET_…", "options of torchrun, where the command line is one of torchrun"),
    ("TMPDIR", "the temp folder [default: /tmp]"),
    ("KUBERNETES_SERVICE_HOST", "`ftctl doctor`: in a pod it shows remedies for a manifest"),
    (
        "OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS, TRACEPARENT",
        "with `--otlp`: the name of the service, headers, and the trace that the run is a part of",
    ),
    ("JOURNAL_STREAM", "whether ftrun's stderr goes to journald anyway"),
    ("NO_COLOR, TERM", "no colours where the first is set, or the second is `dumb`"),
    ("GLOO_SOCKET_IFNAME", "`fthang collective`: the network interface of its two ranks"),
)
AT_EVENT = (
    ("FTRUN_EVENT, FTRUN_ATTEMPT, FTRUN_RUN_DIR", "the name of the record, its attempt, and the run dir"),
    ("FTRUN_MESSAGE", "the notification as one sentence; the whole is on stdin"),
)
AT_EXIT = (
    ("FTRUN_VERDICT, FTRUN_EXIT_CODE", "how the job ended: a verdict of the table of exit codes, `succeeded`, ..."),
    ("FTRUN_RUN_DIR, FTRUN_ATTEMPT", "the run dir, and the number of the last start"),
)
HEALS = (
    ("FTRUN_FAULT_DEVICE", "id of the device"),
    ("FTRUN_FAULT_CODE", "the vendor's code"),
    ("FTRUN_FAULT_SEVERITY", "minor (a restart heals it, also where the program caused it) or major (a reset does)"),
    ("FTRUN_FAULT_INDEX", "its number for the vendor's own tools"),
)


OPTIONS = (
    "In brackets: the default; `off` disables. Durations: `500ms 90s 10m 1h 1d`. The variable of an option is `FTRUN_`",
    "and its name in capitals, such as `FTRUN_HANG_TIMEOUT`; a repeatable one has a value a line. In a config file",
    '(`--config`, TOML) these names are keys: `hang-timeout = "10m"`. What is given first counts: option, environment,',
    "annotations, phase, config file, default. Of two options that exclude each other (`--run-dir` and `--log-dir`,",
    "`--quiet` and `--verbose`) the one from the first of these sources is used; both from one source are an error.",
)
LINES = """## ftrun's own lines

ftrun writes its own lines to stderr, each with `[ftrun]` before it. A line that stderr cannot accept at once is
dropped, so that a full pipe never delays the job; `run.log` has all lines. In foreign text line breaks and control
characters are escaped. In a pipe or a file a line may follow an unfinished line of the command. `--quiet` is for a
script that needs the stderr of the bare command.

With `--log-format json` each line is a JSON object: `time` (ISO-8601, UTC), `level` (`error`: a verdict, or ftrun
itself failed; `warning`: a problem; `info`; `debug`: a record), `source` (`ftrun`), `attempt`, `message`, and with `-v`
`event` and `fields` of the [record](reference/records.md).

"""


def page() -> str:
    """Options, environment and exit codes, as MyST Markdown."""
    lines = ["# Reference", "", "Generated from the code by `docs/reference.py`.", "", "## Options", "", *OPTIONS, ""]
    for option in option_table.OPTIONS:
        short = f"`-{option.short}`, " if option.short else ""
        name = f"--{option.name}`, `--no-{option.name}" if option.no else f"--{option.name} {option.metavar}".rstrip()
        default = "" if (option.flag and not option.no) or not option.default else f" ({option.default})"
        repeated = " Repeatable." if option.many else ""
        lines.append(f"- {short}`{name}`{default}: {option.meaning}{repeated}")
    lines.append("")
    lines += ["## What the command sees", "", *_list(SEEN), ""]
    lines += ["The command of `--heal` also sees these:", "", *_list(HEALS), ""]
    lines += ["Those of `--on-event` see these:", "", *_list(AT_EVENT), ""]
    lines += ["The commands of `--on-exit` also see these:", "", *_list(AT_EXIT), ""]
    lines += ["## What ftrun reads", "", *_list(READ), ""]
    lines += LINES.splitlines()
    lines += ["## Rules by which ftrun finds a hang", "", "[How a hang is detected](hangs.md).", ""]
    lines += [f"- `{name}` (`--{rule.timeout}-timeout`): {rule.meaning}" for name, rule in RULES.items()]
    lines += ["", f"## Exit codes (contract version {exit_codes.CONTRACT_VERSION})", ""]
    lines += [
        "What each means, and what the outer scheduler should do. Any other is the command's own, or 128 + signal.",
        "",
    ]
    lines += [f"- {v.code} `{v.name}`: {v.meaning}. Then: {v.outer}" for v in exit_codes.TABLE]
    return "\n".join(lines) + "\n"


def _list(rows: tuple[tuple[str, str], ...]) -> list[str]:
    return ["- " + " ".join(f"`{name}`" for name in names.split(", ")) + f": {meaning}" for names, meaning in rows]


# By their path in docs/.
PAGES = {
    "_static/timeline.svg": timeline.picture,
    "benchmarks.md": partial(measured.page, "benchmarks"),
    "hang-matrix.md": partial(measured.page, "hang-matrix"),
    "reference.md": page,
    "reference/ftctl.md": verbs.page,
    "reference/records.md": records.page,
    "reference/run-dir.md": run_dir.page,
    "reference/states.md": states.page,
    "reference/torchrun.md": torchrun.page,
    "reliability.md": partial(measured.page, "reliability"),
    "scale.md": partial(measured.page, "scale"),
    "waitproof.md": wait_kinds.page,
}


def main() -> None:
    for path, content in PAGES.items():
        (HERE / path).write_text(content(), encoding="utf-8")
    if not states.DRAWING.exists() or states.drawn(states.DRAWING.read_text(encoding="utf-8")) != states.moving():
        try:
            states.DRAWING.write_text(states.draw(), encoding="utf-8")
        except FileNotFoundError:
            sys.exit("docs/states.svg is out of date; drawing it needs graphviz: apt-get install graphviz")


if __name__ == "__main__":
    main()
