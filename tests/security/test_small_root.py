"""PID 1, which may run as root, is small, and nothing from the network reaches it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from ftrun.messages import operator
from support.ports import free_port
from support.runs import HOUSE, Runs, python, wait_for
from support.runs import runs as runs

MOST = 22_500  # lines, as docs/security.md states
LOADED = """
import sys
from ftrun.cli.run import run
code = run(sys.argv[1:])
# What it loads a second after its start, and for the first standby.
from ftrun.pid1 import standby
from ftrun.pid1.clients.registry import TABLE
for entry in TABLE:
    if entry.runs is None or entry.later:
        entry.load()
ours = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in ("ftrun", "ftrun_hooks")]
print(code, *ours, sep="\\n")
"""


def test_pid1_loads_as_few_lines_as_the_page_states(tmp_path: Path) -> None:
    """For a hang, a restart and a failure, with standbys."""
    code = "if ft.attempt().is_restart: raise ValueError\nimport time\nft.beat(1); time.sleep(60)"
    options = ["--run-dir", str(tmp_path / "run"), "--hang-timeout", "200ms"]
    environment = os.environ | {"PYTHONPATH": f"{HOUSE}/supervisor:{HOUSE}/hooks"}
    command = [sys.executable, "-c", LOADED, *options, *python(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    code, *files = done.stdout.splitlines()
    assert code == "1"
    lines = sum(Path(file).read_text().count("\n") for file in files)
    assert lines < MOST


def test_pid1_listens_on_no_socket(runs: Runs) -> None:
    """It has only unnamed pairs of sockets to its helpers, which listen."""
    run = runs.start("--metrics", "127.0.0.1:0", "sleep", "60")
    run.until("listening")
    wait_for((runs.run_dir / operator.SOCKET).exists, "the control channel")
    opened = [os.readlink(f"/proc/{run.pid}/fd/{name}") for name in os.listdir(f"/proc/{run.pid}/fd")]
    sockets = [name[8:-1] for name in opened if name.startswith("socket:")]
    assert sockets
    for table in ("tcp", "tcp6", "udp", "udp6"):
        assert not {line.split()[9] for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]} & set(sockets)
    # Num RefCount Protocol Flags Type St Inode Path: 01 is connected, and a pair has no path.
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    assert {(words[5], len(words)) for words in unix if words[6] in sockets} == {("03", 7)}
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143


def test_pid1_of_a_member_reads_nothing_from_its_port(runs: Runs) -> None:
    """Its only socket of the network shows that it lives; what strangers send there changes nothing."""
    group = ("--group-size", "2", "--group-rank", "0", "--group-endpoint", f"127.0.0.1:{free_port()}")
    run = runs.start(*group, "sleep", "60")
    (port,) = wait_for(lambda: listening_ports(run.pid), "the port")
    for _ in range(100):
        with (
            # PID 1 may have closed the connection already, without having read from it.
            contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError),
            socket.create_connection(("127.0.0.1", port), timeout=60) as stranger,
        ):
            stranger.sendall(b"\0" * 4096)
            stranger.setblocking(False)
            assert stranger.recv(1) == b""
    assert listening_ports(run.pid) == [port]
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.log()
    assert run.named("problem") == []


def listening_ports(pid: int) -> list[int]:
    """The TCP ports on which that process listens."""
    opened = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return [
        int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A" and f"socket:[{words[9]}]" in opened
    ]
