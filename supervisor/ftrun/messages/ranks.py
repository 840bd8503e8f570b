"""The control socket between PID 1 and the ranks that can recover: one packet, one JSON object.  What is
sent in either direction are the values of `core/ranks/table.py` themselves."""

from typing import Final

from ftrun.core.ranks.table import BeginRound, FenceRank, RankReport, ReleaseSnapshot
from ftrun.messages.codec import Protocol

LARGEST: Final = 4096  # bytes of a packet
ToRank = BeginRound | ReleaseSnapshot | FenceRank
FROM_RANK = Protocol[RankReport]("type", RankReport)
TO_RANK = Protocol[ToRank]("type", ToRank)
