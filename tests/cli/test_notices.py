"""What ftrun says of its own accord while nothing is wrong: what is watched, and that nothing can be."""

import subprocess
import sys

import pytest

from ftrun.core.machine.notices import INTRODUCED, UNWATCHED, GivenNotices, notices
from ftrun.core.machine.states import Job, Paused, Running, Starting, Suspect
from ftrun.core.machine.values import Attempt, Finding, Rank
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy
from support.runs import HOUSE, Run, Runs, python, wait_for

AUTO = Limits(hang=3600.0, start=3600.0, start_given=False, section=3600.0, auto=True, idle=1800.0)
SOON = """
import sys
sys.path[:0] = [{paths}]
import ftrun.core.machine.notices as notices
notices.INTRODUCED, notices.UNWATCHED = 0.2, 0.6
from ftrun.cli.run import main
main()
"""
# The same program, a few hundred times as talkative.
PROGRAM = (sys.executable, "-c", SOON.format(paths=", ".join(repr(str(HOUSE / p)) for p in ("supervisor", "hooks"))))


def said(job: Job, now: float, limits: Limits = AUTO, told: GivenNotices = GivenNotices()) -> tuple[str, ...]:  # noqa: B008
    return notices(job, Policy(limits=limits), told, "/run/dir", now).lines


def started(**facts: object) -> Job:
    return Job(Starting(Attempt(1, pid=9)._replace(spawned_at=100.0, **facts)))  # type: ignore[arg-type]


def test_the_introduction_says_what_is_watched_and_where_the_records_are() -> None:
    first = notices(started(), Policy(limits=AUTO), GivenNotices(), "/run/dir", 105.0)
    assert (first.lines, first.due) == ((), 100.0 + INTRODUCED)
    (line,) = said(started(), 100.0 + INTRODUCED)
    assert line == (
        "watched: heartbeats (timeout learned from them), idleness (timeout 30m, once an accelerator is used); "
        "run dir: /run/dir"
    )
    given = AUTO._replace(hang=60.0, auto=False, start=300.0, start_given=True, idle=900.0, idle_given=True)
    (line,) = said(started(), 200.0, given)
    assert "heartbeats (timeout 60s), the time to the first heartbeat (timeout 5m), idleness (timeout 15m);" in line
    off = Limits(hang=None, start=None, start_given=False, section=None)
    (line,) = said(started(), 10_000.0, off)
    assert line.startswith("watched: nothing, all timeouts are off")


def test_each_is_said_once() -> None:
    found = notices(started(), Policy(limits=AUTO), GivenNotices(), "/run/dir", 100.0 + UNWATCHED)
    assert len(found.lines) == 2
    again = notices(started(number=2), Policy(limits=AUTO), found.told, "/run/dir", 100.0 + 2 * UNWATCHED)
    assert (again.lines, again.due) == ((), None)


@pytest.mark.parametrize(
    ("limits", "facts"),
    [
        (AUTO, {"ranks": (Rank(0),)}),  # it has announced itself
        (AUTO, {"first_beat": 5.0}),  # as it did in an earlier start
        (AUTO._replace(start_given=True), {}),
        (AUTO._replace(idle_given=True), {}),
        (Limits(None, None, False, None), {}),  # the user's wish
    ],
)
def test_what_is_watched_is_not_called_unwatched(limits: Limits, facts: dict[str, object]) -> None:
    assert said(started(**facts), 10_000.0, limits, GivenNotices(introduced=True)) == ()


def test_nothing_is_said_while_nobody_wants_to_hear_it() -> None:
    job = started()
    assert isinstance(job.phase, Starting)
    assert said(job._replace(paused=Paused(100.0)), 10_000.0) == ()
    assert said(started(stopped_at=101.0), 10_000.0) == ()
    assert said(Job(Suspect(job.phase.attempt, Finding("start", None, 1.0, 1.0))), 10_000.0) == ()
    assert len(said(Job(Running(job.phase.attempt)), 10_000.0)) == 2


# --- end to end -------------------------------------------------------------------------------------------------------


def lines(run: Run) -> list[str]:
    return [line for line in run.stderr.splitlines() if line.startswith("[ftrun] ")]


def test_a_program_that_never_beats_is_told_so_once(runs: Runs) -> None:
    run = runs.start("sleep", "3600", program=PROGRAM)
    wait_for(lambda: len(lines(run)) >= 2, "two lines")
    assert lines(run)[0].startswith("[ftrun] watched: heartbeats (timeout learned from them)")
    assert "ftrun cannot tell whether this command works or hangs" in lines(run)[1]
    run.process.terminate()
    run.wait()
    assert len([line for line in lines(run) if "cannot tell" in line]) == 1


def test_a_program_that_beats_is_not_told_so(runs: Runs) -> None:
    run = runs.run(*python("import time\nfor n in range(15): ft.beat(n); time.sleep(0.1)"), program=PROGRAM)
    assert run.wait() == 0, run.log()
    assert "watched: heartbeats" in run.stderr
    assert "cannot tell" not in run.stderr


def test_quiet_silences_both(runs: Runs) -> None:
    run = runs.run("-q", "sleep", "1.5", program=PROGRAM)
    assert run.wait() == 0
    assert run.stderr == ""


def test_a_whole_command_line_in_one_word_gets_a_hint(runs: Runs) -> None:
    run = runs.run("python train.py --lr 3")
    assert run.wait() == 127
    assert "python train.py --lr 3: command not found (it is one word with spaces in it: try without" in run.stderr
    run = runs.run("no-such-program")
    assert run.wait() == 127
    assert run.stderr == "[ftrun] no-such-program: command not found\n"


def test_ftctl_without_a_verb_shows_its_help() -> None:
    done = subprocess.run([sys.executable, str(HOUSE / "bin" / "ftctl")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ftctl VERB ...\n")
    assert "\\n" not in done.stderr
    assert len(done.stderr.splitlines()) > 10
