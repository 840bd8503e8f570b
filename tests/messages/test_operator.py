"""Messages of the control channel: an invalid one is refused in one line, whatever the bytes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.messages import operator
from ftrun.messages.operator import ControlReply, ControlRequest, RequestRefused

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def test_a_request_and_a_reply_are_read_as_written() -> None:
    request = ControlRequest("7", "pause", "root, process 1", 60.0)
    assert operator.load_request(operator.dump_request(request)) == request
    reply = ControlReply("7", False, "the job is ending")
    assert operator.load_reply(operator.dump_reply(reply, version="9")).items() >= reply._asdict().items()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"schema": 2}, "schema 2 is not supported, only 1"),
        ({"schema": None}, "schema None"),
        ({"verb": "reboot"}, "no such verb: 'reboot'"),
        ({"verb": ["stop"]}, "no such verb"),
        ({"by": 5}, "`by` is not a text"),
        ({"lasting": 0}, "`lasting` is not a number of seconds"),
        ({"lasting": True}, "`lasting` is not a number of seconds"),
        ({"lasting": "1m"}, "`lasting` is not a number of seconds"),
        ({"lasting": 1e300}, "`lasting` is not a number of seconds"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(wrong: dict[str, Any], why: str) -> None:
    request = {"schema": 1, "id": "7", "verb": "stop", "by": "", "lasting": None} | wrong
    with pytest.raises(RequestRefused, match=why) as refused:
        operator.load_request(json.dumps(request).encode())
    assert refused.value.id == "7", "the reply names the request"


@given(st.fixed_dictionaries({"schema": st.just(1), "id": JSON, "verb": JSON, "by": JSON, "lasting": JSON}))
def test_an_accepted_request_is_within_the_limits(fields: dict[str, Any]) -> None:
    try:
        request = operator.load_request(json.dumps(fields).encode())
    except RequestRefused:
        return
    assert request.verb in (*operator.ORDERS, operator.PING)
    assert len(request.by) <= operator.TEXT
    assert len(request.id) <= operator.TEXT
