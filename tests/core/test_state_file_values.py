"""What state.json keeps of the account and of the usual pauses: it is read as it was written, or refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.accounting.totals import TRACE, Account, LostTime, RestartCounts
from ftrun.core.machine.values import Ledger, UsualPauses, VisibleDevices
from ftrun.messages.codec import Malformed
from ftrun.messages.state import dump_state, load_state
from ftrun.pid1 import bootstrap

LEARNED = UsualPauses(usual=4.5, longest=6.25, steps=500)
ACCOUNT = Account(
    wall=1000.5,
    kept=1 / 3,
    lost=LostTime(startup=0.1, hang=70.25, paused=1e-7),
    restarts=RestartCounts(hang=2, peer=1),
    open=12.0,
    trace=((0.0, 0), (0.1 + 0.2, 7), (11.5, 1 << 62)),
    earlier=4.0,
    past=((2.0, 3),),
    begun=True,
    saved=True,
    silent=61.0,
    stepped=True,
    into="stopping",
    at=123456.789,
)
VISIBLE = VisibleDevices("CUDA_VISIBLE_DEVICES", ("0", "GPU-2"))
LEDGER = Ledger(start_cnt=2, hang=1, removed=("gpu1",), visible=VISIBLE, learned=LEARNED, account=ACCOUNT)
SECONDS, COUNTS = st.floats(0, 1e12), st.integers(0, 2**62)
TRACES = st.lists(st.tuples(SECONDS, COUNTS), max_size=TRACE, unique_by=lambda point: point[1]).map(
    lambda points: tuple(sorted(points, key=lambda point: point[1]))
)
ACCOUNTS = st.builds(
    Account,
    *(SECONDS, SECONDS),
    lost=st.builds(LostTime, *[SECONDS] * len(LostTime._fields)),
    restarts=st.builds(RestartCounts, *[COUNTS] * len(RestartCounts._fields)),
    open=SECONDS,
    trace=TRACES,
    earlier=SECONDS,
    past=TRACES,
    silent=SECONDS,
    stepped=st.booleans(),
    into=st.sampled_from(["", *LostTime._fields]),
    at=st.none() | SECONDS,
)


def load(ledger: Ledger, **changes: Any) -> Ledger:
    """The ledger as read from its state.json with these changes; a dict changes values of a part, None removes them."""
    state = json.loads(dump_state(ledger, {"pid": 1}))
    for name, change in changes.items():
        part = {**state[name], **change} if isinstance(change, dict) and change else change
        state[name] = {k: v for k, v in part.items() if v is not None} if isinstance(part, dict) else part
    found, others = load_state(json.dumps(state).encode())
    assert others == {"schema": 2, "pid": 1}
    return found


@pytest.mark.parametrize("ledger", [LEDGER, Ledger(), LEDGER._replace(learned=None)])
def test_a_ledger_is_read_as_it_was_written(ledger: Ledger) -> None:
    assert load(ledger) == ledger


@given(ACCOUNTS)
def test_any_account_is_read_as_it_was_written(account: Account) -> None:
    assert load(Ledger(account=account)).account == account


NO_DURATIONS: tuple[Any, ...] = (-0.5, float("nan"), float("inf"), 1e13, "45", True, [], {})
NO_LEARNED: tuple[Any, ...] = ([], "auto", 45.0, True, {}, {"colour": 1})
NO_ACCOUNT: tuple[Any, ...] = (
    None,
    [],
    "much",
    45.0,
    True,
    {},
    {"colour": 1},
    {"begun": 1},
    {"saved": "yes"},
    {"into": "x"},
)
NO_LOST: tuple[Any, ...] = ({}, [1.0], {**LostTime()._asdict(), "hang": -1.0}, {**LostTime()._asdict(), "sleep": 1.0})
NO_COUNTS: tuple[Any, ...] = (1.5, True, -1, 1 << 63)
NO_TRACES: tuple[Any, ...] = (
    *("1.0:2", [1.0], [[1.0]], [[1.0, 2, 3]], [["one", 2]], [[1.0, 2.5]], [[float("nan"), 2]], [[1.0, -2]]),
    *([[1.0, 1 << 63]], [[1.0, 5], [2.0, 5]], [[1.0, 5], [2.0, 4]]),
    [[float(step), step] for step in range(TRACE + 1)],
)
MALFORMED: list[tuple[str, Any]] = [
    *(("visible", value) for value in ([], "CUDA_VISIBLE_DEVICES", [1])),
    *(("learned", value) for value in NO_LEARNED),
    *(("account", value) for value in NO_ACCOUNT),
    *(("learned", LEARNED._asdict() | {"usual": value}) for value in NO_DURATIONS),
    *(("account", {name: None}) for name in Account._fields),
    *(("account", {name: value}) for name in ("wall", "at") for value in NO_DURATIONS),
    *(("account", {"lost": value}) for value in NO_LOST),
    *(("account", {"restarts": {**RestartCounts()._asdict(), "hang": value}}) for value in NO_COUNTS),
    *(("account", {"trace": value}) for value in NO_TRACES),
]


@pytest.mark.parametrize(("part", "change"), MALFORMED, ids=str)
def test_a_malformed_value_is_refused_by_name(part: str, change: object) -> None:
    with pytest.raises(Malformed, match=part):
        load(LEDGER, **{part: change})


def test_a_full_account_is_small() -> None:
    trace = tuple((step + 0.123456789, 1_000_000 + step) for step in range(TRACE))
    assert len(dump_state(Ledger(account=ACCOUNT._replace(trace=trace, past=trace)), {})) < 6000


@pytest.mark.parametrize("schedule_cnt", [1, 2])
def test_a_new_schedule_keeps_the_account(schedule_cnt: int) -> None:
    assert bootstrap._resumed((LEDGER, {}), schedule_cnt, "").account == ACCOUNT
