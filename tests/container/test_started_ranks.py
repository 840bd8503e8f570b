"""`--nproc-per-node`: ftrun starts the command once for each rank, and their ends are the command's end."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from support.containers import Run, Starter
from support.ports import free_port
from support.refusals import refusal
from support.runs import FTRUN, Mode, end_process, helpers, wait_for
from support.short import quick

PRINT = """
import json, os
row = json.dumps({k: v for k, v in os.environ.items()
    if k in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "MA_PROC_START_CNT")
    or k.startswith(("LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_"))})
os.write(1, f"{row}\\n".encode())
"""
WAIT = "import signal; signal.pause()"
GROUP_OPTIONS = ("group-size", "group-endpoint", "group-rank")


def program(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def rows(output: bytes) -> list[dict[str, str]]:
    found: list[dict[str, str]] = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    return sorted(found, key=lambda row: int(row["RANK"]))


def test_each_rank_has_the_environment_of_torchrun(start: Starter, tmp_path: Path) -> None:
    options = ["--nproc-per-node", "3", "--max-restarts", "5"]
    code, out, err = start(program(tmp_path, PRINT), options=options).finish()
    assert code == 0, err
    found = rows(out)
    assert [row["RANK"] for row in found] == [row["LOCAL_RANK"] for row in found] == ["0", "1", "2"]
    same = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    same |= {"ROLE_WORLD_SIZE": "3", "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    same |= {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "5", "MA_PROC_START_CNT": "1"}
    assert all(row.items() >= same.items() for row in found)
    assert len({row["MASTER_PORT"] for row in found}) == len({row["TORCHELASTIC_RUN_ID"] for row in found}) == 1


def test_the_port_is_free_for_rank_0_and_differs_between_attempts(start: Starter, tmp_path: Path) -> None:
    text = """
import os, socket, sys
print(os.environ["MASTER_PORT"], flush=True)
with socket.create_server(("0.0.0.0", int(os.environ["MASTER_PORT"]))):
    sys.exit(os.environ["MA_PROC_START_CNT"] == "1")
"""
    options = ["--nproc-per-node", "1", "--restart-on", "failure", "--backoff", "10ms"]
    code, out, err = start(program(tmp_path, text), options=options).finish()
    assert code == 0, err
    assert len(set(out.split())) == 2


def test_a_port_that_is_taken_after_the_start_is_tried_again_with_another(start: Starter, tmp_path: Path) -> None:
    """Although a failure causes no restart here."""
    text = f"""
import os, socket, time
rank, port = os.environ["RANK"], int(os.environ["MASTER_PORT"])
first = os.environ["MA_PROC_START_CNT"] == "1"
if rank == "1" and first:
    with socket.create_server(("0.0.0.0", port)):
        open("{tmp_path}/taken", "w").close()
        while True:
            time.sleep(1)
while first and not os.path.exists("{tmp_path}/taken"):
    time.sleep(0.01)
if rank == "0":
    socket.create_server(("0.0.0.0", port)).close()
"""
    run = start(program(tmp_path, text), options=["--nproc-per-node", "2"])
    code, _, err = run.finish()
    assert code == 0, err
    assert b"another program took port" in err
    assert len(run.named("spawned")) == 2
    wait_for(lambda: not start.living(), "the end of all processes")


@pytest.mark.parametrize("failure", ["sys.exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_first_failing_rank_gives_the_exit_code_and_ends_the_others(
    failure: str, start: Starter, tmp_path: Path
) -> None:
    text = f"import os, signal, sys\nif os.environ['RANK'] == '1': {failure}\nsignal.pause()"
    run = start(program(tmp_path, text), options=["--nproc-per-node", "3"])
    code, _, err = run.finish()
    assert code == (7 if "exit" in failure else 137)
    named = (b"rank 1 exited with 7", b"signal 9 (SIGKILL) ended rank 1")[code == 137]
    assert next(line for line in err.splitlines() if b"; ending with %d (failed)" % code in line).startswith(
        b"[ftrun] " + named
    )
    exited = {record["rank"]: record for record in run.named("rank_exited")}
    assert exited.keys() == {0, 1, 2}
    assert exited[0]["signal"] == exited[2]["signal"] == signal.SIGTERM
    assert run.named("exited")[0]["rank"] == 1
    wait_for(lambda: not start.living(), "the end of all processes")


def test_each_rank_that_fails_is_recorded_with_its_own_last_exception(start: Starter, tmp_path: Path) -> None:
    """Rank 3 fails, and the others because of it; they do not end by the SIGTERM that follows."""
    text = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready = "{tmp_path}/ready-%d"
rank = int(os.environ["RANK"])
with open(ready % rank + ".new", "w") as stream:
    stream.write(str(os.getpid()))
os.rename(ready % rank + ".new", ready % rank)
while not all(os.path.exists(ready % number) for number in range(4)):
    time.sleep(0.01)
if rank == 3:
    raise ValueError("the data of 3 are broken")
while os.path.exists("/proc/" + open(ready % 3).read()):
    time.sleep(0.01)
raise ConnectionResetError(f"rank {{rank}}: connection reset by peer")
"""
    run = start(program(tmp_path, text), options=["--nproc-per-node", "4", "--grace", "60s"])
    code, _, err = run.finish()
    assert code == 1, err
    exited = {record["rank"]: record["exception"] for record in run.named("rank_exited")}
    assert exited.keys() == set(range(4))
    assert exited[3].startswith("ValueError: the data of 3 are broken (train.py:")
    assert all(f"ConnectionResetError: rank {rank}: connection reset" in exited[rank] for rank in range(3))
    assert run.named("exited")[0]["rank"] == 3
    assert "the data of 3 are broken" in run.named("ended")[0]["why"]


@pytest.mark.parametrize(
    "number", quick([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
)
def test_a_signal_reaches_every_rank_once(number: int, start: Starter, mode: Mode, tmp_path: Path) -> None:
    text = f"""
import os, signal, sys
def note(number, frame):
    with open(f"{tmp_path}/got-{{os.environ['RANK']}}", "a") as stream:
        stream.write(f"{{number}} ")
    sys.exit(0)
signal.signal({int(number)}, note)
open(f"{tmp_path}/ready-{{os.environ['RANK']}}", "w").close()
while True:
    signal.pause()
"""
    run = start(program(tmp_path, text), mode=mode, options=["--nproc-per-node", "3"])
    wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 3, "three ranks")
    run.kill(number)
    assert run.finish()[0] == 0
    assert [(tmp_path / f"got-{rank}").read_text() for rank in range(3)] == [f"{int(number)} "] * 3


def test_a_module_runs_as_with_torchrun(start: Starter) -> None:
    code, out, _ = start("-m", "platform", options=["--nproc-per-node", "2"]).finish()
    assert code == 0
    assert len(out.splitlines()) == 2


def test_a_command_line_of_torchrun_works(start: Starter, tmp_path: Path) -> None:
    options = ["--standalone", "--nnodes=1", "--nproc_per_node", "2", "--max_restarts=1", "--monitor-interval", "1"]
    code, out, err = start(program(tmp_path, PRINT), options=options).finish()
    assert code == 0, err
    assert [row["WORLD_SIZE"] for row in rows(out)] == ["2", "2"]
    code, _, err = start(program(tmp_path, PRINT), options=["--nproc-per-node=2", "--run-path"]).finish()
    assert (code, err.count(b"\n")) == (2, 1)
    assert b"name the file as the command" in err


def test_a_terminal_is_that_of_rank_0(start: Starter, tmp_path: Path) -> None:
    text = "import os, sys; print(os.environ['RANK'], sys.stdin.readline().strip(), '.', flush=True)"
    run = start(program(tmp_path, text), options=["--nproc-per-node", "2"], tty=True)
    run.terminal.wait(b"1  .")
    run.terminal.type(b"hello\n")
    run.terminal.wait(b"0 hello .")
    assert run.wait() == 0


def members(start: Starter, program: str, counts: tuple[int, ...], *options: str, torchrun: bool = False) -> list[Run]:
    """A group on loopback, with so many ranks on each member; member 0 begins last.  `torchrun`: with its options."""
    endpoint = f"127.0.0.1:{free_port()}"
    size, where, number = ("nnodes", "rdzv_endpoint", "node-rank") if torchrun else GROUP_OPTIONS
    group = [f"--{size}", str(len(counts)), f"--{where}", endpoint, "--peer-timeout", "5m", *options]
    found = dict[int, Run]()
    for member in reversed(range(len(counts))):
        own = [f"--{number}", str(member), "--nproc-per-node", str(counts[member])]
        found[member] = start(program, options=[*group, *own])
    return [found[member] for member in range(len(counts))]


@pytest.mark.parametrize("torchrun", quick([False, True], ids=lambda torchrun: "torchrun" if torchrun else "ftrun"))
def test_ranks_are_numbered_over_all_members_of_a_group(torchrun: bool, start: Starter, tmp_path: Path) -> None:
    text = f"{PRINT}\nimport sys\nsys.exit(os.environ['RANK'] == '2' and os.environ['MA_PROC_START_CNT'] == '1')"
    options = ["--restart-on", "failure", "--backoff", "10ms", "--prefix-ranks"]
    options += ["--rdzv-id" if torchrun else "--group-job", "job"]
    runs = members(start, program(tmp_path, text), (2, 1), *options, torchrun=torchrun)
    ends = [run.finish() for run in runs]
    assert [end[0] for end in ends] == [0, 0], ends
    lines = [line for _, out, _ in ends for line in out.splitlines()]
    found = [(int(line[1:2]), json.loads(line[4:])) for line in lines]
    assert all(row["RANK"] == str(prefix) for prefix, row in found)
    ports = list[str]()
    for restarts in ("0", "1"):
        rows = sorted(
            (row for _, row in found if row["TORCHELASTIC_RESTART_COUNT"] == restarts), key=lambda r: r["RANK"]
        )
        # The first failure may end a rank before it has printed its row.
        known = {("0", "0", "0", "2"), ("1", "1", "0", "2"), ("2", "0", "1", "1")}
        assert {(r["RANK"], r["LOCAL_RANK"], r["GROUP_RANK"], r["LOCAL_WORLD_SIZE"]) for r in rows} <= known
        assert len(rows) == 3 or restarts == "0"
        same = {"WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "job"}
        assert all(row.items() >= same.items() for row in rows)
        ports += {row["MASTER_PORT"] for row in rows}
    assert len(ports) == len(set(ports)) == 2
    failed = runs[1].named("exited")[0]
    assert (failed["rank"], failed["code"]) == (2, 1)
    wait_for(lambda: not start.living(), "the end of all processes")


def test_the_rank_whose_exception_came_first_is_named_by_all_members(start: Starter, tmp_path: Path) -> None:
    """It needs long to exit: meanwhile a rank of another member has failed, since its connection broke."""
    text = f"""
import atexit, os, signal, time
rank = os.environ["RANK"]
if rank == "1":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    @atexit.register
    def leave():
        open("{tmp_path}/raised", "w").close()
        while not os.path.exists("{tmp_path}/stopped"):
            time.sleep(0.01)
    raise ValueError("the data are broken")
while not os.path.exists("{tmp_path}/raised"):
    time.sleep(0.01)
raise ConnectionResetError("Connection closed by peer")
"""
    runs = members(start, program(tmp_path, text), (1, 1))
    # Member 0 has the order to stop, so member 1 has it too; its rank is still about to exit.
    wait_for(lambda: any(one["what"] == "stop" for one in runs[0].named("group")), "the end of the epoch")
    (tmp_path / "stopped").touch()
    for run in runs:
        code, _, err = run.finish()
        assert code == 1
        assert "rank 1: ValueError: the data are broken" in run.named("ended")[0]["why"], err
    wait_for(lambda: not start.living(), "the end of all processes")


def test_a_command_that_cannot_be_executed_is_one_line(start: Starter) -> None:
    code, _, err = start("nosuch", options=["--nproc-per-node", "3"]).finish()
    assert code == 127
    assert err.count(b"nosuch") <= 3, err
    wait_for(lambda: not start.living(), "the end of all processes")


# --- output -----------------------------------------------------------------------------------------------------------

TALK = """
import os, sys
rank = os.environ["RANK"]
for number in range(200):
    sys.stdout.write(f"line {number} of {rank}\\n")
print(f"error of {rank}", file=sys.stderr)
sys.exit(os.environ["MA_PROC_START_CNT"] == "1" and rank == "1")
"""


def test_lines_with_the_number_of_their_rank(start: Starter, tmp_path: Path) -> None:
    text = TALK + "\nsys.stdout.write('unfinished')"
    options = ["--nproc-per-node", "2", "--prefix-ranks"]
    _, out, err = start(program(tmp_path, text.replace("sys.exit", "str")), options=options).finish()
    lines = out.decode().splitlines()
    for rank in (0, 1):
        expected = [*(f"[{rank}] line {number} of {rank}" for number in range(200)), f"[{rank}] unfinished"]
        assert [line for line in lines if line.startswith(f"[{rank}]")] == expected
    assert len(lines) == 402
    assert sorted(line for line in err.splitlines() if b"error" in line) == [b"[0] error of 0", b"[1] error of 1"]


def test_lines_have_the_number_of_their_rank_after_the_helper_was_killed(start: Starter, tmp_path: Path) -> None:
    text = f"""
import os, time
while not os.path.exists("{tmp_path}/go"):
    time.sleep(0.01)
print("a line")
"""
    runs = members(start, program(tmp_path, text), (1, 1), "--prefix-ranks")
    for run in runs:
        run.until("spawned")
    victim: int = wait_for(lambda: helpers(runs[1].pid).get("output"), "the helper")
    end_process(victim)
    wait_for(lambda: helpers(runs[1].pid).get("output") not in (victim, None), "another helper")
    (tmp_path / "go").touch()
    for rank, run in enumerate(runs):
        code, out, err = run.finish()
        assert (code, out.decode()) == (0, f"[{rank}] a line\n"), err
    wait_for(lambda: not start.living(), "the end of all processes")


def test_a_file_for_each_rank_survives_a_restart(tmp_path: Path, start: Starter) -> None:
    options = ["--nproc-per-node", "2", "--local-ranks-filter", "0", "--restart-on", "failure", "--backoff", "10ms"]
    command = [*FTRUN, "--log-dir", str(tmp_path / "logs"), *options, program(tmp_path, TALK)]
    done = subprocess.run(command, capture_output=True, timeout=90, env=start.environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert b"of 1" not in done.stdout
    (folder,) = (tmp_path / "logs").glob("*_restartable")
    kept = {path.name: path.read_text() for path in folder.glob("output*")}
    assert kept.keys() == {"output-0.log", "output-1.log"}
    assert kept["output-1.log"].count("line 199 of 1\n") == 2
    assert "--- attempt 2 ---\n" in kept["output-1.log"]
    assert " of 0" not in kept["output-1.log"]
    wait_for(lambda: not start.living(), "the end of all processes")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--nproc-per-node", "0"], "write a number above zero"),
        (["--nproc-per-node", "gpu"], "no accelerator"),
        (["--nproc-per-node", "5000"], "more than 1024"),
        (["--nproc-per-node", "cpus"], "did you"),
        (["--nproc-per-node", "2", "--local-ranks-filter", "0;1"], "--local-ranks-filter"),
        (["--nproc-per-node", "2", "--local-ranks-filter", "0,2"], "--local-ranks-filter"),
        (["--nproc-per-node", "2", "--config", "phases.toml"], "different commands"),
    ],
)
def test_what_ranks_cannot_have_is_refused_in_one_line(options: list[str], text: str, tmp_path: Path) -> None:
    phases = (f'[[phase]]\nname = "{name}"\ncommand = "{name}"\n' for name in ("true", "false"))
    (tmp_path / "phases.toml").write_text("".join(phases))
    assert text in refusal(tmp_path, *options, *(() if "--config" in options else ["true"]))
