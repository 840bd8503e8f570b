"""The simulated hosts do what the tests of groups rely on."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.group_work import Book
from support.hosts import Hosts
from support.runs import HOUSE, carrying, wait_for

Make = Callable[[int], Hosts]
WORK = [sys.executable, str(HOUSE / "tests" / "support" / "group_work.py")]
LISTEN = "import socket; s = socket.create_server(('', 5000))\nwhile True: c = s.accept()[0]; c.sendall(c.recv(9))"
# Prints the answer, or why there is none, and the elapsed time.
CALL = """
import socket, sys, time
began = time.monotonic()
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.4) as s:
        s.sendall(b"data")
        answer = s.recv(9).decode() or "closed"
except OSError as error:
    answer = type(error).__name__
print(answer, time.monotonic() - began)
"""


def call(hosts: Hosts, host: int, address: str, port: int) -> tuple[str, float]:
    arguments = [*hosts.hosts[host].network.enter, sys.executable, "-c", CALL, address, str(port)]
    answer, after = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    return answer, float(after)


def test_links_and_the_proxy(hosts: Callable[[int], Hosts]) -> None:
    here = hosts(2)
    zero = here.start(0, "--", sys.executable, "-c", LISTEN)
    address = here.hosts[0].address
    wait_for(lambda: call(here, 1, address, 5000)[0] == "data", "the listener")
    for silent in (False, True):
        here.hosts[1].cut(silent)
        assert call(here, 1, address, 5000)[0] in ("TimeoutError", "OSError")
        here.hosts[1].restore()
        wait_for(lambda: call(here, 1, address, 5000)[0] == "data", "the link")

    proxy = here.proxy(5000, f"{address}:5000")
    near, port = proxy.address.split(":")
    assert call(here, 1, near, int(port))[0] == "data"
    proxy.delay(0.1)
    answer, after = call(here, 1, near, int(port))
    assert answer == "data"
    assert after >= 0.2
    proxy.stall()
    assert call(here, 1, near, int(port))[0] == "TimeoutError"
    proxy.flow()
    assert call(here, 1, near, int(port))[0] == "data"
    wait_for(lambda: proxy.connections() == 0, "the end of the connections")
    proxy.stall()
    caller = [*here.hosts[1].network.enter, sys.executable, "-c", CALL, near, port]
    with subprocess.Popen(caller, stdout=subprocess.PIPE, text=True) as calling:
        wait_for(lambda: proxy.connections() > 0, "a connection")
        proxy.cut()
        assert calling.communicate()[0].split()[0] in ("closed", "ConnectionResetError")
    assert not zero.ended


def test_two_epochs_that_run_at_the_same_time_are_detected(hosts: Callable[[int], Hosts]) -> None:
    here = hosts(2)
    zero = here.start(0, "--", *WORK, str(here.folder), "--steps", "100000")
    book = Book(here.folder)
    wait_for(lambda: book.ranks("start") == [0], "the first")
    arguments = [*here.hosts[1].network.enter, *WORK, str(here.folder), "--steps", "0"]
    environment = os.environ | {"RANK": "1", "WORLD_SIZE": "2", "FTRUN_EPOCH": "7"}
    subprocess.run(arguments, env=environment, check=True)
    assert [json.loads(json.dumps(line))["what"] for line in book.lines] == ["start", "start", "overlap", "finished"]
    zero.kill()
    subprocess.run(arguments, env=environment | {"FTRUN_EPOCH": "8"}, check=True)
    assert len(book.named("overlap")) == 1


def test_a_killed_test_leaves_no_process(tmp_path: Path) -> None:
    """The processes of the hosts end with the process that created them."""
    code = f"""
import sys, time
sys.path[:0] = [{str(HOUSE / "tests")!r}, {str(HOUSE / "supervisor")!r}, {str(HOUSE / "hooks")!r}]
from pathlib import Path
from support.hosts import Hosts, refusal
if refusal():
    sys.exit("refused")
here = Hosts(Path({str(tmp_path)!r}), 2)
here.start(0, "--", "sleep", "1000").until("spawned")
here.proxy()
print(here.marker, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        marker = process.stdout.readline().strip()
        if marker:
            assert carrying(marker)
        process.kill()
    if marker:
        wait_for(lambda: not carrying(marker), "the end of all")
