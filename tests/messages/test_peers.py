"""Messages between messengers: each is read as it was written, and an invalid one is refused in one line."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.core.group.messages import (
    EpochRanks,
    EpochRun,
    GroupEnd,
    GroupOrder,
    Life,
    MemberReport,
    NodeFailure,
    Pulse,
    Ranks,
    ReportedState,
    Starter,
)
from ftrun.core.group.places import MOST_PAIRS
from ftrun.core.machine.values import Reason
from ftrun.core.ranks.shared import RUNGS, GroupRound, NodeRounds, Progress
from ftrun.messages import peers
from ftrun.messages.codec import EXACT, LARGEST, Malformed

texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)
numbers = st.integers(0, LARGEST)
seconds = st.floats(0, 1e9)
counts = st.tuples(numbers, numbers, numbers)
reasons = st.sampled_from(get_args(Reason))
maybe = st.none() | numbers
paused = st.none() | seconds | st.just(float("inf"))
ends = st.none() | st.builds(
    GroupEnd, numbers, texts, texts, st.none() | texts, st.none() | texts, st.booleans(), st.booleans()
)
failures = st.none() | st.builds(NodeFailure, reasons, texts, seconds, maybe, maybe, st.booleans(), st.booleans())
hosts, ports = st.text("abc.-:0", max_size=40), st.integers(0, 65535)
local = st.integers(1, peers.MOST_RANKS)
ranks = st.none() | st.builds(Ranks, local, hosts, ports)
pairs = st.lists(st.tuples(st.integers(1, 9), local), min_size=1, max_size=9).map(tuple)
worlds = st.none() | st.builds(EpochRanks, hosts, ports, pairs)
rungs, numbered = st.none() | st.sampled_from(RUNGS), st.lists(numbers, max_size=3).map(tuple)
group_rounds = st.builds(
    GroupRound, st.integers(1, 99), st.sampled_from(("work", "leave", "close")), rungs, numbered, texts, hosts, ports,
    maybe, numbered, seconds,
)  # fmt: skip
node_rounds = st.builds(
    NodeRounds, st.sampled_from(get_args(Progress)), st.integers(1, 99), st.none() | group_rounds, st.booleans(), rungs,
    numbered, texts, numbered, seconds, seconds, st.lists(texts, max_size=2).map(tuple),
)  # fmt: skip
places = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), max_size=5).map(tuple)
starters = st.none() | st.builds(Starter, texts, texts, texts, hosts, ports, st.booleans(), st.booleans(), numbers)
lives = st.lists(st.builds(Life, local, texts, texts, hosts, ports, st.booleans()), max_size=2).map(tuple)
reports = st.builds(
    MemberReport, numbers, texts, numbers, texts, texts, numbers, st.sampled_from(get_args(ReportedState)), failures,
    ends, counts, st.booleans(), st.booleans(), paused, numbers, ranks, st.none() | node_rounds,
    places, hosts, maybe, regains=st.lists(texts, max_size=2).map(tuple), starter=starters, lives=lives,
    devices_waited=st.booleans(), buried=st.none() | st.builds(EpochRun, numbers, texts),
)  # fmt: skip
orders = st.builds(
    GroupOrder, numbers, st.sampled_from(("wait", "run", "stop", "end")), texts, st.none() | reasons, st.none() | texts,
    maybe, maybe, counts, st.booleans(), st.booleans(), paused, ends, worlds, st.none() | group_rounds,
    places, hosts, starters, lives, maybe, st.booleans(),
)  # fmt: skip
HELLO = peers.MemberHello("1.0", "job", 4, 3, "life", "node")
REPORT = MemberReport(3, "life", 7, "node", "boot", 2, "running")


@settings(max_examples=40)
@given(reports, orders)
def test_a_report_and_an_order_are_read_as_written(report: MemberReport, order: GroupOrder) -> None:
    assert peers.load_report(peers.dump(report)) == report == EXACT.load(MemberReport, EXACT.dump(report))
    assert peers.load_order(peers.dump(order)) == order == EXACT.load(GroupOrder, EXACT.dump(order))


def test_the_other_frames_are_read_as_written() -> None:
    assert peers.load_hello(peers.dump(HELLO), "1.0") == HELLO
    address = peers.MemberAddress(4, 3, "h:1", None, 600.0, 10.0, 300.0, "", "life", "node", "boot")
    assert peers.load(peers.MemberAddress, json.dumps(address._asdict()).encode()) == address
    assert peers.load_pulse(peers.dump_pulse(None)) is None
    assert peers.load_pulse(peers.dump_pulse(Pulse(1, None, 2.5))) == Pulse(1, None, 2.5)
    assert peers.load_time(peers.dump_time(12345.678901)) == 12345.678901
    assert peers.load_ack(b"12") == 12


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rank": True}, "`rank`: not an integer"),
        ({"rank": 1 << 60}, "`rank`: not an integer"),
        ({"state": "mad"}, "`state`: none of ready, running"),
        ({"failure": {"cause": "hang"}}, "`failure`: `why` is missing"),
        ({"failure": {"cause": "hang", "why": "", "age": float("nan")}}, "`failure`: `age`: not a number"),
        ({"counts": [1, 2]}, "`counts`: not 3 values"),
        ({"more": 1}, "unknown field 'more'"),
        ({"ranks": {"number": 0}}, "`ranks`: not 1 to 1024"),
        ({"ranks": {"number": 1025}}, "`ranks`: not 1 to 1024"),
        ({"ranks": {"number": 1, "port": 65536}}, "not an address and a port"),
        ({"ranks": {"number": 1, "address": "a" * 256}}, "not an address and a port"),
        ({"ranks": {"number": 1, "address": "a b"}}, "not an address and a port"),
        ({"rounds": {"number": 0}}, "not a round of ranks"),
        ({"rounds": {"ranks": [-1]}}, "not a round of ranks"),
        ({"rounds": {"adopted": {"ranks": [1] * 2049}}}, "not a round of ranks"),
        ({"rounds": {"adopted": {"port": 65536}}}, "not an address and a port"),
    ],
)
def test_an_invalid_report_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        peers.load_report(json.dumps(EXACT.plain(REPORT) | change).encode())


@pytest.mark.parametrize("counts", [[], [[0, 1]], [[1, 0]], [[1, 1025]], [[1, -1]], [[1 << 21, 1]], [[1, 1]] * 2049])
def test_an_order_with_impossible_ranks_is_refused(counts: list[list[int]]) -> None:
    world = {"address": "a", "port": 1, "counts": counts}
    with pytest.raises(Malformed, match="`world`"):
        peers.load_order(json.dumps(EXACT.plain(GroupOrder(1, "run")) | {"world": world}).encode())


def test_a_hello_of_another_version_is_not_checked_further() -> None:
    for content in (
        {"schema": 9},
        {"schema": 2, "version": "1.0"},
        {"schema": 5, "version": "2.0\n\x1b[31m"},
        {"schema": 5, "version": ["x"]},
    ):
        with pytest.raises(Malformed, match=r"rank 0 is ftrun 1\.0") as why:
            peers.load_hello(json.dumps(content).encode(), "1.0")
        assert str(why.value).isprintable()


@pytest.mark.parametrize(
    ("least", "spares", "text"), [(0, 0, "4"), (2, 0, "2:4"), (2, 1, "2:4 with 1 spare"), (0, 3, "4 with 3 spares")]
)
def test_the_shape_of_a_group_is_named(least: int, spares: int, text: str) -> None:
    hello = peers.MemberHello("1.0", "job", 4, 0, "life", "node", least, spares)
    assert peers.shape_text(hello) == text


@given(st.text(max_size=20), st.sampled_from("\ud800\x00\x1b\U0001f600a"))
def test_any_text_fits_into_a_frame(some: str, char: str) -> None:
    text = (some + char) * 2000
    worst = REPORT._replace(
        node=text, boot=text, life=text, failure=NodeFailure("failure", text), end=GroupEnd(1, text, text, text, text)
    )
    content = peers.dump(worst)
    found = peers.load_report(content)
    assert len(content) <= peers.LIMIT
    assert found.failure is not None
    assert found.failure.why.isprintable()
    assert len(found.failure.why) <= peers.TEXT


def test_the_largest_order_fits_into_a_message() -> None:
    largest = tuple((1 << 8, peers.MOST_RANKS - n % 2) for n in range(MOST_PAIRS))
    order = GroupOrder(
        1 << 30, "run", "w" * 600, "failure", "n" * 600, 1, 1, (9, 9, 9), world=EpochRanks("a" * 255, 1, largest)
    )
    content = peers.dump(order)
    assert len(content) <= peers.LIMIT
    assert peers.load_order(content).world == order.world
