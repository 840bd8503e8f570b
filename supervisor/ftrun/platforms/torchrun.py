"""The variables by which torchrun's options are often given, whatever the platform is."""

from typing import Final

from ftrun.platforms.base import Membership, Platform, Surroundings, number


def membership(at: Surroundings) -> Membership | None:
    """The membership by torchrun's variables; the size is used only with all three of them."""
    environment = at.environment
    size, rank = number(environment, "NNODES", "PET_NNODES"), number(environment, "NODE_RANK", "PET_NODE_RANK")
    host = environment.get("MASTER_ADDR") or environment.get("PET_MASTER_ADDR")
    if rank is None and not host:
        return None
    return Membership("MASTER_ADDR", size if host and rank is not None else None, rank, host)


TORCHRUN: Final = Platform(
    name="by the variables of torchrun",
    membership=membership,
    variables=("MASTER_ADDR", "PET_MASTER_ADDR", "NNODES", "PET_NNODES", "NODE_RANK", "PET_NODE_RANK"),
    schedules=None,
    job=None,
    task="NODE_RANK",
    node=None,
)
