"""What ftrun has to know about a platform: one record for each, in which no field has a default.

To add a platform, add a file with its record beside this one, and an entry in `table.PLATFORMS`.
"""

import re
from collections.abc import Callable, Mapping

from ftrun.core.named_tuple import NamedTuple

Environment = Mapping[str, str]


class Surroundings(NamedTuple):
    """Where this ftrun runs: `host` is its host name, `hosts` the text of /etc/hosts, `size` the value of
    `--group-size`, a number or `auto`."""

    environment: Environment
    host: str
    hosts: str
    size: int | str


class Membership(NamedTuple):
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
    membership: Callable[[Surroundings], Membership | None]
    variables: tuple[str, ...]
    schedules: tuple[str, int] | None
    job: str | None
    task: str | None
    node: str | None


def number(environment: Environment, *names: str) -> int | None:
    """The value of the first of these variables that is set, if it is a number."""
    text = next((text for name in names if (text := environment.get(name))), "")
    return int(text) if re.fullmatch(r"\d{1,10}", text, re.ASCII) else None


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
