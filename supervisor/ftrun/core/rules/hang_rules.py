"""The table of the hang rules: the texts about each rule, what clears it, and how readers show it.

`core/rules/liveness.py` measures; this table has the rest.  To add a rule, add its name to `values.Rule` and an entry
to `RULES`, in which no field has a default; a test checks that the two agree, and that the rule is measured.
"""

from collections.abc import Callable, Mapping
from typing import Final

from ftrun.core.machine.values import TOUCH, Attempt, Finding, Rule
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import looks
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
    the whole tree, so that work clears it.  `by_proof`: looks have to find it (looks.py), and the evidence once more;
    without evidence it ends nothing.  `raised`: the attempt after something of this age was found and did not hold: the
    same is found again at twice the age at the earliest, unless a person gave the time.  `several`: a program may give
    each its own timeout, so that the source of the general one is not named.  `announced`: what a rank does for which
    this timeout is the nearest, where it has said so itself and nobody need look after it; None: it is expected to
    move.  `by_steps`: it is unusual that a rank does not move for many of its step times."""

    meaning: str
    timeout: str
    by_work: bool
    by_proof: bool
    raised: Callable[[Attempt, float], Attempt]
    several: bool
    announced: Callable[[Silent], str] | None
    by_steps: bool
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


def _as_given(attempt: Attempt, age: float) -> Attempt:
    return attempt


def _longer_idle(attempt: Attempt, age: float) -> Attempt:
    return attempt._replace(idle=attempt.idle._replace(raised=2 * age, unchanged_raised=2 * age))


def _who(silent: Silent) -> str:
    return "touch file" if silent.rank == TOUCH else rank(silent.rank)


RULES: Final[Mapping[Rule, HangRule]] = {
    "step": HangRule(
        meaning="a rank that has moved gives no further step or heartbeat",
        timeout="hang",
        by_work=False,
        by_proof=False,
        raised=_as_given,
        several=False,
        announced=None,
        by_steps=True,
        sentence=_silent,
        brief=lambda silent: _who(silent) + ("" if silent.step is None else f" at step {silent.step}"),
        missing=lambda found: "without a heartbeat" if found.step is None else "without a step",
    ),
    "start": HangRule(
        meaning="a rank, or the command, gives no first heartbeat",
        timeout="start",
        by_work=False,
        by_proof=False,
        raised=_as_given,
        several=False,
        announced=None,
        by_steps=False,
        sentence=_unstarted,
        brief=lambda silent: f"{_who(silent)} sent no heartbeat",
        missing=lambda found: "without a first heartbeat",
    ),
    "section": HangRule(
        meaning="a rank stays in a section for longer than that section may last",
        timeout="section",
        by_work=False,
        by_proof=False,
        raised=_as_given,
        several=True,
        announced=lambda silent: f"in section {silent.section}",
        by_steps=False,
        sentence=_inside,
        brief=lambda silent: f"{_who(silent)} in section {silent.section}",
        missing=lambda found: f"in section {found.section!r}",
    ),
    "idle": HangRule(
        meaning="no process of the command reads, writes or computes, and the use of its devices does not change",
        timeout="idle",
        by_work=True,
        by_proof=False,
        raised=_longer_idle,
        several=False,
        announced=None,
        by_steps=False,
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
        raised=looks.refute,
        several=False,
        announced=None,
        by_steps=False,
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
        raised=looks.refute,
        several=False,
        announced=None,
        by_steps=False,
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
        raised=looks.refute,
        several=False,
        announced=None,
        by_steps=False,
        sentence=_spins,
        brief=lambda silent: f"{_who(silent)} computes without end",
        missing=lambda found: "without movement",
    ),
}
