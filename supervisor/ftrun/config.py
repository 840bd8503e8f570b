"""The options: one table, and for each value where it comes from: option > environment > config file > default."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ftrun.core.idle import Thresholds
from ftrun.core.liveness import Limits
from ftrun.core.policy import HOUR, Policy


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
    source: str  # "option", "environment", "config file" or "default"


Settings = dict[str, Value]

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": HOUR, "d": 24 * HOUR}
CAUSES: Final = ("hang", "fault", "failure")
PROBES: Final = ("auto", "nvidia", "ascend", "off")


def duration(text: str) -> float:
    """`500ms`, `90s`, `10m`, `1h`, `1d` as seconds."""
    for unit in ("ms", "s", "m", "h", "d"):
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdecimal() and number.isascii():
            seconds = float(number) * UNITS[unit]
            if not 0 < seconds < 3660 * UNITS["d"]:
                raise ValueError(f"{text!r} is out of range: a duration is above zero (`off` disables)")
            return seconds
    raise ValueError(f"{text!r} is no duration; write 500ms, 90s, 10m, 1h or 1d")


def or_off(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`off` (as None) or what `read` takes."""

    def reader(text: str) -> Any:
        if text == "off":
            return None
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from None

    return reader


def or_auto(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`auto` as itself, or what `read` takes."""
    return lambda text: text if text == "auto" else read(text)


def count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{text!r} is no count; write a whole number such as 3")
    return int(text)


def amount(text: str) -> float:
    if not (text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) < 16):
        raise ValueError(f"{text!r} is no amount; write a number such as 0.05 or 16384")
    return float(text)


def causes(text: str) -> frozenset[str]:
    named = [word.strip() for word in text.split(",") if word.strip()]
    if named == ["none"]:
        return frozenset()
    for word in named:
        if word not in CAUSES:
            raise ValueError(f"{word!r} is none of {', '.join(CAUSES)}, none{near(word, (*CAUSES, 'none'))}")
    if not named:
        raise ValueError(f"it is empty; name some of {', '.join(CAUSES)}, or none")
    return frozenset(named)


def one_of(*choices: str) -> Callable[[str], str]:
    def reader(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}{near(text, choices)}")
        return text

    return reader


def path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("it is empty")
    return text


def paths(text: str) -> tuple[str, ...]:
    """Those of a list of paths, which is one to a line: any other character may be part of one."""
    return tuple(path(line) for line in text.split("\n") if line) or (path(""),)


def truth(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither on nor off")


def near(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    import difflib  # only ever for an error

    found = difflib.get_close_matches(word, list(known), 1, cutoff)
    return f" (did you mean {found[0]!r}?)" if found else ""


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
    Option("device-timeout", "DUR", "60s", or_off(duration), "devices that are not free so long after a kill: 197"),
    Option("auto-beat", "", "on", truth, "beats from unmodified PyTorch programs", flag=True, no=True),
    Option(
        "grace", "DUR", "10s", or_off(duration), "SIGTERM to SIGKILL when ftrun ends the tree; off: SIGKILL at once"
    ),
    Option("stop-grace", "DUR", "off", or_off(duration), "the same when the outer scheduler asked"),
    Option("run-dir", "DIR", "", path, "records and state [default: a fresh folder under the temp folder]"),
    Option("log-dir", "DIR", "", path, "instead: DIR/<YYYYmmdd_HHMMSS>_restartable/ is the run dir"),
    Option("termination-log", "PATH", "", path, "the verdict as JSON [default: /dev/termination-log where it exists]"),
    Option("config", "FILE", "", path, "TOML with these names as keys"),
    Option("log-format", "text|json", "text", one_of("text", "json"), "form of ftrun's own lines on stderr"),
    Option("quiet", "", "off", truth, "no lines of ftrun's own on stderr", "q", flag=True),
    Option("verbose", "", "off", truth, "every record as a line on stderr", "v", flag=True),
)
BY_NAME: Final = {option.name: option for option in OPTIONS}
# Variables that ftrun sets for the command (DESIGN 2.3): not options of an inner ftrun.
SET_BY_US: Final = ("BEAT_DIR", "RESTART_REASON", "LAST_STEP", "LAST_CHECKPOINT", "LAST_SECTION")


def settings(given: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """Every option's value with its source; ConfigError for the first that is wrong."""
    from_environment = _environment(environment)
    file = given.get("config") or from_environment.get("config")
    from_file = read_file(file) if file else {}
    sources = (("option", given), ("environment", from_environment), ("config file", from_file))
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
            name = {"option": f"--{option.name}", "environment": option.variable}.get(source, f"{file}: {option.name}")
            raise ConfigError(f"{name}: {error}") from None
    if found["run-dir"].value and found["log-dir"].value:
        raise ConfigError("--run-dir and --log-dir exclude each other")
    return found


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    variables = {option.variable: option.name for option in OPTIONS}
    # Under an outer ftrun FTRUN_RUN_DIR is that one's, told to its command; it is not ours to write in.
    ours = {"FTRUN_" + name for name in SET_BY_US} | ({"FTRUN_RUN_DIR"} if "FTRUN_BEAT_DIR" in environment else set())
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


def read_file(file: str) -> dict[str, str]:
    """A TOML file's keys as option texts."""
    import tomllib

    try:
        with open(file, "rb") as stream:
            content = tomllib.loads(stream.read(1 << 20).decode())
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--config {file}: {error}") from None
    found = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        if name not in BY_NAME or name == "config":
            raise ConfigError(f"--config {file}: unknown key {key!r}{near(name, BY_NAME)}")
        if isinstance(value, list):
            value = ("\n" if BY_NAME[name].many else ",").join(str(word) for word in value)
        found[name] = str(value)
    return found


def idle_timeout(found: Settings) -> float | None:
    """Seconds; ConfigError where ModelArts' own setting is none."""
    given = found["idle-timeout"].value
    if given != "auto":
        return None if given is None else float(given)
    minutes = os.environ.get("MA_HANG_DETECT_TIME") or "30"
    try:
        return count(minutes) * 60.0 or None
    except ValueError as error:
        raise ConfigError(f"MA_HANG_DETECT_TIME: {error}") from None


def policy(found: Settings) -> Policy:
    """What the core needs of the settings.

    The start timeout is an hour where nobody gave one, and armed at the spawn only where somebody did: a command
    without hooks is never judged by beats on its own.  The hang timeout starts with it and is learned.
    """
    hang, start = found["hang-timeout"].value, found["start-timeout"].value
    start_limit = HOUR if start == "auto" else start
    return Policy(
        restart_on=found["restart-on"].value,
        max_restarts=found["max-restarts"].value,
        stable_after=found["stable-after"].value,
        backoff=found["backoff"].value or 0.0,
        files=bool(found["progress"].value),
        device_timeout=None if found["probe"].value == "off" else found["device-timeout"].value,
        work=Thresholds(cpu=found["idle-cpu"].value, io=found["idle-io"].value),
        limits=Limits(
            hang=start_limit if hang == "auto" else hang,
            start=start_limit,
            start_given=start not in ("auto", None),
            section=None if hang is None else HOUR,
            auto=hang == "auto",
            idle=idle_timeout(found),
            idle_given=found["idle-timeout"].value not in ("auto", None),
        ),
        grace=found["grace"].value or 0.0,
        stop_grace=found["stop-grace"].value,
    )
