"""Kubernetes: a pod of an Indexed Job, or of a JobSet, which consists of those.  Neither reports their number."""

from typing import Final

from ftrun.platforms.base import Membership, Platform, Surroundings, number


def membership(at: Surroundings) -> Membership | None:
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
    first = environment.get("JOBSET_COORDINATOR") or _sibling(host, hosts, tail, "-0-0" if jobs > 1 else "-0")
    return Membership("Kubernetes", None, rank, first, first or "")


def _sibling(host: str, hosts: str, tail: str, other: str) -> str | None:
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
    membership=membership,
    variables=("JOB_COMPLETION_INDEX", "JOBSET_JOB_INDEX", "JOBSET_REPLICAS", "JOBSET_COORDINATOR"),
    schedules=("JOBSET_RESTART_ATTEMPT", 1),
    job=None,
    task="JOB_COMPLETION_INDEX",
    node="NODE_NAME",  # by convention, from the downward API
)
