"""The output of `npu-smi`, whatever it is; a missing value is None.

The texts are restated from the formats that npu_smi.py names; real outputs are read where they are available.
"""

from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.probe import npu_smi
from ftrun.helpers.probe.npu_smi import Chip, ChipHealth, ChipProcess, ChipReading
from support.device.npu_smi import FakeNpuSmi

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "npu-smi"
MIB = 1 << 20
CODES = ("A4025021", "8C03A000", "8C084E00")
NOTHING = (ChipReading(), None, ChipHealth(), None)
# The values in the real outputs, by chip; the others have none.
VALUES: dict[str, dict[int | None, tuple[object, ...]]] = {
    "910A__23.0.5__info_-t_ecc.txt": {0: NOTHING},
    "910A__23.0.5__info_-t_health_OK.txt": {None: (ChipReading(), None, ChipHealth("ok", ()), None)},
    "910A__23.0.5__info_-t_usages.txt": {0: (ChipReading(0, 0, None, None, 0, 32768 * MIB), *NOTHING[1:])},
    "910A__23.0.5__info_-t_usages__tabs.txt": {0: (ChipReading(0, 0, None, None, 0, 31129 * MIB), *NOTHING[1:])},
    "910A__23.0.7__info_-t_health_ALARM_3codes.txt": {None: (ChipReading(), None, ChipHealth("Alarm", CODES), None)},
    "910_A3__fixture__info_-t_usages_two_chips.txt": {chip: (ChipReading(0), *NOTHING[1:]) for chip in (0, 1)},
    "950__info_-t_common.txt": {None: (ChipReading(0, None, 298.6, 100), *NOTHING[1:])},
    "950__info_-t_current-fault-event.txt": {None: (*NOTHING[:3], ("81AF8000",))},
    "950__info_-t_ecc.txt": {None: NOTHING},
    "950__info_-t_health.txt": {None: (ChipReading(), None, ChipHealth("ok", ()), None)},
    "950__info_-t_power.txt": {None: (ChipReading(power=296.5), *NOTHING[1:])},
    "950__info_-t_proc-mem.txt": {None: (ChipReading(), (ChipProcess(395864, "power_test"),), ChipHealth(), None)},
    "950__info_-t_usages.txt": {
        None: (ChipReading(0, 3, None, None, round(131072 * MIB * 0.03), 131072 * MIB), *NOTHING[1:])
    },
}
MAPPED = {
    "910A__23.0.5__info_-m.txt": tuple(Chip(card, 0, card, None, "Ascend 910A", False) for card in range(8)),
    "950__info_-m.txt": (Chip(0, 0, 0, 0, "", True),),
}


def everything(text: str) -> dict[int | None, tuple[object, ...]]:
    readers: tuple[Any, ...] = (npu_smi.reading, npu_smi.processes, npu_smi.health, npu_smi.events)
    return {chip: tuple(reader(lines) for reader in readers) for chip, lines in npu_smi.blocks(text).items()}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"no real outputs in {SAMPLES}")
def test_real_outputs() -> None:
    texts = {path.name: path.read_text() for path in SAMPLES.glob("*.txt")}
    assert texts.keys() >= VALUES.keys() | MAPPED.keys()
    for name, text in texts.items():
        for ending in ("\n", "\r\n"):
            found = everything(text.replace("\n", ending))
            assert found == VALUES.get(name, dict.fromkeys(found, NOTHING)), name
            assert npu_smi.mapping(text.replace("\n", ending)) == MAPPED.get(name, ()), name
        assert not npu_smi.refused(text), name
        kind = name.partition("info_-t_")[2].partition("__")[0].removesuffix(".txt").partition("_")[0]
        assert kind not in npu_smi.KEYS or not npu_smi.is_unparsed(kind, text), name


@pytest.mark.parametrize(
    ("kind", "chips"),
    [
        ("910A", (Chip(0, 0, 0, None, "Ascend 910A", False), Chip(1, 0, 1, None, "Ascend 910A", False))),
        ("910B", (Chip(0, 0, 0, None, "Ascend 910B3", False), Chip(1, 0, 1, None, "Ascend 910B3", False))),
        ("A3", tuple(Chip(n // 2, n % 2, n, n, "Ascend910", False) for n in range(4))),
        ("950", (Chip(0, 0, 0, 0, "Ascend950PR", True), Chip(1, 0, 1, 1, "Ascend950PR", True))),
    ],
)
def test_mapping_lists_chips_only(kind: str, chips: tuple[Chip, ...], tmp_path: Path) -> None:
    text, _ = FakeNpuSmi(tmp_path, kind, cards=2).answers()["info -m"]
    assert npu_smi.mapping(str(text)) == chips


def test_mapping_with_other_text_and_repeated_lines() -> None:
    text = "libfoo: log level 3\nNPU ID\tChip ID\tChip Logic ID\tChip Name\n4 0 0 -\n4 0 0 Again\n"
    assert npu_smi.mapping(text + "4 1 - Mcu\n5 x 1 B\n6 0\n\n") == (Chip(4, 0, 0, None, "", False),)
    assert npu_smi.mapping("There is no NPU card on this server.\n") == ()
    text = "NPU ID  Slot ID  Chip ID  Chip Phy-ID  Chip Name\n3 0 0 3 A name\n3 0 1 - Mcu\n"
    assert npu_smi.mapping(text) == (Chip(3, 0, 3, 3, "A name", True),)


TWO = "\tNPU ID : 3\n\tChip Count : 2\n\n{first}\n{second}\n"


def test_chips_of_a_card_are_distinguished_by_their_number() -> None:
    after = TWO.format(
        first="Aicore Usage Rate(%) : 7\nChip ID : 0\n", second="Aicore Usage Rate(%) : 9\nChip ID : 1\n"
    )
    before = TWO.format(
        first="Chip ID : 0\nAicore Usage Rate(%) : 7\n", second="Chip ID : 1\nAicore Usage Rate(%) : 9\n"
    )
    for text in (after, before, before + "\n\tChip Name : mcu\n\tAicore Usage Rate(%) : 99\n"):
        assert {chip: npu_smi.reading(lines).util for chip, lines in npu_smi.blocks(text).items()} == {0: 7, 1: 9}


def test_chip_that_fails_has_no_values_of_the_next_chip() -> None:
    failed = "Chip ID : 0\nFailed to query npu chip: 0 info.\n"
    text = TWO.format(first=failed, second="NPU Real-time Power(W) : 95.1\nChip ID : 1\n")
    assert {chip: npu_smi.reading(lines).power for chip, lines in npu_smi.blocks(text).items()} == {0: None, 1: 95.1}


def test_chips_in_one_paragraph_have_no_values() -> None:
    text = "Aicore Usage Rate(%) : 7\nChip ID : 0\nAicore Usage Rate(%) : 9\nChip ID : 1\n"
    assert all(npu_smi.reading(lines) == ChipReading() for lines in npu_smi.blocks(text).values())


def reading(text: str) -> ChipReading:
    (lines,) = npu_smi.blocks(text).values()
    return npu_smi.reading(lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Aicore Usage Rate(%) : 7\n\nChip Name : mcu\nNPU Real-time Power(W) : 12.5\n", ChipReading(util=7)),
        (
            "HBM Capacity(MB) : 0\nAicore Usage Rate(%) : 7\n\nAicore Usage Rate(%) : 9\n",
            ChipReading(7, memory_total=0),
        ),
        ("Aicore Usage Rate(%) : 3\nAivector Usage Rate(%) : 88\nAicpu Usage Rate(%) : 99\n", ChipReading(util=88)),
        ("Aicore Usage Rate(%) : 3\nNPU Utilization(%) : 40\n", ChipReading(util=40)),
        ("Aicore Usage Rate(%) : 3\nVectorcore Usage Rate(%) : 61\n", ChipReading(util=61)),  # of a 310P
        (
            "DDR Capacity(MB) : 1000\nDDR Usage Rate(%) : 50\nHBM Capacity(MB) : 0\nHBM Usage Rate(%) : 7\n",
            ChipReading(memory_used=500 * MIB, memory_total=1000 * MIB),
        ),
        (
            "Aicore Usage Rate(%) : 255\nNPU Real-time Power(W) : 178,5\nAicore curFreq(MHZ) : 1,650\n",
            ChipReading(power=178.5),
        ),
    ],
)
def test_reading(text: str, expected: ChipReading) -> None:
    assert reading(text) == expected


@pytest.mark.parametrize("kind", npu_smi.KEYS)
def test_is_unparsed(kind: str) -> None:
    assert npu_smi.is_unparsed(kind, "")
    assert npu_smi.is_unparsed(kind, "\0\xff garbage\n")
    assert not npu_smi.is_unparsed(kind, "Error parameter of -t\n")
    assert npu_smi.is_unparsed("health", "Health Status : Sta\u0301t\n")


@pytest.mark.parametrize(
    "value", ["NA", "-", "", "xxx", "...", "-1", "nan", "inf", "1e3", "0x10", "٣", "9" * 5000, "5 %"]
)
def test_text_that_is_no_number_is_none(value: str) -> None:
    keys = ("Aicore Usage Rate(%)", "HBM Capacity(MB)", "HBM Usage Rate(%)", "NPU Real-time Power(W)")
    assert reading("".join(f"\t{key:<30} : {value}\r\n" for key in keys)) == ChipReading()


def processes(text: str) -> tuple[ChipProcess, ...] | None:
    (lines,) = npu_smi.blocks(text).values()
    return npu_smi.processes(lines)


def test_processes() -> None:
    text = (
        "\tProcess id:812     Process name:a name: b         Process memory(MB):3\n"
        "\tGet pid name failed.\n"
        "\tProcess id:4194304 Process name:                  Process memory(MB):48208\n"
        "\tProcess id:7 Process name:x Process memory(MB):NA\n"
        "\tProcess id:- Process name:y Process memory(MB):1\n"
    )
    expected = (ChipProcess(812, "a name: b"), ChipProcess(4194304, ""), ChipProcess(7, "x"))
    assert processes(text) == expected
    assert processes("\tNo process in device.\n") == ()
    assert processes("Failed to query npu chip: 0 info.\n") is None


def health(text: str) -> ChipHealth:
    (lines,) = npu_smi.blocks(text).values()
    return npu_smi.health(lines)


def test_codes() -> None:
    text = (
        "\tHealth Status                  : Critical\n"
        "\tError Code                     : 80E01801 80e18402\n"
        "\tError Information              : HBM multi-bit ECC error\n"
        "\n"
        "\t                               : node type=SoC: L2\n"
    )
    assert health(text) == ChipHealth("Critical", ("80E01801", "80E18402"))


def test_unknown_health_is_not_ok() -> None:
    assert health("Health : OK\n") == ChipHealth("ok", None)  # of a whole card: without codes
    assert health("Health Status : UNKNOWN\nError Code : NA\n") == ChipHealth("UNKNOWN", ())
    assert health("Health Status : NA\nError Code : ???\n") == ChipHealth(None, None)
    assert health('Failed to query "health" info.\n') == ChipHealth(None, None)


def test_fault_events() -> None:
    def events(text: str) -> tuple[str, ...] | None:
        (lines,) = npu_smi.blocks(text).values()
        return npu_smi.events(lines)

    first = "Fault Event Information : event id=0x81AF8000, severity=2, node id=0\n"
    second = "                        : event id=0x80e01801, severity=3\n"
    assert events("Fault Event Count : 2\n" + first + second) == ("81AF8000", "80E01801")
    assert events("Fault Event Count : 0\nFault Event Information : NA\n") == ()
    assert events("Fault Event Count : 1\nFault Event Information : masked\n") is None
    assert events("This device does not support querying current-fault-event.\n") is None


def test_refused() -> None:
    assert npu_smi.refused("This device does not support querying proc-mem.\r\n")
    assert npu_smi.refused("Error parameter of -t\nUsage: npu-smi info\n")
    assert not npu_smi.refused("Invalid card id.\nError parameter of -i\n")
    assert not npu_smi.refused('Failed to query "usages" info.\n')
