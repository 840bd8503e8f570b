"""What ftrun has to know about a platform: one record for each, in which no field has a default.

To add a platform, add its functions and its record here, and put it into `PLATFORMS`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from ftrun.core.named_tuple import NamedTuple

Environment = Mapping[str, str]


class Surroundings(NamedTuple):
    """Where this ftrun runs: `host` is its host name, `hosts` the text of /etc/hosts, `size` the value of
    `--group-size`, a number or `auto`."""

    environment: Environment
    host: str
    hosts: str
    size: int | str


class PlatformMembership(NamedTuple):
    """What a platform reports about the group; None: it does not report that.  A `size` of 1: this ftrun is alone.
    `source`: the platform's name for people; `host`: the host of rank 0; `job`: distinguishes two groups on one port,
    and may be empty."""

    source: str
    size: int | None = None
    rank: int | None = None
    host: str | None = None
    job: str = ""


class Platform(NamedTuple):
    """`name` is for the reference: "the group, `name`".

    `membership`: the group that this ftrun is a member of; None if this is not the platform.  `variables`: the
    variables that it reads.  `schedules`: the variable that counts how often the job was scheduled, and what to add to
    it (1 where the first schedule is 0).  `job`: the variable that identifies the training job over all its schedules.
    `task`: the variable that distinguishes the tasks of a job that share a folder.  `node`: the variable with the name
    of the node.  None: the platform has no such variable.
    """

    name: str
    membership: Callable[[Surroundings], PlatformMembership | None]
    variables: tuple[str, ...]
    schedules: tuple[str, int] | None
    job: str | None
    task: str | None
    node: str | None


def number(environment: Environment, *names: str) -> int | None:
    """The value of the first of these variables that is set, if it is a number."""
    text = next((text for name in names if (text := environment.get(name))), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


# --- Slurm: each task of a step has an ftrun of its own ---------------------------------------------------------------


NO_TASK: Final = 0xFFFFFFF0  # numbers of steps from here on: batch scripts, salloc's shell


def _slurm(at: Surroundings) -> PlatformMembership | None:
    """The membership of a task.  A batch script is alone: it does not do the work of the tasks, and starts srun."""
    environment = at.environment
    job = environment.get("SLURM_JOB_ID")
    step = number(environment, "SLURM_STEP_ID", "SLURM_STEPID")
    if not job:
        return None
    if step is None and "SLURM_TASK_PID" not in environment and "SLURM_NODEID" not in environment:
        return PlatformMembership("Slurm's allocation", 1)  # salloc's shell
    if (step is None and "SLURM_TASK_PID" in environment) or (step or 0) >= NO_TASK:
        return PlatformMembership("Slurm's batch script", 1)
    name = f"{job}.{step or 0}"
    if (tasks := number(environment, "SLURM_STEP_NUM_TASKS")) is not None:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        return PlatformMembership("Slurm", tasks, number(environment, "SLURM_PROCID"), first_host(nodes), name)
    count, rank = number(environment, "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), number(environment, "SLURM_NODEID")
    return PlatformMembership("Slurm", count, rank, first_host(environment.get("SLURM_JOB_NODELIST", "")), name)


def first_host(nodes: str) -> str | None:
    """The first host of a Slurm node list such as `gpu[003-005,9],b1`."""
    first = re.match(r"(?:[^\[\],\s]|\[[\d,-]+\])+(?=,|$)", nodes)
    return re.sub(r"\[(\d+)[\d,-]*\]", r"\1", first[0]) if first else None


SLURM: Final = Platform(
    name="under Slurm",
    membership=_slurm,
    variables=(
        *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_TASK_PID", "SLURM_STEP_NUM_TASKS"),
        *("SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NODEID"),
        "SLURM_JOB_NODELIST",
    ),
    schedules=("SLURM_RESTART_COUNT", 1),
    job="SLURM_JOB_ID",  # which a requeue keeps
    task="SLURM_PROCID",
    node="SLURMD_NODENAME",
)


# --- Volcano: one list of hosts for each task of the Job --------------------------------------------------------------


def _volcano(at: Surroundings) -> PlatformMembership | None:
    """One task, or `master` and `worker`, form a training; how other tasks relate to each other is unknown."""
    environment, host = at.environment, at.host
    variables = [name for name in environment if name.startswith("VC_") and name.endswith("_HOSTS") and len(name) > 9]
    found = {name[3:-6]: names(environment[name]) for name in variables}
    lists = {name: members for name, members in found.items() if members}
    rank = _volcano_task(environment)
    if rank is None or not lists:
        return None
    if lists.keys() == {"MASTER", "WORKER"}:
        members = lists["MASTER"] + lists["WORKER"]
        short, own = [name.partition(".")[0] for name in members], host.partition(".")[0]
        rank = short.index(own) if own in short else None
    elif len(lists) == 1:
        (members,) = lists.values()
    else:
        return PlatformMembership("Volcano")
    return PlatformMembership("Volcano", len(members), rank, members[0], members[0])


def _volcano_task(environment: Environment) -> int | None:
    return number(environment, "VC_TASK_INDEX", "VK_TASK_INDEX")


VOLCANO: Final = Platform(
    name="under Volcano",
    membership=_volcano,
    variables=("VC_TASK_INDEX", "VK_TASK_INDEX", "VC_<TASK>_HOSTS"),
    schedules=None,
    job=None,
    task="VC_TASK_INDEX",
    node=None,
)


# --- ModelArts, which runs on Volcano ---------------------------------------------------------------------------------


HANG_MINUTES: Final = "MA_HANG_DETECT_TIME"  # what `--idle-timeout auto` means
END_GRACE: Final = "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS"  # s for the work at the end; -1 or unset: no limit


def _modelarts(at: Surroundings) -> PlatformMembership | None:
    size = number(at.environment, "MA_NUM_HOSTS")
    if size is None:
        return None
    host = next(iter(names(at.environment.get("VC_WORKER_HOSTS", ""))), None)
    return PlatformMembership("ModelArts", size, _volcano_task(at.environment), host, host or "")


MODELARTS: Final = Platform(
    name="on ModelArts",
    membership=_modelarts,
    variables=("MA_NUM_HOSTS", "VC_TASK_INDEX", "VK_TASK_INDEX", "VC_WORKER_HOSTS"),
    schedules=("MA_SCHEDULE_CNT", 0),
    job="MINDX_TASK_ID",
    task=None,  # that of Volcano
    node=None,
)


# --- Kubernetes: a pod of an Indexed Job, or of a JobSet, which consists of those.  Neither reports their number ------


def _kubernetes(at: Surroundings) -> PlatformMembership | None:
    """The membership of a pod.  A JobSet with several Jobs counts the pods of each Job from 0; JOBSET_JOB_INDEX and
    JOBSET_REPLICAS, from the labels `job-index` and `replicatedjob-replicas`, complete the rank."""
    environment, host, hosts, size = at
    index = number(environment, "JOB_COMPLETION_INDEX")
    if index is None:
        return None
    job, jobs = number(environment, "JOBSET_JOB_INDEX"), number(environment, "JOBSET_REPLICAS") or 1
    rank: int | None = index
    if jobs > 1:
        rank = None
        if job is not None and isinstance(size, int) and size % jobs == 0:
            rank = job * (size // jobs) + index
    tail = f"-{job}-{index}" if jobs > 1 else f"-{index}"
    first = environment.get("JOBSET_COORDINATOR") or _kubernetes_sibling(
        host, hosts, tail, "-0-0" if jobs > 1 else "-0"
    )
    return PlatformMembership("Kubernetes", None, rank, first, first or "")


def _kubernetes_sibling(host: str, hosts: str, tail: str, other: str) -> str | None:
    """This pod's host name, with its domain and another tail.  None: others cannot resolve it, as in a pod without a
    subdomain, or it is the name of the node."""
    name = host.partition(".")[0]
    if not name.endswith(tail):
        return None
    known = [entry for line in hosts.splitlines() for entry in line.partition("#")[0].split()[1:]]
    full = next((entry for entry in (host, *known) if entry.startswith(f"{name}.")), None)
    if full is None and name in known:
        return None
    return name.removesuffix(tail) + other + (full or name).removeprefix(name)


KUBERNETES: Final = Platform(
    name="in a JobSet or an Indexed Job, whose size is `--group-size`",
    membership=_kubernetes,
    variables=("JOB_COMPLETION_INDEX", "JOBSET_JOB_INDEX", "JOBSET_REPLICAS", "JOBSET_COORDINATOR"),
    schedules=("JOBSET_RESTART_ATTEMPT", 1),
    job=None,
    task="JOB_COMPLETION_INDEX",
    node="NODE_NAME",  # by convention, from the downward API
)


# --- The variables by which torchrun's options are often given, whatever the platform is ------------------------------


def _torchrun(at: Surroundings) -> PlatformMembership | None:
    """The membership by torchrun's variables; the size is used only with all three of them."""
    environment = at.environment
    size, rank = number(environment, "NNODES", "PET_NNODES"), number(environment, "NODE_RANK", "PET_NODE_RANK")
    host = environment.get("MASTER_ADDR") or environment.get("PET_MASTER_ADDR")
    if rank is None and not host:
        return None
    return PlatformMembership("MASTER_ADDR", size if host and rank is not None else None, rank, host)


TORCHRUN: Final = Platform(
    name="by the variables of torchrun",
    membership=_torchrun,
    variables=("MASTER_ADDR", "PET_MASTER_ADDR", "NNODES", "PET_NNODES", "NODE_RANK", "PET_NODE_RANK"),
    schedules=None,
    job=None,
    task="NODE_RANK",
    node=None,
)


# --- all of them ------------------------------------------------------------------------------------------------------

# In the order in which they are tried.
PLATFORMS: Final = (SLURM, MODELARTS, KUBERNETES, VOLCANO, TORCHRUN)

# MA_SCHEDULE_CNT comes first, since ftrun sets it for its command; so does NODE_NAME, which users set in a pod.
SCHEDULES: Final = tuple(filter(None, dict.fromkeys(one.schedules for one in (MODELARTS, *PLATFORMS))))
JOBS: Final = tuple(filter(None, dict.fromkeys(one.job for one in PLATFORMS)))
TASKS: Final = tuple(filter(None, dict.fromkeys(one.task for one in PLATFORMS)))
NODES: Final = tuple(filter(None, dict.fromkeys(one.node for one in (KUBERNETES, *PLATFORMS))))


def discover(at: Surroundings) -> PlatformMembership | None:
    """The membership that the first matching platform reports."""
    return next((found for one in PLATFORMS if (found := one.membership(at)) is not None), None)
