"""What PID 1 has done by others: which helpers run, what they are asked, and what their words mean as events.

Nothing in here waits.  A helper that is silent, dead or mad costs a record and nothing else.
"""

import json
import os
import stat as st
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ftrun.config import Settings
from ftrun.core import effects as do
from ftrun.core import events as ev
from ftrun.core.idle import Sample
from ftrun.core.liveness import patience
from ftrun.core.ordering import asked
from ftrun.core.policy import Policy
from ftrun.core.states import Job
from ftrun.core.values import Attempt, Fault, Finding, Ledger, Rank
from ftrun.host.capture import Capture
from ftrun.host.helpers import Helpers, Message
from ftrun.host.place import Place
from ftrun.host.tree import Tree
from ftrun.probing import SILENCE, Probing
from ftrun.recovery import Recovery

if TYPE_CHECKING:
    from ftrun.grouping import Group

WRITING: Final = 2.0  # s at the very end for the metrics with the verdict
COPYING: Final = 5.0  # s at the very end for what is to be on a network disk
DRAINING: Final = 5.0  # s at the very end for what the command wrote and nobody has read yet
ASKING: Final = 2.0  # s at most that all have to say why the command failed
REPORTING: Final = 0.5  # s after which the probe has told what a driver knew of the end of a command
PERIODS: Final = 10  # samples in an idle timeout
SHORTEST_PERIOD, LONGEST_PERIOD = 0.2, 60.0  # s
BETWEEN: Final = 3.0  # s from the first look of the evidence to the second, and at most a quarter of the limit
RANKS: Final = 300  # that the evidence is told of, those that stopped first: a word of a command line holds 128 KiB
Told = tuple[str, tuple[tuple[str, object], ...], str | None]  # a record, its fields, a line for the operator
SERVING: Final = ("courier", "metrics", "mirror")  # whose problems are lines too: they serve the operator
SETTLED: Final = 1.0  # s until whoever may wait is started: a command's first second is its own
MARGIN: Final = 5.0  # s before the evidence is given up, in which it has to say what it has


class Aides:
    """`problems`: a helper's name and one line each; `told` takes them."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        helpers: Helpers,
        tree: Tree,
        place: Place,
        beat_dir: str,
        captured: Capture,
        group: "Group | None" = None,
    ) -> None:
        self._policy, self._helpers, self._tree = policy, helpers, tree
        self._run_dir, self._beat_dir, self._place = place.path, beat_dir, place
        run_dir = place.path
        if place.copied:
            helpers.want("mirror", *place.copied, prompt=True, delay=SETTLED)
        self._command = 0  # the last that was started
        self._question: Finding | None = None
        self._healer = False
        self._tailing = False
        self.tail: tuple[str, ...] = ()  # the last lines of output, where they are kept
        self.problems: list[tuple[str, str]] = []
        self._listening: list[tuple[str, str]] = []  # a helper that serves others, and its address
        self._metrics = [settings[name].value or "" for name in ("metrics", "metrics-file")]
        idle = policy.limits.idle
        self._period = LONGEST_PERIOD if idle is None else min(max(idle / PERIODS, SHORTEST_PERIOD), LONGEST_PERIOD)
        self._peers = None
        if group is None:
            helpers.want("courier", run_dir, beat_dir, paired=True, delay=SETTLED)
        else:
            from ftrun.peers import Peers

            self._peers = Peers(group, policy, helpers, time.monotonic())
            helpers.want("courier", run_dir, beat_dir, self._peers.words, paired=True, prompt=True)  # it is waited for
        if settings["progress"].value:
            helpers.want("watch", *settings["progress"].value)
        self._captured = captured
        if captured.streams:
            helpers.want("output", *captured.words(place.output), passed=captured.passed, lasting=True)
        self._recovery = Recovery(settings, policy, helpers, tree.mark)
        self._attempt = 0
        self._asked_metrics = False
        self._probing = Probing(settings, policy, helpers, run_dir, self._period)
        self._sampling = idle is not None and policy.limits.idle_given
        if self._sampling:
            self._sample()

    @property
    def deadline(self) -> float | None:
        others = None if self._peers is None else self._peers.deadline
        return min((at for at in (self._helpers.deadline, others) if at is not None), default=None)

    def tend(self, now: float) -> None:
        """Start what is due.  The command comes first: not while it is being launched."""
        started = self._helpers.tend(now)
        for pid in started:
            self._tree.spare(pid)
        if started:
            self._name_tree()
            self._number_attempt()
            if self._peers is not None:
                self._peers.tell()
        self.problems += self._helpers.problems
        self._helpers.problems = []

    @property
    def checks_devices(self) -> bool:
        """Whether the first start waits for a look at the devices, `Checked`."""
        return self._probing.checks

    def spawning(self, number: int) -> None:
        self._attempt = number
        self._probing.spawning()
        self._number_attempt()
        self._helpers.tell("output", {"ask": "attempt", "number": number, "mono": time.monotonic()})

    def spawned(self) -> None:
        self._recovery.give_up()
        self._command = self._tree.command or 0
        self._name_tree()
        if any(self._metrics) and not self._asked_metrics:
            self._asked_metrics = True  # once: where its package is missing it ends for good
            self._helpers.want("metrics", self._run_dir, *self._metrics, lasting=bool(self._metrics[1]), delay=SETTLED)

    def _number_attempt(self) -> None:
        self._helpers.tell("courier", {"ask": "attempt", "number": self._attempt})

    def _name_tree(self) -> None:
        if self._tree.command:
            self._helpers.tell("sampler", {"ask": "tree", "root": self._tree.command, "spared": self._helpers.pids})

    def ended(self, pid: int, now: float, well: bool) -> None:
        self._helpers.ended(pid, now, well)

    def stopped(self, pid: int) -> None:
        self._helpers.stopped(pid)

    # --- what they say ----------------------------------------------------------------------------------------------

    def hear(self, ready: set[int], now: float) -> list[ev.Event]:
        """Events made of what was said; `Evidenced` without the ranks, which the caller has to look at."""
        found: list[ev.Event] = []
        for name, message in self._helpers.said(ready, now):
            try:
                if (name, message["event"]) == ("heal", "ended") and self._recovery.healing:
                    self._tree.kill()  # the command is dead: what is in its tree now is what a killed healer left
                found += self._recovery.hear(name, message, now, self._probing.ascend_ids)
                event = self._event(name, message, now)
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                self.problems.append((name, f"not understood: {error!r}"))
                continue
            if event is not None:
                found.append(event)
        if self._healer and self._recovery.needs_probe:
            self._healer = False
            self._probing.start()
        if self._probing.known and self._policy.limits.idle is not None and not self._sampling:
            self._sampling = True
            self._sample()
        if self._peers is not None:
            found += self._peers.overdue(now)
        for told in (self._recovery.problems, self._probing.problems, self._peers.problems if self._peers else []):
            self.problems += told
            told.clear()
        return found

    def _event(self, name: str, message: Message, now: float) -> ev.Event | None:
        match name, message["event"]:
            case _, "problem":
                self.problems.append((name, str(message["what"])))
            case "watch", "saved":
                return ev.Saved(now, str(message["path"]), float(message["mono"]), bool(message["renamed"]))
            case "sampler", "sample" if message["root"] == self._tree.command:
                seconds, cpu, io = (float(message[key]) for key in ("seconds", "cpu", "io"))
                return ev.Sampled(now, Sample(float(message["mono"]), seconds, cpu, io, self._probing.uses(now)))
            case "probe", _:
                return self._probing.hear(message, now, self._recovery.held_for)
            case "output", "broken":
                self._captured.broken(int(message["stream"]))
            case "output", "tail":
                self.tail, self._tailing = tuple(map(str, message["lines"])), False
            case "metrics", "listening":
                self._listening.append((name, str(message["address"])))
            case "courier", "order":
                order = ev.Order(str(message["id"]), str(message["by"]), float(message["until"]))
                return asked(str(message["verb"]), order, message["lasting"], now)
            case "courier", _ if self._peers is not None:
                return self._peers.hear(message, now)
            case "evidence", "evidenced" if self._question is not None:
                self._question = None
                cleared = message["cleared"]
                if message["report"] is not None:  # where a person finds it in the end
                    message["report"] = str(message["report"]).replace(self._place.path, self._place.given, 1)
                seen = tuple((key, message[key]) for key in ("why", "cpu", "io", "processes", "report", "waits"))
                return ev.Evidenced(now, (), seen, None if cleared is None else str(cleared))
            case "evidence", "ended" if self._question is not None:
                # A limit that nobody gave is no proof by itself.
                cleared = "no evidence could be had" if self._question.learned else None
                self._question = None
                return ev.Evidenced(now, (), (("evidence", "none could be had"),), cleared)
        return None

    def _sample(self) -> None:
        self._helpers.want("sampler", str(self._period), silence=2 * self._period + SILENCE)

    # --- what they are asked ----------------------------------------------------------------------------------------

    def investigate(self, finding: Finding, attempt: Attempt, ranks: Sequence[Rank]) -> None:
        """Answered by `Evidenced`; if it cannot be asked at all, the phase's own deadline is the answer."""
        first = sorted(ranks, key=lambda rank: (rank.rank != finding.rank, rank.moved_at or 0.0))[:RANKS]
        question = {
            "run_dir": self._run_dir,
            "attempt": attempt.number,
            "finding": finding._asdict(),
            "root": attempt.pid,
            "spared": self._helpers.pids,
            "ranks": [_rank(rank) for rank in first],
            "now": time.monotonic(),
            "devices": self._probing.known,
            "output": _output(),
            "between": min(BETWEEN, finding.limit / 4),
            "timeout": self._policy.evidence_timeout - MARGIN,
            "patience": patience(finding, self._policy.limits),
        }
        self._question = finding
        self._helpers.want("evidence", json.dumps(question), once=True)

    def release(self, pids: Sequence[int], removed: Sequence[str], now: float) -> ev.Released | None:
        """Whether the devices are free: at once where there are none, else later."""
        self._recovery.give_up()
        return self._probing.release(pids, self._command, removed, now)

    def heal(self, fault: Fault | None, now: float) -> list[ev.Event]:
        if fault is None:
            self._recovery.give_up()
            return self._recovery.permitted(now)
        index = self._probing.index(fault.device)
        self._healer = self._probing.on and self._recovery.heals
        return self._recovery.heal(fault, index, self._probing.on and index is not None, now)

    def told(self) -> list[Told]:
        """What is to be written down since the last time."""
        found: list[Told] = []
        for name, what in self.problems:
            aloud = name in SERVING or what in self._probing.aloud
            line = f"{name}: {what}; the command is not touched" if aloud else None
            found.append(("problem", (("helper", name), ("what", what)), line))
        for name, address in self._listening:
            line = f"{name}: http://{address}/metrics"
            found.append(("listening", (("helper", name), ("address", address)), line))
        if self._peers is not None:
            found += [("group", (("what", "noted"), ("why", what)), None) for what in self._peers.notes]
            found += [("group", (("what", "noted"), ("why", what)), what) for what in self._peers.lines]
            self._peers.notes.clear()
            self._peers.lines.clear()
        self.problems, self._listening = [], []
        return found

    def answer(self, answer: do.Answer) -> None:
        self._helpers.tell("courier", {"ask": "answer", **answer._asdict()})

    def keep(self, ledger: Ledger, final: str | None = None) -> None:
        self._recovery.keep(ledger, final)

    def consult(self, ledger: Ledger, now: float) -> list[ev.Event]:
        return self._recovery.consult(ledger.schedule_cnt, now)

    def ask_tail(self) -> None:
        """What the command wrote last, where that is kept; in `tail` when it has come."""
        self.tail, self._tailing = (), self._helpers.runs("output")
        self._helpers.tell("output", {"ask": "tail"})

    def speaking(self, since: float) -> float:
        """Until when what is still on its way may say why the command failed, at `since`: a fault of a device, its last
        words, or what was before; in the past if nothing is."""
        if not self._recovery.remembers or self._tailing:
            return since + ASKING
        return since + REPORTING if self._probing.known else 0.0

    def part(self, verdict: dict[str, object] | None, work: dict[str, object] | None) -> None:
        self._recovery.part(verdict, work)

    @property
    def parting(self) -> set[str]:
        left = self._peers is not None and self._peers.parting and self._helpers.runs("courier")
        return self._recovery.waits_for | ({"left"} if left else set())

    def follow(self, job: Job, now: float, fallen: bool) -> None:
        """To be called with each new `job`: a group hears of it.  `fallen`: the command has ended, nobody knows why."""
        if self._peers is not None:
            self._peers.follow(job, now, fallen)

    def drain(self) -> None:
        """What the command wrote is passed on."""
        self._captured.end()
        self._helpers.finish("output", DRAINING)
        self._captured.close()

    def close(self) -> str | None:
        """All helpers are ended; a line for the user if not all is where it should be."""
        if self._metrics[1]:
            self._helpers.finish("metrics", WRITING)
        copied = self._helpers.finish("mirror", COPYING)
        self._helpers.close()
        return None if copied else self._place.left


def _rank(rank: Rank) -> dict[str, Any]:
    names = ("rank", "pid", "present", "alive_at", "moved_at", "step", "done")
    return {name: getattr(rank, name) for name in names} | {"sections": [section.name for section in rank.sections]}


def _output() -> list[str]:
    """The files that the command's output goes to, where those are regular ones: it has inherited ours."""
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in (1, 2) if _regular(fd)]


def _regular(fd: int) -> bool:
    try:
        return st.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
