"""A model of a network and of the processors of many messengers: events in the order of a simulated clock.

The constants are measured or typical; each is named with its source.  Everything random comes from one seed."""

import heapq
import math
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

RECEIVE: Final = 47e-6  # s of CPU a message received and taken, and
SEND: Final = 47e-6  # s a message sent: the flat star of 4,000 members, 80-coordinator (CURVE, one Python thread)
RTO: Final = 0.2  # s until TCP sends a lost segment again at the earliest, doubled each time (RFC 6298, Linux)
RACK, POD, FAR = 50e-6, 150e-6, 400e-6  # s one way: in a rack, in a pod, between pods of one building
RACK_SIZE: Final = 32
POD_SIZE: Final = 1024


class Network(NamedTuple):
    """`loss`: the share of the segments that are lost.  `slow`: the share of the nodes that are `slowness` times
    slower, as those whose training takes every core."""

    loss: float = 0.0
    slow: float = 0.0
    slowness: float = 50.0


class Simulation:
    """`at` plans an event, `run` handles all in order.  `cut` is the set of pods that a switch has cut off."""

    def __init__(self, network: Network, seed: int) -> None:
        self.now, self.network = 0.0, network
        self.chance = random.Random(seed)
        self.cut: set[int] = set()
        self.handled = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._last: dict[tuple[int, int], float] = {}  # when the last message of a connection arrives

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, what, arguments))

    def run(self, until: Callable[[], bool], limit: float) -> bool:
        """Handle events until the condition holds; False if none is left or the limit, in seconds, has passed."""
        end = self.now + limit
        while not until():
            if not self._events or self._events[0][0] > end:
                return False
            self.now, _, what, arguments = heapq.heappop(self._events)
            self.handled += 1
            what(*arguments)
        return True

    def speed(self) -> float:
        """How many times slower than usual a new node is."""
        return self.network.slowness if self.chance.random() < self.network.slow else 1.0

    def deliver(self, sender: int, receiver: int, sent: float, what: Callable[..., None], *arguments: Any) -> None:
        """Plan the arrival of a message; while a switch is down, TCP sends it again until the switch is back."""
        if self._is_cut(sender, receiver):
            self.at(sent + RTO, self.deliver, sender, receiver, sent + RTO, what, *arguments)
            return
        near = RACK if sender // RACK_SIZE == receiver // RACK_SIZE else POD
        delay = near if sender // POD_SIZE == receiver // POD_SIZE else FAR
        delay *= math.exp(self.chance.gauss(0.0, 0.5))
        again = RTO
        while self.chance.random() < self.network.loss:
            delay, again = delay + again, 2 * again
        # A connection of TCP delivers in the order of sending.
        arrival = max(sent + delay, self._last.get((sender, receiver), 0.0))
        self._last[sender, receiver] = arrival
        self.at(arrival, what, *arguments)

    def _is_cut(self, one: int, other: int) -> bool:
        pods = one // POD_SIZE, other // POD_SIZE
        return pods[0] != pods[1] and not self.cut.isdisjoint(pods)
