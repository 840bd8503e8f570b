"""Ranks in plain Python that use `@ft.recoverable`, and what fails: one of them, several at once, and beside them a
helper of ftrun or /dev/shm."""

import os
import sys
from pathlib import Path

import pytest

from ftrun.host.work_dir import local_folder
from ftrun.pid1.clients import registry
from support.device.nvml import FakeNvml
from support.network_disk import Disk
from support.network_disk import disk as disk
from support.runs import HOUSE, Run, Runs, alive, end_process, helpers, need_mounts, wait_for
from support.short import quick

RANKS, STEPS = 3, 12

# FAULTS is executed in each step, with `rank`, `step`, `starts` and `run`; the new process of a rank waits while
# the file `held` is there.  Each line of a log is a step: round, step, pid.
PROGRAM = """
import os, signal, sys, time
import ftrun_hooks as ft
from ftrun.workload.ranks import Together

rank, starts = int(os.environ["RANK"]), int(os.environ["MA_PROC_START_CNT"])
FAULTS, STEPS = sys.argv[1], int(sys.argv[2])
ballast = bytes(int(os.environ.get("BALLAST", "8")))

@ft.recoverable
def train(run):
    step = run.restore()
    total = int.from_bytes(run.kept.get("total", b""), "big")
    with Together(run.rank, run.world_size) as ranks:
        while step < STEPS:
            exec(FAULTS, globals() | {"step": step, "run": run})
            (added,) = ranks.added([step + rank])
            total = total * 3 + int(added)
            step += 1
            run.keep(step, total=total.to_bytes(40, "big"), ballast=ballast)
            ft.beat(step)
            with open(f"log-{rank}", "a") as log:
                print(run.round, step, os.getpid(), file=log, flush=True)
    return total

while starts > 1 and os.path.exists("held"):
    time.sleep(0.01)
total = train()
with open(f"total-{rank}", "w") as file:
    file.write(str(total))
"""


def start(runs: Runs, faults: str, *options: str, **more: object) -> Run:
    (runs.folder / "train.py").write_text(PROGRAM)
    ours = ("--nproc-per-node", str(RANKS), "--grace", "1s", "--backoff", "10ms", *options)
    paths = os.pathsep.join(str(HOUSE / name) for name in ("hooks", "supervisor"))
    words = (*ours, "--", sys.executable, str(runs.folder / "train.py"), faults, str(STEPS))
    return runs.start(*words, PYTHONPATH=paths, **more)  # type: ignore[arg-type]


def expected() -> str:
    total = 0
    for step in range(STEPS):
        total = total * 3 + sum(step + rank for rank in range(RANKS))
    return str(total)


def steps_of(folder: Path, rank: int) -> list[tuple[int, int, int]]:
    lines = [line.split() for line in (folder / f"log-{rank}").read_text().splitlines()]
    return [(int(number), int(step), int(pid)) for number, step, pid in lines]


def must_end(runs: Runs, run: Run, replaced: dict[int, int], redone: int = 1) -> None:
    """All is as without a fault; `replaced`: how many new processes a rank has got; each time at most `redone` steps
    were done again."""
    assert run.wait() == 0, run.log()
    assert not run.named("restart"), run.log()
    for rank in range(RANKS):
        assert (runs.folder / f"total-{rank}").read_text() == expected()
        lines = steps_of(runs.folder, rank)
        assert sorted({step for _, step, _ in lines}) == [*range(1, STEPS + 1)]
        assert len(lines) <= STEPS + redone * len(run.named("recovered"))
        assert len({pid for _, _, pid in lines}) == 1 + replaced.get(rank, 0), f"rank {rank}"


ONCE = "if rank == 1 and step == 5 and run.round == 1: "
FAULTS = {
    "killed": (ONCE + "os.kill(os.getpid(), 9)", "rank"),
    "exit": (ONCE + "os._exit(3)", "rank"),
    "exception": (ONCE + "raise ValueError('a fault')", "rank"),
    "retry": (ONCE + "raise ft.Retry('a passing fault')", "retry"),
    "killed in keep": (
        f"import ftrun_hooks._snapshot as snapshot\n{ONCE}snapshot.Bytes.write = "
        "lambda self, memory: (memory.__setitem__(0, 1), os.kill(os.getpid(), 9))",
        "rank",
    ),
}


@pytest.mark.parametrize("fault", quick(FAULTS, ("killed", "exception", "retry")))
def test_a_fault_costs_at_most_one_step_and_only_the_process_that_failed(fault: str, runs: Runs) -> None:
    faults, rung = FAULTS[fault]
    run = start(runs, faults)
    must_end(runs, run, {1: 1} if rung == "rank" else {})
    begun, ended = run.named("recovering")[-1], run.named("recovered")[-1]
    assert (begun["rung"], ended["rung"], ended["ranks"]) == (rung, rung, [1] if rung == "rank" else [])


@pytest.mark.parametrize("victims", quick([((1, 2),), ((0, 1, 2),)]))
def test_ranks_that_die_at_once_are_replaced_together(victims: tuple[int, ...], runs: Runs) -> None:
    run = start(runs, f"if step == 5 and starts == 1 and rank in {victims}: os.kill(os.getpid(), 9)")
    must_end(runs, run, dict.fromkeys(victims, 1))
    assert run.named("recovered")[-1]["ranks"] == list(victims)
    assert run.named("recovered")[-1]["step"] == 5


def test_a_hang_before_the_first_step_of_a_round_whose_processes_are_all_new_restarts_all(runs: Runs) -> None:
    """No process is left that had sent a heartbeat: the time to the first one counts again, from the round."""
    faults = """
if step == 5 and starts == 1: os.kill(os.getpid(), 9)
if run.round == 2 and rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
"""
    run = start(runs, faults, "--hang-timeout", "4s", "--start-timeout", "6s")
    assert run.wait() == 0, run.log()
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["limit"]) == ("start", 6.0)
    assert [record["rung"] for record in run.named("recovering")][-1] == "tree"
    (restart,) = run.named("restart")
    assert restart["reason"] == "hang"
    assert (runs.folder / "total-1").read_text() == expected()


# --- a helper of ftrun is killed while the ranks recover --------------------------------------------------------------

# What makes ftrun run a helper: options, with {} for the folder of the test.
WITH: dict[str, tuple[str, ...]] = {
    "messenger": (),
    "output": ("--prefix-ranks",),
    "state_store": ("--state-dir", "{}/state"),
    "checkpoint_watcher": ("--progress", "{}/checkpoint-*"),
    "metrics": ("--metrics-file", "{}/metrics.prom"),
    "reset_file": ("--reset-file", "{}/reset.json"),
    "sampler": ("--idle-timeout", "1h"),
    "notifier": ("--on-event", "cat > {}/notified"),
    "telemetry": ("--otlp", "http://127.0.0.1:9"),
    "probe": ("--probe", "nvidia"),
    "mirror": (),
    "line_writer": (),
}
# They run where no rank recovers: between two attempts, and at the end.  Evidence has a test of its own.
NEVER_MEANWHILE = {"heal", "exit_hooks"}
DIES = "if step == 5 and starts == 1 and rank == 1: os.kill(os.getpid(), 9)"


def test_each_helper_is_killed_by_a_test() -> None:
    assert {entry.helper for entry in registry.TABLE} == {*WITH, "evidence"} | NEVER_MEANWHILE


def kill_while_it_recovers(runs: Runs, run: Run, helper: str) -> None:
    """Rank 1 dies; before its new process says hello, the helper is killed."""
    run.until("recovering")
    victim: int = wait_for(lambda: helpers(run.pid).get(helper), f"the helper {helper}")
    end_process(victim)
    wait_for(lambda: not alive(victim), "its end")
    (runs.folder / "held").unlink()


@pytest.mark.parametrize(
    "helper", quick([name for name in WITH if name not in ("probe", "mirror", "line_writer")], ("messenger", "sampler"))
)
def test_a_killed_helper_does_not_hinder_a_recovery(helper: str, runs: Runs) -> None:
    (runs.folder / "held").touch()
    run = start(runs, DIES, *(word.format(runs.folder) for word in WITH[helper]))
    kill_while_it_recovers(runs, run, helper)
    must_end(runs, run, {1: 1})
    assert run.named("recovered")[0]["step"] == 5


def test_a_killed_probe_does_not_hinder_a_recovery(runs: Runs) -> None:
    (runs.folder / "held").touch()
    runs.environment |= FakeNvml(runs.folder, RANKS).environment()
    run = start(runs, DIES, *WITH["probe"])
    kill_while_it_recovers(runs, run, "probe")
    must_end(runs, run, {1: 1})


@pytest.mark.parametrize("helper", quick(["mirror", "line_writer"]))
def test_a_killed_helper_of_a_network_disk_does_not_hinder_a_recovery(helper: str, runs: Runs, disk: Disk) -> None:
    (runs.folder / "held").touch()
    runs.run_dir = disk.view / "run"
    on_the_disk = ["sh", "-ec", f'exec "$@" 2>> {disk.view}/stderr', "sh"]
    run = start(runs, DIES, prefix=on_the_disk)
    run.run_dir = Path(local_folder(str(runs.run_dir)))
    kill_while_it_recovers(runs, run, helper)
    must_end(runs, run, {1: 1})


def test_a_killed_helper_that_collects_the_evidence_of_a_hang_is_started_once_more(runs: Runs) -> None:
    """The ones that begin early are killed as well, and the first one after the suspicion."""
    hangs = "if step == 5 and starts == 1 and rank == 1: os.kill(os.getpid(), signal.SIGSTOP)"
    run = start(runs, hangs, "--hang-timeout", "4s")

    def killed_after_the_suspicion() -> bool:
        suspected = bool(run.named("suspect"))
        if victim := helpers(run.pid).get("evidence"):
            end_process(victim)
            wait_for(lambda: not alive(victim), "its end")
        return suspected and bool(victim)

    wait_for(killed_after_the_suspicion, "the kill of the evidence helper")
    must_end(runs, run, {1: 1})
    assert run.named("hang")[0]["culprits"] == [1]


# --- a full /dev/shm --------------------------------------------------------------------------------------------------

SMALL = "mount -t tmpfs -o size=3m shm /dev/shm"
# Another file takes all the space that is left, once each rank has two snapshots.
FILLS = """
if step == 5 and starts == 1 and rank == 1:
    with open("/dev/shm/ballast", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)): pass
        except OSError: pass
    os.kill(os.getpid(), 9)
"""


def test_shared_memory_that_is_full_when_a_rank_dies_costs_no_snapshot(runs: Runs) -> None:
    need_mounts()
    run = start(runs, FILLS, prefix=runs.mounted(SMALL))
    must_end(runs, run, {1: 1})
    assert run.named("recovered")[0]["step"] == 5


def test_shared_memory_that_is_too_small_for_snapshots_costs_the_steps_since_the_checkpoint(runs: Runs) -> None:
    """There is no checkpoint here: all begin with step 0, in the processes that they have."""
    need_mounts()
    run = start(runs, DIES, prefix=runs.mounted(SMALL), BALLAST=str(1 << 20))
    must_end(runs, run, {1: 1}, redone=5)
    assert run.named("recovered")[0]["step"] is None
    assert "keeps no snapshots from now on" in run.stderr
