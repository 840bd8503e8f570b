"""The account in state.json: it comes back as it was, or the file is taken for corrupt; a new schedule keeps it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.accounting.totals import TRACE, Account, LostTime, RestartCounts
from ftrun.core.machine.values import Ledger
from ftrun.messages.codec import Malformed
from ftrun.messages.state import dump_state, load_state
from ftrun.pid1 import bootstrap

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
    into="stopping",
    at=123456.789,
)

SECONDS, COUNTS = st.floats(0, 1e12), st.integers(0, 2**62)
TRACES = st.lists(st.tuples(SECONDS, COUNTS), max_size=TRACE, unique_by=lambda point: point[1]).map(
    lambda points: tuple(sorted(points, key=lambda point: point[1]))
)
ACCOUNTS = st.builds(
    Account,
    wall=SECONDS,
    kept=SECONDS,
    lost=st.builds(LostTime, *[SECONDS] * len(LostTime._fields)),
    restarts=st.builds(RestartCounts, *[COUNTS] * len(RestartCounts._fields)),
    open=SECONDS,
    trace=TRACES,
    earlier=SECONDS,
    past=TRACES,
    silent=SECONDS,
    into=st.sampled_from(["", *LostTime._fields]),
    at=st.none() | SECONDS,
)


def state(**words: Any) -> bytes:
    """state.json with these words of the account in place of its own; None: without it."""
    found = json.loads(dump_state(Ledger(account=ACCOUNT), {}))
    account = {name: word for name, word in {**found["account"], **words}.items() if word is not None}
    return json.dumps({**found, "account": account}).encode()


@pytest.mark.parametrize("account", [Account(), ACCOUNT, ACCOUNT._replace(at=None, trace=(), into="")])
def test_it_comes_back(account: Account) -> None:
    ledger = Ledger(start_cnt=2, account=account)
    assert load_state(dump_state(ledger, {"pid": 1})) == (ledger, {"schema": 1, "pid": 1})


@given(ACCOUNTS)
def test_whatever_is_in_it_comes_back(account: Account) -> None:
    assert load_state(dump_state(Ledger(account=account), {}))[0].account == account


def test_a_state_from_before_there_was_an_account() -> None:
    found = json.loads(dump_state(Ledger(hang=1, account=ACCOUNT), {}))
    del found["account"]
    assert load_state(json.dumps(found).encode())[0] == Ledger(hang=1)


@pytest.mark.parametrize("name", ["wall", "kept", "open", "earlier", "silent", "at"])
@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), 1e13, "45", True, [], {}], ids=str)
def test_a_corrupt_duration_is_told(name: str, value: object) -> None:
    with pytest.raises(Malformed, match=f"account`: `{name}"):
        load_state(state(**{name: value}))


@pytest.mark.parametrize("name", Account._fields)
def test_a_missing_word_is_told(name: str) -> None:
    with pytest.raises(Malformed, match="account"):
        load_state(state(**{name: None}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colour", 1),
        ("begun", 1),
        ("saved", "yes"),
        ("into", "nowhere"),
        ("into", []),
        ("lost", {}),
        ("lost", [1.0]),
        ("lost", {**LostTime()._asdict(), "hang": -1.0}),
        ("lost", {**LostTime()._asdict(), "sleep": 1.0}),
        ("restarts", {**RestartCounts()._asdict(), "hang": 1.5}),
        ("restarts", {**RestartCounts()._asdict(), "hang": True}),
        ("restarts", {**RestartCounts()._asdict(), "hang": -1}),
        ("restarts", {**RestartCounts()._asdict(), "hang": 1 << 63}),
        ("trace", []),
        ("trace", "1.0"),
        ("trace", "1.0:2:3"),
        ("trace", "one:2"),
        ("trace", "1.0:2.5"),
        ("trace", "nan:2"),
        ("trace", "1.0:-2"),
        ("trace", f"1.0:{1 << 63}"),
        ("trace", "1.0:5 2.0:5"),
        ("past", "1.0:5 2.0:4"),
        ("past", " ".join(f"{step}.0:{step}" for step in range(TRACE + 1))),
    ],
    ids=str,
)
def test_what_is_no_account_is_told(name: str, value: object) -> None:
    with pytest.raises(Malformed, match="account"):
        load_state(state(**{name: value}))


@pytest.mark.parametrize("account", [None, [], "much", 45.0, True, {}])
def test_what_is_no_table_is_told(account: object) -> None:
    found = json.loads(dump_state(Ledger(), {})) | {"account": account}
    with pytest.raises(Malformed, match="account"):
        load_state(json.dumps(found).encode())


def test_a_full_account_is_small() -> None:
    trace = tuple((step + 0.123456789, 1_000_000 + step) for step in range(TRACE))
    assert len(dump_state(Ledger(account=ACCOUNT._replace(trace=trace, past=trace)), {})) < 6000


@pytest.mark.parametrize("schedule_cnt", [1, 2])
def test_a_new_schedule_keeps_it(schedule_cnt: int) -> None:
    ledger = bootstrap._resumed((Ledger(start_cnt=3, hang=1, account=ACCOUNT), {}), schedule_cnt, "")
    assert ledger.account == ACCOUNT
