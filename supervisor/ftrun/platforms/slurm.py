"""Slurm: each task of a step has an ftrun of its own."""

import re
from typing import Final

from ftrun.platforms.base import Membership, Platform, Surroundings, number

NO_TASK: Final = 0xFFFFFFF0  # numbers of steps from here on: batch scripts, salloc's shell


def membership(at: Surroundings) -> Membership | None:
    """The membership of a task.  A batch script is alone: it does not do the work of the tasks, and starts srun."""
    environment = at.environment
    job = environment.get("SLURM_JOB_ID")
    step = number(environment, "SLURM_STEP_ID", "SLURM_STEPID")
    if not job:
        return None
    if step is None and "SLURM_TASK_PID" not in environment and "SLURM_NODEID" not in environment:
        return Membership("Slurm's allocation", 1)  # salloc's shell
    if (step is None and "SLURM_TASK_PID" in environment) or (step or 0) >= NO_TASK:
        return Membership("Slurm's batch script", 1)
    name = f"{job}.{step or 0}"
    if (tasks := number(environment, "SLURM_STEP_NUM_TASKS")) is not None:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        return Membership("Slurm", tasks, number(environment, "SLURM_PROCID"), first_host(nodes), name)
    count, rank = number(environment, "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), number(environment, "SLURM_NODEID")
    return Membership("Slurm", count, rank, first_host(environment.get("SLURM_JOB_NODELIST", "")), name)


def first_host(nodes: str) -> str | None:
    """The first host of a Slurm node list such as `gpu[003-005,9],b1`."""
    first = re.match(r"(?:[^\[\],\s]|\[[\d,-]+\])+(?=,|$)", nodes)
    return re.sub(r"\[(\d+)[\d,-]*\]", r"\1", first[0]) if first else None


SLURM: Final = Platform(
    name="under Slurm",
    membership=membership,
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
