"""The table of options, and the source of each value: option > environment > annotations > config file > default."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ftrun.accelerators.table import BY_NAME as VENDORS
from ftrun.config import annotations
from ftrun.config.parsers import (
    above_zero,
    address,
    amount,
    causes,
    count,
    duration,
    endpoint,
    label,
    near,
    one_of,
    or_auto,
    or_off,
    path,
    paths,
    textfile,
    truth,
)
from ftrun.core.named_tuple import NamedTuple


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
LEARNED_TIMEOUT: Final = ("DUR|auto", "auto", or_auto(or_off(duration)))
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
    Option("hang-timeout", *LEARNED_TIMEOUT, "A rank without a heartbeat for this long hangs; auto: learned."),
    Option(
        "start-timeout",
        *LEARNED_TIMEOUT,
        "The same before the first heartbeat; auto: 1h, in a job that is known to send heartbeats.",
    ),
    Option(
        "section-timeout",
        *LEARNED_TIMEOUT,
        "The same inside a section without a timeout of its own; auto: 1h, but in sections that ftrun opens by itself "
        "the given --hang-timeout, or else a timeout learned from earlier sections of that name.",
    ),
    Option(
        "idle-timeout",
        *LEARNED_TIMEOUT,
        "A process tree without I/O and with unchanged device utilisation for this long hangs; auto: "
        "MA_HANG_DETECT_TIME minutes, or else 30, for a job that uses an accelerator.",
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
        "fault-table", "FILE", "", path, "Severities of device fault codes at this site, one CODE SEVERITY per line."
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
        "unconditional-retry",
        "",
        "off",
        truth,
        "At the end of the restart budget for failures, exit with the command's code.",
        flag=True,
    ),
    Option("after-limit", *AFTER_LIMIT, "Exit code when hangs have used up the budget: reschedule 195, fail 93."),
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
        "N|auto|off",
        "auto",
        or_auto(or_off(above_zero)),
        "Members of the group, one ftrun each, that restart together; auto: from the platform; off: no group.",
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
        "A lost member that has not returned after this long ends the run with 195.",
    ),
    Option("peer-timeout", "DUR", "1m", duration, "A member that is silent for this long counts as lost."),
    Option("config", "FILE", "", path, "TOML file with these option names as keys."),
    Option("log-format", "text|json", "text", one_of("text", "json"), "Format of ftrun's own lines on stderr."),
    Option("quiet", "", "off", truth, "Print none of ftrun's own lines on stderr.", "q", flag=True),
    Option("verbose", "", "off", truth, "Print every record as a line on stderr.", "v", flag=True),
)
BY_NAME: Final = {option.name: option for option in OPTIONS}
JOB_OPTIONS: Final = (  # a phase cannot set these
    *("config", "run-dir", "log-dir", "state-dir", "node-name", "annotations", "termination-log", "unmount", "on-exit"),
    *("log-format", "quiet", "verbose", "metrics", "metrics-file"),
    *("group-size", "group-rank", "group-endpoint", "group-secret-file", "group-job", "wait-peer"),
    "peer-timeout",
)
# Variables that ftrun sets for its command (docs/reference.md); they are not options of a nested ftrun.
COMMAND_VARIABLES: Final = ("BEAT_DIR", "EPOCH", "RESTART_REASON", "LAST_STEP", "LAST_CHECKPOINT", "LAST_SECTION")


def settings(given: Mapping[str, str], environment: Mapping[str, str], phase: Phase | None = None) -> Settings:
    """The value of every option with its source, for `phase` if given; ConfigError for the first wrong value."""
    from_environment = _environment(environment)
    file = given.get("config") or from_environment.get("config")
    from_file = read_file(file)[0] if file else {}
    platform = given.get("annotations") or from_environment.get("annotations") or from_file.get("annotations")
    annotated = read_annotations(platform) if platform else annotations.Annotations()
    sources = (
        ("option", given),
        ("environment", from_environment),
        ("annotations", dict(annotated.texts)),
        (f"phase {phase.name}" if phase else "", phase.texts if phase else {}),
        ("config file", from_file),
    )
    found: Settings = {}
    for option in OPTIONS:
        source, text = next(
            ((s, texts[option.name]) for s, texts in sources if option.name in texts), ("default", None)
        )
        if text is None:
            found[option.name] = Value(option.read(option.default) if option.default else None, option.default, source)
            continue
        try:
            found[option.name] = Value(option.read(text), text, source)
        except ValueError as error:
            given_as = f"--{option.name}", option.variable, f"{file}: {option.name}"
            places = dict(zip(("option", "environment", "config file"), given_as, strict=True))
            name = places.get(source, f"{source}: {option.name}")
            raise ConfigError(f"{name}: {error}") from None
    if found["run-dir"].value and found["log-dir"].value:
        raise ConfigError("--run-dir and --log-dir cannot be used together")
    if found["fault-table"].value:
        _check_table(found["fault-table"].value)
    return found | {"annotations": found["annotations"]._replace(value=annotated)}


def _check_table(file: str) -> None:
    """ConfigError if the fault table of the site has any error.  The helpers that need the table read it again."""
    from ftrun.core.rules import fault_codes

    content = _content("fault-table", file)
    try:
        fault_codes.parse(content.decode())
    except ValueError as error:
        raise ConfigError(f"--fault-table {file}: {error}") from None


def read_annotations(file: str) -> annotations.Annotations:
    return annotations.read(file, _content("annotations", file).decode("utf-8", "replace"))


def _content(option: str, file: str) -> bytes:
    """At most 1 MiB of the file.  Opening a FIFO does not wait for its writer."""
    try:
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            return stream.read(1 << 20) or b""
    except OSError as error:
        raise ConfigError(f"--{option} {file}: {error.strerror}") from None


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    variables = {option.variable: option.name for option in OPTIONS}
    ignored = {"FTRUN_" + name for name in COMMAND_VARIABLES}
    if "FTRUN_BEAT_DIR" in environment:
        # These variables come from an outer ftrun: its run dir and its place in a group are not those of this one.
        ignored |= {"FTRUN_RUN_DIR", *(name for name in variables if name.startswith("FTRUN_GROUP_"))}
    found = {}
    for variable, text in environment.items():
        if not variable.startswith("FTRUN_") or variable in ignored:
            continue
        if variable in variables:
            if text:
                found[variables[variable]] = text
        elif match := near(variable, variables, 0.85):
            # Other programs may use the prefix (Kubernetes sets FTRUN_PORT for a service named ftrun), so only a name
            # that is close to an option is an error.
            raise ConfigError(f"{variable}: no such option{match}")
    return found


def phases(given: Mapping[str, str], environment: Mapping[str, str]) -> list[Phase]:
    """The `[[phase]]` tables of the config file, in order."""
    file = given.get("config") or _environment(environment).get("config")
    return read_file(file)[1] if file else []


def read_file(file: str) -> tuple[dict[str, str], list[Phase]]:
    """The keys of a TOML file as option texts, and its phases."""
    import tomllib

    try:
        with open(file, "rb") as stream:
            content = tomllib.loads(stream.read(1 << 20).decode())
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {file}: {error}") from None
    tables = content.pop("phase", [])
    try:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError("phase is not a list of tables; write [[phase]]")
        found = [_phase(table) for table in tables]
        for name in {phase.name for phase in found}:
            if sum(phase.name == name for phase in found) > 1:
                raise ConfigError(f"two phases have the name {name!r}")
        return _texts(content, BY_NAME), found
    except ConfigError as error:
        raise ConfigError(f"--config {file}: {error}") from None


def _phase(table: dict[str, Any]) -> Phase:
    name, command = table.pop("name", None), table.pop("command", None)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,100}", name):
        raise ConfigError(f"a phase has the name {name!r}; use letters, digits, and any of . _ -")
    import shlex

    try:
        arguments = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise ConfigError(f"phase {name!r}: command: {error}") from None
    if not isinstance(arguments, list) or not arguments or not all(isinstance(one, str) for one in arguments):
        raise ConfigError(f"phase {name!r} has no command; write command = ['python', 'train.py']")
    try:
        return Phase(name, tuple(arguments), _texts(table, [option for option in BY_NAME if option not in JOB_OPTIONS]))
    except ConfigError as error:
        raise ConfigError(f"phase {name!r}: {error}") from None


def _texts(content: Mapping[str, Any], known: Iterable[str]) -> dict[str, str]:
    found = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        if name not in known or name == "config":
            raise ConfigError(f"unknown key {key!r}{near(name, known)}")
        if isinstance(value, list):
            value = ("\n" if BY_NAME[name].many else ",").join(str(one) for one in value)
        found[name] = str(value)
    return found
