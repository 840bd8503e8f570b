"""A fake `npu-smi` for PATH.

It prints the formats of the real tool, restated from the source that ftrun/helpers/probe/npu_smi.py names.
"""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

# All answers are replaced by one rename, so a tool that runs meanwhile prints the old or the new state, not both.
# It is started hundreds of times, and so it forks only for an exit status.
SCRIPT: Final = """#!/bin/sh
echo "$*" >>{here}/calls
cd -P {here}/now || exit
answer="./$*"
if [ -e "$answer.never" ]; then trap '' TERM INT HUP; exec sleep 100000; fi
[ -e "$answer" ] || answer=./unknown
[ -e "$answer.exit" ] || exec cat "$answer"
cat "$answer"
read -r code <"$answer.exit"
exit "$code"
"""
UNKNOWN: Final = "Error parameter of -t\nUsage: npu-smi info <watch|proc|-h|-m|-l|-t type> [Options...]\n"
NAMES: Final = {"910A": "Ascend 910A", "910B": "Ascend 910B3", "A3": "Ascend910", "950": "Ascend950PR"}


class Chip(NamedTuple):
    """The state of one chip; None is printed as NA.  `lost`: it is not listed.  `never`: queries of its card hang."""

    util: int | None = 0
    memory_util: int | None = 0
    used: int | None = 5  # percent
    capacity: int | None = 65536  # MB
    power: float | None = 92.4
    clock: int | None = 800
    processes: Sequence[tuple[int, str, int]] = ()  # pid, name or "" where /proc has none, MB
    health: str = "OK"
    codes: Sequence[tuple[str, str]] = ()  # with their texts
    ecc: int | None = 0  # uncorrectable
    isolated: int | None = 0  # pages
    lost: bool = False
    never: bool = False


class FakeNpuSmi:
    """The tool of one kind of node; an A3 has two chips on each card, and a 910B an MCU that is listed, too."""

    def __init__(self, folder: Path, kind: str = "910B", cards: int = 1) -> None:
        self.folder, self.kind = folder, kind
        self.chips = {(card, chip): Chip() for card in range(cards) for chip in range(2 if kind == "A3" else 1)}
        self._fixed: dict[str, tuple[str | bytes, int]] = {}
        self._turn = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._write()
        tool = folder / "npu-smi"
        tool.write_text(SCRIPT.format(here=shlex.quote(str(folder))))
        tool.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """The variables with which this tool is first on PATH."""
        return {"PATH": f"{self.folder}:{os.environ.get('PATH', os.defpath)}"}

    def set(self, card: int = 0, chip: int = 0, **values: object) -> None:
        """Change fields of `Chip`."""
        self.chips[card, chip] = Chip(**(self.chips[card, chip]._asdict() | values))
        self._write()

    def say(self, question: str, text: str | bytes, code: int = 0) -> None:
        """Always print this for a query such as `info -t usages -i 0`."""
        self._fixed[question] = text, code
        self._write()

    @property
    def calls(self) -> list[str]:
        """The arguments of every call, oldest first."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def _write(self) -> None:
        self._turn += 1
        answers = self.folder / f"answers.{self._turn}"
        answers.mkdir()
        (answers / "unknown").write_text(UNKNOWN)
        for question, (text, code) in (self.answers() | self._fixed).items():
            (answers / question).write_bytes(text if isinstance(text, bytes) else text.encode())
            if code:
                (answers / f"{question}.exit").write_text(f"{code}\n")
        never = {str(card) for (card, _), state in self.chips.items() if state.never}
        for answer in list(answers.glob("* -i *")):
            if answer.name.split()[4] in never:
                answer.with_name(f"{answer.name}.never").touch()
        link = self.folder / "next"
        link.symlink_to(answers)
        link.replace(self.folder / "now")
        shutil.rmtree(self.folder / f"answers.{self._turn - 2}", ignore_errors=True)  # no longer in use

    def answers(self) -> dict[str, tuple[str | bytes, int]]:
        """For every query: the text and the exit status."""
        found: dict[str, tuple[str | bytes, int]] = {"info -m": (self._map(), 0)}
        for card in dict.fromkeys(card for card, _ in self.chips):
            chips = {chip: state for (of, chip), state in self.chips.items() if of == card}
            for kind in ("usages", "power", "proc-mem", "ecc", "common"):
                found[f"info -t {kind} -i {card}"] = self._of_card(kind, card, chips)
            if self.kind == "950":
                found[f"info -t health -i {card}"] = self._of_card("health", card, chips)
                found[f"info -t current-fault-event -i {card}"] = self._of_card("event", card, chips)
                continue
            for chip, state in chips.items():
                query = f"info -t health -i {card} -c {chip}"
                found[query] = ("Invalid chip id.\nError parameter of -c\n", 1) if state.lost else (_health(state), 0)
        return found

    def _map(self) -> str:
        columns = {
            "A3": ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name"),
            "950": ("NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name"),
        }.get(self.kind, ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name"))
        rows: list[tuple[object, ...]] = [columns]
        for logic, ((card, chip), state) in enumerate(self.chips.items()):
            numbers = {"A3": (card, chip, logic, logic), "950": (logic, 0, 0, logic)}.get(
                self.kind, (card, chip, logic)
            )
            if not state.lost:
                rows.append((*numbers, NAMES[self.kind]))
            if self.kind == "910B":
                rows.append((card, chip + 1, "-", "Mcu"))
        return "".join("\t" + " ".join(f"{value!s:<30}" for value in row) + "\n" for row in rows)

    def _of_card(self, kind: str, card: int, chips: dict[int, Chip]) -> tuple[str, int]:
        if all(state.lost for state in chips.values()):
            return "Invalid card id.\nError parameter of -i\n", 1
        wide = 40 if kind == "ecc" else 30
        say = {"usages": _usages, "power": _power, "proc-mem": _processes, "ecc": _ecc, "common": _common}
        text = "" if kind == "event" else _line("NPU ID", card, wide)
        if self.kind == "950":
            return text + "".join(
                (say | {"health": _health, "event": _event})[kind](state) for state in chips.values()
            ), 0
        text += _line("Chip Count", len(chips), wide) + ("" if kind == "common" else "\n")
        for chip, state in chips.items():
            number = _line("Chip ID", chip, wide)
            lines = f"Failed to query npu chip: {chip} info.\n" if state.lost else say[kind](state)
            if kind == "common":
                text += f"\n{number}{lines}"
            else:
                text += f"{number}{lines}\n" if state.lost else f"{lines}{number}\n"
        if self.kind == "910B" and kind == "common":
            text += "\n" + _line("Chip Name", "mcu") + _line("Temperature(C)", 41)
        return text, 0


def _line(key: str, value: object, wide: int = 30) -> str:
    return f"\t{key:<{wide}} : {'NA' if value is None else value}\n"


def _usages(chip: Chip) -> str:
    return (
        _line("HBM Capacity(MB)", chip.capacity)
        + _line("HBM Usage Rate(%)", chip.used)
        + _line("Aicore Usage Rate(%)", chip.util)
        + _line("Aicpu Usage Rate(%)", 0)
        + _line("HBM Bandwidth Usage Rate(%)", chip.memory_util)
    )


def _common(chip: Chip) -> str:
    return (
        _line("HBM Usage Rate(%)", chip.used)
        + _line("Aicore Usage Rate(%)", chip.util)
        + _line("Aicore Freq(MHZ)", 1800)
        + _line("Aicore curFreq(MHZ)", chip.clock)
        + _line("Temperature(C)", 44)
        + _power(chip)
    )


def _power(chip: Chip) -> str:
    return _line("NPU Real-time Power(W)", chip.power)


def _processes(chip: Chip) -> str:
    text = ""
    for pid, name, memory in chip.processes:
        text += "" if name else "\tGet pid name failed.\n"
        text += f"\tProcess id:{pid:<7} Process name:{name:<17} Process memory(MB):{memory}\n"
    return text or "\tNo process in device.\n"


def _ecc(chip: Chip) -> str:
    names = {
        "HBM Single Bit Error Count": 3,
        "HBM Double Bit Error Count": chip.ecc,
        "HBM Single Bit Aggregate Total Err Cnt": 7,
        "HBM Double Bit Aggregate Total Err Cnt": 9,
        "HBM Single Bit Isolated Pages Count": 0,
        "HBM Double Bit Isolated Pages Count": chip.isolated,
        "HBM Double Bit Next-Isolated Pages Count": 1,
    }
    return "".join(_line(name, value, 40) for name, value in names.items())


def _health(chip: Chip) -> str:
    text = _line("Health Status", chip.health)
    if not chip.codes:
        return text + _line("Error Code", "NA") + _line("Error Information", "NA")
    text += f"\t{'Error Code':<30} :" + "".join(f" {code}" for code, _ in chip.codes) + "\n"
    return text + "\n".join(_line("" if i else "Error Information", text) for i, (_, text) in enumerate(chip.codes))


def _event(chip: Chip) -> str:
    text = _line("Fault Event Count", len(chip.codes))
    if not chip.codes:
        return text + _line("Fault Event Information", "NA")
    for i, (code, _) in enumerate(chip.codes):
        text += _line(
            "" if i else "Fault Event Information", f"event id=0x{code}, severity=2, node type ex=215, node id=0"
        )
    return text
