"""Messages of the control channel: an invalid one is refused in one line; any bytes: `proof/fuzz`."""

import json
from typing import Any

import pytest

from ftrun.messages import operator
from ftrun.messages.operator import ControlReply, ControlRequest, RequestRefused


def test_a_request_and_a_reply_are_read_as_written() -> None:
    request = ControlRequest("7", "pause", "root, process 1", 60.0)
    assert operator.load_request(operator.dump_request(request)) == request
    talkative = operator.dump_request(request._replace(by="x" * 1000))
    assert len(operator.load_request(talkative).by) == operator.TEXT
    reply = ControlReply("7", False, "the job is ending")
    assert operator.load_reply(operator.dump_reply(reply, version="9")).items() >= reply._asdict().items()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"schema": 2}, "schema 2 is not supported, only 1"),
        ({"schema": None}, "schema None"),
        ({"id": "7" * 101}, "`id`: more than 100 characters"),
        ({"verb": "reboot"}, "`verb`: none of restart, stop"),
        ({"verb": ["stop"]}, "`verb`: none of"),
        ({"by": 5}, "`by`: not a text"),
        ({"lasting": 0}, "`lasting`: not a number of seconds"),
        ({"lasting": True}, "`lasting`: not a number"),
        ({"lasting": "1m"}, "`lasting`: not a number"),
        ({"lasting": 1e300}, "`lasting`: not a number of seconds"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(wrong: dict[str, Any], why: str) -> None:
    request = {"schema": 1, "id": "7", "verb": "stop", "by": "", "lasting": None} | wrong
    with pytest.raises(RequestRefused, match=why) as refused:
        operator.load_request(json.dumps(request).encode())
    assert refused.value.id == ("" if "id" in wrong else "7"), "the reply names the request"
