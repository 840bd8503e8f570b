"""The options: one table, and for each value where it comes from: option > environment > annotations > config file >
default."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

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


class ConfigError(ValueError):
    """One line for a person; the exit code is 2 and nothing was started."""


class Option(NamedTuple):
    """`read` turns the text into the value or raises ValueError; a `flag` takes no text.  With a `no` the flag is on
    by itself, and `--no-NAME` switches it off.  A `many` may be repeated: the value is a list."""

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
AFTER_LIMIT: Final = ("reschedule|fail", "reschedule", one_of("reschedule", "fail"))
PROBES: Final = ("auto", *VENDORS, "off")

OPTIONS: Final = (
    Option("restart-on", "LIST", "hang,fault", causes, "restart in place on these: hang, fault, failure; or none"),
    Option("max-restarts", "N", "3", or_off(count), "restarts in a row without progress, a cause; then escalate"),
    Option("progress", "GLOB", "", paths, "checkpoint files: a new or renamed-in one is progress", many=True),
    Option("stable-after", "DUR", "1h", or_off(duration), "so long a run is progress where nothing is reported"),
    Option("backoff", "DUR", "1s", or_off(duration), "wait before a restart after a failure; doubles up to 60s"),
    Option(
        "hang-timeout", "DUR|auto", "auto", or_auto(or_off(duration)), "no beat for so long is a hang; auto: learned"
    ),
    Option("start-timeout", "DUR|auto", "auto", or_auto(or_off(duration)), "the same before the first beat"),
    Option(
        "section-timeout",
        "DUR|auto",
        "auto",
        or_auto(or_off(duration)),
        "the same in a section without a timeout of its own; auto: in those that ftrun opens itself the given "
        "--hang-timeout, else learned from earlier ones of that name; 1h in others",
    ),
    Option(
        "idle-timeout",
        "DUR|auto",
        "auto",
        or_auto(or_off(duration)),
        "no I/O in the tree and unchanged devices for so long is a hang; auto: MA_HANG_DETECT_TIME minutes, else 30, "
        "for a job that uses an accelerator",
    ),
    Option("idle-cpu", "CORES", "0.05", amount, "less of a core, by main threads, is no work for the idle rule"),
    Option("idle-io", "BYTES/S", "16384", amount, "less read and written is no work for the idle rule"),
    Option("probe", "|".join(PROBES), "auto", one_of(*PROBES), "which accelerators are looked at"),
    Option("check-devices", "on|off", "on", truth, "look at them before the first start: one that cannot work is 197"),
    Option("device-timeout", "DUR", "60s", or_off(duration), "devices that are not free so long after a kill: 197"),
    Option("fault-table", "FILE", "", path, "what codes of device faults mean on this site: CODE SEVERITY, one a line"),
    Option(
        "reset-file",
        "PATH",
        "",
        path,
        f"MindCluster's word on its chips [default: {RESET_FILE}, where its folder exists]",
    ),
    Option("heal", "COMMAND", "", path, "run when the tree is dead, to cure a device fault; by itself: wait for it"),
    Option("heal-timeout", "DUR", "5m", duration, "a fault that is not gone so long after the kill: 197"),
    Option(
        "min-devices",
        "N",
        "off",
        or_off(above_zero),
        "go on without a device that does not heal, until it is well, if N are left; {devices}",
    ),
    Option("auto-beat", "", "on", truth, "beats from unmodified PyTorch programs", flag=True, no=True),
    Option(
        "grace", "DUR", "10s", or_off(duration), "SIGTERM to SIGKILL when ftrun ends the tree; off: SIGKILL at once"
    ),
    Option("stop-grace", "DUR", "off", or_off(duration), "the same when the outer scheduler asked"),
    Option("run-dir", "DIR", "", path, "records and state [default: a fresh folder under the temp folder]"),
    Option("log-dir", "DIR", "", path, "instead: DIR/<YYYYmmdd_HHMMSS>_restartable/ is the run dir"),
    Option("state-dir", "DIR", "", path, "what outlives the pod: faults, schedules, verdict [default: --log-dir]"),
    Option("node-name", "NAME", "", path, "this node [default: NODE_NAME, SLURMD_NODENAME, else the host's name]"),
    Option("unmount", "PATH", "", paths, "unmount it at the very end", many=True),
    Option("on-exit", "COMMAND", "", paths, "run at the very end, before ftrun exits", many=True),
    Option(
        "unconditional-retry", "", "off", truth, "the limit of failures ends with the command's own code", flag=True
    ),
    Option("after-limit", *AFTER_LIMIT, "what the limit of hangs ends with: 195, which is rescheduled, or 93"),
    Option("annotations", "FILE", "", path, "the platform's words: of the Kubernetes downward API, or a job's JSON"),
    Option("termination-log", "PATH", "", path, "the verdict as JSON [default: /dev/termination-log where it exists]"),
    Option(
        "metrics", "HOST:PORT", "off", or_off(address), "Prometheus metrics; :9400: all interfaces; port 0: any free"
    ),
    Option("metrics-file", "PATH", "off", or_off(textfile), "the same for node_exporter: FOLDER/NAME.prom, each 15s"),
    Option(
        "group-size",
        "N|auto|off",
        "auto",
        or_auto(or_off(above_zero)),
        "members of the group, an ftrun each, that restart together; auto: as the platform says; off: on its own",
    ),
    Option("group-rank", "N", "", count, "which of them this is, from 0 [default: as the platform says]"),
    Option(
        "group-endpoint",
        "HOST:PORT",
        "",
        endpoint,
        "where rank 0 listens; :PORT: the platform's host [default: as the platform says, port 29470]",
    ),
    Option(
        "group-secret-file",
        "FILE",
        "",
        path,
        "what all members know and nobody else; without it loopback only [default: /run/secrets/ftrun/group if there]",
    ),
    Option("group-job", "TEXT", "", label, "tells two groups on one port apart [default: as the platform says]"),
    Option("wait-peer", "DUR", "10m", duration, "a member that is lost and not back so long after: 195"),
    Option("peer-timeout", "DUR", "1m", duration, "silence of another member that counts as its loss"),
    Option("config", "FILE", "", path, "TOML with these names as keys"),
    Option("log-format", "text|json", "text", one_of("text", "json"), "form of ftrun's own lines on stderr"),
    Option("quiet", "", "off", truth, "no lines of ftrun's own on stderr", "q", flag=True),
    Option("verbose", "", "off", truth, "every record as a line on stderr", "v", flag=True),
)
BY_NAME: Final = {option.name: option for option in OPTIONS}
OF_THE_JOB: Final = (  # not for a phase to set
    *("config", "run-dir", "log-dir", "state-dir", "node-name", "annotations", "termination-log", "unmount", "on-exit"),
    *("log-format", "quiet", "verbose", "metrics", "metrics-file"),
    *("group-size", "group-rank", "group-endpoint", "group-secret-file", "group-job", "wait-peer"),
    "peer-timeout",
)
# Variables that ftrun sets for the command (DESIGN 2.3): not options of an inner ftrun.
SET_BY_US: Final = ("BEAT_DIR", "EPOCH", "RESTART_REASON", "LAST_STEP", "LAST_CHECKPOINT", "LAST_SECTION")


def settings(given: Mapping[str, str], environment: Mapping[str, str], phase: Phase | None = None) -> Settings:
    """Every option's value with its source, in `phase` if there are several; ConfigError for the first wrong one."""
    from_environment = _environment(environment)
    file = given.get("config") or from_environment.get("config")
    from_file = read_file(file)[0] if file else {}
    platform = given.get("annotations") or from_environment.get("annotations") or from_file.get("annotations")
    words = read_annotations(platform) if platform else annotations.Annotations()
    sources = (
        ("option", given),
        ("environment", from_environment),
        ("annotations", dict(words.texts)),
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
        raise ConfigError("--run-dir and --log-dir exclude each other")
    if found["fault-table"].value:
        _check_table(found["fault-table"].value)
    return found | {"annotations": found["annotations"]._replace(value=words)}


def _check_table(file: str) -> None:
    """A site's table is right as a whole, or nothing is started; whoever needs it reads it again."""
    from ftrun.core.rules import fault_codes

    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            fault_codes.parse(stream.read(1 << 20).decode())
    except OSError as error:
        raise ConfigError(f"--fault-table {file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--fault-table {file}: {error}") from None


def read_annotations(file: str) -> annotations.Annotations:
    try:
        # Nobody waits for the other end of a pipe.
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            return annotations.read(file, (stream.read(1 << 20) or b"").decode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"--annotations {file}: {error.strerror}") from None


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    variables = {option.variable: option.name for option in OPTIONS}
    ours = {"FTRUN_" + name for name in SET_BY_US}
    if "FTRUN_BEAT_DIR" in environment:
        # Under an outer ftrun its run dir, told to its command, is not ours to write in, nor its place in a group ours.
        ours |= {"FTRUN_RUN_DIR", *(name for name in variables if name.startswith("FTRUN_GROUP_"))}
    found = {}
    for variable, text in environment.items():
        if not variable.startswith("FTRUN_") or variable in ours:
            continue
        if variable in variables:
            if text:
                found[variables[variable]] = text
        elif match := near(variable, variables, 0.85):
            # Others may use the prefix (Kubernetes makes FTRUN_PORT of a service named ftrun); a slip of ours is told.
            raise ConfigError(f"{variable}: no such option{match}")
    return found


def phases(given: Mapping[str, str], environment: Mapping[str, str]) -> list[Phase]:
    """The `[[phase]]` tables of the config file, in order."""
    file = given.get("config") or _environment(environment).get("config")
    return read_file(file)[1] if file else []


def read_file(file: str) -> tuple[dict[str, str], list[Phase]]:
    """A TOML file's keys as option texts, and its phases."""
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
            raise ConfigError("phase is no table; write [[phase]]")
        found = [_phase(table) for table in tables]
        for name in {phase.name for phase in found}:
            if sum(phase.name == name for phase in found) > 1:
                raise ConfigError(f"two phases are called {name!r}")
        return _texts(content, BY_NAME), found
    except ConfigError as error:
        raise ConfigError(f"--config {file}: {error}") from None


def _phase(table: dict[str, Any]) -> Phase:
    name, command = table.pop("name", None), table.pop("command", None)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,100}", name):
        raise ConfigError(f"a phase has the name {name!r}; write letters, digits, and any of . _ -")
    import shlex

    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as error:
        raise ConfigError(f"phase {name!r}: command: {error}") from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"phase {name!r} has no command; write command = ['python', 'train.py']")
    try:
        return Phase(name, tuple(words), _texts(table, [option for option in BY_NAME if option not in OF_THE_JOB]))
    except ConfigError as error:
        raise ConfigError(f"phase {name!r}: {error}") from None


def _texts(content: Mapping[str, Any], known: Iterable[str]) -> dict[str, str]:
    found = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        if name not in known or name == "config":
            raise ConfigError(f"unknown key {key!r}{near(name, known)}")
        if isinstance(value, list):
            value = ("\n" if BY_NAME[name].many else ",").join(str(word) for word in value)
        found[name] = str(value)
    return found
