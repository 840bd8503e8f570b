"""The options and `PET_*` variables of torchrun (torch 2.13, `torch/distributed/run.py`), translated to those of ftrun,
so that a working torchrun command line works with `ftrun` in its place.  Pure."""

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
    Translation("nnodes", "`--group-size`; 1: no group; a range is refused"),
    Translation("node-rank", "`--group-rank`; with `--nnodes` of more than 1 it is needed, unless a platform gives it"),
    Translation("master-addr", "the host of `--group-endpoint`, and so MASTER_ADDR; not needed on one node"),
    Translation("master-port", "the port of `--group-endpoint`; MASTER_PORT itself differs in each attempt"),
    Translation("rdzv-endpoint", "`--group-endpoint`, with port 29400 if it has none"),
    Translation("rdzv-id", "`--group-job`"),
    Translation("rdzv-backend", "not needed; other backends than `c10d` and `static` are refused"),
    Translation("standalone", "not needed", value=False),
    Translation("module", "the command is a module, which runs under `python -m`", value=False),
    Translation("no-python", "the command is executed as it is, also if its name ends in `.py`", value=False),
    Translation("max-restarts", "`--max-restarts`, which counts restarts in a row without progress"),
    Translation("log-dir", "`--log-dir`"),
    Translation("local-ranks-filter", "`--local-ranks-filter`"),
    Translation("shutdown-timeout", "`--grace`, in seconds"),
    Translation("monitor-interval", "not needed: ftrun notices the end of a rank at once"),
    Translation("start-method", "not needed: ftrun forks and executes each rank"),
    _refused("run-path", "name the file as the command", value=False),
    _refused("logs-specs", "use --log-dir"),
    _refused("redirects", "use --log-dir, which keeps a file for each rank"),
    _refused("tee", "use --log-dir, which keeps a file for each rank and prints all of them"),
    _refused("rdzv-conf", "use --wait-peer for the time to wait for other nodes"),
    _refused("local-addr", "use --group-endpoint"),
    _refused("role", "ftrun has one role"),
    _refused("signals-to-handle", "ftrun forwards every signal"),
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
    return [*kept, *_number(found, kept, environment), *_options(found), "--", *command]


def _number(found: Mapping[str, str], kept: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The number of ranks.  torchrun's default is 1; here the number may be set elsewhere."""
    elsewhere = {"FTRUN_NPROC_PER_NODE", "FTRUN_CONFIG"} & environment.keys() or any("--config" in one for one in kept)
    if "nproc-per-node" not in found and elsewhere:
        return []
    return ["--nproc-per-node", found.get("nproc-per-node", "1")]


def _options(found: Mapping[str, str]) -> list[str]:
    options = list[str]()
    for name in ("max-restarts", "log-dir", "local-ranks-filter"):
        options += [f"--{name}", found[name]] if name in found else []
    if "shutdown-timeout" in found:
        options += ["--grace", f"{found['shutdown-timeout']}s"]
    if found.get("rdzv-backend", "c10d") not in BACKENDS:
        raise ConfigError(f"--rdzv-backend {found['rdzv-backend']}: use --group-endpoint, where member 0 listens")
    nodes = found.get("nnodes", "1")
    if ":" in nodes and len(set(nodes.split(":"))) > 1:
        raise ConfigError(f"--nnodes {nodes}: a group has a fixed size; use --nnodes N or --group-size N")
    nodes = nodes.partition(":")[0]
    if nodes == "1":
        return options
    options += ["--group-size", nodes]
    options += ["--group-rank", found["node-rank"]] if "node-rank" in found else []
    options += ["--group-job", found["rdzv-id"]] if "rdzv-id" in found else []
    endpoint = found.get("rdzv-endpoint", "")
    if endpoint:
        endpoint = endpoint if _has_port(endpoint) else f"{endpoint}:{RDZV_PORT}"
    elif "master-addr" in found:
        endpoint = f"{found['master-addr']}:{found.get('master-port', MASTER_PORT)}"
    return [*options, *(("--group-endpoint", endpoint) if endpoint else ())]


def _has_port(endpoint: str) -> bool:
    return endpoint.rpartition("]")[2].count(":") == 1


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
