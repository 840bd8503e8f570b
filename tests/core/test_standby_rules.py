"""When there are standbys, how many, and with what environment they wait."""

import pytest

from ftrun.core.rules import standby
from ftrun.core.rules.standby import HEADROOM, Memory

GIB = 1 << 30


@pytest.mark.parametrize(("mode", "ranks", "number"), [(None, 8, 0), ("auto", 8, 8), (1, 8, 1), (9, 8, 8), (1, 1, 1)])
def test_there_are_never_more_than_processes_of_the_command(mode: standby.Mode, ranks: int, number: int) -> None:
    assert standby.number(mode, ranks) == number


def test_auto_waits_until_the_attempt_has_been_healthy_for_a_while() -> None:
    assert standby.due("auto", 100.0) - standby.due(1, 100.0) >= 20


@pytest.mark.parametrize(
    ("memory", "fits"),
    [
        (None, True),  # the kernel does not say
        (Memory(4 * GIB, GIB + HEADROOM), True),
        (Memory(4 * GIB, GIB + HEADROOM - 1), False),
        (Memory(100 * GIB, 11 * GIB), True),  # a tenth is kept
        (Memory(100 * GIB, 11 * GIB - 1), False),
    ],
)
def test_the_job_keeps_its_headroom(memory: Memory | None, fits: bool) -> None:
    why = standby.lacks_memory(memory, GIB)
    assert (why is None) == fits
    assert fits or "too little memory" in str(why)


def test_a_standby_that_would_be_killed_with_the_job_is_watched_closely() -> None:
    assert standby.looking(killed_together=True) <= 1 < standby.looking(killed_together=False)
    free = Memory(4 * GIB, GIB + HEADROOM)
    assert standby.lacks_memory(free, GIB) is None
    assert standby.lacks_memory(free, GIB, killed_together=True) is not None


def test_secrets_and_what_differs_at_each_start_are_not_in_a_process_that_waits() -> None:
    kept = {"PATH": "/bin", "RANK": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "0", "LC_ALL": "C"}
    left_out = {"HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "MA_PROC_START_CNT": "1", "MASTER_PORT": "2"}
    assert standby.parked_environment(kept | left_out) == kept
    assert standby.withheld(kept | left_out) == {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"}
    assert standby.PER_START < standby.OURS
