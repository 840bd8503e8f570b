"""Volcano: one list of hosts for each task of the Job."""

import re
from typing import Final

from ftrun.platforms.base import Environment, Membership, Platform, Surroundings, names, number


def membership(at: Surroundings) -> Membership | None:
    """One task, or `master` and `worker`, form a training; how other tasks relate to each other is unknown."""
    environment, host = at.environment, at.host
    found = {name[3:-6]: names(text) for name, text in environment.items() if re.fullmatch(r"VC_\w+_HOSTS", name)}
    lists = {name: members for name, members in found.items() if members}
    rank = task(environment)
    if rank is None or not lists:
        return None
    if lists.keys() == {"MASTER", "WORKER"}:
        members = lists["MASTER"] + lists["WORKER"]
        short, own = [name.partition(".")[0] for name in members], host.partition(".")[0]
        rank = short.index(own) if own in short else None
    elif len(lists) == 1:
        (members,) = lists.values()
    else:
        return Membership("Volcano")
    return Membership("Volcano", len(members), rank, members[0], members[0])


def task(environment: Environment) -> int | None:
    return number(environment, "VC_TASK_INDEX", "VK_TASK_INDEX")


VOLCANO: Final = Platform(
    name="under Volcano",
    membership=membership,
    variables=("VC_TASK_INDEX", "VK_TASK_INDEX", "VC_<TASK>_HOSTS"),
    schedules=None,
    job=None,
    task="VC_TASK_INDEX",
    node=None,
)
