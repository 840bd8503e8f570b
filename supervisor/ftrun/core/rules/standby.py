"""Standbys: processes of the next start that wait with their imports done.  When there are to be any, and how many.

Pure; times are CLOCK_MONOTONIC seconds, sizes are bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ftrun.core.machine.values import NextStart as NextStart
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.redaction import is_secret

HEALTHY: Final = 30.0  # s after the first heartbeat, with `auto`: before that a failure is likely to come at once again
PROMPT: Final = 0.5  # s after it, with a given number
IMPORTING: Final = 600.0  # s for the imports of a standby; then it hangs
FIRST_IMPORTING: Final = 120.0  # s, where the first start waits for them
ANSWERING: Final = 10.0  # s for the answer of a standby that is started; then it is killed
TRIES: Final = 3  # standbys of one rank that fail before any was started; then it has none
FIRST_SIZE: Final = 1 << 30  # of a standby, before one was measured
FORKED_SIZE: Final = 64 << 20  # of one that is forked from a template, beyond what they share
LOOKING: Final = 5.0  # s between two looks at the memory while standbys wait
LOOKING_OFTEN: Final = 1.0  # s, where the kernel would end the job with a standby
HEADROOM: Final = 512 << 20  # that is left to the job
SHARE: Final = 0.1  # of the limit: what is left, if that is more

# What ftrun itself sets for each start and cannot know before: a standby does not have it while it waits.
PER_START: Final = frozenset(
    {
        *("MA_PROC_START_CNT", "FTRUN_RESTART_REASON", "FTRUN_LAST_STEP", "FTRUN_LAST_CHECKPOINT"),
        *("FTRUN_LAST_SECTION", "FTRUN_EPOCH", "FTRUN_ROUND", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    }
)
# What it sets for each rank: a standby waits with the values of its rank, and may get others unless it has read them.
OURS: Final = PER_START | {
    *("MA_SCHEDULE_CNT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "NNODES", "NODE_RANK"),
}
DIFFERING: Final = frozenset(("RANK", "LOCAL_RANK", "ROLE_RANK"))  # between the ranks of a node
# Libraries read variables of these families when they are loaded, whatever the rest of the name looks like.
FAMILIES: Final = ("PYTHON", "LD_", "OMP_", "MKL_", "CUDA_", "NCCL_", "TORCH", "TOKENIZERS_", "HCCL_", "ASCEND_", "LC_")
Mode = int | Literal["auto"] | None


class Memory(NamedTuple):
    """`limit` of the control group, or of the machine; `free`: what can still be used without an out-of-memory kill."""

    limit: int
    free: int


def number(mode: Mode, ranks: int) -> int:
    """How many standbys there are to be for a start of `ranks` processes."""
    if mode is None:
        return 0
    return ranks if mode == "auto" else min(mode, ranks)


def due(mode: Mode, first_moved: float) -> float:
    """When the first standby of an attempt may be started."""
    return first_moved + (HEALTHY if mode == "auto" else PROMPT)


def looking(killed_together: bool) -> float:
    """Seconds between two looks at the memory.  `killed_together`: as in `lacks_memory`."""
    return LOOKING_OFTEN if killed_together else LOOKING


def lacks_memory(memory: Memory | None, size: int, killed_together: bool = False) -> str | None:
    """Why there is no room for standbys of this size; None if there is, or if the kernel does not say.
    `killed_together`: the kernel would end the job with a standby that it kills for memory, so more is left to it."""
    if memory is None:
        return None
    kept = max(HEADROOM, int(memory.limit * SHARE)) * (2 if killed_together else 1)
    if memory.free - size >= kept:
        return None
    return f"too little memory: {memory.free >> 20} MiB are free, of which the job keeps {kept >> 20}"


def withheld(environment: Iterable[str]) -> frozenset[str]:
    """The variables that a standby gets only when it is started: secrets, which imports need not know."""
    return frozenset(name for name in environment if is_secret(name) and not name.startswith(FAMILIES))


def parked_environment(environment: Mapping[str, str], template: bool = False) -> dict[str, str]:
    """What a standby has while it waits; `template`: what all ranks have in common."""
    left_out = withheld(environment) | PER_START | (DIFFERING if template else frozenset())
    return {name: value for name, value in environment.items() if name not in left_out}
