"""The table of the hang rules: the texts about each rule, and what clears it.

`core/rules/liveness.py` measures; this table has the rest.  To add a rule, add an entry to `RULES` and its
name to `values.Rule`; a test checks that the two agree.
"""

from collections.abc import Callable, Mapping
from typing import Final

from ftrun.core.machine.values import TOUCH, Finding, Rule
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.durations import seconds
from ftrun.core.text.sentences import REASON, begun, rank


class Silent(NamedTuple):
    """Who is silent, as far as a record contains it."""

    rank: int | None
    step: int | None = None
    section: str | None = None


class HangRule(NamedTuple):
    """`meaning`: what the rule checks, for the reference.  `timeout`: the name of its timeout (`hang` for
    `--hang-timeout`).  `sentence`: why a rank is considered hung, with age and limit.  `brief`: the same in a few
    words.  `missing`: what has not come, to follow an age ("50s without a step").  `by_work`: it measures the work of
    the whole tree, so that work clears it and raises its timeout.  `by_proof`: looks have to find it (looks.py), and
    the evidence once more; without evidence it ends nothing.  `several`: a program may give each its own timeout, so
    that the source of the general one is not named."""

    meaning: str
    timeout: str
    by_work: bool
    by_proof: bool
    several: bool
    sentence: Callable[[Finding], str]
    brief: Callable[[Silent], str]
    missing: Callable[[Finding], str]


def sentence(found: Finding) -> str:
    """Why a rank, or the command, is considered hung: the reason of the verdict."""
    return RULES[found.rule].sentence(found)


def needs_evidence(found: Finding, idle_given: bool) -> bool:
    """Whether it ends nothing without evidence: nobody has given the time that has passed."""
    rule = RULES[found.rule]
    return rule.by_proof or (rule.by_work and not idle_given)


def mechanism(text: str) -> str:
    """The mechanism of a deadlock, to follow a sentence that has called it one."""
    return text.removeprefix("deadlock: ")


def _silent(found: Finding) -> str:
    if found.rank == TOUCH:
        return f"{rank(found.rank)} was last touched {seconds(found.age)} ago (limit {seconds(found.limit)})"
    where = "" if found.step is None else f" at step {found.step},"
    return f"{rank(found.rank)} stopped{where} {seconds(found.age)} ago (limit {seconds(found.limit)})"


def _unstarted(found: Finding) -> str:
    return f"{rank(found.rank)} sent no heartbeat in its first {seconds(found.age)} (limit {seconds(found.limit)})"


def _inside(found: Finding) -> str:
    where = f"{rank(found.rank)} has been in section {found.section!r}"
    return f"{where} for {seconds(found.age)} (limit {seconds(found.limit)})"


def _idle(found: Finding) -> str:
    age, what = seconds(found.age), "no I/O, and no change on its devices"
    return f"the command has been idle for {age} (limit {seconds(found.limit)}): {what}"


def _deadlocked(found: Finding) -> str:
    proved = f"{rank(found.rank)} was proved to be deadlocked after {seconds(found.age)} without movement"
    return begun(f"{proved}: {mechanism(found.mechanism)}", REASON) if found.mechanism else proved


def _spins(found: Finding) -> str:
    age, limit = seconds(found.age), seconds(found.limit)
    return begun(
        f"{rank(found.rank)} has computed without movement for {age} (limit {limit}): {found.mechanism}", REASON
    )


def _waits_for_device(found: Finding) -> str:
    age, limit = seconds(found.age), seconds(found.limit)
    return begun(f"all ranks have waited for {age} (limit {limit}): {found.mechanism}", REASON)


def _who(silent: Silent) -> str:
    return "touch file" if silent.rank == TOUCH else rank(silent.rank)


RULES: Final[Mapping[Rule, HangRule]] = {
    "step": HangRule(
        meaning="a rank that has moved gives no further step or heartbeat",
        timeout="hang",
        by_work=False,
        by_proof=False,
        several=False,
        sentence=_silent,
        brief=lambda silent: _who(silent) + ("" if silent.step is None else f" at step {silent.step}"),
        missing=lambda found: "without a heartbeat" if found.step is None else "without a step",
    ),
    "start": HangRule(
        meaning="a rank, or the command, gives no first heartbeat",
        timeout="start",
        by_work=False,
        by_proof=False,
        several=False,
        sentence=_unstarted,
        brief=lambda silent: f"{_who(silent)} sent no heartbeat",
        missing=lambda found: "without a first heartbeat",
    ),
    "section": HangRule(
        meaning="a rank stays in a section for longer than that section may last",
        timeout="section",
        by_work=False,
        by_proof=False,
        several=True,
        sentence=_inside,
        brief=lambda silent: f"{_who(silent)} in section {silent.section}",
        missing=lambda found: f"in section {found.section!r}",
    ),
    "idle": HangRule(
        meaning="no process of the command reads, writes or computes, and the use of its devices does not change",
        timeout="idle",
        by_work=True,
        by_proof=False,
        several=False,
        sentence=_idle,
        brief=lambda silent: "nothing is read, written or computed",
        missing=lambda found: "without any work",
    ),
    "deadlock": HangRule(
        meaning="nothing that can still run can end the wait of a rank, or of the command; it needs no timeout, and is "
        "looked for only under `--hang-timeout auto`",
        timeout="hang",
        by_work=False,
        by_proof=True,
        several=False,
        sentence=_deadlocked,
        brief=lambda silent: f"{_who(silent)} is deadlocked",
        missing=lambda found: "without movement",
    ),
    "device-wait": HangRule(
        meaning="every rank waits for its device or for another rank, and no device works; only under "
        "`--hang-timeout auto`",
        timeout="hang",
        by_work=False,
        by_proof=True,
        several=False,
        sentence=_waits_for_device,
        brief=lambda silent: "all ranks wait for their devices",
        missing=lambda found: "without movement",
    ),
    "spin": HangRule(
        meaning="a rank that has moved computes for an hour in one and the same function, and nothing that it does can "
        "be seen outside; only under `--hang-timeout auto`",
        timeout="hang",
        by_work=False,
        by_proof=True,
        several=False,
        sentence=_spins,
        brief=lambda silent: f"{_who(silent)} computes without end",
        missing=lambda found: "without movement",
    ),
}
