"""Ascend chips, by `npu-smi`.

A card is asked one thing after another, several cards at a time, and each question has its deadline.  A tool that a
driver holds cannot be killed: it is remembered and its card not asked again before it has ended, so one card never
holds more than one of them, nor the others up.

Each question is a process.  So a card is asked as a whole where the tool can (`-i` alone tells of all its chips, and a
950 knows no other way), and seldom for what cannot be missed: a code stays until its fault is over, and counts of
corrected memory only explain.
"""

import contextlib
import os
import re
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ftrun.helpers.probe import npu_smi
from ftrun.helpers.probe.device import Device, DeviceFault, Unavailable
from ftrun.helpers.probe.npu_smi import Chip

VENDOR: Final = "ascend"
TOOL: Final = "npu-smi"
# Where the driver's installer and its container runtime put it (hiascend.com: Ascend Docker Runtime, default mounts).
USUAL: Final = "/usr/local/sbin:/usr/local/bin"
# Its libraries, which only a script of the driver puts on the path; a boot command often runs that itself, after us.
LIBRARIES: Final = ":".join(f"/usr/local/Ascend/driver/lib64{folder}" for folder in ("", "/common", "/driver"))
TIMEOUT: Final = 5.0  # s for an answer
LOOK: Final = 10.0  # s after which no more is asked: answers that are slow but come
AT_ONCE: Final = 8  # cards: all of most nodes, so that a driver that holds all of them takes one TIMEOUT
ENDING: Final = 0.01  # s between two looks whether a tool has ended that has closed its output
CLOSING: Final = 0.5  # s for killed ones to end
LONGEST: Final = 1 << 20  # bytes of an answer
PACE: Final = 1.0  # s: each look starts several processes a card
HEALTH_EVERY: Final = 3  # looks
ECC_EVERY: Final = 30  # looks
LOST: Final = "not listed any more"
SILENT: Final = "no answer"  # it is listed, as far as we know, but nothing is said of it
MOST_IDS: Final = 1024  # in one range

Words = tuple[str, ...]
MAP: Final = ("info", "-m")
READINGS: Final = ("usages", "common", "power")


def open(environment: Mapping[str, str]) -> "Ascend":
    """The chips that a job with this environment may use.  Unavailable where there is no tool or no such chip."""
    tool = shutil.which(TOOL, path=environment.get("PATH", os.defpath)) or shutil.which(TOOL, path=USUAL)
    if tool is None:
        raise Unavailable(f"no {TOOL} on PATH")
    asking = Asking(tool, environment)
    answer = asking.ask([[MAP]]).get(MAP)
    everything = npu_smi.mapping(answer or "")
    if not everything:
        asking.close()
        said = next((line.strip() for line in (answer or "").splitlines() if line.strip()), "no chip")
        raise Unavailable(f"{TOOL}: {said[:200] if answer is not None else SILENT}")
    chips = allowed(everything, environment)
    if not chips:
        asking.close()
        raise Unavailable(
            f"ASCEND_RT_VISIBLE_DEVICES={environment['ASCEND_RT_VISIBLE_DEVICES']} names no chip of this node"
        )
    return Ascend(asking, everything, chips)


def allowed(chips: Sequence[Chip], environment: Mapping[str, str]) -> list[Chip]:
    """Of these, the ones that this environment lets a program use.

    ASCEND_RT_VISIBLE_DEVICES: logic ids, of which CANN takes those before the first that is none (CANN: environment
    variable reference); ranges are taken too.  Else ASCEND_VISIBLE_DEVICES: physical ids and ranges, by which the
    container runtime mounts chips (Ascend Docker Runtime).  It has nothing to say where no other chip can be seen,
    for there they may be numbered anew.
    """
    if (given := environment.get("ASCEND_RT_VISIBLE_DEVICES")) is not None:
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
    """`0,2-4` as numbers, up to the first thing that is none."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(MOST_IDS):
            break
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


class Ascend:
    """A Vendor.  Nothing here blocks for longer than a few TIMEOUTs, whatever the driver does."""

    pace = PACE

    def __init__(self, asking: "Asking", everything: Sequence[Chip], chips: Sequence[Chip]) -> None:
        self._asking, self._chips = asking, chips
        self._cards = list(dict.fromkeys(chip.card for chip in chips))
        shared = [chip.card for chip in everything]
        self._alone = {card for card in self._cards if shared.count(card) == 1}
        self._looks = 0
        self._refused: set[tuple[str, str]] = set()  # by card and kind of information
        self._health: dict[Chip, str] = {}
        self._ecc: dict[Chip, npu_smi.Ecc] = {}
        self._codes: dict[tuple[Chip, str], dict[str, str]] = {}  # by whichever of two questions told them
        self._pids: dict[Chip, tuple[int, ...]] = {}
        self._news: list[DeviceFault] = []
        self.problems: list[str] = []  # of the last look, a line each

    def devices(self, closely: bool = False) -> list[Device]:
        types = self._due(closely)
        answers = self._asking.ask([self._questions(card, types) for card in self._cards])
        self._refused |= {(_card(words), words[2]) for words, text in answers.items() if npu_smi.refused(text)}
        found = [self._device(chip, answers) for chip in self._chips]
        silent = [chip for chip, device in zip(self._chips, found, strict=True) if device.health == SILENT]
        spoken = {_card(words) for words in answers}
        self.problems = [
            f"{TOOL} says nothing of chip {place(chip)}"
            if str(chip.card) in spoken
            else f"{TOOL} does not answer for card {chip.card} within {TIMEOUT:.0f} s"
            for chip in silent
        ]
        if silent and (there := npu_smi.mapping(self._asking.ask([[MAP]]).get(MAP, ""))):
            lost = set(silent) - {chip for chip in silent if any(chip[:2] == other[:2] for other in there)}
            pairs = zip(self._chips, found, strict=True)
            found = [device._replace(health=LOST) if chip in lost else device for chip, device in pairs]
        return found

    def faults(self) -> list[DeviceFault]:
        """What the looks since the last call found.  What a chip had that says nothing now is not gone."""
        news, self._news = self._news, []
        return news

    def present(self, device: str) -> Collection[str]:
        return {code for chip in self._chips if place(chip) == device for code in self._known(chip)}

    def close(self) -> None:
        self._asking.close()

    def _due(self, closely: bool) -> list[str]:
        """The types of information to ask for in this look."""
        types = ["usages", "common", "proc-mem"]
        if closely or self._looks % HEALTH_EVERY == 0:
            types += ["health", "current-fault-event"]
        if self._looks % ECC_EVERY == 0:
            types += ["ecc"]
            self._refused.clear()  # of a chip that was away nothing is supported
        self._looks += 1
        return types

    def _questions(self, card: int, types: Sequence[str]) -> list[Words]:
        found: dict[Words, None] = {}
        for kind in types:
            refused = (str(card), kind) in self._refused
            if refused and kind != "common":
                continue
            for chip in self._chips:
                if chip.card == card and (words := _words("power" if refused else kind, chip)):
                    found[words] = None
        return list(found)

    def _device(self, chip: Chip, answers: Mapping[Words, str]) -> Device:
        values = [line for kind in READINGS for line in self._lines(kind, chip, answers)]
        reading = npu_smi.reading(values)
        processes = npu_smi.processes(self._lines("proc-mem", chip, answers))
        health = npu_smi.health(self._lines("health", chip, answers))
        events = npu_smi.events(self._lines("current-fault-event", chip, answers))
        ecc = npu_smi.ecc(self._lines("ecc", chip, answers))
        self._note(chip, {"health": health.codes, "current-fault-event": events})
        if health.word is not None:
            self._health[chip] = health.word
        if any(value is not None for value in ecc):
            self._ecc[chip] = ecc
        if not any(value is not None for value in (*reading, processes, *health, events, *ecc)):
            self._health.pop(chip, None)
            return Device(VENDOR, place(chip), chip.logic, chip.name or VENDOR, health=SILENT, visible=str(chip.logic))
        errors, isolated = self._ecc.get(chip, npu_smi.Ecc())
        return Device(
            VENDOR,
            place(chip),
            chip.logic,
            chip.name or VENDOR,
            **reading._asdict(),
            pids=self._visible(chip, processes),
            remapped_rows=isolated,
            ecc_errors=errors,
            health=self._health.get(chip),
            visible=str(chip.logic),
        )

    def _visible(self, chip: Chip, processes: Sequence[npu_smi.Process] | None) -> tuple[int, ...]:
        """Those of this PID namespace, also when they have ended and the driver still holds what was theirs.

        In a container the driver may tell the host's numbers, which name nobody or somebody else here.
        """
        if processes is None:
            return ()
        before = self._pids.get(chip, ())
        self._pids[chip] = tuple(process.pid for process in processes if process.name or process.pid in before)
        return self._pids[chip]

    def _lines(self, kind: str, chip: Chip, answers: Mapping[Words, str]) -> npu_smi.Lines:
        words = _words(kind, chip)
        found = npu_smi.blocks(answers.get(words, ""))
        if chip.chip in found:
            return found[chip.chip]
        return found.get(None, ()) if "-c" in words or chip.card in self._alone else ()

    def _note(self, chip: Chip, told: Mapping[str, dict[str, str] | None]) -> None:
        """Keep what was told; what differs is news, and old where nothing had been told."""
        first = not any(known == chip for known, _ in self._codes)
        before = self._known(chip)
        self._codes |= {(chip, kind): codes for kind, codes in told.items() if codes is not None}
        after = self._known(chip)
        self._news += [
            DeviceFault(place(chip), chip.logic, code, text, gone, old=first)
            for codes, others, gone in ((after, before, False), (before, after, True))
            for code, text in codes.items()
            if code not in others
        ]

    def _known(self, chip: Chip) -> dict[str, str]:
        return self._codes.get((chip, "current-fault-event"), {}) | self._codes.get((chip, "health"), {})


def place(chip: Chip) -> str:
    return f"{chip.card}-{chip.chip}"


def _words(kind: str, chip: Chip) -> Words:
    """Only with `-c` does `health` tell the codes, and only a 950 has fault events."""
    if kind == "current-fault-event" and not chip.by_card:
        return ()
    words = ("info", "-t", kind, "-i", str(chip.card))
    return (*words, "-c", str(chip.chip)) if kind == "health" and not chip.by_card else words


class Question:
    """A tool that runs."""

    def __init__(self, tool: str, environment: Mapping[str, str], queue: deque[Words]) -> None:
        self.queue = queue  # this one first
        self.answer = b""
        self.open = True
        self.deadline = time.monotonic() + TIMEOUT
        self.process = subprocess.Popen(
            [tool, *queue[0]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )

    @property
    def fd(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def read(self) -> None:
        content = os.read(self.fd, 65536)
        self.open = bool(content)
        self.answer += content
        if len(self.answer) > LONGEST:
            self.deadline = 0.0

    def end(self) -> None:
        """Nothing more of it is waited for."""
        self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Asking:
    """Runs the tool."""

    def __init__(self, tool: str, environment: Mapping[str, str]) -> None:
        self._tool = tool
        # The libraries under the tool do not support that variable (CANN: environment variable reference).
        self._environment = {k: v for k, v in environment.items() if k != "ASCEND_RT_VISIBLE_DEVICES"}
        own = environment.get("LD_LIBRARY_PATH")
        self._environment |= {"LC_ALL": "C", "LD_LIBRARY_PATH": f"{own}:{LIBRARIES}" if own else LIBRARIES}
        self._held: dict[str, subprocess.Popen[bytes]] = {}  # killed, not ended: by the card, if any, that it asks

    def ask(self, queues: Iterable[Sequence[Words]]) -> dict[Words, str]:
        """What the tool said to each question, whatever its exit status; each queue in its order, several at once.

        What takes longer than TIMEOUT has no answer, nor has what is behind it in its queue.  At most LOOK + TIMEOUT.
        """
        last = time.monotonic() + LOOK
        waiting = deque(deque(queue) for queue in queues if queue)
        running: list[Question] = []
        answers: dict[Words, str] = {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                queue = waiting.popleft()
                running += self._start(queue) if time.monotonic() < last else []
            self._wait(running)
            for question in list(running):
                if not question.open and question.process.poll() is not None:
                    answers[question.queue.popleft()] = question.answer.decode(errors="replace")
                    if question.queue:
                        waiting.appendleft(question.queue)
                elif time.monotonic() >= question.deadline:
                    self._held[_card(question.queue[0])] = question.process
                else:
                    continue
                question.end()
                running.remove(question)
        return answers

    def _start(self, queue: deque[Words]) -> list[Question]:
        held = self._held.get(_card(queue[0]))
        if held is not None and held.poll() is None:
            return []
        try:
            return [Question(self._tool, self._environment, queue)]
        except OSError:  # no memory, no process to be had, or the tool is gone
            return []

    def _wait(self, running: Sequence[Question]) -> None:
        """Until one says something, has ended or is late."""
        poll = select.poll()
        until = time.monotonic() + TIMEOUT
        for question in running:
            if question.open:
                poll.register(question.fd, select.POLLIN)
            until = min(until, question.deadline)
        left = max(until - time.monotonic(), 0.0)
        if not all(question.open for question in running):
            left = min(left, ENDING)
        ready = {fd for fd, _ in poll.poll(left * 1000 + 1)} if running else set()
        for question in running:
            if question.open and question.fd in ready:
                question.read()

    def close(self) -> None:
        """Wait for killed ones, but not for those that a driver holds."""
        until = time.monotonic() + CLOSING
        for process in self._held.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))


def _card(words: Words) -> str:
    return words[words.index("-i") + 1] if "-i" in words else ""
