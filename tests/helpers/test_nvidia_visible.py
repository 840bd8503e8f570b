"""Which devices CUDA_VISIBLE_DEVICES selects."""

import pytest

from ftrun.helpers.probe.nvidia import Gpu, Mig, has_positions, selected

GPUS = [Gpu(0, "GPU-8932f937-d72c"), Gpu(1, "GPU-8932f001-0000"), Gpu(3, "GPU-b2210207-2f27")]
MIGS = ("MIG-11111111-1", "MIG-11222222-2", "MIG-33333333-3")
PARTITIONED = [Gpu(0, "GPU-aaaa", (Mig(MIGS[0], 1, 0), Mig(MIGS[1], 2, 0), Mig(MIGS[2], 2, 1))), Gpu(1, "GPU-bbbb")]


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [
        (None, [0, 1, 3]),
        ("  ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,1", [3, 1]),  # by position: CUDA does not count what it may not use
        ("3", []),
        (" 0 , 1 ", [0, 1]),
        ("0,2,-1,1", [0, 3]),
        ("0,7,1", [0]),
        ("0,,1", [0]),
        ("1gpu2,2ampere", [1, 3]),
        ("+1", [1]),
        ("0,1,0", []),
        ("GPU-8932f937-d72c", [0]),
        ("GPU-8932f9", [0]),
        ("GPU-8932f", []),  # ambiguous
        ("GPU-8932f937-d72c-and-more", []),
        ("GPU-b,GPU-x,GPU-8932f9", [3]),
        ("GPU-b,GPU-b22", []),
        ("MIG-8932f937", []),
    ],
)
def test_gpus(setting: str | None, numbers: list[int]) -> None:
    assert [(gpu.number, mig) for gpu, mig in selected(setting, GPUS)] == [(number, None) for number in numbers]


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, [*MIGS, "GPU-bbbb"]),
        ("0", [*MIGS]),
        ("1", ["GPU-bbbb"]),
        ("GPU-a", [*MIGS]),
        ("MIG-11222222-2", [MIGS[1]]),
        ("MIG-3", [MIGS[2]]),
        ("MIG-11", []),
        ("MIG-GPU-aaaa/2/1", [MIGS[2]]),
        ("MIG-GPU-aaaa/2/0,GPU-bbbb", [MIGS[1], "GPU-bbbb"]),
        ("MIG-GPU-aaaa/9/0", []),
        ("0,MIG-33333333-3", []),  # twice
    ],
)
def test_partitioned_gpus(setting: str | None, names: list[str]) -> None:
    assert [mig.uuid if mig else gpu.uuid for gpu, mig in selected(setting, PARTITIONED)] == names


def test_gpu_that_was_lost_before_its_uuid_was_read() -> None:
    lost = Gpu(5, "")
    assert [*selected("GPU-bbbb,GPU-cccc", [*PARTITIONED, lost])] == [(PARTITIONED[1], None), (lost, None)]
    assert selected("GPU-cccc", [lost, Gpu(6, "")]) == {}
    assert [*selected("2", [*PARTITIONED, lost])] == [(lost, None)]


def test_only_numbers_are_positions() -> None:
    assert [has_positions(setting) for setting in (None, "", "GPU-0", "-1", " 0", "1,2")] == [False] * 4 + [True] * 2
