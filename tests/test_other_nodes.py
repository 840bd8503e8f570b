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

LONG = 45.0  # s: looks come after 15, 22, 30 and 40

TRAIN = f"""
import sys
sys.path.insert(0, {str(HOUSE / "hooks")!r})
import ftrun_hooks as ft, http.client, os, torch
import torch.distributed as dist
port, seconds, store = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
rank = int(os.environ['RANK'])
dist.init_process_group('gloo', init_method='file://' + store, rank=rank, world_size=2)
for step in range(140):
    ft.beat(step)
    if step == 120 and rank == 1:
        connection = http.client.HTTPConnection('127.0.0.1', port)
        connection.request('PUT', '/wait/%f' % seconds)
        connection.getresponse()
    dist.all_reduce(torch.ones(1))
ft.done()
dist.destroy_process_group()
"""


@contextmanager
def nodes(folder: Path) -> Iterator[list[Run]]:
    """Start an ftrun for each rank; rank 1 waits for an upload."""
    both = [Runs(folder / str(rank)) for rank in range(2)]
    try:
        with serving() as (port, _):
            started = []
            for rank, runs in enumerate(both):
                runs.folder.mkdir()
                command = [sys.executable, "-c", TRAIN, str(port), str(LONG), str(folder / "store")]
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
    with nodes(tmp_path) as started:
        for run in started:
            assert run.wait(300) == 0, run.log()
            assert not run.named("suspect")
