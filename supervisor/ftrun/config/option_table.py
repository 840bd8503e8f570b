"""The table of options."""

from collections.abc import Callable
from typing import Any, Final

from ftrun.accelerators.table import BY_NAME as VENDORS
from ftrun.config.parsers import (
    above_zero,
    address,
    amount,
    causes,
    count,
    duration,
    endpoint,
    label,
    members,
    module_names,
    notices,
    one_of,
    or_auto,
    or_off,
    or_words,
    path,
    paths,
    ranks,
    some_of,
    textfile,
    truth,
    url,
    urls,
)
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.ranks.shared import OPERATOR, RUNGS


class ConfigError(ValueError):
    """One line for the user.  The exit code is 2, and nothing was started."""


class Option(NamedTuple):
    """`read` parses the text or raises ValueError; a `flag` takes no text.  A flag with `no` is on by default, and
    `--no-NAME` switches it off.  An option with `many` may be repeated; its value is a tuple."""

    name: str
    metavar: str
    default: str
    read: Callable[[str], Any]
    meaning: str
    short: str = ""
    flag: bool = False
    no: bool = False
    many: bool = False

    @property
    def variable(self) -> str:
        return "FTRUN_" + self.name.upper().replace("-", "_")


class Value(NamedTuple):
    value: Any
    text: str
    source: str  # "option", "environment", "annotations", "config file" or "default"


Settings = dict[str, Value]


class Phase(NamedTuple):
    """One of several commands that run in sequence; `texts` are its own options."""

    name: str
    command: tuple[str, ...]
    texts: dict[str, str]


RESET_FILE: Final = "/user/restore/reset/config/reset.json"
AUTO_TIMEOUT: Final = ("DUR|auto", "auto", or_auto(or_off(duration)))
AFTER_LIMIT: Final = ("reschedule|fail", "reschedule", one_of("reschedule", "fail"))
PROBES: Final = ("auto", *VENDORS, "off")

OPTIONS: Final = (
    Option(
        "restart-on", "LIST", "hang,fault", causes, "Restart in place after these: hang, fault, failure; or after none."
    ),
    Option(
        "max-restarts",
        "N",
        "3",
        or_off(count),
        "Restart budget: restarts in a row without progress, counted per cause; after that ftrun escalates.",
    ),
    Option(
        "progress", "GLOB", "", paths, "Checkpoint files: one that is new or renamed into place is progress.", many=True
    ),
    Option(
        "stable-after",
        "DUR",
        "1h",
        or_off(duration),
        "An attempt that has run this long counts as progress, if neither checkpoints nor steps are reported.",
    ),
    Option("backoff", "DUR", "1s", or_off(duration), "Wait before a restart after a failure; it doubles up to 60s."),
    Option(
        "hang-timeout",
        *AUTO_TIMEOUT,
        "A rank without a heartbeat for this long hangs; auto: what is proved to hang does, which needs no timeout.",
    ),
    Option(
        "start-timeout",
        *AUTO_TIMEOUT,
        "The same before the first heartbeat, for any command; auto: no such timeout.",
    ),
    Option(
        "section-timeout",
        *AUTO_TIMEOUT,
        "The same inside a section without a timeout of its own; auto: none, but a given --hang-timeout in sections "
        "that ftrun opens by itself.",
    ),
    Option(
        "idle-timeout",
        *AUTO_TIMEOUT,
        "A process tree without I/O and with unchanged device utilisation for this long hangs; auto: "
        "MA_HANG_DETECT_TIME minutes, or else 30, for a job that uses an accelerator or has given heartbeats.",
    ),
    Option("idle-cpu", "CORES", "0.05", amount, "CPU use of the main threads below which the idle rule sees no work."),
    Option("idle-io", "BYTES/S", "16384", amount, "Data rate below which the idle rule sees no work."),
    Option("probe", "|".join(PROBES), "auto", one_of(*PROBES), "Which accelerators are probed."),
    Option(
        "check-devices", "on|off", "on", truth, "Check devices before the first start; a broken one means exit 197."
    ),
    Option(
        "device-timeout",
        "DUR",
        "60s",
        or_off(duration),
        "Devices still in use this long after a kill end the run with 197.",
    ),
    Option(
        "fault-table",
        "FILE",
        "",
        path,
        "Device fault codes at this site, one CODE SEVERITY [retry:memory|retry:network] per line.",
    ),
    Option(
        "link-timeout",
        "DUR|auto",
        "auto",
        or_auto(or_off(duration)),
        "After a link fault a rank may stand still for this long, for retries of the communication library itself, "
        "before recoverable ranks retry the step; auto: as NCCL_IB_* or HCCL_* say.",
    ),
    Option(
        "reset-file",
        "PATH",
        "",
        path,
        f"File in which MindCluster reports device faults. [default: {RESET_FILE}, if its folder exists]",
    ),
    Option(
        "heal",
        "COMMAND",
        "",
        path,
        "Command that cures a device fault, run once the process tree is dead; without it ftrun waits for the cure.",
    ),
    Option(
        "heal-timeout", "DUR", "5m", duration, "A fault still present this long after the kill ends the run with 197."
    ),
    Option(
        "min-devices",
        "N",
        "off",
        or_off(above_zero),
        "Continue without a device that does not heal, until it is healthy again, if at least N remain; {devices} in "
        "the command is replaced by their number.",
    ),
    Option("auto-beat", "", "on", truth, "Send heartbeats from unmodified PyTorch programs.", flag=True, no=True),
    Option(
        "grace",
        "DUR",
        "10s",
        or_off(duration),
        "Time from SIGTERM to SIGKILL when ftrun ends the tree; off: SIGKILL at once.",
    ),
    Option("stop-grace", "DUR", "off", or_off(duration), "The same when the outer scheduler asked for the end."),
    Option(
        "run-dir", "DIR", "", path, "Folder for records and state. [default: a new folder under the temporary folder]"
    ),
    Option("log-dir", "DIR", "", path, "Use DIR/<YYYYmmdd_HHMMSS>_restartable/ as the run dir."),
    Option("state-dir", "DIR", "", path, "Folder for faults, schedules and verdict across pods. [default: --log-dir]"),
    Option(
        "node-name", "NAME", "", path, "Name of this node. [default: NODE_NAME, SLURMD_NODENAME, or else the host name]"
    ),
    Option("unmount", "PATH", "", paths, "Unmount this path at the very end.", many=True),
    Option("on-exit", "COMMAND", "", paths, "Run this command at the very end, before ftrun exits.", many=True),
    Option(
        "on-event",
        "COMMAND",
        "",
        paths,
        "Run this command for each event of --notify-on, with the notification as JSON on its stdin.",
        many=True,
    ),
    Option("webhook", "URL", "", urls, "POST each event of --notify-on to this URL, as JSON.", many=True),
    Option(
        "webhook-format",
        "json|slack",
        "json",
        one_of("json", "slack"),
        "The body of a webhook: the whole notification, or its text as Slack takes it.",
    ),
    Option(
        "notify-on",
        "EVENTS",
        "hang,stalled,restart,recovering,fault,lost,waiting,straggler,ended",
        notices,
        "Which records --on-event and --webhook report.",
    ),
    Option("otlp", "URL", "", url, "Export spans and logs to this OpenTelemetry collector, as http://HOST:4318."),
    Option(
        "journal",
        "auto|on|off",
        "auto",
        one_of("auto", "on", "off"),
        "Pass the records on to journald; auto: where it is there, unless it gets ftrun's stderr.",
    ),
    Option(
        "unconditional-retry",
        "",
        "off",
        truth,
        "At the end of the restart budget for failures, exit with the command's code.",
        flag=True,
    ),
    Option(
        "after-limit",
        *AFTER_LIMIT,
        "Exit code when hangs have used up the budget: reschedule 195, fail 93. [fail with the annotation "
        "fault-tolerance/hang-retry]",
    ),
    Option(
        "annotations", "FILE", "", path, "Annotations of the job: a Kubernetes downward API file, or the JSON of a job."
    ),
    Option(
        "termination-log", "PATH", "", path, "File for the verdict (JSON). [default: /dev/termination-log if it exists]"
    ),
    Option(
        "metrics",
        "HOST:PORT",
        "off",
        or_off(address),
        "Serve Prometheus metrics; :9400: all interfaces; port 0: any free port.",
    ),
    Option(
        "metrics-file",
        "PATH",
        "off",
        or_off(textfile),
        "Write the metrics for node_exporter to FOLDER/NAME.prom every 15s.",
    ),
    Option(
        "group-size",
        "N|MIN:MAX|auto|off",
        "auto",
        or_auto(or_off(members)),
        "Members of the group, one ftrun each, that restart together; MIN:MAX: go on with fewer when some are lost; "
        "auto: from the platform; off: no group.",
    ),
    Option(
        "spares",
        "N",
        "0",
        count,
        "So many members of the group wait without a command, and take the places of lost ones.",
    ),
    Option(
        "scale-out",
        "restart|checkpoint",
        "restart",
        one_of("restart", "checkpoint"),
        "When a group with fewer members takes in those that have come back, and when a device that --min-devices has "
        "taken out is used again: at the next restart, or at the next checkpoint, which then restarts all.",
    ),
    Option(
        "replace-members",
        "",
        "off",
        truth,
        "The platform replaces a single member: one that ends with 197 or 125 does not end the others, which wait "
        "for the new one. [on with the annotation fault-tolerance/pod-retry-num]",
        flag=True,
    ),
    Option("group-rank", "N", "", count, "Rank of this member in the group, from 0. [default: from the platform]"),
    Option(
        "group-endpoint",
        "HOST:PORT",
        "",
        endpoint,
        "Where rank 0 listens; :PORT takes the host from the platform. [default: from the platform, port 29470]",
    ),
    Option(
        "group-secret-file",
        "FILE",
        "",
        path,
        "File with the secret that only the members know; without one the group is limited to loopback. "
        "[default: /run/secrets/ftrun/group if it exists]",
    ),
    Option(
        "group-job", "TEXT", "", label, "Name that distinguishes two groups on one port. [default: from the platform]"
    ),
    Option(
        "wait-peer",
        "DUR",
        "10m",
        duration,
        "A lost member that has not returned after this long ends the run with 195; with MIN:MAX fewer go on.",
    ),
    Option("peer-timeout", "DUR", "1m", duration, "A member that is silent for this long counts as lost."),
    Option(
        "nproc-per-node",
        "N|auto|gpu|cpu",
        "off",
        or_off(or_words(above_zero, "auto", "gpu", "cpu")),
        "Start the command N times on this node, as ranks with torchrun's environment variables; gpu: one for each "
        "device, cpu: one for each core, auto: gpu, or cpu without a device.",
    ),
    Option(
        "recover",
        "LIST",
        "retry,rank",
        some_of(OPERATOR, *RUNGS),
        "With --nproc-per-node: what may cure a fault of ranks that use @ft.recoverable, short of a restart of all: "
        "retry, all call their training function again; rank, the faulty one is started again alone; operator, HCCL "
        "executes its operators again (HCCL_OP_RETRY_ENABLE); or none.",
    ),
    Option(
        "recover-timeout",
        "DUR",
        "60s",
        duration,
        "A rank that has not left its training function this long after such a fault is ended and started again.",
    ),
    Option(
        "local-ranks-filter",
        "RANKS",
        "",
        ranks,
        "With --nproc-per-node: print the output of these local ranks alone, such as 0 or 0,1.",
    ),
    Option("prefix-ranks", "", "off", truth, "Print the number of its rank before each line of a rank.", flag=True),
    Option(
        "standby",
        "off|auto|N",
        "auto",
        or_off(or_auto(above_zero)),
        "Processes of the next start that wait with their imports done, so that a restart does not pay for them; auto: "
        "one for each process of a Python command, 30 s after its first heartbeat, where there is memory for them.",
    ),
    Option(
        "preload",
        "MODULES",
        "",
        module_names,
        "Modules, such as torch,transformers, that are imported once before the first start of several ranks, which "
        "are then forked; default: what the last attempt of the command had imported.",
    ),
    Option("config", "FILE", "", path, "TOML file with these option names as keys."),
    Option("dry-run", "", "off", truth, "Print each option's value and its source, and start nothing.", flag=True),
    Option("log-format", "text|json", "text", one_of("text", "json"), "Format of ftrun's own lines on stderr."),
    Option("quiet", "", "off", truth, "Print none of ftrun's own lines on stderr.", "q", flag=True),
    Option("verbose", "", "off", truth, "Print every record as a line on stderr.", "v", flag=True),
)
BY_NAME: Final = {option.name: option for option in OPTIONS}
JOB_OPTIONS: Final = (  # a phase cannot set these
    *("config", "run-dir", "log-dir", "state-dir", "node-name", "annotations", "termination-log", "unmount", "on-exit"),
    *("on-event", "webhook", "webhook-format", "notify-on", "otlp", "journal", "dry-run"),
    *("log-format", "quiet", "verbose", "metrics", "metrics-file"),
    *("group-size", "group-rank", "group-endpoint", "group-secret-file", "group-job", "wait-peer"),
    *("peer-timeout", "spares", "scale-out", "replace-members"),
)
