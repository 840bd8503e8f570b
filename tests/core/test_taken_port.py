"""A port that another program took is told apart from a failure of the program, or it is none."""

import pytest

from ftrun.core.rules.crash_causes import ExceptionRecord, Traceback, is_port_taken

TORCH = (
    "The server socket has failed to listen on any local network address. port: 4000, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
PYTHON = "[Errno 98] Address already in use (while attempting to bind on address ('0.0.0.0', 4000))"


@pytest.mark.parametrize(
    ("message", "rank", "port", "taken"),
    [
        (TORCH, 0, 4000, True),
        (PYTHON, 0, 4000, True),
        (TORCH, 1, 4000, False),
        (TORCH, None, 4000, False),
        (TORCH, 0, 400, False),
        (TORCH, 0, 0, False),
        ("[Errno 98] Address already in use", 0, 4000, False),
        ("no route to port 4000", 0, 4000, False),
    ],
)
def test_a_taken_port(message: str, rank: int | None, port: int, taken: bool) -> None:
    thrown = ExceptionRecord(("torch.distributed.DistNetworkError", "RuntimeError", "Exception"), message)
    assert is_port_taken(Traceback(100, thrown, rank=rank), port) is taken
    assert not is_port_taken(None, port)
