"""The group that this ftrun is a member of: what the platform says, and what the options say, which win.

The network is asked nothing here: names need not resolve yet.
"""

import os
import re
import stat
from collections.abc import Mapping
from typing import Final, NamedTuple

from ftrun.config import ConfigError, Settings
from ftrun.wire.texts import endpoint as checked

PORT: Final = 29470  # of rank 0; torch has 29400 and 29500
SECRET: Final = "/run/secrets/ftrun/group"  # where one is taken from without being named
LENGTHS: Final = (16, 65536)  # bytes of a secret
NO_TASK: Final = 0xFFFFFFF0  # Slurm's numbers of steps from here on: batch scripts, salloc's shell
Environment = Mapping[str, str]


class Group(NamedTuple):
    """`source` says it, for a person; without a `secret` the endpoint is on loopback."""

    size: int
    rank: int
    endpoint: str  # HOST:PORT of rank 0
    secret: str | None  # path
    wait: float  # s
    job: str  # tells two groups on one port apart; may be empty
    source: str


class Found(NamedTuple):
    """What a platform says; None: it does not.  A `size` of 1: this ftrun is on its own."""

    source: str
    size: int | None = None
    rank: int | None = None
    host: str | None = None  # of rank 0
    job: str = ""


def ours(settings: Settings) -> tuple[Group | None, str]:
    """`group` of this process."""
    try:
        with open("/etc/hosts", "rb") as stream:
            hosts = stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        hosts = ""
    return group(settings, os.environ, os.uname().nodename, hosts)


def group(settings: Settings, environment: Environment, host: str, hosts: str) -> tuple[Group | None, str]:
    """The group, or None for an ftrun on its own, then maybe with one line for a person on why it is.

    ConfigError for what contradicts itself or is missing.  But where only the platform speaks of a group, and there is
    neither a secret nor an endpoint on loopback, nobody has asked for one: the job goes on as it would without.
    """
    given = {name: settings[f"group-{name}"].value for name in ("size", "rank", "endpoint", "secret-file", "job")}
    if given["size"] in (None, 1):
        return None, ""
    # The environment of an outer ftrun's command says what that one is.
    found = None if "FTRUN_BEAT_DIR" in environment else discover(environment, host, hosts, given["size"])
    found = found or Found("nothing")
    size = found.size if given["size"] == "auto" else given["size"]
    asked = size == given["size"] or given["rank"] is not None or not (given["endpoint"] or ":").startswith(":")
    if size is not None and size <= 1:
        return None, ""
    secret: str | None = given["secret-file"]
    if secret:
        read_secret(secret)
    elif size is not None and os.path.lexists(SECRET):
        secret = SECRET
    if size is None:
        if asked:
            raise ConfigError("--group-size: nothing says how many members there are; write --group-size N")
        return None, "on its own: there is a secret, but nothing says of how many; --group-size N" if secret else ""
    endpoint = _endpoint(given["endpoint"], found.host)
    if not (asked or secret or (endpoint and is_loopback(endpoint))):
        return None, f"on its own: {found.source} tells of {size} members, but there is no --group-secret-file"
    try:
        rank = found.rank if given["rank"] is None else given["rank"]
        if rank is None:
            raise ConfigError(f"--group-rank: nothing says which of {size} members this is; write --group-rank N")
        if rank >= size:
            by = "" if given["rank"] is not None else f", as {found.source} says,"
            raise ConfigError(f"--group-rank: {rank}{by} is none of {size} members; they are 0 to {size - 1}")
        if endpoint is None:
            raise ConfigError("--group-endpoint: nothing says where rank 0 is; write --group-endpoint HOST:PORT")
        _check(endpoint)
        if secret:
            read_secret(secret)
        elif not is_loopback(endpoint):
            raise ConfigError(f"--group-secret-file: it is needed, because {endpoint} is not on loopback")
    except ConfigError as error:
        if asked or secret:
            raise
        return None, f"on its own: {error}"
    platform = given["rank"] is None  # else its name of the job, as of a step for each member, may be another for each
    return Group(
        size=size,
        rank=rank,
        endpoint=endpoint,
        secret=os.path.abspath(secret) if secret else None,
        wait=settings["wait-peer"].value,
        job=given["job"] or (found.job if platform else ""),
        source=found.source if platform or found.size == size else "options",
    ), ""


def read_secret(path: str) -> bytes:
    """Without the white space around it, which an editor may add; ConfigError with one line if it is none."""
    try:
        # Nobody waits for the other end of a pipe.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):  # what is read again is to be the same
                raise ConfigError(f"--group-secret-file {path}: it is no regular file")
            content = stream.read(LENGTHS[1] + 1).strip()
    except OSError as error:
        raise ConfigError(f"--group-secret-file {path}: {error.strerror}") from None
    if not LENGTHS[0] <= len(content) <= LENGTHS[1]:
        size = f"it has {min(len(content), LENGTHS[1])} bytes{' and more' * (len(content) > LENGTHS[1])}"
        raise ConfigError(
            f"--group-secret-file {path}: {size if content else 'it is empty'}; "
            f"a secret has {LENGTHS[0]} to {LENGTHS[1]:,}: head -c 32 /dev/urandom | base64"
        )
    return content


def is_loopback(endpoint: str) -> bool:
    """As it is written: a name may become any address."""
    return re.fullmatch(r"(localhost|127(\.\d{1,3}){3}|\[::1\]):\d+", endpoint, re.ASCII) is not None


def _endpoint(given: str | None, host: str | None) -> str | None:
    """Where one part is missing, the platform's."""
    if given and not given.startswith(":"):
        return given
    if not host:
        return None
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{host}{given or f':{PORT}'}"


def _check(endpoint: str) -> None:
    try:
        checked(endpoint)
    except ValueError as error:
        raise ConfigError(f"--group-endpoint: {error}") from None


# --- platforms --------------------------------------------------------------------------------------------------------


def discover(environment: Environment, host: str, hosts: str, size: int | str = "auto") -> Found | None:
    """What the first platform says that is one: `host` is our own name, `hosts` the text of /etc/hosts, `size` what is
    known of it otherwise."""
    return (
        _slurm(environment)
        or _modelarts(environment)
        or _kubernetes(environment, host, hosts, size)
        or _volcano(environment, host)
        or _torch(environment)
    )


def _slurm(environment: Environment) -> Found | None:
    """Each task of a step has an ftrun of its own.  A batch script has none of their work: what it starts is srun."""
    job = environment.get("SLURM_JOB_ID")
    step = _number(environment, "SLURM_STEP_ID", "SLURM_STEPID")
    if not job:
        return None
    if step is None and "SLURM_TASK_PID" not in environment and "SLURM_NODEID" not in environment:
        return Found("Slurm's allocation", 1)  # salloc's shell
    if (step is None and "SLURM_TASK_PID" in environment) or (step or 0) >= NO_TASK:
        return Found("Slurm's batch script", 1)
    name = f"{job}.{step or 0}"
    if (tasks := _number(environment, "SLURM_STEP_NUM_TASKS")) is not None:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        return Found("Slurm", tasks, _number(environment, "SLURM_PROCID"), first_host(nodes), name)
    count, rank = _number(environment, "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), _number(environment, "SLURM_NODEID")
    return Found("Slurm", count, rank, first_host(environment.get("SLURM_JOB_NODELIST", "")), name)


def first_host(nodes: str) -> str | None:
    """Of a list of Slurm's such as `gpu[003-005,9],b1`."""
    first = re.match(r"(?:[^\[\],\s]|\[[\d,-]+\])+(?=,|$)", nodes)
    return re.sub(r"\[(\d+)[\d,-]*\]", r"\1", first[0]) if first else None


def _modelarts(environment: Environment) -> Found | None:
    size = _number(environment, "MA_NUM_HOSTS")
    if size is None:
        return None
    host = next(iter(_names(environment.get("VC_WORKER_HOSTS", ""))), None)
    return Found("ModelArts", size, _task(environment), host, host or "")


def _kubernetes(environment: Environment, host: str, hosts: str, size: int | str) -> Found | None:
    """A pod of an Indexed Job, or of a JobSet, which is made of those.  Neither says how many there are.

    A JobSet with several Jobs counts the pods of each from 0: JOBSET_JOB_INDEX and JOBSET_REPLICAS, of the labels
    `job-index` and `replicatedjob-replicas`, say the rest.
    """
    index = _number(environment, "JOB_COMPLETION_INDEX")
    if index is None:
        return None
    job, jobs = _number(environment, "JOBSET_JOB_INDEX"), _number(environment, "JOBSET_REPLICAS") or 1
    rank: int | None = index
    if jobs > 1:
        whole = isinstance(size, int) and size % jobs == 0
        rank = job * (size // jobs) + index if job is not None and isinstance(size, int) and whole else None
    tail = f"-{job}-{index}" if jobs > 1 else f"-{index}"
    first = environment.get("JOBSET_COORDINATOR") or _sibling(host, hosts, tail, "-0-0" if jobs > 1 else "-0")
    return Found("Kubernetes", None, rank, first, first or "")


def _sibling(host: str, hosts: str, tail: str, other: str) -> str | None:
    """Our own name, with its domain, and with another tail.  None: others cannot find it, as in a pod without a
    subdomain, or it is the node's."""
    name = host.partition(".")[0]
    if not name.endswith(tail):
        return None
    known = [word for line in hosts.splitlines() for word in line.partition("#")[0].split()[1:]]
    full = next((word for word in (host, *known) if word.startswith(f"{name}.")), None)
    if full is None and name in known:
        return None
    return name.removesuffix(tail) + other + (full or name).removeprefix(name)


def _volcano(environment: Environment, host: str) -> Found | None:
    """One list of hosts for each task of the Job.  One task, or `master` and `worker`, are a training; of any others
    nobody knows what they are to each other."""
    found = {name[3:-6]: _names(text) for name, text in environment.items() if re.fullmatch(r"VC_\w+_HOSTS", name)}
    lists = {name: names for name, names in found.items() if names}
    rank = _task(environment)
    if rank is None or not lists:
        return None
    if lists.keys() == {"MASTER", "WORKER"}:
        names = lists["MASTER"] + lists["WORKER"]
        short, own = [name.partition(".")[0] for name in names], host.partition(".")[0]
        rank = short.index(own) if own in short else None
    elif len(lists) == 1:
        (names,) = lists.values()
    else:
        return Found("Volcano")
    return Found("Volcano", len(names), rank, names[0], names[0])


def _torch(environment: Environment) -> Found | None:
    """As torchrun's options are often given; with all three, or else only what there is."""
    size, rank = _number(environment, "NNODES", "PET_NNODES"), _number(environment, "NODE_RANK", "PET_NODE_RANK")
    host = environment.get("MASTER_ADDR") or environment.get("PET_MASTER_ADDR")
    if rank is None and not host:
        return None
    return Found("MASTER_ADDR", size if host and rank is not None else None, rank, host)


def _task(environment: Environment) -> int | None:
    return _number(environment, "VC_TASK_INDEX", "VK_TASK_INDEX")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _number(environment: Environment, *names: str) -> int | None:
    """Of the first of these variables that is set, if it is a number."""
    text = next((text for name in names if (text := environment.get(name))), "")
    return int(text) if re.fullmatch(r"\d{1,10}", text, re.ASCII) else None
