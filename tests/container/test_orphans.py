"""ftrun reaps all orphans: hundreds of them, also during a restart."""

import time
from pathlib import Path

from support.containers import PYTHON, Run, Starter
from support.runs import Mode, children, state_of, wait_for, words

MANY = 300

# Leaves so many children to ftrun, each of which ends at once, and counts them in a file; then waits for `go`.
LEAVER = """
import os, sys, time
folder, many = sys.argv[1], int(sys.argv[2])
for number in range(many):
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            os._exit(7)
        os._exit(0)
    os.waitpid(middle, 0)
    if number % 50 == 49:
        with open(folder + "/left", "w") as file:
            file.write(str(number + 1))
while not os.path.exists(folder + "/go"):
    time.sleep(0.01)
sys.exit(5)
"""

# Starts a daemon that goes on leaving orphans until it is killed, touches once, and hangs.
HANGER = """
import os, signal, sys, time
folder = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    log = os.open(folder + "/daemons", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, b"%d\\n" % os.getpid())
    while True:
        for _ in range(20):
            if os.fork() == 0:
                if os.fork() == 0:
                    os._exit(7)
                os._exit(0)
            os.wait()
        time.sleep(0.01)
def daemons():
    try:
        with open(folder + "/daemons") as file:
            return len(file.read().split())
    except FileNotFoundError:
        return 0
while daemons() < int(os.environ["MA_PROC_START_CNT"]):
    time.sleep(0.01)
os.utime(os.environ["FTRUN_BEAT_DIR"] + "/touch")
while True:
    time.sleep(600)
"""


def zombies(run: Run) -> list[int]:
    return [pid for pid in children(run.pid) if state_of(pid) == "Z"]


def left(folder: Path) -> int:
    file = folder / "left"
    return int(file.read_text() or "0") if file.exists() else 0


def test_hundreds_of_orphans_are_reaped(start: Starter, mode: Mode, tmp_path: Path) -> None:
    run = start(*PYTHON, "-c", LEAVER, str(tmp_path), str(MANY), mode=mode)
    wait_for(lambda: left(tmp_path) >= MANY, "the orphans")
    wait_for(lambda: not zombies(run), "the reaping")

    def only_the_command() -> bool:  # a helper that is being started has not its own command line yet
        return [pid for pid in children(run.pid) if "ftrun.helpers" not in words(pid)] == [run.command]

    wait_for(only_the_command, "no child but the command and the helpers")
    (tmp_path / "go").touch()
    assert run.wait() == 5
    assert len(run.named("spawned")) == 1


def test_orphans_are_reaped_during_the_grace_of_each_restart(start: Starter, mode: Mode, tmp_path: Path) -> None:
    options = ["--hang-timeout", "300ms", "--max-restarts", "1"]
    run = start(*PYTHON, "-c", HANGER, str(tmp_path), mode=mode, options=options, grace="700ms")
    run.until("stopping")
    seen = []
    while run.process.poll() is None:
        seen.append(len(zombies(run)))
        time.sleep(0.005)
    assert run.wait() == 195
    assert min(seen) == 0
    assert max(seen) < 1000
    assert len(run.named("spawned")) == 2
    assert len((tmp_path / "daemons").read_text().split()) == 2
    # The daemon ignores SIGTERM and continues through the complete grace: it and its newest child had to be killed.
    assert [event["processes"] > 0 for event in run.named("killed")] == [True] * 2
