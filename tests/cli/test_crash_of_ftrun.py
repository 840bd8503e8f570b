"""ftrun itself is killed, finds a corrupt state, or fails: no record is lost and no process is left."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.test_state_file_values import ACCOUNTS
from ftrun.core.machine.values import Ledger, UsualPauses
from ftrun.core.rules.fault_history import Clock, Occurrence
from ftrun.messages.state import dump_state, load_state
from support.runs import FTHANG, HOUSE, Runs, alive, carrying, number_in, patched, python, wait_for

# Both sleep for longer than the test may last: the death of ftrun ends the command, the next ftrun its daemon.
LEAVES = """
import os, time
if ft.attempt().start_cnt > 1: sys.exit(0)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open('daemon', 'w').write(str(os.getpid())); time.sleep(3600)
while not os.path.exists('daemon') or not open('daemon').read(): time.sleep(0.01)
open('command', 'w').write(str(os.getpid())); time.sleep(3600)
"""


def test_command_dies_with_a_killed_ftrun_and_its_daemons_before_the_next_start(runs: Runs) -> None:
    killed = runs.start(*python(LEAVES))
    command, daemon = number_in(runs.folder / "command"), number_in(runs.folder / "daemon")
    beats = killed.state["beat_dir"]
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == 137
    wait_for(lambda: not alive(command), "the parent-death signal")
    assert alive(daemon)
    stranger = runs.spawned("sleep", "3600", run_dir=runs.folder / "other")
    code = f"from support.runs import alive; print('left' if alive({daemon}) else 'gone', ft.attempt())"
    run = runs.ends(0, *python(code), PYTHONPATH=str(HOUSE / "tests"))
    assert run.stdout.startswith("gone"), "it was ended before the start"
    assert "start_cnt=2" in run.stdout
    assert not Path(beats).exists()
    assert stranger.process.poll() is None, "another ftrun and its command are none of our business"


def test_counts_survive_a_killed_ftrun(runs: Runs) -> None:
    hang = ("--hang-timeout", "300ms", "--grace", "off")
    # It sleeps for longer than the test may last, which is a hang.  Without a heartbeat the third start is none before
    # ftrun is killed.
    code = "import time\nif ft.attempt().start_cnt != 3: ft.beat(1); ft.checkpoint(1)\ntime.sleep(3600)"
    first = runs.start(*hang, *python(code))
    first.until("restart", 2)
    first.until("spawned", 3)
    first.kill_ftrun()
    second = runs.ends(195, *hang, *python(code))
    assert [r["start_cnt"] for r in second.named("started", "restart")] == [1, 2, 3, 4, 5]
    assert second.named("restart")[-1]["consecutive"] == 3
    assert runs.verdict["start_cnt"] == 5


@pytest.mark.parametrize("content", [b"", b"[" * 100_000], ids=["empty", "deep"])
def test_corrupt_state_is_kept_aside_and_the_job_runs(runs: Runs, content: bytes) -> None:
    runs.run_dir.mkdir()
    (runs.run_dir / "state.json").write_bytes(content)
    run = runs.ends(0, "sh", "-c", "echo start $MA_PROC_START_CNT")
    assert run.stdout == "start 1\n"
    assert run.stderr.count("\n") == 1
    assert "is corrupt" in run.stderr
    assert "Traceback" not in run.stderr
    (aside,) = runs.run_dir.glob("state.json.corrupt-*")
    assert aside.read_bytes() == content
    assert run.state["start_cnt"] == 1


@pytest.mark.parametrize("kind", ["folder", "fifo", "endless"])
def test_state_that_is_no_file_is_no_obstacle(runs: Runs, kind: str) -> None:
    runs.run_dir.mkdir()
    state = runs.run_dir / "state.json"
    if kind == "folder":
        (state / "inside").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(state)
    else:
        state.symlink_to("/dev/zero")
    run = runs.ends(0, "true")
    assert "Traceback" not in run.stderr
    assert run.stderr.count("\n") <= 1
    assert run.order[-1] == "ended"


SECONDS = st.floats(0, 1e12)
CLOCKS = st.builds(Clock, SECONDS, st.text(), SECONDS)


@given(
    st.builds(
        Ledger,
        *[st.integers(0, 2**62)] * 5,
        *[st.none() | st.integers(0, 2**62)] * 3,
        *[st.none() | st.text()] * 2,
        st.sampled_from(["first", "hang", "fault", "failure", "manual", "peer"]),
        occurrences=st.lists(st.builds(Occurrence, *[st.text()] * 4, at=CLOCKS), max_size=3).map(tuple),
        learned=st.none() | st.builds(UsualPauses, SECONDS, SECONDS, st.integers(0, 10**12)),
        first_beat=st.none() | SECONDS,
        epoch=st.integers(0, 2**62),
        account=ACCOUNTS,
        troubles=st.lists(st.text(), max_size=3).map(tuple),
        ended_at=st.just(()) | st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
        **{name: st.integers(0, 2**62) for name in ("replacements", "retried", "replaced")},
    )
)
def test_state_is_read_as_it_was_written(ledger: Ledger) -> None:
    assert load_state(dump_state(ledger, {"pid": 1}))[0] == ledger


def test_second_ftrun_on_a_run_dir_is_refused(runs: Runs) -> None:
    first = runs.spawned("sleep", "3600")
    before = (runs.run_dir / "events.jsonl").read_bytes()
    second = runs.ends(2, "touch", "started")
    assert second.stderr == f"ftrun: run dir {runs.run_dir}: another ftrun works in it\n"
    assert not (runs.folder / "started").exists()
    assert (runs.run_dir / "events.jsonl").read_bytes() == before
    assert first.process.poll() is None


FAILING = """
import ftrun.pid1.loop
def decide(job, event, policy, unchanged=ftrun.pid1.loop.decide):
    if type(event).__name__ == 'BeatsRead': raise RuntimeError('planted\\nbug')
    return unchanged(job, event, policy)
ftrun.pid1.loop.decide = decide
"""


def test_internal_error_ends_the_tree_with_125(runs: Runs) -> None:
    run = runs.ends(125, "--grace", "300ms", *FTHANG, "none", program=patched(FAILING))
    (problem,) = run.named("problem")
    assert "RuntimeError: planted" in problem["traceback"]
    assert "RuntimeError: planted" in (run.run_dir / "run.log").read_text()
    assert "Traceback (most recent call last)" not in run.stderr
    failed, summary = run.stderr.splitlines()
    assert "ftrun itself failed" in failed
    assert "ended with 125" in summary
    assert (run.order[-1], run.records[-1]["exit_code"]) == ("ended", 125)
    assert (runs.verdict["verdict"], runs.verdict["exit_code"]) == ("internal", 125)
    assert not carrying(runs.marker)


FAILING_END = """
import ftrun.pid1.loop
def fail(*given): raise RuntimeError('planted')
ftrun.pid1.loop.Supervisor._finish = fail
"""


def test_an_internal_error_after_the_recorded_end_does_not_change_it(runs: Runs) -> None:
    run = runs.ends(0, "true", program=patched(FAILING_END))
    (problem,), (ended,) = run.named("problem"), run.named("ended")
    assert "RuntimeError: planted" in problem["traceback"]
    assert (ended["verdict"], ended["exit_code"]) == ("succeeded", 0)
    assert runs.verdict["exit_code"] == 0


FAILING_LISTS = """
import ftrun.host.procfs, ftrun.pid1.loop
def fail(*given): raise OSError(12, 'Cannot allocate memory')
def decide(job, event, policy, unchanged=ftrun.pid1.loop.decide):
    if type(event).__name__ == 'BeatsRead': ftrun.host.procfs._names = fail
    return unchanged(job, event, policy)
ftrun.pid1.loop.decide = decide
"""


def test_an_internal_error_that_recurs_while_the_tree_is_ended_is_125_as_well(runs: Runs) -> None:
    run = runs.ends(125, "--grace", "300ms", "sh", "-c", "sleep 3600 & exit 3", program=patched(FAILING_LISTS))
    (problem,) = run.named("problem")
    assert "Cannot allocate memory" in problem["traceback"]
    assert "Traceback" not in run.stderr
    assert "cannot be listed: OSError" in (run.run_dir / "run.log").read_text()
    assert (run.order[-1], run.records[-1]["exit_code"]) == ("ended", 125)
    assert runs.verdict["exit_code"] == 125


FAILING_SUMMARY = """
import ftrun.pid1.bootstrap
def fail(*given): raise RuntimeError('planted')
ftrun.pid1.bootstrap.Setup.print_summary = fail
"""


def test_an_internal_error_of_the_last_line_does_not_change_the_code(runs: Runs) -> None:
    run = runs.ends(3, "sh", "-c", "exit 3", program=patched(FAILING_SUMMARY))
    assert run.stderr == ""
    assert "RuntimeError: planted" in (run.run_dir / "run.log").read_text()


FAILING_PIPES = """
import ftrun.pid1.loop
def fail(*given): raise OSError(24, 'Too many open files')
ftrun.pid1.loop.OutputPipes = fail
"""


def test_an_error_before_the_start_leaves_no_beat_folder(runs: Runs) -> None:
    run = runs.ends(125, "true", program=patched(FAILING_PIPES))
    assert run.stderr == "ftrun: [Errno 24] Too many open files\n"
    assert "in fail" in (run.run_dir / "run.log").read_text()


def test_the_state_of_a_long_command_is_read_by_the_next_ftrun(runs: Runs) -> None:
    command = ("sh", "-c", "echo start $MA_PROC_START_CNT; [ $MA_PROC_START_CNT = 2 ] || sleep 3600", "x" * 100_000)
    first = runs.spawned(*command)
    wait_for(lambda: first.state["pid"], "the state of the running command")
    first.kill_ftrun()
    second = runs.ends(0, *command)
    assert second.stdout == "start 2\n"
    assert "corrupt" not in second.stderr
