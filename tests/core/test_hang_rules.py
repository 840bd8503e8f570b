"""A hang rule is one entry of one table with every text about it."""

from typing import get_args

import pytest

from ftrun.config import option_table
from ftrun.core.machine.values import Finding, Rule
from ftrun.core.rules.hang_rules import RULES, HangRule, Silent, sentence


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
