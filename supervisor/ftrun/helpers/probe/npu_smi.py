"""Parses the output of `npu-smi info`.  Pure.  Any text is accepted: a missing value is None or absent, never an error.

The formats are those of the tool's source (hicann/driver, src/custom/dev_prod/user/npucli/src: npu_card_info.c,
npu_chip_info.c, npu_info_print.c) and of its outputs on 910A, 910B, A3 and 950 from 23.0 on.  Columns move between
versions, so they are not identified by position.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Final

from ftrun.core.named_tuple import NamedTuple

MIB: Final = 1 << 20  # "MB" in its output
CHIP: Final = "chip id"
OTHER: Final = "chip name"  # the MCU of a card has a name, not a number
NO_CHIP: Final = ("mcu", "3559")  # entries of `info -m` that are not chips
NO_VALUE: Final = ("", "-", "na", "n/a", "xxx")
# A 310P also has vector cores, under two different names.
ENGINES: Final = (
    *("aicore usage rate(%)", "aivector usage rate(%)", "vectorcore usage rate(%)"),
    *("aicube usage rate(%)", "npu utilization(%)"),
)
MEMORIES: Final = ("hbm", "ddr", "memory")  # the first kind with a capacity is used
INTEGER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
# With a point, or with the comma of a locale.
NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?|[0-9]{1,15},[0-9]{1,2}", re.ASCII)
TERM: Final = re.compile(r"[A-Za-z][A-Za-z ]{0,30}", re.ASCII)
CODE: Final = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{4,8})", re.ASCII)  # printed with %04X
PROCESS: Final = re.compile(r"([0-9]{1,10})\s*process name:(.*?)\s*process memory\(mb\):", re.I | re.ASCII)
EVENT: Final = re.compile(r"event id=0x([0-9a-f]{1,8})\b", re.I | re.ASCII)

# For each type of information, parts of the keys in its output.
KEYS: Final = {
    "usages": ("rate(%)", "capacity(mb)"),
    "common": ("rate(%)", "freq(mhz)", "power(w)"),
    "power": ("power(w)",),
    "proc-mem": ("process id", "no process"),
    "health": ("health",),
    "current-fault-event": ("fault event count",),
}
FAILED: Final = ("failed to", "invalid card", "invalid chip")  # the tool reports that it has no answer

NamedValues = Sequence[tuple[str, str]]
"""`key : value` in order, keys in lower case; a line without a colon is a key, a continued value has an empty key."""


class Chip(NamedTuple):
    """`logic` is the number that frameworks use, `physical` the number of /dev/davinci* on the host, if known."""

    card: int
    chip: int
    logic: int
    physical: int | None
    name: str
    by_card: bool  # it is queried by `-i` alone: the tool of a 950 has no `-c`


class ChipReading(NamedTuple):
    """In percent, watts, MHz and bytes."""

    util: float | None = None
    memory_util: float | None = None
    power: float | None = None
    clock: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


class ChipProcess(NamedTuple):
    """`name` is empty where the tool could not read /proc/<pid>: a pid of another PID namespace."""

    pid: int
    name: str


class ChipHealth(NamedTuple):
    """`text` is `ok` or the driver's own term; `codes`: the present codes."""

    text: str | None = None
    codes: tuple[str, ...] | None = None


def mapping(text: str) -> tuple[Chip, ...]:
    """The chips in the output of `info -m`, each once, without the other parts of a card."""
    columns: list[str] = []
    found: dict[tuple[int, int], Chip] = {}
    for line in text.splitlines():
        names = [name.lower() for name in re.split(r"\t|\s{2,}", line.strip())]
        if "npu id" in names and CHIP in names:
            columns = names
            continue
        row = dict(zip(columns, line.split(None, max(len(columns) - 1, 0)), strict=False))
        if len(row) < len(columns) or row.get("chip name", "").strip().lower() in NO_CHIP:
            continue
        by_card = "chip logic id" not in columns  # a 950: its NPU ID is the logic id
        card, chip = integer(row.get("npu id")), integer(row.get(CHIP))
        logic = card if by_card else integer(row.get("chip logic id"))
        if card is not None and chip is not None and logic is not None:
            name = row.get("chip name", "").strip()
            name = "" if name.lower() in NO_VALUE else name
            found.setdefault((card, chip), Chip(card, chip, logic, integer(row.get("chip phy-id")), name, by_card))
    return tuple(found.values())


def blocks(text: str) -> dict[int | None, NamedValues]:
    """The lines of each chip by its Chip ID; under None all lines if no chip is named, as with `-c`.

    A blank line ends the lines of a chip.  Its number comes last in most outputs, in `common` first.
    """
    found: dict[int | None, list[tuple[str, str]]] = {}
    for blank, paragraph in itertools.groupby(text.splitlines(), key=lambda line: not line.strip()):
        if blank:
            continue
        lines = [_pair(line) for line in paragraph]
        marks = [integer(value) if key == CHIP else None for key, value in lines if key in (CHIP, OTHER)]
        if not marks:
            found.setdefault(None, []).extend(lines)
        elif len(marks) == 1 and marks[0] is not None:  # with two chips the owner of a line is unknown
            found.setdefault(marks[0], []).extend(line for line in lines if line[0] != CHIP)
    return {chip: lines for chip, lines in found.items() if chip is not None} or dict(found)


def reading(lines: NamedValues) -> ChipReading:
    """From `usages`, `common`, `power` and `memory`, together or alone; the first value of a key is used.

    `memory_used` has the resolution of the tool: one percent of the total.
    """
    values = _first(lines)
    engines = [rate for key in ENGINES if (rate := percent(values.get(key))) is not None]
    memory = next((kind for kind in MEMORIES if integer(values.get(f"{kind} capacity(mb)"))), "hbm")
    total, used = integer(values.get(f"{memory} capacity(mb)")), percent(values.get(f"{memory} usage rate(%)"))
    return ChipReading(
        util=max(engines, default=None),  # a job may use only one kind of them
        memory_util=percent(values.get(f"{memory} bandwidth usage rate(%)")),
        power=number(values.get("npu real-time power(w)")),
        clock=number(values.get("aicore curfreq(mhz)")),
        memory_used=None if total is None or used is None else round(total * MIB * used / 100),
        memory_total=None if total is None else total * MIB,
    )


def processes(lines: NamedValues) -> tuple[ChipProcess, ...] | None:
    """The processes in the output of `proc-mem`.  None: it has no information."""
    matches = [PROCESS.match(value) for key, value in lines if key == "process id"]
    found = [ChipProcess(int(match[1]), match[2].strip()) for match in matches if match]
    if found:
        return tuple(found)
    return () if any(key.startswith("no process") for key, _ in lines) else None


def health(lines: NamedValues) -> ChipHealth:
    """The health in the output of `health`.  A query of all chips of a card reports no codes, except on a 950."""
    values = _first(lines)
    text = values.get("health status", values.get("health", ""))
    if not TERM.fullmatch(text) or text.lower() in NO_VALUE:
        return ChipHealth(None, _codes(lines))
    return ChipHealth("ok" if text.lower() == "ok" else text, _codes(lines))


def events(lines: NamedValues) -> tuple[str, ...] | None:
    """The codes in the output of `current-fault-event` of a 950.  None: no information."""
    count = integer(_first(lines).get("fault event count"))
    matches = [EVENT.match(value) for key, value in lines if key in ("fault event information", "")]
    found = tuple(dict.fromkeys(match[1].upper() for match in matches if match))
    return found if found or count == 0 else None


def refused(text: str) -> bool:
    """Whether this tool or this chip does not support this type of information."""
    return any(phrase in text.lower() for phrase in ("does not support", "error parameter of -t"))


def is_unparsed(kind: str, text: str) -> bool:
    """Whether this output has no known key or value: garbled, empty, or of another locale.  False if the tool itself
    reports that it has no answer."""
    if refused(text) or any(phrase in text.lower() for phrase in FAILED):
        return False
    lines = [_pair(line) for line in text.splitlines()]
    if not any(key in name for name, _ in lines for key in KEYS[kind]):
        return True
    health = next((value for name, value in lines if name in ("health status", "health")), "")
    return kind == "health" and not TERM.fullmatch(health) and health.lower() not in NO_VALUE


def first_line(text: str) -> str:
    """The first line that is not blank, with unprintable characters replaced."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def integer(text: str | None) -> int | None:
    return int(text) if text and INTEGER.fullmatch(text) else None


def number(text: str | None) -> float | None:
    return float(text.replace(",", ".")) if text and NUMBER.fullmatch(text) else None


def percent(text: str | None) -> float | None:
    """None above 100, which the driver prints for an unknown value."""
    rate = number(text)
    return rate if rate is not None and rate <= 100 else None


def _pair(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return " ".join(key.split()).lower(), value.strip()


def _first(lines: NamedValues) -> dict[str, str]:
    return dict(reversed(lines))


def _codes(lines: NamedValues) -> tuple[str, ...] | None:
    """The error codes.  None: no information."""
    value = _first(lines).get("error code")
    if value is None:
        return None
    matches = [CODE.fullmatch(code) for code in value.split()]
    codes = tuple(dict.fromkeys(match[1].upper() for match in matches if match))
    return codes if codes or value.lower() == "na" else None
