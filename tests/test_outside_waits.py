"""Healthy jobs that wait for somebody outside, as ftrun meets them with no option given: none is ever killed.

Each takes a hundred quick steps, so that a limit is learned, and then waits for longer than that.  The quick form makes
half a minute a second, and the waits a few seconds; the slow form has the real limit and waits of minutes:
`REPEATS=50 pytest -m slow tests/test_outside_waits.py`.
"""

from __future__ import annotations

import http.server
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.runs import FTRUN, HOUSE, Run, Runs, wait_for

QUICK = 4.0  # s that a wait takes
LONG = 100.0
AT_ONCE = int(os.environ.get("AT_ONCE", "25"))
REPEATS = int(os.environ.get("REPEATS", "1"))
SHARE = 8192  # bytes a second
MB = 1_000_000
FAST = f"""
import sys
sys.path[:0] = [{str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
import ftrun.core.rules.adaptive_timeout as learning
learning.FLOOR = 1.0
from ftrun.cli.run import main
main()
"""
SOON = (sys.executable, "-c", FAST)
HEAD = f"""
import sys
sys.path.insert(0, {str(HOUSE / "hooks")!r})
import ftrun_hooks as ft
import http.client, os, socket, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor
port, seconds, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
def steps(first, count):
    for step in range(first, first + count):
        ft.beat(step)
        time.sleep(0.001)
def ask(path, body=None):
    connection = http.client.HTTPConnection('127.0.0.1', port)
    connection.request('PUT', path, body)
    return connection.getresponse().status
def upload(rate):
    body = bytes(int(rate * seconds))
    connection = socket.create_connection(('127.0.0.1', port))
    connection.sendall(b'PUT /%d HTTP/1.0\\r\\nContent-Length: %d\\r\\n\\r\\n' % (rate, len(body)))
    connection.sendall(body)
    return connection.recv(1)
steps(0, 120)
"""
END = "\nsteps(1000, 20)\nft.done()\n"
# The program, between its steps.
ROWS = {
    "a rate limit": "assert ask('/429') == 429\ntime.sleep(seconds)",
    "an upload over a socket, 2 MB/s": "upload(2_000_000)",
    "an upload over a socket, 20 MB/s": "upload(20_000_000)",
    "http.client, 2 MB/s": "ask('/2000000', bytes(int(2_000_000 * seconds)))",
    "http.client, 20 MB/s": "ask('/20000000', bytes(int(20_000_000 * seconds)))",
    "an upload by a child": (
        "code = 'import http.client; c = http.client.HTTPConnection(\"127.0.0.1\", %d); '\n"
        'code += \'c.request("PUT", "/2000000", bytes(%d)); c.getresponse()\'\n'
        "subprocess.run([sys.executable, '-c', code % (port, int(2_000_000 * seconds))], check=True)"
    ),
    "an upload by a thread pool": (
        "with ThreadPoolExecutor() as pool:\n    pool.submit(ask, '/2000000', bytes(int(2_000_000 * seconds))).result()"
    ),
    "a slow share": (
        "with open(os.path.join(folder, 'share', 'checkpoint'), 'wb', buffering=0) as file:\n"
        f"    for _ in range(int(seconds)):\n        file.write(bytes({SHARE}))"
    ),
    "a remote simulator": "ask('/wait/%f' % seconds)",
    "a child simulator that asks a server": (
        "code = 'import sys, http.client; sys.stdin.readline(); c = http.client.HTTPConnection(\"127.0.0.1\", %d); '\n"
        'code += \'c.request("PUT", "/wait/%f"); print(c.getresponse().status, flush=True); sys.stdin.readline()\'\n'
        "words = [sys.executable, '-c', code % (port, seconds)]\n"
        "simulator = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "print('step', file=simulator.stdin, flush=True)\n"
        "assert simulator.stdout.readline() == '200\\n'\n"
        "simulator.communicate()"
    ),
}
# Rank 0 waits in a collective for rank 1, which uploads.
RANKS = f"""
import os, subprocess, sys
sys.path.insert(0, {str(HOUSE / "hooks")!r})
import ftrun_hooks as ft, http.client, torch
import torch.distributed as dist
port, seconds, store = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] + '/store'
torch.set_num_threads(1)
other = None
if 'RANK' not in os.environ:
    os.environ['RANK'] = '0'
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    other = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env={{**os.environ, 'RANK': '1'}})
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
if other is not None:
    sys.exit(other.wait())
"""

# Programs that tell nothing: their steps are seen by themselves.  What is between their steps is as in the rows above.
TORCH = """
import http.client, os, sys, time
import torch
torch.set_num_threads(1)
port, seconds, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
def ask(path, body=None):
    connection = http.client.HTTPConnection('127.0.0.1', port)
    connection.request('PUT', path, body)
    return connection.getresponse().status
def train(model, count):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
"""
# As CleanRL's ppo_continuous_action.py: a burst of quick steps, then a rollout in a remote simulator, which here
# takes its time for one answer, there for many.
BURSTS = f"""{TORCH}
model = torch.nn.Linear(4, 1)
for rollout in (seconds / 2, seconds):
    train(model, 160)
    assert ask('/wait/%f' % rollout) == 200
train(model, 20)
"""
# Rank 1 uploads its checkpoint, and rank 0 waits for it in the all-reduce of its next backward pass.
DDP = f"""{TORCH}
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def main(rank):
    dist.init_process_group('gloo', rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    train(model, 130)
    if rank == 1:
        assert ask('/2000000', bytes(int(2_000_000 * seconds))) == 200
    train(model, 20)
    dist.destroy_process_group()
"""
SPAWN = f"""{DDP}
if __name__ == '__main__':
    os.environ |= {{'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': sys.argv[4], 'GLOO_SOCKET_IFNAME': 'lo'}}
    torch.multiprocessing.spawn(main, nprocs=2)
"""
RUN = f"""{DDP}
os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
main(int(os.environ['RANK']))
"""
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1")


def ranks(folder: Path, *words: str) -> list[str]:
    return ["--no-auto-beat", sys.executable, "-c", RANKS, *words]


def bursts(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-c", BURSTS, *words]


def spawned(folder: Path, *words: str) -> list[str]:
    """multiprocessing imports the program's file in each of its processes."""
    (folder / "train.py").write_text(SPAWN)
    return [sys.executable, str(folder / "train.py"), *words, str(free_port())]


def by_torchrun(folder: Path, *words: str) -> list[str]:
    (folder / "train.py").write_text(RUN)
    return [sys.executable, *TORCHRUN, "--master-port", str(free_port()), str(folder / "train.py"), *words]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


WITH_TORCH: dict[str, Callable[..., list[str]]] = {
    "one rank of two": ranks,
    "bursts of steps between rollouts": bursts,
    "one rank of two under torchrun": by_torchrun,
    "one rank of two of torch.multiprocessing": spawned,
}


class Server(http.server.BaseHTTPRequestHandler):
    """Refuses with 429, waits, or takes a body at so many bytes a second."""

    def do_PUT(self) -> None:
        what = self.path.strip("/").split("/")
        if what[0] == "wait":
            time.sleep(float(what[1]))
        elif what[0] == "429":
            self.send_error(429)
            return
        else:
            left, rate, begun, taken = int(self.headers["Content-Length"]), float(what[0]), time.monotonic(), 0
            while left > 0 and (piece := self.rfile.read(min(left, max(4096, int(rate / 20))))):
                left, taken = left - len(piece), taken + len(piece)
                time.sleep(max(0.0, begun + taken / rate - time.monotonic()))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        return connection, address

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is seen from its run."""


@contextmanager
def serving() -> Iterator[int]:
    with Listener(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def share(folder: Path, name: str) -> Iterator[None]:
    """`folder/share`, by FUSE, where that is asked for: it takes SHARE bytes a second."""
    if name != "a slow share":
        yield
        return
    (folder / "disk").mkdir()
    (folder / "share").mkdir()
    words = ["bindfs", "-f", f"--write-rate={SHARE}", str(folder / "disk"), str(folder / "share")]
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: os.path.ismount(folder / "share") or server.poll() is not None, "a mounted share")
        assert server.poll() is None
        yield
    finally:
        subprocess.run(["fusermount", "-uz", str(folder / "share")], check=False, capture_output=True)
        server.terminate()
        server.communicate()


def meet(name: str, folder: Path, port: int, seconds: float, program: Sequence[str] = FTRUN) -> tuple[str, Run]:
    """One run, to its end; and what was wrong with it, or nothing."""
    folder.mkdir(parents=True)
    runs = Runs(folder)
    arguments = [str(port), str(seconds), str(folder)]
    if name in WITH_TORCH:
        words = WITH_TORCH[name](folder, *arguments)
    else:
        words = ["--no-auto-beat", sys.executable, "-c", f"{HEAD}\n{ROWS[name]}\n{END}", *arguments]
    with share(folder, name):
        try:
            run = runs.start(*words, program=program)
            ended = run.wait(60 + 4 * seconds)
        finally:
            runs.end()
    wrong = run.named("hang", "restart")
    return ("" if ended == 0 and not wrong else f"{name}: exit code {ended}, {wrong}\n{run.log()}"), run


def _fuse() -> str:
    """What is missing for a slow share, or nothing."""
    found = shutil.which("bindfs") and os.access("/dev/fuse", os.W_OK)
    return "" if found else "there is no bindfs here, or no FUSE"


def _torch() -> str:
    return "" if importlib.util.find_spec("torch") else "there is no torch here"


NEEDS = {"a slow share": _fuse, **dict.fromkeys(WITH_TORCH, _torch)}
ROW_NAMES = [*ROWS, *WITH_TORCH]
SLOW = ("one rank of two under torchrun", "one rank of two of torch.multiprocessing")  # to start, also in quick form
MARKS = {name: [pytest.mark.torch, *([pytest.mark.slow] if name in SLOW else [])] for name in WITH_TORCH}
NAMES = [pytest.param(name, marks=MARKS.get(name, [])) for name in ROW_NAMES]


def need(name: str) -> None:
    if lacking := NEEDS.get(name, str)():
        pytest.skip(lacking)


@pytest.mark.parametrize("name", NAMES)
def test_a_wait_for_somebody_outside_is_no_hang(name: str, tmp_path: Path) -> None:
    need(name)
    with serving() as port:
        wrong, run = meet(name, tmp_path / "run", port, QUICK, SOON)
    assert not wrong, wrong
    assert run.named("learned"), "it was judged by a learned limit"
    assert run.named("cleared"), "it was suspected"


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", NAMES)
def test_for_minutes_again_and_again(name: str, tmp_path: Path) -> None:
    need(name)
    with serving() as port, ThreadPoolExecutor(AT_ONCE) as pool:
        met = [pool.submit(meet, name, tmp_path / str(n), port, LONG) for n in range(REPEATS)]
        wrong = [found for run in met if (found := run.result()[0])]
    print(f"{name}: {len(wrong)} of {REPEATS} killed")
    assert not wrong, "\n\n".join(wrong)
