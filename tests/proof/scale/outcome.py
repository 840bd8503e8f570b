"""What a run of the simulation is, and what it found."""

from collections.abc import Callable
from typing import Final, NamedTuple

from proof.scale.fleet import Fleet
from proof.scale.model import Network

FAN: Final = 64  # members that report to one messenger, in the tree that the page describes


class Outcome(NamedTuple):
    """Times in seconds.  `fence`: from the fault until the last member has the order to stop; `barrier`: from then
    until the last one has the order to start; `epochs`: how many were begun; `kib`: bytes that the busiest messenger
    sent and received for it, in KiB; `children`: of the busiest messenger."""

    fence: float
    barrier: float
    epochs: int
    kib: float
    children: int
    depth: int


class Case(NamedTuple):
    name: str
    play: Callable[[Fleet], Outcome]
    epochs: int  # that must have begun in the end
    network: Network = Network()
