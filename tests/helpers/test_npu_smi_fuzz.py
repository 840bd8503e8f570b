"""Whatever `npu-smi` prints, its readers end well, and what they say is possible."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ftrun.helpers.probe import npu_smi
from ftrun.helpers.probe.ascend import MOST_IDS, ids
from support.device.npu_smi import FakeNpuSmi

PIECES = [
    ":",
    " : ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "NA",
    "-",
    "Chip ID : 1",
    "Chip ID",
    "9" * 30,
    "%",
    "\0",
    "é",
    "0x",
    "|",
]


def originals() -> list[str]:
    found: list[str] = []
    for kind in ("910A", "910B", "A3", "950"):
        with tempfile.TemporaryDirectory() as folder:
            fake = FakeNpuSmi(Path(folder), kind)
            fake.set(processes=[(1, "a b", 3), (2, "", 4)], codes=[("80E01801", "one"), ("8C084E00", "two")])
            found += [str(text) for text, _ in fake.answers().values()]
    return found


@st.composite
def broken(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(ORIGINALS))
    for _ in range(draw(st.integers(0, 6))):
        lines = text.splitlines(keepends=True) or [""]
        at = draw(st.integers(0, len(text)))
        line = draw(st.integers(0, len(lines) - 1))
        text = draw(
            st.sampled_from(
                [
                    text[:at],
                    text[at:],
                    text[:at] + text[at + 1 :],
                    text[:at] + draw(st.sampled_from(PIECES)) + text[at:],
                    "".join(lines[:line] + lines[line + 1 :]),
                    "".join([*lines[: line + 1], *lines[line:]]),
                    "".join([*lines[line:], *lines[:line]]),
                    text + draw(st.sampled_from(ORIGINALS)),
                ]
            )
        )
    return text


ORIGINALS = originals()


@given(text=broken() | st.text())
def test_any_text_is_read(text: str) -> None:
    for chip in npu_smi.mapping(text):
        assert min(chip[:3]) >= 0
        assert chip.name.lower() not in npu_smi.NO_CHIP
    assert npu_smi.refused(text) in (True, False)
    for number, lines in npu_smi.blocks(text).items():
        assert number is None or number >= 0
        assert not any("\n" in key + value for key, value in lines)
        reading = npu_smi.reading(lines)
        assert all(value is None or value >= 0 for value in reading)
        assert all(value is None or value <= 100 for value in reading[:2])
        assert reading.memory_used is None or reading.memory_used <= (reading.memory_total or 0)
        assert all(process.pid >= 0 for process in npu_smi.processes(lines) or ())
        health = npu_smi.health(lines)
        assert health.text is None or health.text.lower() not in npu_smi.NO_VALUE
        for codes in (health.codes, npu_smi.events(lines)):
            assert all(code == code.upper() and int(code, 16) >= 0 for code in codes or ())
        assert all(count is None or count >= 0 for count in npu_smi.ecc(lines))


@given(text=st.text(alphabet="0123456789,- x", max_size=12) | st.text())
def test_any_value_names_devices(text: str) -> None:
    found = ids(text)
    assert len(found) <= MOST_IDS * (text.count(",") + 1)
    assert all(str(number) in text or "-" in text or f"0{number}" in text for number in found)
