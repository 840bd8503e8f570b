"""The options and `PET_*` variables of torchrun (torch 2.13, `torch/distributed/run.py`), translated to those of ftrun,
so that a working torchrun command line works with `ftrun` in its place.  Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.config.option_table import BY_NAME, ConfigError
from ftrun.core.named_tuple import NamedTuple

RDZV_PORT: Final = "29400"  # torchrun's default for --rdzv-endpoint
MASTER_PORT: Final = "29500"  # and for --master-port
BACKENDS: Final = ("c10d", "static")


class Translation(NamedTuple):
    """`name`: torchrun's option.  `meaning`: what ftrun does with it, for the reference.  `value`: it has a value.
    `refusal`: why it cannot be translated, and what to use in its place."""

    name: str
    meaning: str
    value: bool = True
    refusal: str = ""


def _refused(name: str, alternative: str, value: bool = True) -> Translation:
    return Translation(name, f"refused: {alternative}", value, alternative)


TABLE: Final = (
    Translation("nproc-per-node", "`--nproc-per-node`; 1 if only other options of torchrun are given"),
    Translation("nnodes", "`--group-size`; 1: no group"),
    Translation("node-rank", "`--group-rank`; with `--nnodes` of more than 1 it is needed, unless a platform gives it"),
    Translation("master-addr", "the host of `--group-endpoint`, and so MASTER_ADDR; not needed on one node"),
    Translation("master-port", "the port of `--group-endpoint`; MASTER_PORT itself differs in each attempt"),
    Translation("rdzv-endpoint", "`--group-endpoint`, with port 29400 if it has none"),
    Translation("rdzv-id", "`--group-job`"),
    Translation("rdzv-backend", "not needed; other backends than `c10d` and `static` are refused"),
    Translation("standalone", "not needed", value=False),
    Translation("module", "the command is a module, which runs under `python -m`", value=False),
    Translation("no-python", "the command is executed as it is, also if its name ends in `.py`", value=False),
    Translation(
        "max-restarts",
        "`--max-restarts`, which counts restarts in a row without progress; beside other options of torchrun it also "
        "means `--restart-on hang,fault,failure`, unless `--restart-on` is given",
    ),
    Translation("log-dir", "`--log-dir`"),
    Translation("local-ranks-filter", "`--local-ranks-filter`"),
    Translation("shutdown-timeout", "`--grace`, in seconds"),
    Translation("monitor-interval", "not needed: ftrun notices the end of a rank at once"),
    Translation("start-method", "not needed: ftrun forks and executes each rank"),
    Translation("signals-to-handle", "not needed: ftrun forwards every signal"),
    Translation("role", "not needed: it names ranks in messages of torchrun; ROLE_NAME is `default`"),
    Translation("local-addr", "not needed: MASTER_ADDR is the host of `--group-endpoint`"),
    Translation("rdzv-conf", "`join_timeout`, or `timeout`, in seconds, is `--wait-peer`; other keys are not needed"),
    Translation("tee", "`--prefix-ranks`; with `--log-dir` there is a file for each rank"),
    Translation("redirects", "with `--log-dir` there is a file for each rank; its lines are printed as well"),
    _refused("run-path", "name the file as the command", value=False),
    _refused("logs-specs", "use --log-dir"),
    _refused("numa-binding", "use numactl in the command"),
    _refused("event-log-handler", "the records are in events.jsonl of the run dir"),
    _refused("virtual-local-rank", "use LOCAL_RANK", value=False),
    _refused("duplicate-stdout-filters", "use --local-ranks-filter"),
    _refused("duplicate-stderr-filters", "use --local-ranks-filter"),
)
KNOWN: Final = {row.name: row for row in TABLE}
SHORT: Final = {"-m": "module", "-r": "redirects", "-t": "tee"}
OWN: Final = frozenset({"nproc-per-node", "max-restarts", "log-dir", "local-ranks-filter"})  # ftrun's names as well


def translate(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command line for ftrun; unchanged if it has no option of torchrun.  ConfigError for what has no counterpart.

    `PET_*` variables count like the options where the command line itself is one of torchrun: it has an option of
    torchrun, or its command is a Python file.  They do not make `ftrun torchrun ...` start ranks twice.
    """
    kept, found, command = _split(arguments)
    asks = bool(found.keys() - (OWN - {"nproc-per-node"}))
    variables = _variables(environment)
    if "log-dir" in variables and (environment.get("FTRUN_RUN_DIR") or "--run-dir" in _names(kept)):
        del variables["log-dir"]  # it would become an option, which a run dir from the same source excludes
    if not asks and not (command and command[0].endswith(".py") and "nproc-per-node" in variables):
        return list(arguments)
    found = {**variables, **found}
    for name in found:
        if KNOWN[name].refusal:
            raise ConfigError(f"--{name}: ftrun has no such option; {KNOWN[name].refusal}")
    if not command:
        return list(arguments)
    if "module" in found:
        command = ["-m", *command]
    elif "no-python" in found and command[0].endswith(".py"):
        command = ["env", *command]
    elsewhere = {
        name: _set_elsewhere(name, kept, environment) for name in ("nproc-per-node", "restart-on", "wait-peer")
    }
    options = _number(found, elsewhere["nproc-per-node"])
    options += _restarts(found, elsewhere["restart-on"])
    options += _options(found)
    if "--group-size" in options:
        options += _patience(found, elsewhere["wait-peer"])
    return [*kept, *options, "--", *command]


def _set_elsewhere(name: str, kept: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether an option of ftrun is, or may be, set by other means than torchrun's command line."""
    variables = {f"FTRUN_{name.upper().replace('-', '_')}", "FTRUN_CONFIG"}
    return bool(variables & environment.keys()) or bool({f"--{name}", "--config"} & _names(kept))


def _names(kept: Sequence[str]) -> set[str]:
    return {one.partition("=")[0] for one in kept}


def _number(found: Mapping[str, str], set_elsewhere: bool) -> list[str]:
    """The number of ranks.  torchrun's default is 1; here the number may be set elsewhere."""
    if "nproc-per-node" not in found and set_elsewhere:
        return []
    return ["--nproc-per-node", found.get("nproc-per-node", "1")]


def _restarts(found: Mapping[str, str], set_elsewhere: bool) -> list[str]:
    """torchrun restarts after a failure as often as `--max-restarts` says, ftrun only where `--restart-on` says so.
    Nothing where the command line may just as well be one of ftrun."""
    if set_elsewhere or not found.keys() - OWN or found.get("max-restarts", "0") == "0":
        return []
    return ["--restart-on", "hang,fault,failure"]


def _patience(found: Mapping[str, str], set_elsewhere: bool) -> list[str]:
    """How long other nodes are waited for, from the settings of torchrun's rendezvous."""
    settings = dict[str, str]()
    for setting in filter(None, found.get("rdzv-conf", "").split(",")):
        key, _, value = setting.partition("=")
        if not key.strip() or not value.strip():
            raise ConfigError(f"--rdzv-conf: {setting!r} is not KEY=VALUE")
        settings[key.strip()] = value.strip()
    seconds = settings.get("join_timeout") or settings.get("timeout")
    return [] if set_elsewhere or not seconds else ["--wait-peer", f"{seconds}s"]


def _streams(name: str, found: Mapping[str, str]) -> list[int]:
    """The streams that the value of `--tee` or `--redirects` names, 0 for none: one number, or one by rank."""
    value = found.get(name, "0")
    if not re.fullmatch(r"[0-3]|\d+:[0-3](,\d+:[0-3])*", value):
        raise ConfigError(f"--{name}: {value!r} is not a number from 0 to 3, or such numbers by rank, as in 0:3,1:0")
    return [int(stream.rpartition(":")[2]) for stream in value.split(",")]


def _options(found: Mapping[str, str]) -> list[str]:
    options = list[str]()
    for name in ("max-restarts", "log-dir", "local-ranks-filter"):
        options += [f"--{name}", found[name]] if name in found else []
    if "shutdown-timeout" in found:
        options += ["--grace", f"{found['shutdown-timeout']}s"]
    _streams("redirects", found)
    options += ["--prefix-ranks"] if any(_streams("tee", found)) else []
    if found.get("rdzv-backend", "c10d") not in BACKENDS:
        raise ConfigError(f"--rdzv-backend {found['rdzv-backend']}: use --group-endpoint, where member 0 listens")
    nodes = found.get("nnodes", "1")
    if len(set(nodes.split(":"))) == 1:
        nodes = nodes.partition(":")[0]
    if nodes == "1":
        return options
    options += ["--group-size", nodes]
    options += ["--group-rank", found["node-rank"]] if "node-rank" in found else []
    options += ["--group-job", found["rdzv-id"]] if "rdzv-id" in found else []
    endpoint = found.get("rdzv-endpoint", "")
    if endpoint:
        has_port = endpoint.rpartition("]")[2].count(":") == 1
        endpoint = endpoint if has_port else f"{endpoint}:{RDZV_PORT}"
    elif "master-addr" in found:
        endpoint = f"{found['master-addr']}:{found.get('master-port', MASTER_PORT)}"
    return [*options, *(("--group-endpoint", endpoint) if endpoint else ())]


def _split(arguments: Sequence[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """The options of ftrun alone, those of torchrun with their values, and the command."""
    kept, found = list[str](), dict[str, str]()
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        if argument == "--":
            break
        if not argument.startswith("-") or argument == "-":
            index -= 1
            break
        text, equals, value = argument.partition("=")
        name = SHORT.get(text) or text.removeprefix("--").replace("_", "-")
        row, option = KNOWN.get(name), BY_NAME.get(text.removeprefix("--"))
        if row is None:
            kept.append(argument)
            if option is not None and not option.flag and not equals:
                kept += arguments[index : index + 1]
                index += 1
            continue
        if row.value and not equals:
            if index == len(arguments):
                raise ConfigError(f"{text} needs a value")
            value, index = arguments[index], index + 1
        found[name] = value
    return kept, found, list(arguments[index:])


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The `PET_*` variables that torchrun would read, by the names of its options."""
    names: dict[str, str] = {f"PET_{row.name.upper().replace('-', '_')}": row.name for row in TABLE}
    given = {name: environment[variable] for variable, name in names.items() if environment.get(variable)}
    return {name: value for name, value in given.items() if KNOWN[name].value or value.lower() in ("1", "true")}
