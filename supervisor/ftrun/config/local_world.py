"""The ranks of this node, and the environment that tells each of them its place (DESIGN of torchrun: `torch.distributed
.elastic.agent.server`).  Pure."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from ftrun.core.machine.values import RankPlace
from ftrun.core.named_tuple import NamedTuple

ROLE: Final = "default"  # torchrun's name for the only role
LOOPBACK: Final = "127.0.0.1"
SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh")


class LocalWorld(NamedTuple):
    """`local_size` ranks on this node, numbered from `first` among `size` in the whole job.  `group_rank` of
    `group_size`: this node.  `address`, `port`: where rank 0 listens.  `restarts` of at most `max_restarts` so far."""

    local_size: int
    first: int = 0
    size: int = 0
    group_rank: int = 0
    group_size: int = 1
    address: str = LOOPBACK
    port: int = 0
    run_id: str = "none"
    restarts: int = 0
    max_restarts: int = 0

    def placed(self, place: RankPlace | None, address: str, run_id: str, epoch: int) -> "LocalWorld":
        """These ranks at their place in a group.  `address`: of rank 0, where the order has none.  What every rank
        of the job must have alike follows from the group: `run_id` from its name, the restarts from the epoch."""
        if place is None:
            return self
        return self._replace(
            local_size=place.number,
            first=place.first,
            size=place.size,
            group_rank=place.member,
            group_size=place.members,
            address=place.address or address or LOOPBACK,
            port=place.port,
            run_id=run_id or "none",
            restarts=max(0, epoch - 1),
        )

    def variables(self, local_rank: int, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of a rank, with the names and meanings that torchrun gives them."""
        rank = self.first + local_rank
        variables: dict[str, object] = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": self.size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.group_rank,
            "GROUP_WORLD_SIZE": self.group_size,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.size,
            "ROLE_NAME": ROLE,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RESTART_COUNT": self.restarts,
            "TORCHELASTIC_MAX_RESTARTS": self.max_restarts,
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": False,  # rank 0 serves the store
        }
        if self.local_size > 1 and "OMP_NUM_THREADS" not in environment:
            variables["OMP_NUM_THREADS"] = 1  # torchrun does so too; otherwise each rank uses all cores
        return {name: str(value) for name, value in variables.items()}


def command_line(command: Sequence[str]) -> list[str]:
    """What is executed for a rank.  A Python file or `-m MODULE` runs under the `python` on PATH, unbuffered, as
    torchrun does it."""
    if command and (command[0] == "-m" or command[0].endswith(".py")):
        return ["python", "-u", *command]
    return list(command)


def reads_program(command: Sequence[str]) -> bool:
    """Whether it is Python or a shell that reads its program from standard input, as far as the words show."""
    name = os.path.basename(command[0])
    is_shell = name in SHELLS
    if not is_shell and not name.startswith("python"):
        return False
    for word in command[1:]:
        flags = "" if word.startswith("--") else word[1:]
        if not word.startswith("-") or "c" in flags or ("m" in flags and not is_shell):
            return False
        if word == "-" or ("s" in flags and is_shell):
            return True
    return True
