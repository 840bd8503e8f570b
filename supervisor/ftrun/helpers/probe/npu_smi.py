"""What `npu-smi info` prints, as values.  Any text is taken: what it does not say is None or absent, never an error.

The formats are those of the tool's source (hicann/driver, src/custom/dev_prod/user/npucli/src: npu_card_info.c,
npu_chip_info.c, npu_info_print.c) and of its outputs on 910A, 910B, A3 and 950 from 23.0 on.  Columns move between
versions, so nothing here counts them.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MIB: Final = 1 << 20  # "MB" in its output
CHIP: Final = "chip id"
OTHER: Final = "chip name"  # the MCU of a card is named, not numbered
NO_CHIP: Final = ("mcu", "3559")  # beside the chips in `info -m`
NOT_SAID: Final = ("", "-", "na", "n/a", "xxx")
# A 310P has vector cores beside its AI cores, and names them in two words.
ENGINES: Final = (
    *("aicore usage rate(%)", "aivector usage rate(%)", "vectorcore usage rate(%)"),
    *("aicube usage rate(%)", "npu utilization(%)"),
)
MEMORIES: Final = ("hbm", "ddr", "memory")  # the first that there is any of
WHOLE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?|[0-9]{1,15},[0-9]{1,2}", re.ASCII)  # or a locale's comma
WORD: Final = re.compile(r"[A-Za-z][A-Za-z ]{0,30}", re.ASCII)
CODE: Final = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{4,8})", re.ASCII)  # printed with %04X
PROCESS: Final = re.compile(r"([0-9]{1,10})\s*process name:(.*?)\s*process memory\(mb\):\s*([0-9]*)", re.I | re.ASCII)
EVENT: Final = re.compile(r"event id=0x([0-9a-f]{1,8})\b[,\s]*(.*)", re.I | re.ASCII)

# A part of some key in what is said of each type of information.
KEYS: Final = {
    "usages": ("rate(%)", "capacity(mb)"),
    "common": ("rate(%)", "freq(mhz)", "power(w)"),
    "power": ("power(w)",),
    "proc-mem": ("process id", "no process"),
    "health": ("health",),
    "current-fault-event": ("fault event count",),
    "ecc": ("error count",),
}
FAILED: Final = ("failed to", "invalid card", "invalid chip")  # it says that it has no answer

Lines = Sequence[tuple[str, str]]
"""`key : value` in order, keys in lower case; a line without a colon is a key, a continued value has an empty key."""


class Chip(NamedTuple):
    """`logic` is the number that frameworks use, `physical` the one of /dev/davinci* on the host, where it is told."""

    card: int
    chip: int
    logic: int
    physical: int | None
    name: str
    by_card: bool  # it is asked for by `-i` alone: the tool of a 950 knows no `-c`


class Reading(NamedTuple):
    """Percent, watts, MHz, bytes."""

    util: float | None = None
    memory_util: float | None = None
    power: float | None = None
    clock: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None


class Process(NamedTuple):
    """`name` is empty where the tool could not read /proc/<pid>: a pid of another PID namespace.  Bytes."""

    pid: int
    name: str
    memory: int | None


class Health(NamedTuple):
    """`word` is `ok` or the driver's own; `codes` are the present ones with their texts."""

    word: str | None = None
    codes: dict[str, str] | None = None


class Ecc(NamedTuple):
    """Counts: uncorrectable errors since the driver was loaded, and pages isolated for errors of either kind."""

    errors: int | None = None
    isolated: int | None = None


def mapping(text: str) -> tuple[Chip, ...]:
    """The chips of `info -m`, each place once; not what else is on a card."""
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
        card, chip = whole(row.get("npu id")), whole(row.get(CHIP))
        logic = card if by_card else whole(row.get("chip logic id"))
        if card is not None and chip is not None and logic is not None:
            name = row.get("chip name", "").strip()
            name = "" if name.lower() in NOT_SAID else name
            found.setdefault((card, chip), Chip(card, chip, logic, whole(row.get("chip phy-id")), name, by_card))
    return tuple(found.values())


def blocks(text: str) -> dict[int | None, Lines]:
    """The lines of each chip by its Chip ID; under None all of them where no chip is named, as for one asked by `-c`.

    A blank line ends what is said of a chip.  Its number comes last in most outputs, in `common` first.
    """
    found: dict[int | None, list[tuple[str, str]]] = {}
    for blank, paragraph in itertools.groupby(text.splitlines(), key=lambda line: not line.strip()):
        if blank:
            continue
        lines = [_pair(line) for line in paragraph]
        marks = [whole(value) if key == CHIP else None for key, value in lines if key in (CHIP, OTHER)]
        if not marks:
            found.setdefault(None, []).extend(lines)
        elif len(marks) == 1 and marks[0] is not None:  # of two, nobody knows whose a line is
            found.setdefault(marks[0], []).extend(line for line in lines if line[0] != CHIP)
    return {chip: lines for chip, lines in found.items() if chip is not None} or dict(found)


def reading(lines: Lines) -> Reading:
    """From `usages`, `common`, `power` and `memory`, together or alone; what is said first holds.

    `memory_used` is as fine as the tool says it: one percent of the whole.
    """
    said = _first(lines)
    engines = [rate for key in ENGINES if (rate := percent(said.get(key))) is not None]
    memory = next((kind for kind in MEMORIES if whole(said.get(f"{kind} capacity(mb)"))), "hbm")
    total, used = whole(said.get(f"{memory} capacity(mb)")), percent(said.get(f"{memory} usage rate(%)"))
    return Reading(
        util=max(engines, default=None),  # a job may use but one kind of them
        memory_util=percent(said.get(f"{memory} bandwidth usage rate(%)")),
        power=number(said.get("npu real-time power(w)")),
        clock=number(said.get("aicore curfreq(mhz)")),
        memory_used=None if total is None or used is None else round(total * MIB * used / 100),
        memory_total=None if total is None else total * MIB,
    )


def processes(lines: Lines) -> tuple[Process, ...] | None:
    """Of `proc-mem`.  None: it does not say."""
    matches = [PROCESS.match(value) for key, value in lines if key == "process id"]
    found = [Process(int(m[1]), m[2].strip(), int(m[3]) * MIB if WHOLE.fullmatch(m[3]) else None) for m in matches if m]
    if found:
        return tuple(found)
    return () if any(key.startswith("no process") for key, _ in lines) else None


def health(lines: Lines) -> Health:
    """Of `health`.  A card asked as a whole says the word only, but for a 950."""
    said = _first(lines)
    word = said.get("health status", said.get("health", ""))
    if not WORD.fullmatch(word) or word.lower() in NOT_SAID:
        return Health(None, _codes(lines))
    return Health("ok" if word.lower() == "ok" else word, _codes(lines))


def events(lines: Lines) -> dict[str, str] | None:
    """The codes, with what else is told of them, of `current-fault-event`, which a 950 has.  None: it does not say."""
    count = whole(_first(lines).get("fault event count"))
    found = {
        m[1].upper(): m[2].strip() for text in _continued(lines, "fault event information") if (m := EVENT.match(text))
    }
    return found if found or count == 0 else None


def ecc(lines: Lines) -> Ecc:
    """Of `ecc`, over every kind of memory that the chip has."""
    said = _first(lines)
    return Ecc(_sum(said, "double bit error count"), _sum(said, "bit isolated pages count"))


def refused(text: str) -> bool:
    """Whether this tool, or this chip, has no such type of information."""
    return any(words in text.lower() for words in ("does not support", "error parameter of -t"))


def unread(kind: str, text: str) -> bool:
    """Whether this answer says nothing that is known, in any words that are known: garbled, empty, of another locale.
    Not so where the tool says itself that it has no answer."""
    if refused(text) or any(words in text.lower() for words in FAILED):
        return False
    lines = [_pair(line) for line in text.splitlines()]
    if not any(key in name for name, _ in lines for key in KEYS[kind]):
        return True
    word = next((value for name, value in lines if name in ("health status", "health")), "")
    return kind == "health" and not WORD.fullmatch(word) and word.lower() not in NOT_SAID


def first_line(text: str) -> str:
    """The first that is not blank, as a person can read it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def whole(text: str | None) -> int | None:
    return int(text) if text and WHOLE.fullmatch(text) else None


def number(text: str | None) -> float | None:
    return float(text.replace(",", ".")) if text and NUMBER.fullmatch(text) else None


def percent(text: str | None) -> float | None:
    """None for more than 100: the driver's way to say that it does not know."""
    rate = number(text)
    return rate if rate is not None and rate <= 100 else None


def _pair(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return " ".join(key.split()).lower(), value.strip()


def _first(lines: Lines) -> dict[str, str]:
    return dict(reversed(lines))


def _continued(lines: Lines, key: str) -> list[str]:
    """The values of this key; the lines after its own have an empty one."""
    found: list[str] = []
    for name, value in lines:
        if name == key or (found and not name):
            found.append(value)
    return found


def _codes(lines: Lines) -> dict[str, str] | None:
    """None: it does not say."""
    value = _first(lines).get("error code")
    if value is None:
        return None
    matches = [CODE.fullmatch(word) for word in value.split()]
    codes = [match[1].upper() for match in matches if match]
    if not codes:
        return {} if value.lower() == "na" else None
    texts = _continued(lines, "error information")
    if len(texts) != len(codes):  # a text that the driver lacks takes no line of its own
        texts = ["; ".join(texts)] * len(codes)
    return dict(zip(codes, texts, strict=True))


def _sum(said: dict[str, str], ending: str) -> int | None:
    counts = [count for key, value in said.items() if key.endswith(ending) and (count := whole(value)) is not None]
    return sum(counts) if counts else None
