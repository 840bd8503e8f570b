"""The table of options."""

from collections.abc import Callable
from typing import Any, Final, Generic, Literal, TypeVar, overload

from ftrun.accelerators.table import BY_NAME as VENDORS
from ftrun.config.annotations import Annotations
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

T = TypeVar("T")
Read = TypeVar("Read")


class ConfigError(ValueError):
    """One line for the user on what cannot be used.  Before the start the exit code is 2, and nothing was started."""


class Option(Generic[T]):
    """`read` parses the text or raises ValueError; a `flag`, without a metavar, takes no text.  A flag with `no` is on
    by default, and `--no-NAME` switches it off.  An option with `many` may be repeated; its value is a tuple.  Its name
    is that of the attribute of `Settings`, where it stands for its value."""

    name: str

    @overload
    def __init__(
        self: "Option[Read | None]",
        metavar: str,
        default: Literal[""],
        read: Callable[[str], Read],
        meaning: str,
        short: str = "",
    ) -> None: ...

    @overload
    def __init__(
        self: "Option[Read]",
        metavar: str,
        default: str,
        read: Callable[[str], Read],
        meaning: str,
        short: str = "",
    ) -> None: ...

    def __init__(
        self,
        metavar: str,
        default: str,
        read: Callable[[str], Any],
        meaning: str,
        short: str = "",
    ) -> None:
        self.metavar, self.default, self.read, self.meaning, self.short = metavar, default, read, meaning, short
        self.flag = not metavar
        self.no = self.flag and default == "on"
        self.many = read in (paths, urls)

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.name = attribute.replace("_", "-")

    @overload
    def __get__(self, settings: None, owner: type) -> "Option[T]": ...

    @overload
    def __get__(self, settings: "Settings", owner: type) -> T: ...

    def __get__(self, settings: "Settings | None", owner: type) -> "Option[T] | T":
        if settings is None:
            return self
        value: T = settings._values[self.name]
        return value

    @property
    def variable(self) -> str:
        return "FTRUN_" + self.name.upper().replace("-", "_")


class Given(NamedTuple):
    """The text of an option.  `source`: `option`, `environment`, `annotations`, `phase NAME`, `config file` or
    `default`.  `instead`: the option of `EXCLUSIVE` that a higher source gives, so that this one is not used."""

    text: str
    source: str
    instead: str = ""


class CommandPhase(NamedTuple):
    """One of several commands that run in sequence; `texts` are its own options."""

    name: str
    command: tuple[str, ...]
    texts: dict[str, str]


RESET_FILE: Final = "/user/restore/reset/config/reset.json"
AUTO_TIMEOUT: Final = ("DUR|auto", "auto", or_auto(or_off(duration)))
AFTER_LIMIT: Final = ("reschedule|fail", "reschedule", one_of("reschedule", "fail"))
PROBES: Final = ("auto", *VENDORS, "off")


class Settings:
    """The value of each option, with the type that its parser gives, such as `settings.max_restarts`.  An option
    without a default is None where nobody gave it.  `settings["max-restarts"]` has its text, and where that comes from.
    `annotated`: what the file of `annotations` says."""

    __slots__ = ("_given", "_values", "annotated")

    restart_on = Option(
        "LIST", "hang,fault", causes, "Restart in place after these: hang, fault, failure; or after none."
    )
    max_restarts = Option(
        "N",
        "3",
        or_off(count),
        "Restart budget: restarts in a row without progress, counted per cause; after that ftrun escalates.",
    )
    progress = Option("GLOB", "", paths, "Checkpoint files: one that is new or renamed into place is progress.")
    stable_after = Option(
        "DUR",
        "1h",
        or_off(duration),
        "An attempt that has run this long counts as progress, if neither checkpoints nor steps are reported.",
    )
    backoff = Option("DUR", "1s", or_off(duration), "Wait before a restart after a failure; it doubles up to 60s.")
    hang_timeout = Option(
        *AUTO_TIMEOUT,
        "A rank without a heartbeat for this long hangs; auto: what is proved to hang does, which needs no timeout.",
    )
    start_timeout = Option(
        *AUTO_TIMEOUT,
        "The same before the first heartbeat, for any command; auto: no such timeout.",
    )
    section_timeout = Option(
        *AUTO_TIMEOUT,
        "The same inside a section without a timeout of its own; auto: none, but a given --hang-timeout in sections "
        "that ftrun opens by itself.",
    )
    idle_timeout = Option(
        *AUTO_TIMEOUT,
        "A process tree without I/O and with unchanged device utilisation for this long hangs; auto: "
        "MA_HANG_DETECT_TIME minutes, or else 30, for a job that uses an accelerator or has given heartbeats.",
    )
    idle_cpu = Option("CORES", "0.05", amount, "CPU use of the main threads below which the idle rule sees no work.")
    idle_io = Option("BYTES/S", "16384", amount, "Data rate below which the idle rule sees no work.")
    probe = Option("|".join(PROBES), "auto", one_of(*PROBES), "Which accelerators are probed.")
    check_devices = Option("on|off", "on", truth, "Check devices before the first start; a broken one means exit 197.")
    device_timeout = Option(
        "DUR",
        "60s",
        or_off(duration),
        "Devices still in use this long after a kill end the run with 197.",
    )
    fault_table = Option(
        "FILE",
        "",
        path,
        "Device fault codes at this site, one CODE SEVERITY [retry:memory|retry:network] per line.",
    )
    link_timeout = Option(
        "DUR|auto",
        "auto",
        or_auto(or_off(duration)),
        "How long a rank may stand still after a link fault, for the communication library's own retries, before "
        "recoverable ranks retry the step; auto: as NCCL_IB_* or HCCL_* say.",
    )
    reset_file = Option(
        "PATH",
        "",
        path,
        f"File in which MindCluster reports device faults. [default: {RESET_FILE}, if its folder exists]",
    )
    heal = Option(
        "COMMAND",
        "",
        path,
        "Command that cures a device fault, run once the process tree is dead; without it ftrun waits for the cure.",
    )
    heal_timeout = Option(
        "DUR",
        "5m",
        duration,
        "A fault still present this long after the kill ends the run with 197. Its last second is for the final check.",
    )
    min_devices = Option(
        "N",
        "off",
        or_off(above_zero),
        "Continue without a device that does not heal, if at least N remain; {devices} in the command is replaced by "
        "their number.",
    )
    auto_beat = Option("", "on", truth, "Send heartbeats from unmodified PyTorch programs.")
    grace = Option(
        "DUR",
        "10s",
        or_off(duration),
        "Time from SIGTERM to SIGKILL when ftrun ends the tree; off: SIGKILL at once.",
    )
    stop_grace = Option("DUR", "off", or_off(duration), "The same when the outer scheduler asked for the end.")
    run_dir = Option(
        "DIR", "", path, "Folder for records and state. [default: a new folder under the temporary folder]"
    )
    log_dir = Option(
        "DIR", "", path, "Use DIR/<YYYYmmdd_HHMMSS>_restartable/ as the run dir, or continue in that of a killed ftrun."
    )
    state_dir = Option("DIR", "", path, "Folder for faults, schedules and verdict across pods. [default: --log-dir]")
    node_name = Option(
        "NAME", "", path, "Name of this node. [default: NODE_NAME, SLURMD_NODENAME, or else the host name]"
    )
    unmount = Option("PATH", "", paths, "Unmount this path at the very end.")
    on_exit = Option("COMMAND", "", paths, "Run this command at the very end, before ftrun exits.")
    on_event = Option(
        "COMMAND",
        "",
        paths,
        "Run this command for each event of --notify-on, with the notification as JSON on its stdin.",
    )
    webhook = Option("URL", "", urls, "POST each event of --notify-on to this URL, as JSON.")
    webhook_format = Option(
        "json|slack",
        "json",
        one_of("json", "slack"),
        "The body of a webhook: the whole notification, or its text as Slack takes it.",
    )
    notify_on = Option(
        "EVENTS",
        "hang,stalled,restart,recovering,fault,lost,waiting,frozen,straggler,disk,ended",
        notices,
        "Which records --on-event and --webhook report.",
    )
    otlp = Option("URL", "", url, "Export spans and logs to this OpenTelemetry collector, as http://HOST:4318.")
    journal = Option(
        "auto|on|off",
        "auto",
        one_of("auto", "on", "off"),
        "Pass the records on to journald; auto: where it is there, unless it gets ftrun's stderr.",
    )
    unconditional_retry = Option(
        "",
        "off",
        truth,
        "At the end of the restart budget for failures, exit with the command's code.",
    )
    after_limit = Option(
        *AFTER_LIMIT,
        "Exit code when hangs have used up the budget: reschedule 195, fail 93. [fail with the annotation "
        "fault-tolerance/hang-retry]",
    )
    annotations = Option(
        "FILE", "", path, "Annotations of the job: a Kubernetes downward API file, or the JSON of a job."
    )
    termination_log = Option(
        "PATH", "", path, "File for the verdict (JSON). [default: /dev/termination-log if it exists]"
    )
    metrics = Option(
        "HOST:PORT",
        "off",
        or_off(address),
        "Serve Prometheus metrics; :9400: all interfaces; port 0: any free port.",
    )
    metrics_file = Option(
        "PATH",
        "off",
        or_off(textfile),
        "Write the metrics for node_exporter to FOLDER/NAME.prom every 15s.",
    )
    group_size = Option(
        "N|MIN:MAX|auto|off",
        "auto",
        or_auto(or_off(members)),
        "Members of the group, one ftrun each, that restart together; MIN:MAX: go on with fewer when some are lost; "
        "auto: from the platform; off: no group.",
    )
    spares = Option(
        "N",
        "0",
        count,
        "So many members of the group wait without a command, and take the places of lost ones.",
    )
    scale_out = Option(
        "restart|checkpoint",
        "restart",
        one_of("restart", "checkpoint"),
        "When members that have come back, and devices that --min-devices has taken out, are used again: at the next "
        "restart, or at the next checkpoint, which then restarts all.",
    )
    replace_members = Option(
        "",
        "off",
        truth,
        "The platform replaces a single member: one that ends with 197 or 125 does not end the others, which wait "
        "for the new one. [on with the annotation fault-tolerance/pod-retry-num]",
    )
    group_rank = Option("N", "", count, "Rank of this member in the group, from 0. [default: from the platform]")
    group_endpoint = Option(
        "HOST:PORT",
        "",
        endpoint,
        "Where rank 0 listens; :PORT takes the host from the platform. [default: from the platform, port 29470]",
    )
    group_secret_file = Option(
        "FILE",
        "",
        path,
        "File with the secret that only the members know; without one the group is limited to loopback. "
        "[default: /run/secrets/ftrun/group if it exists]",
    )
    group_job = Option(
        "TEXT", "", label, "Name that distinguishes two groups on one port. [default: from the platform]"
    )
    wait_peer = Option(
        "DUR",
        "10m",
        duration,
        "A lost member that has not returned after this long ends the run with 195; with MIN:MAX fewer go on.",
    )
    peer_timeout = Option("DUR", "1m", duration, "A member that is silent for this long counts as lost.")
    nproc_per_node = Option(
        "N|auto|gpu|cpu",
        "off",
        or_off(or_words(above_zero, "auto", "gpu", "cpu")),
        "Start the command N times on this node, as ranks with torchrun's environment variables; gpu: one for each "
        "device, cpu: one for each core, auto: gpu, or cpu without a device.",
    )
    recover = Option(
        "LIST",
        "retry,rank",
        some_of(OPERATOR, *RUNGS),
        "What may cure a fault of ranks that use @ft.recoverable, short of a restart of all: retry, all call their "
        "function again; rank, the faulty one is started again alone; operator, HCCL executes its operators again "
        "(HCCL_OP_RETRY_ENABLE); or none.",
    )
    recover_timeout = Option(
        "DUR",
        "60s",
        duration,
        "A rank that has not left its training function this long after such a fault is ended and started again.",
    )
    local_ranks_filter = Option(
        "RANKS",
        "",
        ranks,
        "With --nproc-per-node: print the output of these local ranks alone, such as 0 or 0,1.",
    )
    prefix_ranks = Option("", "off", truth, "Print the number of its rank before each line of a rank.")
    standby = Option(
        "off|auto|N",
        "auto",
        or_off(or_auto(above_zero)),
        "Processes of the next start that wait with their imports done; auto: one for each process of a Python "
        "command, 30 s after its first heartbeat, where there is memory for them.",
    )
    preload = Option(
        "MODULES",
        "",
        module_names,
        "Modules, such as torch,transformers, that are imported once before the first start of several ranks, which "
        "are then forked. [default: what the last attempt had imported]",
    )
    config = Option("FILE", "", path, "TOML file with these option names as keys.")
    dry_run = Option("", "off", truth, "Print each option's value and its source, and start nothing.")
    log_format = Option("text|json", "text", one_of("text", "json"), "Format of ftrun's own lines on stderr.")
    quiet = Option("", "off", truth, "Print ftrun's own lines on stderr only for an error that prevents a start.", "q")
    verbose = Option("", "off", truth, "Print every record as a line on stderr.", "v")

    def __init__(self, values: dict[str, Any], given: dict[str, Given], annotated: Annotations) -> None:
        self._values, self._given, self.annotated = values, given, annotated

    def __getitem__(self, name: str) -> Given:
        return self._given[name]

    def with_run_dir(self, path: str) -> "Settings":
        """These settings with this run dir, for one of several phases."""
        values, given = self._values | {"run-dir": path}, self._given | {"run-dir": Given(path, "phase")}
        return Settings(values, given, self.annotated)


OPTIONS: Final = tuple(option for option in vars(Settings).values() if isinstance(option, Option))
BY_NAME: Final = {option.name: option for option in OPTIONS}
EXCLUSIVE: Final = (("run-dir", "log-dir"), ("quiet", "verbose"))  # of each pair, the higher source's is used
JOB_OPTIONS: Final = (  # a phase cannot set these
    *("config", "run-dir", "log-dir", "state-dir", "node-name", "annotations", "termination-log", "unmount", "on-exit"),
    *("on-event", "webhook", "webhook-format", "notify-on", "otlp", "journal", "dry-run"),
    *("log-format", "quiet", "verbose", "metrics", "metrics-file"),
    *("group-size", "group-rank", "group-endpoint", "group-secret-file", "group-job", "wait-peer"),
    *("peer-timeout", "spares", "scale-out", "replace-members"),
)
