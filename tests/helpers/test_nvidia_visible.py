"""What CUDA_VISIBLE_DEVICES leaves."""

import pytest

from ftrun.helpers.probe.visible import Gpu, Mig, numbered, units, visible

WHOLE = [Gpu(0, "GPU-8932f937-d72c"), Gpu(1, "GPU-8932f001-0000"), Gpu(3, "GPU-b2210207-2f27")]
DIVIDED = [
    Gpu(0, "GPU-aaaa", (Mig("MIG-11111111-1", 1, 0), Mig("MIG-11222222-2", 2, 0), Mig("MIG-33333333-3", 2, 1))),
    Gpu(1, "GPU-bbbb"),
]


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [
        (None, [0, 1, 3]),
        ("", []),
        ("  ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", [0]),
        ("2,1", [3, 1]),
        ("2", [3]),  # by position: CUDA does not count what it may not use
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
        ("GPU-8932f", []),  # which of two?
        ("GPU-b,GPU-8932f0", [3, 1]),
        ("GPU-8932f937-d72c-and-more", []),
        ("GPU-b,GPU-x,GPU-8932f9", [3]),
        ("GPU-b,GPU-b22", []),
        ("all", []),
        ("MIG-8932f937", []),
    ],
)
def test_whole_gpus(setting: str | None, numbers: list[int]) -> None:
    assert visible(setting, WHOLE) == [(gpu, None) for i in numbers for gpu in WHOLE if gpu.number == i]


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, ["MIG-11111111-1", "MIG-11222222-2", "MIG-33333333-3", "GPU-bbbb"]),
        ("0", ["MIG-11111111-1", "MIG-11222222-2", "MIG-33333333-3"]),
        ("1", ["GPU-bbbb"]),
        ("GPU-a", ["MIG-11111111-1", "MIG-11222222-2", "MIG-33333333-3"]),
        ("MIG-11222222-2", ["MIG-11222222-2"]),
        ("MIG-3", ["MIG-33333333-3"]),
        ("MIG-11", []),
        ("MIG-GPU-aaaa/2/1", ["MIG-33333333-3"]),
        ("MIG-GPU-aaaa/2/0,GPU-bbbb", ["MIG-11222222-2", "GPU-bbbb"]),
        ("MIG-GPU-aaaa/9/0", []),
        ("0,MIG-33333333-3", []),  # twice
    ],
)
def test_divided_gpus(setting: str | None, names: list[str]) -> None:
    assert [mig.uuid if mig else gpu.uuid for gpu, mig in visible(setting, DIVIDED)] == names


def test_one_that_was_lost_before_it_could_be_named() -> None:
    lost = Gpu(5, "")
    assert visible("GPU-bbbb,GPU-cccc", [*DIVIDED, lost]) == [(DIVIDED[1], None), (lost, None)]
    assert visible("GPU-cccc", [lost, Gpu(6, "")]) == []
    assert visible("2", [*DIVIDED, lost]) == [(lost, None)]


def test_all_that_can_be_used() -> None:
    assert units(DIVIDED) == visible(None, DIVIDED)
    assert visible("0", []) == []


def test_only_numbers_depend_on_an_order() -> None:
    assert [numbered(setting) for setting in (None, "", "GPU-0", "-1", " 0", "1,2")] == [False] * 4 + [True] * 2
