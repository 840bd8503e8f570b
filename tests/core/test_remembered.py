"""What was learned, in state.json: it comes back as it was, or the file is taken for corrupt."""

import json
from typing import Any

import pytest

from core.training import Training
from ftrun.core.machine.values import LearnedTimeouts, Ledger
from ftrun.messages.codec import Malformed
from ftrun.messages.state import dump_state, load_state

LEARNED = LearnedTimeouts(limit=45.0, usual=4.5, longest=6.25, intervals=500, slowest_start=0.1)


def changed(**words: Any) -> bytes:
    """state.json with these words of `learned` in place of its own; None: without it."""
    state = json.loads(dump_state(Ledger(learned=LEARNED), {}))
    state["learned"] = {name: value for name, value in {**state["learned"], **words}.items() if value is not None}
    return json.dumps(state).encode()


@pytest.mark.parametrize("learned", [None, LEARNED])
def test_it_comes_back(learned: LearnedTimeouts | None) -> None:
    ledger = Ledger(start_cnt=2, hang=1, learned=learned)
    assert load_state(dump_state(ledger, {"pid": 1})) == (ledger, {"schema": 1, "pid": 1})


def test_a_state_from_before_there_was_anything_to_learn() -> None:
    state = json.loads(dump_state(Ledger(hang=1), {}))
    del state["learned"]
    assert load_state(json.dumps(state).encode())[0] == Ledger(hang=1)


@pytest.mark.parametrize("name", LearnedTimeouts._fields)
@pytest.mark.parametrize(
    "value",
    [None, -1, -0.5, float("nan"), float("inf"), 1e13, "45", True, [], {}],
    ids=lambda value: "missing" if value is None else str(value),
)
def test_a_corrupt_value_is_told(name: str, value: object) -> None:
    with pytest.raises(Malformed, match="learned"):
        load_state(changed(**{name: value}))


@pytest.mark.parametrize("learned", [[], "auto", 45.0, True, {}, {"limit": 45.0}])
def test_what_is_no_table_of_figures_is_told(learned: object) -> None:
    state = json.loads(dump_state(Ledger(), {})) | {"learned": learned}
    with pytest.raises(Malformed, match="learned"):
        load_state(json.dumps(state).encode())


def test_a_word_too_many_is_told() -> None:
    with pytest.raises(Malformed, match="learned"):
        load_state(changed(colour=1))


def test_no_limit_of_nothing() -> None:
    """Figures that are numbers and make no sense: half a minute is the least, whatever the file says."""
    ledger, _ = load_state(changed(limit=0, usual=0, longest=0, slowest_start=0))
    training = Training(ledger=ledger).start([1.0] * 50).run()
    assert training.suspicions == []
    assert training.found_after() == pytest.approx(30.0, abs=0.01)


def test_a_second_container_goes_on_where_the_first_was() -> None:
    first = Training().start([20.0, *[8.0] * 200]).run()
    ledger, _ = load_state(dump_state(first.job.ledger, {}))
    second = Training(ledger=ledger).start([20.0, *[8.0] * 50]).run()
    assert second.found_after() == pytest.approx(80.0, abs=0.01)
