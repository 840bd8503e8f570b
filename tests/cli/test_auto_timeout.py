"""ftrun without a given timeout, end to end: what ends a job that gives heartbeats, and what a person is told.

Half an hour and ten minutes are seconds here.
"""

import os
import signal
import time

import pytest

from support.evidence_job import needs_spy
from support.runs import Runs, patched, python, state_of, wait_for

IDLE = patched("import ftrun.config.derived as derived\nderived.idle_timeout = lambda settings: 3.0")
TOLD = patched("import ftrun.core.rules.stalls as stalls\nstalls.LEAST_UNUSUAL, stalls.TIMES_USUAL = 2.0, 0")
# What sleeps for 10**6 s in these programs hangs on purpose: ftrun has to find and kill it.
STEPS = """
import os, signal, sys, time
first = ft.attempt().start_cnt == 1
for step in range(110): ft.beat((ft.attempt().last_step or 0) + step)
"""


def test_a_job_that_has_given_heartbeats_and_does_nothing_at_all_hangs(runs: Runs) -> None:
    # It sleeps for longer than the test may last: only ftrun ends it.
    hang = "print('stopped', flush=True)\nif first: time.sleep(10**6)\nos._exit(0)"
    run = runs.ends(0, "--grace", "off", *python(STEPS + hang), program=IDLE)
    (found,) = run.named("hang")
    assert (found["rule"], found["limit"]) == ("idle", 3.0)
    assert "<string>" in found["why"], "where it hangs"
    assert run.stdout.count("stopped") == 2


@needs_spy
def test_a_job_that_waits_for_a_signal_on_purpose_does_not(runs: Runs) -> None:
    run = runs.start(
        *python(STEPS + "signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))\nsignal.pause()"), program=IDLE
    )
    assert run.until("cleared")["why"].endswith("waits for a signal")
    os.kill(int(run.named("spawned")[0]["pid"]), signal.SIGUSR1)
    assert run.wait() == 0, run.log()
    assert run.named("hang") == []


def test_a_stall_is_written_down_once_and_ends_nothing(runs: Runs) -> None:
    told = runs.folder / "told"
    notify = "--notify-on", "stalled", "--on-event", f'echo "$FTRUN_MESSAGE" >> {told}'
    # It stalls for longer than the test may last: an operator's restart ends it.
    run = runs.start(*notify, *python(STEPS + "if first: time.sleep(10**6)\nos._exit(0)"), program=TOLD)
    stalled = run.until("stalled")
    assert (stalled["rank"], stalled["step"]) == (0, 109)
    assert stalled["age"] >= 2.0
    assert "ftctl restart" in stalled["advice"]
    wait_for(lambda: "rank 0 has not moved for" in run.stderr, "the line")
    assert "stalled, rank 0 has not moved for" in run.told("status")
    assert "will be started again" in run.told("restart")
    assert run.wait() == 0, run.log()
    assert run.named("hang") == []
    assert [restart["reason"] for restart in run.named("restart")] == ["manual"]
    assert len(run.named("stalled")) == 1
    assert told.read_text().count("rank 0 has not moved for") == 1


def test_usual_pauses_are_learned_and_kept(runs: Runs) -> None:
    run = runs.run(*python(STEPS + "os._exit(0 if ft.attempt().start_cnt == 2 else 7)"), "--restart-on", "failure")
    assert run.process.returncode in (0, 7), run.log()
    (learned,) = run.named("learned")
    assert (learned["steps"], learned["notice"], learned["attempt"]) == (100, 600.0, 1)
    assert run.state["learned"]["steps"] >= 100


def test_frozen_time_is_not_learned_and_is_notified(runs: Runs) -> None:
    """SIGSTOP of ftrun and of its command, as a frozen container or a laptop that sleeps."""
    said = runs.folder / "said"
    code = "print(os.getpid(), flush=True)\nfor step in range(10**9):\n    ft.beat(step); time.sleep(0.02)"
    notify = ("--on-event", f'echo "$FTRUN_MESSAGE" >> {said}')
    run = runs.start("--no-auto-beat", *notify, *python(f"import os, time\n{code}"))
    wait_for(lambda: run.named("first_beat"), "a step")
    pids = [int(run.stdout.split()[0]), run.process.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(state_of(pid) == "T" for pid in pids), "the freeze")
    frozen = 20.0  # longer than watching.NOTED after the next time that ftrun would have woken
    time.sleep(frozen)  # that much of time is what the test is about
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: run.named("learned"), "what is usual")
    learned = wait_for(lambda: run.state["learned"], "it in the state")["steps"]
    wait_for(lambda: run.state["learned"]["steps"] >= learned + 100, "steps after the freeze")
    assert run.state["learned"]["longest"] < frozen, run.log()
    assert not run.named("hang")
    (suspended,) = run.named("frozen")
    assert run.state["account"]["lost"]["paused"] == pytest.approx(suspended["seconds"], abs=0.1), "no useful time"
    wait_for(said.exists, "the notification")
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    assert ["ftrun itself did not run for" in line for line in said.read_text().splitlines()].count(True) == 1
