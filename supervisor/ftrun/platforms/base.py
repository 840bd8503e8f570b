"""What ftrun has to know of a platform: one record each, in which no field has a default.

To add a platform: a file beside this one with its record, and an entry in `table.PLATFORMS`.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

Environment = Mapping[str, str]


class Surroundings(NamedTuple):
    """Where this ftrun runs: `host` is its own host name, `hosts` the text of /etc/hosts, `size` what `--group-size`
    says, a number or `auto`."""

    environment: Environment
    host: str
    hosts: str
    size: int | str


class Membership(NamedTuple):
    """What a platform says of the group; None: it does not.  A `size` of 1: this ftrun is on its own.  `source` names
    the platform to a person; `host` is that of rank 0; `job` tells two groups on one port apart, and may be empty."""

    source: str
    size: int | None = None
    rank: int | None = None
    host: str | None = None
    job: str = ""


class Platform(NamedTuple):
    """`name` is for the reference: "the group, `name`".

    `membership`: the group that this ftrun is a member of; None where this is not the platform.  `variables`: those
    from which it knows.  `schedules`: the variable that counts how often the job was scheduled, and what to add to it
    (1 where the first schedule is 0).  `job`: the variable that identifies the training job over all its schedules.
    `task`: the one that tells the tasks of a job apart that share a folder.  `node`: the one that names the node.
    None: the platform has no such variable.
    """

    name: str
    membership: Callable[[Surroundings], Membership | None]
    variables: tuple[str, ...]
    schedules: tuple[str, int] | None
    job: str | None
    task: str | None
    node: str | None


def number(environment: Environment, *names: str) -> int | None:
    """Of the first of these variables that is set, if it is a number."""
    text = next((text for name in names if (text := environment.get(name))), "")
    return int(text) if re.fullmatch(r"\d{1,10}", text, re.ASCII) else None


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
