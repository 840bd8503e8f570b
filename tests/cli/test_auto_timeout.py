"""`--hang-timeout auto`, end to end: learned from a hundred steps, remembered, and no proof against what works."""

import os
import signal
import time

from support.runs import Runs, patched, python, state_of, wait_for

# ftrun, with half a minute made a second.
FAST = """import ftrun.core.rules.adaptive_timeout as learning
learning.FLOOR = learning.PROVISIONAL_FLOOR = learning.UNPROVED_FLOOR = 1.0
learning.UNPROVED_TIMES = 0"""
SOON = patched(FAST)
# What sleeps for 10**6 s in these programs hangs on purpose: ftrun has to find and kill it.
STEPS = """
import os, sys, time
first = ft.attempt().start_cnt == 1
for step in range(110): ft.beat((ft.attempt().last_step or 0) + step)
"""


def test_timeout_is_learned_and_kept(runs: Runs) -> None:
    hang = "print('stopped', flush=True)\nif first: time.sleep(10**6)\nos._exit(0)"
    run = runs.run("--grace", "off", *python(STEPS + hang), program=SOON)
    assert run.wait() == 0, run.log()
    (learned,) = run.named("learned")
    assert (learned["limit"], learned["steps"], learned["attempt"]) == (1.0, 100, 1)
    assert "99 of 100 silences are within" in learned["why"]
    (found,) = run.named("hang")
    assert (found["rule"], found["limit"], found["learned"]) == ("step", 1.0, True)
    assert found["cpu"] < 0.1
    assert "<string>" in found["why"], "where it hangs"
    assert "(limit 1s, learned)" in run.stderr
    assert run.state["learned"]["limit"] == 1.0, "the second attempt was judged by it from its beginning"
    assert run.stdout.count("stopped") == 2


def test_learned_timeout_does_not_end_a_working_job(runs: Runs) -> None:
    """Evaluation without a word about it looks like a hang, but for the processor that it burns."""
    busy = "until = time.monotonic() + 3.5\nwhile time.monotonic() < until: pass\nos._exit(0)"
    run = runs.run(*python(STEPS + busy), program=SOON)
    assert run.wait() == 0, run.log()
    assert run.named("hang", "restart") == []
    whys = [record["why"] for record in run.named("cleared")]
    assert whys
    assert all("it works" in why or why == "it moved" for why in whys)


def test_job_that_stops_working_is_found_at_the_next_check(runs: Runs) -> None:
    code = "until = time.monotonic() + 1.2 * first\nwhile time.monotonic() < until: pass\n"
    code += "if first: time.sleep(10**6)\nos._exit(0)"
    run = runs.run("--grace", "off", *python(STEPS + code), program=SOON)
    assert run.wait() == 0, run.log()
    (found,) = run.named("hang")
    assert found["limit"] > 1.0 or not run.named("cleared")


def test_hang_after_a_few_steps_is_found_by_a_provisional_timeout(runs: Runs) -> None:
    code = "import time\nfor step in range(28): ft.beat(step)\nif not ft.attempt().is_restart: time.sleep(10**6)"
    run = runs.run("--grace", "off", *python(code), program=SOON)
    assert run.wait() == 0, run.log()
    (found,) = run.named("hang")
    assert (found["rule"], found["step"], found["learned"]) == ("step", 27, True)
    assert 1.0 <= found["limit"] < 60.0


def test_later_start_without_heartbeats_is_found_by_the_earlier_one(runs: Runs) -> None:
    """Its first hook would come after the place where it blocks, so that nothing of it is in the beat file."""
    code = "import os, time\nif os.environ['MA_PROC_START_CNT'] == '2': time.sleep(10**6)\n"
    code += "ft.beat(1)\nos._exit(0 if os.environ['MA_PROC_START_CNT'] == '3' else 7)"
    run = runs.run("--restart-on", "hang,failure", "--backoff", "1ms", "--grace", "off", *python(code), program=SOON)
    assert run.wait() == 0, run.log()
    assert [record["reason"] for record in run.named("restart")] == ["failure", "hang"]
    (found,) = run.named("hang")
    assert (found["rule"], found["attempt"], found["learned"]) == ("start", 2, True)
    assert "the command sent no heartbeat in its first" in run.stderr
    assert run.state["first_beat"] > 0


def test_given_timeout_is_not_learned(runs: Runs) -> None:
    run = runs.run("--hang-timeout", "30s", *python(STEPS + "os._exit(0)"))
    assert run.wait() == 0, run.log()
    assert run.named("learned") == []
    assert run.state["learned"] is None


def test_frozen_time_is_not_learned(runs: Runs) -> None:
    """SIGSTOP of ftrun and of its command, as a frozen container or a laptop that sleeps; here while the limit is still
    provisional, five minutes, and would by itself be looked at twice a minute."""
    code = "print(os.getpid(), flush=True)\nfor step in range(10**9):\n    ft.beat(step); time.sleep(0.02)"
    program = patched(FAST.replace("learning.PROVISIONAL_FLOOR = ", ""))
    run = runs.start("--no-auto-beat", *python(f"import os, time\n{code}"), program=program)
    wait_for(lambda: run.named("first_beat"), "a step")
    pids = [int(run.stdout.split()[0]), run.process.pid]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: all(state_of(pid) == "T" for pid in pids), "the freeze")
    frozen = 8.0  # longer than layout.FREEZE
    time.sleep(frozen)  # that much of time is what the test is about
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: run.named("learned"), "a learned limit")
    learned = wait_for(lambda: run.state["learned"], "it in the state")["intervals"]
    wait_for(lambda: run.state["learned"]["intervals"] >= learned + 100, "steps after the freeze")
    assert max(run.state["learned"]["longest"], run.state["learned"]["slowest_start"]) < frozen, run.log()
    assert not run.named("hang")
    run.process.send_signal(signal.SIGTERM)
    run.wait()
