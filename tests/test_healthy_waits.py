"""Twenty kinds of healthy waits at once, with no option: the short form of `bin/prove hangs healthy`, for CI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from proof.hangs.healthy import ROWS
from proof.hangs.meeting import Met, meet
from proof.hangs.server import serving
from proof.hangs.waits import WAITS

WAIT = 60.0  # s: a closed wait is proved after 30
KINDS = (
    "a semaphore in a memfd that was handed outside",
    "a futex in a mapped file that somebody outside wakes",
    "a mutex in a mapped file that somebody outside holds",
    "flock of a file that the job has locked and handed outside",
    "an eventfd that was handed outside",
    "the write end of a pipe that was handed outside",
    "a descriptor on its way in a message that nobody has received yet",
    "a full FIFO whose reader outside is slow",
    "SIGWINCH from outside, whose handler sets an Event",
    "RTMIN+7 from outside, whose handler sets an Event",
    "a handler in C that posts a semaphore",
    "a timer of POSIX with a thread (SIGEV_THREAD)",
    "a server of HTTP in a thread, whose handler sets an Event",
    "connect to a Unix socket whose backlog is full",
    "a daemon of the job that holds a flock and sleeps",
    "a child that waits for a flock of somebody outside",
    "multiprocessing: a Manager whose Lock a child holds",
    "multiprocessing: a data worker that backs off, while the others wait with full queues",
    "asyncio: to_thread with a lock that a sleeping thread holds",
    "a native thread that calls back into Python after a sleep",
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Met]]]:
    folder = tmp_path_factory.mktemp("w")
    with serving() as ports, ThreadPoolExecutor(len(KINDS)) as pool:
        yield {
            name: pool.submit(meet, ROWS[name], ROWS[name].moments[0], WAIT, ports, folder / str(n))
            for n, name in enumerate(KINDS)
        }


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.timeout(900)
def test_a_healthy_wait_is_left_alone(results: Mapping[str, Future[Met]], name: str) -> None:
    met = results[name].result()
    assert not met.wrong, met.wrong


def test_no_kind_is_listed_twice() -> None:
    assert len({row.name for row in WAITS}) == len(WAITS)
    assert len(ROWS) > 400
