"""Ascend chips, by `npu-smi`.

A card is queried sequentially, several cards at the same time (npu_smi_runs.py).  Each query is a process.  Where the
tool can, one query covers all chips of a card (`-i` alone, the only way on a 950).  What cannot be missed is queried
rarely, as a code stays until its fault is over; a sample that is late begins with what has waited longest.  A tool that
fails proves nothing about a chip; output that cannot be parsed is a problem, once for each kind of query.
"""

import math
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ftrun.accelerators.table import ASCEND
from ftrun.helpers.probe import npu_smi, npu_smi_runs
from ftrun.helpers.probe.device import DeviceFault, Unavailable
from ftrun.helpers.probe.npu_smi import Chip
from ftrun.helpers.probe.npu_smi_runs import Arguments, ToolAnswer, ToolRunner, card_of
from ftrun.messages.probe import Device, DeviceIdentity

TOOL: Final = "npu-smi"
# Where the driver's installer and its container runtime put it (hiascend.com: Ascend Docker Runtime, default mounts).
USUAL: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin"
PACE: Final = 1.0  # s: each sample starts several processes a card
HEALTH_EVERY: Final = 3  # samples
REFUSED_FOR: Final = 30  # samples
LOST: Final = "not listed any more"
SILENT: Final = "no answer"  # it is listed, as far as is known, but there is no output for it
MOST_IDS: Final = 1024  # in one range
LISTING: Final = 15.0  # s for the first list of the chips: a driver that is being loaded answers late
PAUSE: Final = 5.0  # s until the list is requested again; doubles up to
LONGEST_PAUSE: Final = 300.0
SHOWN: Final = 200  # characters of an output that a problem quotes

MAP: Final = ("info", "-m")
READINGS: Final = ("usages", "common", "power")
FAULTS: Final = ("health", "current-fault-event")
USE: Final = ("usages", "proc-mem")
# The number of samples after which a type of information is queried again; due ones are first queried in this order.
EVERY: Final = dict.fromkeys(FAULTS, HEALTH_EVERY) | {"usages": 1, "common": 1, "proc-mem": 1}
URGENT: Final = {"": (), "faults": FAULTS, "use": USE, "both": USE + FAULTS}


def open(environment: Mapping[str, str], known: Sequence[DeviceIdentity] = ()) -> "Ascend":
    """The chips that a job with this environment may use.  Unavailable if there is no tool, or if the environment names
    none of the chips that the tool lists.  If the tool lists no chip, that may be temporary.
    `known` is not needed: a chip is named by the number of its card and its own, and not by what it answers."""
    tool = find_tool(environment)
    if tool is None:
        raise Unavailable(f"no {TOOL} on PATH")
    found = Ascend(ToolRunner(tool, environment), environment)
    found.find()
    return found


def find_tool(environment: Mapping[str, str]) -> str | None:
    return shutil.which(TOOL, path=environment.get("PATH", os.defpath)) or shutil.which(TOOL, path=USUAL)


def allowed(chips: Sequence[Chip], environment: Mapping[str, str]) -> list[Chip]:
    """The chips among these that this environment lets a program use.

    ASCEND_RT_VISIBLE_DEVICES: logic ids, of which CANN uses those before the first invalid one (CANN: environment
    variable reference); ranges are accepted too.  Otherwise ASCEND_VISIBLE_DEVICES: physical ids and ranges, by which
    the container runtime mounts chips (Ascend Docker Runtime).  It is ignored if no other chip is visible, because the
    chips may be renumbered then.
    """
    if (given := environment.get(ASCEND.visible)) is not None:
        logic = {chip.logic: chip for chip in chips}
        found: list[Chip] = []
        for number in ids(given):
            if number not in logic:
                break
            found.append(logic[number])
        return list(dict.fromkeys(found))
    mounted = set(ids(environment.get("ASCEND_VISIBLE_DEVICES", "")))
    inside = [chip for chip in chips if (chip.logic if chip.physical is None else chip.physical) in mounted]
    return inside if inside and len(chips) > len(mounted) else list(chips)


def ids(text: str) -> list[int]:
    """`0,2-4` as numbers, up to the first invalid entry."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(MOST_IDS):
            break
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


class Ascend:
    """A Vendor.  No call blocks for longer than a few times npu_smi_runs.TIMEOUT, whatever the driver does."""

    pace = PACE

    def __init__(self, tool: ToolRunner, environment: Mapping[str, str]) -> None:
        self._runner, self._environment = tool, environment
        self._chips: Sequence[Chip] = ()
        self._single_chip_cards: set[int] = set()  # cards of one chip
        self._list_at = 0.0  # when the list of the chips is requested, while it is unknown
        self._pause = PAUSE
        self._samples = 0
        self._queried: dict[tuple[int, str], int] = {}  # the sample in which a card was last queried for a kind
        self._refused: set[tuple[str, str]] = set()  # by card and kind of information
        self._health: dict[Chip, str] = {}
        self._codes: dict[tuple[Chip, str], tuple[str, ...]] = {}  # by the query that reported them
        self._pids: dict[Chip, tuple[int, ...]] = {}
        self._news: list[DeviceFault] = []
        self._unparsed: dict[str, str] = {}  # output that could not be parsed, by the kind of query
        self._silent: list[str] = []  # problems of the last sample, one line each

    @property
    def problems(self) -> list[str]:
        """One line each: problems of the last sample, and all output that could not be parsed."""
        return [*self._silent, *self._unparsed.values()]

    def find(self) -> None:
        """List the chips, if they are unknown and the request is due.  Unavailable: the tool lists chips, and the
        environment names none of them."""
        if self._chips or time.monotonic() < self._list_at:
            return
        answer = self._runner.query([[MAP]], LISTING).get(MAP)
        everything = npu_smi.mapping(answer.text if answer else "")
        if everything:
            self._chips = allowed(everything, self._environment)
            if not self._chips:
                self._list_at = math.inf
                given = self._environment[ASCEND.visible]
                raise Unavailable(f"{ASCEND.visible}={given} names no chip of this node")
            cards = [chip.card for chip in everything]
            self._single_chip_cards = {card for card in cards if cards.count(card) == 1}
            return
        output = SILENT if answer is None else npu_smi.first_line(answer.text)[:SHOWN] or "it prints nothing"
        self._unparsed.setdefault(
            MAP[-1], f"{TOOL} lists no chip ({output}); it is queried again, in ever longer intervals"
        )
        self._list_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def check(self) -> list[Device]:
        return self._sample(dict.fromkeys(self._cards(), FAULTS))

    def devices(self, urgent: str = "") -> list[Device]:
        if self._samples % REFUSED_FOR == 0:
            self._refused.clear()  # a chip that was absent seems to support nothing
        found = self._sample({card: self._due(card, URGENT[urgent]) for card in self._cards()})
        self._samples += 1
        return found

    def _cards(self) -> list[int]:
        try:
            self.find()
        except Unavailable as reason:
            self._unparsed[MAP[-1]] = str(reason)
        return list(dict.fromkeys(chip.card for chip in self._chips))

    def _sample(self, types: Mapping[int, Sequence[str]]) -> list[Device]:
        queries = {card: self._queries(card, kinds) for card, kinds in types.items()}
        answers = self._runner.query([list(kinds) for kinds in queries.values()])
        for card, kinds in queries.items():
            late = {kind for arguments, kind in kinds.items() if arguments not in self._runner.started}
            self._queried |= {(card, kind): self._samples for kind in {*kinds.values()} - late}
        for arguments, answer in answers.items():
            self._check_answer(arguments, answer)
        devices = {chip: self._device(chip, answers) for chip in self._chips}
        silent = [chip for chip, device in devices.items() if not device.answers]
        answered = {card_of(arguments) for arguments in answers}
        self._silent = [
            f"{TOOL} prints nothing about chip {chip_id(chip)}"
            if str(chip.card) in answered
            else f"{TOOL} does not answer for card {chip.card} within {npu_smi_runs.TIMEOUT:.0f} s"
            for chip in silent
        ]
        for chip in self._lost(silent):
            devices[chip] = devices[chip]._replace(health=LOST, broken=True)
        return list(devices.values())

    def _check_answer(self, arguments: Arguments, answer: ToolAnswer) -> None:
        kind = arguments[2]
        if npu_smi.refused(answer.text):
            self._refused.add((card_of(arguments), kind))
        elif npu_smi.is_unparsed(kind, answer.text):
            output = npu_smi.first_line(answer.text)[:SHOWN]
            what = f"is not understood: {output}" if output else f"is empty (exit status {answer.code})"
            self._unparsed.setdefault(kind, f"the answer of {TOOL} {' '.join(arguments)} {what}")

    def _lost(self, silent: Sequence[Chip]) -> set[Chip]:
        """The chips that the tool leaves out of its list; a tool that fails proves nothing."""
        answer = self._runner.query([[MAP]]).get(MAP) if silent else None
        listed = {chip[:2] for chip in npu_smi.mapping(answer.text)} if answer and answer.code == 0 else set()
        return {chip for chip in silent if listed and chip[:2] not in listed}

    def faults(self) -> list[DeviceFault]:
        """The changes since the last call.  The codes of a chip that does not answer are kept."""
        news, self._news = self._news, []
        return news

    def present(self, device: str) -> Collection[str]:
        return {code for chip in self._chips if chip_id(chip) == device for code in self._known(chip)}

    def _due(self, card: int, urgent: Collection[str]) -> list[str]:
        """The types of information to query in this sample, those that have waited longest first."""

        def due(kind: str) -> int:
            queried = self._queried.get((card, kind))
            return 0 if queried is None else queried + EVERY[kind]

        types = [kind for kind in EVERY if kind in urgent or due(kind) <= self._samples]
        return sorted(types, key=lambda kind: (kind not in urgent, due(kind), self._queried.get((card, kind), -1)))

    def _queries(self, card: int, types: Sequence[str]) -> dict[Arguments, str]:
        """The arguments of each run of the tool, with the type of information that it reads."""
        found: dict[Arguments, str] = {}
        for kind in types:
            refused = (str(card), kind) in self._refused
            if refused and kind != "common":
                continue
            for chip in self._chips:
                if chip.card == card and (arguments := _arguments("power" if refused else kind, chip)):
                    found[arguments] = kind
        return found

    def _device(self, chip: Chip, answers: Mapping[Arguments, ToolAnswer]) -> Device:
        values = [line for kind in READINGS for line in self._lines(kind, chip, answers)]
        reading = npu_smi.reading(values)
        processes = npu_smi.processes(self._lines("proc-mem", chip, answers))
        health = npu_smi.health(self._lines("health", chip, answers))
        events = npu_smi.events(self._lines("current-fault-event", chip, answers))
        self._record_codes(chip, {"health": health.codes, "current-fault-event": events})
        if health.text is not None:
            self._health[chip] = health.text
        device = Device(ASCEND.name, chip_id(chip), chip.logic, chip.name or ASCEND.name, visible=str(chip.logic))
        if not any(value is not None for value in (*reading, processes, *health, events)):
            self._health.pop(chip, None)
            return device._replace(health=SILENT, answers=False, examined=False)
        return device._replace(
            **reading._asdict(),
            pids=self._visible(chip, processes),
            health=self._health.get(chip),
            examined=health.text is not None and (health.codes is not None or events is not None),
        )

    def _visible(self, chip: Chip, processes: Sequence[npu_smi.ChipProcess] | None) -> tuple[int, ...]:
        """The processes of this PID namespace, also ended ones whose memory the driver still holds.

        In a container the driver may report the host's pids, which name no process or another process here.
        """
        if processes is None:
            return ()
        before = self._pids.get(chip, ())
        self._pids[chip] = tuple(process.pid for process in processes if process.name or process.pid in before)
        return self._pids[chip]

    def _lines(self, kind: str, chip: Chip, answers: Mapping[Arguments, ToolAnswer]) -> npu_smi.NamedValues:
        arguments = _arguments(kind, chip)
        found = npu_smi.blocks(answers[arguments].text if arguments in answers else "")
        if chip.chip in found:
            return found[chip.chip]
        return found.get(None, ()) if "-c" in arguments or chip.card in self._single_chip_cards else ()

    def _record_codes(self, chip: Chip, reported: Mapping[str, tuple[str, ...] | None]) -> None:
        """Store the reported codes; differences become faults, which are `old` in the first report of a chip."""
        first = not any(known == chip for known, _ in self._codes)
        before = self._known(chip)
        self._codes |= {(chip, kind): codes for kind, codes in reported.items() if codes is not None}
        after = self._known(chip)
        for code in dict.fromkeys((*after, *before)):
            if code not in before or code not in after:
                self._news.append(DeviceFault(chip_id(chip), code, gone=code not in after, old=first))

    def _known(self, chip: Chip) -> tuple[str, ...]:
        codes = self._codes
        return (*codes.get((chip, "current-fault-event"), ()), *codes.get((chip, "health"), ()))


def chip_id(chip: Chip) -> str:
    return f"{chip.card}-{chip.chip}"


def _arguments(kind: str, chip: Chip) -> Arguments:
    """The arguments for one query.  `health` reports codes only with `-c`, and only a 950 has fault events."""
    if kind == "current-fault-event" and not chip.by_card:
        return ()
    arguments = ("info", "-t", kind, "-i", str(chip.card))
    return (*arguments, "-c", str(chip.chip)) if kind == "health" and not chip.by_card else arguments
