"""Two ranks of one job under an ftrun each, as on two nodes: each supervises only its own rank, without an option."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proof.hangs.server import serving
from support.runs import HOUSE, Run, Runs

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LONG = 70.0  # s; a look that is open is recorded from a minute on

TRAIN = f"""
import sys
sys.path.insert(0, {str(HOUSE / "hooks")!r})
import ftrun_hooks as ft, http.client, os, threading, torch
import torch.distributed as dist
port, seconds, store, how = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
rank = int(os.environ['RANK'])
dist.init_process_group('gloo', init_method='file://' + store, rank=rank, world_size=2)
for step in range(140):
    ft.beat(step)
    if step == 120 and rank == 1:
        if how == 'uploads':
            connection = http.client.HTTPConnection('127.0.0.1', port)
            connection.request('PUT', '/wait/%f' % seconds)
            connection.getresponse()
        else:
            lock = threading.Lock()
            with lock, lock: pass
    dist.all_reduce(torch.ones(1))
ft.done()
dist.destroy_process_group()
"""


@contextmanager
def nodes(folder: Path, wait: str) -> Iterator[list[Run]]:
    """Start an ftrun for each rank; rank 1 waits for an upload or for a lock."""
    both = [Runs(folder / str(rank)) for rank in range(2)]
    try:
        with serving() as (port, _):
            started = []
            for rank, runs in enumerate(both):
                runs.folder.mkdir()
                command = [sys.executable, "-c", TRAIN, str(port), str(LONG), str(folder / "store"), wait]
                variables: dict[str, Any] = {
                    "RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "LOCAL_WORLD_SIZE": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                }
                run = runs.start("--no-auto-beat", "--max-restarts", "0", *command, **variables)
                started.append(run)
            yield started
    finally:
        for runs in both:
            runs.end()


def test_an_upload_on_one_node_is_no_hang_of_another(tmp_path: Path) -> None:
    with nodes(tmp_path, "uploads") as started:
        for run in started:
            assert run.wait() == 0, run.log()
            assert not run.named("suspect")
    assert any("waits in all_reduce" in look["why"] for look in started[0].named("look"))


def test_a_hang_is_found_on_its_node_only(tmp_path: Path) -> None:
    with nodes(tmp_path, "hangs") as (waits, hangs):
        assert hangs.wait() == 195, hangs.log()
        (found,) = hangs.named("hang")
        assert found["rank"] == 1
        waits.wait()  # it loses its connection with the other rank
    assert not waits.named("hang")
