"""What failures cost at the rate of a published fleet: arithmetic, for docs/measured/scale."""

from typing import Final

from support.measured import Measured

RATE: Final = 419 / 54 / (16_384 / 8)  # unexpected interruptions for each node and day: Llama 3, arXiv 2407.21783
COSTS: Final = (
    ("15 to 30 min: the whole job is created again, as before HyperPod's checkpointless training", 1350.0),
    ("180 s of stall: FT-HSDP (arXiv 2602.00277)", 180.0),
    ("150 s: FlashRecovery at 4,800 devices (arXiv 2509.03047)", 150.0),
    ("below 120 s: HyperPod, checkpointless", 120.0),
    ("28 s: a hang that ftrun proves, until the restart ([which hangs are found](hang-matrix.md))", 28.0),
    ("4.1 s: ftrun replaces one rank of PyTorch, cold ([how](howto/recover-a-rank.md))", 4.1),
    ("0.4 s: the same in a standby ([how](howto/warm-standby.md))", 0.4),
)
NODES: Final = (1_000, 10_000, 100_000)

FAILURES: Final = """\
What remains of the time for training. The rate is that of Llama 3: 419 unexpected interruptions in 54 days on 16,384
GPUs in nodes of eight, which is 3.8 for each thousand nodes and day. Steps that are lost come on top of each figure:
those since the last checkpoint where all ranks restart, at most one where memory is kept."""
UNKNOWN: Final = """\
**The published systems are better known at this size**: their figures were measured with thousands of devices and
contain the start of the communication library and the transfer of the state. Those of ftrun were measured with four
ranks on two cores and contain neither NCCL nor a transfer, so they are a lower bound: what ftrun adds to what the
program itself needs. A device or node that is really lost also needs a replacement, with any of these systems."""


def failures() -> Measured:
    """The share of the time that is left for training, if each failure of a published fleet costs so many seconds."""
    table = [("failures a day", *(f"{RATE * nodes:,.0f}" for nodes in NODES))]
    for what, cost in COSTS:
        shares = [max(0.0, 1 - RATE * nodes * cost / 86_400) for nodes in NODES]
        table.append((what, *(f"{share:.2%}" if share else "none" for share in shares)))
    head = ("each failure costs", *(f"{nodes:,} nodes" for nodes in NODES))
    title = "Failures and training time"
    return Measured("30-failures", title, "bin/prove scale", (FAILURES,), head, tuple(table), (UNKNOWN,))
