"""A thread that polls is seen in its wait, however crowded the machine is."""

import pytest

from waitproof import threads
from waitproof.mappings import Mappings
from waitproof.world import WaitingThread


@pytest.mark.parametrize(
    ("name", "busy", "reads"),
    [
        pytest.param("gloo_tcp_loop", 3, 4, id="a poller is read until it waits"),
        pytest.param("gloo_tcp_loop", 99, 1 + threads.AGAIN, id="a few times only"),
        pytest.param("pt_elastic", 1, 2, id="torchrun"),
        pytest.param("python", 99, 1, id="what may compute is read once"),
    ],
)
def test_a_thread_that_is_known_to_poll_is_read_until_it_waits(
    name: str, busy: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[WaitingThread]()

    def read(pid: int, tid: int, mappings: Mappings) -> WaitingThread:
        running = len(seen) < busy
        seen.append(WaitingThread(tid, None, running=running, state="R" if running else "S", name=name))
        return seen[-1]

    monkeypatch.setattr(threads, "thread", read)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    found = threads._at_rest(7, 8, Mappings())
    assert (len(seen), found) == (reads, seen[-1])
