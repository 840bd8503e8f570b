"""The sections of docs/measured/scale."""

from typing import Final

from proof.scale.outcome import FAN, Case, Outcome
from support.measured import Measured, Plot, Series

PEER_KIB: Final = 37  # KiB of the messenger for each connection: (166 - 21) MiB for 4,000 (80-coordinator)
BASE_MIB: Final = 21  # MiB of a messenger without members, the same
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

SIZES: Final = """\
The command of one member fails. *Fence* is the time until the last member has the order to stop; *barrier*, from then
until the last one has the order to start again. A member stops and starts in no time here, so this is what the group
adds to a restart. *Busiest* is the messenger that sends and receives most. Its memory is computed from the number of
its connections. 10,000 members have been simulated in a star as well; 100,000 have not, since the coordinator would
copy a table of 100,000 members as many times. The model is pessimistic: 4,000 real connections took 0.375 s for the
barrier in a benchmark (`80-coordinator`)."""
SIZES_HEAD: Final = ("members", "messengers", "levels", "fence", "barrier", "busiest, KiB", "its memory, MiB")
BREAKS: Final = """\
**What breaks first in a star** is the processor of rank 0: it handles the messages of all members one after the other,
and the coordinator copies its table of members for each. Then come its memory and its descriptors, two for each
member. In a tree no messenger has more than its own children, whatever the size; each level costs the time of two
messages."""
FAULTS: Final = """\
The columns are those above, in a tree of 64; a barrier does not count the time for which the fault itself lasts. If a
messenger dies alone, the members below it continue. PID 1 starts it again after 1.5 s, and it learns everything from
its children. A lost container counts as lost 5 s after its connection closed, which is the fence in these rows. The
replacements come on the same machine; on another one the fence of ADR 10 would decide, which is not simulated."""
FAULTS_HEAD: Final = ("the fault", "members", "fence", "barrier, or until the tree is whole", "restarts")
FAILURES: Final = """\
What remains of the time for training. The rate is that of Llama 3: 419 unexpected interruptions in 54 days on 16,384
GPUs in nodes of eight, which is 3.8 for each thousand nodes and day. Steps that are lost come on top of each figure:
those since the last checkpoint where all ranks restart, at most one where memory is kept."""
UNKNOWN: Final = """\
**The published systems are better known at this size**: their figures were measured with thousands of devices and
contain the start of the communication library and the transfer of the state. Those of ftrun were measured with four
ranks on two cores and contain neither NCCL nor a transfer, so they are a lower bound: what ftrun adds to what the
program itself needs. A device or node that is really lost also needs a replacement, with any of these systems."""


def sizes(rows: list[tuple[int, int, Outcome]]) -> Measured:
    table, star, tree = [], [], []
    for size, fan, found in rows:
        memory = f"{BASE_MIB + found.children * PEER_KIB / 1024:,.0f}"
        times = _seconds(found.fence), _seconds(found.barrier)
        shape = "star" if fan >= size else f"tree of {fan}"
        table.append((f"{size:,}", shape, f"{found.depth}", *times, f"{found.kib:,.0f}", memory))
        point = float(size), (found.fence + found.barrier,)
        if fan >= size:
            star.append(point)
        elif fan == FAN:
            tree.append(point)
    lines = (Series("star", tuple(star)), Series(f"tree of {FAN}", tuple(tree)))
    plot = Plot("lines", "members", "fence and barrier, s", lines, log_x=True, log_y=True)
    title = "From one failure to the next start"
    return Measured("10-sizes", title, "bin/prove scale", (SIZES,), SIZES_HEAD, tuple(table), (BREAKS,), plot)


def faults(rows: list[tuple[Case, int, Outcome]]) -> Measured:
    table = []
    for case, size, found in rows:
        stop = "nothing stops" if case.epochs == 1 else _seconds(found.fence)
        table.append((case.name, f"{size:,}", stop, _seconds(found.barrier), f"{found.epochs - 1}"))
    return Measured("20-faults", "Faults", "bin/prove scale", (FAULTS,), FAULTS_HEAD, tuple(table))


def failures() -> Measured:
    """The share of the time that is left for training, if each failure of a published fleet costs so many seconds."""
    table = [("failures a day", *(f"{RATE * nodes:,.0f}" for nodes in NODES))]
    for what, cost in COSTS:
        shares = [max(0.0, 1 - RATE * nodes * cost / 86_400) for nodes in NODES]
        table.append((what, *(f"{share:.2%}" if share else "none" for share in shares)))
    head = ("each failure costs", *(f"{nodes:,} nodes" for nodes in NODES))
    title = "Failures and training time"
    return Measured("30-failures", title, "bin/prove scale", (FAILURES,), head, tuple(table), (UNKNOWN,))


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
