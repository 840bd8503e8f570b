"""A hang rule is one entry of one table with every text about it; each is measured, raised and shown."""

from collections.abc import Mapping
from typing import Final, get_args

import pytest

from ftrun.config import option_table
from ftrun.core.machine.values import Attempt, ClosedLook, Finding, LookState, Rank, Rule, Section, Spin, Standstill
from ftrun.core.rules.hang_rules import RULES, HangRule, Silent, needs_evidence, sentence
from ftrun.core.rules.idle import Idle, TreeSample
from ftrun.core.rules.liveness import SPIN_LIMITS, Limits, assess
from ftrun.records.present import advice, summary
from support.snapshots import snapshot

AUTO: Final = Limits(None, None, None, auto=True)
MOVED: Final = Rank(0, 7, moved_at=0.0, step=5)
INSIDE: Final = MOVED._replace(sections=(Section("save", 0.0),))
STILL: Final = Standstill(0, 0.0)
COMPUTES: Final = Spin(10.0, "rank 0 computes at train.py:7", "f", 0, 7)
QUIET: Final = tuple(TreeSample(float(at), 1.0, 0.0, 0.0) for at in range(1, 11))
# What each rule finds: the attempt, the limits, and when its limit has passed.
FOUND: Final[Mapping[Rule, tuple[Attempt, Limits, float]]] = {
    "step": (Attempt(1, 7, ranks=(MOVED,)), Limits(60.0, None, None), 61.0),
    "start": (Attempt(1, 7, ranks=(Rank(0, 7),)), Limits(None, 60.0, None), 61.0),
    "section": (
        Attempt(1, 7, ranks=(MOVED._replace(sections=(Section("save", 0.0),)),)),
        Limits(9.0, None, 60.0),
        61.0,
    ),
    "idle": (Attempt(1, 7, idle=Idle(0.0, 0.0, QUIET, accelerator=True)), AUTO._replace(idle=60.0), 61.0),
    "deadlock": (
        Attempt(1, 7, ranks=(MOVED,), look=LookState(STILL, closed=ClosedLook(16.0, "f", "a lock", 0, 7), proved=True)),
        AUTO,
        21.0,
    ),
    "device-wait": (
        Attempt(1, 7, ranks=(MOVED,), look=LookState(STILL, spin=COMPUTES._replace(on_device=True))),
        AUTO,
        11.0 + SPIN_LIMITS["device-wait"],
    ),
    "spin": (Attempt(1, 7, ranks=(MOVED,), look=LookState(STILL, spin=COMPUTES)), AUTO, 11.0 + SPIN_LIMITS["spin"]),
}


def test_every_rule_has_an_entry() -> None:
    assert set(RULES) == set(get_args(Rule))


def test_each_rule_decides_what_clears_it() -> None:
    assert HangRule._field_defaults == {}
    assert [name for name, rule in RULES.items() if rule.by_work] == ["idle"]
    assert [name for name, rule in RULES.items() if rule.several] == ["section"]
    assert [name for name, rule in RULES.items() if rule.by_proof] == ["deadlock", "device-wait", "spin"]


def test_a_deadlock_is_called_one_once() -> None:
    found = Finding("deadlock", 1, 31.0, 15.0, mechanism="deadlock: its threads wait for each other")
    text = "rank 1 was proved to be deadlocked after 31s without movement: its threads wait for each other"
    assert sentence(found) == text


def test_a_computation_without_end_is_not_called_proved() -> None:
    found = Finding("spin", 1, 610.0, 600.0, mechanism="rank 1 computes at train.py:7")
    assert sentence(found).startswith("rank 1 has computed without movement for 10m 10s (limit 10m): rank 1 computes")
    assert "proved" not in sentence(found)


@pytest.mark.parametrize("name", RULES)
def test_an_entry_is_complete(name: Rule) -> None:
    rule: HangRule = RULES[name]
    found = Finding(name, 3, 41.2, 38.0, 120, "evaluation", mechanism="its threads wait for each other")
    assert rule.meaning
    assert f"{rule.timeout}-timeout" in option_table.BY_NAME
    assert "41s" in sentence(found)
    assert (found.mechanism if rule.by_proof else "limit 38s") in sentence(found)
    assert rule.brief(Silent(3, 120, "evaluation"))
    assert rule.missing(found)


@pytest.mark.parametrize("name", RULES)
def test_each_rule_is_measured(name: Rule) -> None:
    attempt, limits, now = FOUND[name]
    finding = assess(attempt, now, limits).finding
    assert finding is not None
    assert finding.rule == name


@pytest.mark.parametrize("name", RULES)
def test_what_did_not_hold_is_not_found_again_at_once_unless_a_person_gave_the_time(name: Rule) -> None:
    attempt, limits, now = FOUND[name]
    finding = assess(attempt, now, limits).finding
    assert finding is not None
    raised = RULES[name].raised(attempt, finding.age)
    again = assess(raised, now + finding.age / 2, limits).finding
    assert (again is None) == needs_evidence(finding, limits.idle_given)


@pytest.mark.parametrize("name", RULES)
def test_readers_show_a_rank_that_has_said_what_it_does_as_healthy(name: Rule) -> None:
    rank = snapshot().ranks[0]._replace(rule=name, age=55.0, limit=60.0, section="save")
    shown = snapshot()._replace(phase="running", stalest=rank)
    healthy = RULES[name].announced is not None
    assert advice.quiet(rank) != healthy
    assert ("healthy" in summary.headline(shown)) == healthy
