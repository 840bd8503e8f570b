"""The lines that ftrun writes of its own accord while nothing is wrong: at the start, and where nothing is watched."""

import pytest

from ftrun.core.group.messages import GroupOrder
from ftrun.core.machine.notices import UNWATCHED, WAITING, GivenNotices, LongWait, Notices, notices
from ftrun.core.machine.states import Finish, Healing, Job, Paused, Pending, Phase, Running, Starting, Stopping, Suspect
from ftrun.core.machine.values import Attempt, Fault, Finding, Rank
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Membership, Policy
from support.runs import Run, Runs, patched, wait_for

AUTO = Limits(hang=None, start=None, section=None, auto=True, idle=1800.0)
STARTED = GivenNotices(started=True)
# ftrun, which warns after less than a second.
PROGRAM = patched("import ftrun.core.machine.notices as notices\nnotices.UNWATCHED = 0.6")
ONCE_FAILING = 'if [ "$MA_PROC_START_CNT" = 1 ]; then exit 3; fi'


def due(
    job: Job,
    now: float,
    limits: Limits = AUTO,
    given: GivenNotices = GivenNotices(),  # noqa: B008
) -> tuple[str, ...]:
    return notices(job, Policy(limits=limits, membership=Membership()), given, "/run/dir", now).lines


def started(**facts: object) -> Job:
    return Job(Starting(Attempt(1, pid=9)._replace(spawned_at=100.0, **facts)))  # type: ignore[arg-type]


def test_each_line_is_written_once() -> None:
    first = notices(started(), Policy(limits=AUTO), GivenNotices(), "/run/dir", 100.0)
    assert (len(first.lines), first.due) == (1, 100.0 + UNWATCHED)
    later = notices(started(), Policy(limits=AUTO), first.given, "/run/dir", 100.0 + UNWATCHED)
    assert (len(later.lines), later.due) == (1, None)
    again = notices(started(number=2), Policy(limits=AUTO), later.given, "/run/dir", 100.0 + 2 * UNWATCHED)
    assert (again.lines, again.due) == ((), None)


@pytest.mark.parametrize(
    ("limits", "facts"),
    [
        (AUTO, {"ranks": (Rank(0),)}),  # it has announced itself
        (AUTO, {"first_beat": 5.0}),  # as it did in an earlier start
        (AUTO._replace(start=300.0), {}),
        (AUTO._replace(idle_given=True), {}),
        (Limits(None, None, None), {}),  # the user's wish
    ],
)
def test_no_warning_where_a_check_is_active(limits: Limits, facts: dict[str, object]) -> None:
    assert due(started(**facts), 10_000.0, limits, STARTED) == ()


@pytest.mark.parametrize(
    ("frameworks", "age", "text"),
    [
        ((), 299.0, ""),
        ((), 300.0, "others"),
        (("PyTorch", "JAX"), 299.0, ""),
        (("JAX",), 59.0, ""),
        (("JAX", "Orbax"), 60.0, "JAX: call ftrun_hooks.beat(step) in the training loop"),
    ],
)
def test_warning_names_the_line_that_a_framework_needs(frameworks: tuple[str, ...], age: float, text: str) -> None:
    """Sooner where it is known that no heartbeat will come without it."""
    said = due(started(frameworks=frameworks), 100.0 + age, given=STARTED)
    assert len(said) == bool(text)
    assert all(line.startswith("no heartbeat in the first") for line in said)
    if frameworks:
        assert all(text in line for line in said)


def test_warning_waits_during_a_stop_or_pause() -> None:
    job = started()
    assert isinstance(job.phase, Starting)
    assert due(job._replace(paused=Paused(100.0)), 10_000.0, given=STARTED) == ()
    assert due(started(stopped_at=101.0), 10_000.0, given=STARTED) == ()
    assert due(Job(Suspect(job.phase.attempt, Finding("start", None, 1.0, 1.0))), 10_000.0, given=STARTED) == ()
    assert len(due(Job(Running(job.phase.attempt)), 10_000.0, given=STARTED)) == 1


# --- end to end -------------------------------------------------------------------------------------------------------


def lines(run: Run) -> list[str]:
    return [line for line in run.whole_stderr.splitlines() if line.startswith("[ftrun] ")]


def start_line(run: Run) -> str:
    """Of a run without options about timeouts."""
    return (
        f"attempt 1 started; run dir {run.run_dir}; watched: deadlocks (no timeout), "
        "waits for devices (within 90s) and computations that show nothing (after 60m) once ranks step, "
        "idleness (timeout 30m, once there are heartbeats or an accelerator is used)"
    )


def test_start_line_is_the_first_and_written_once(runs: Runs) -> None:
    run = runs.ends(0, "--restart-on", "failure", "--backoff", "off", "sh", "-c", ONCE_FAILING)
    first, *others = lines(run)
    assert first == f"[ftrun] {start_line(run)}"
    assert len(others) == 2, others  # the restart, and the end
    assert not any(" started;" in line for line in others)
    assert run.stderr.splitlines() == others
    log = (run.run_dir / "run.log").read_text()
    assert log.count(start_line(run)) == 1


def test_one_warning_of_a_program_without_heartbeats(runs: Runs) -> None:
    run = runs.start("sleep", "3600", program=PROGRAM)
    wait_for(lambda: len(lines(run)) >= 2, "two lines")
    assert "ftrun cannot tell whether this command works or hangs" in lines(run)[1]
    assert "by themselves, except with --no-auto-beat, under python -I and in frozen programs;" in lines(run)[1]
    run.process.terminate()
    run.wait()
    assert len([line for line in lines(run) if "cannot tell" in line]) == 1


def test_quiet_suppresses_both_lines(runs: Runs) -> None:
    run = runs.ends(0, "-q", "sleep", "1.5", program=PROGRAM)
    assert run.whole_stderr == ""


def test_command_line_as_one_argument_gets_a_hint(runs: Runs) -> None:
    run = runs.ends(127, "python train.py --lr 3")
    assert "python train.py --lr 3: command not found (it is one argument with spaces: try without" in run.stderr
    run = runs.ends(127, "no-such-program")
    assert run.stderr == "[ftrun] no-such-program: command not found\n"


WAITED: dict[str, tuple[Phase, dict[str, object], str]] = {
    "healing": (
        Healing(Fault("npu-3", "80E01801", "major", "HBM error")),
        {},
        "device npu-3 is not healed yet: HBM error",
    ),
    "platform": (Pending(), {"held": "no pod yet"}, "the platform does not permit a start: no pod yet"),
    "members": (
        Pending(),
        {"order": GroupOrder(1, "stop", "member 2 (c) is lost: silent")},
        "member 2 (c) is lost: silent",
    ),
    "verdict": (
        Stopping(Attempt(1, pid=9), "verdict"),
        {"want": Finish(195, "hang-limit", "rank 1 hangs")},
        "the verdict of the other members is awaited: rank 1 hangs",
    ),
}


@pytest.mark.parametrize("name", WAITED)
def test_a_long_wait_without_a_command_is_recorded_once(name: str) -> None:
    phase, facts, why = WAITED[name]
    policy = Policy(limits=AUTO, membership=Membership(group=True))
    job = Job(phase)._replace(**facts)  # type: ignore[arg-type]

    def at(now: float, before: Notices) -> Notices:
        return notices(job, policy, before.given, "/run/dir", now)

    first = at(100.0, Notices(STARTED))
    assert (first.wait, first.due) == (None, 100.0 + WAITING)
    later = at(100.0 + WAITING, first)
    assert later.wait == LongWait(WAITING, why)
    assert (at(100.0 + 2 * WAITING, later).wait, at(500.0, later).due) == (None, None)
    runs = notices(started(), policy, later.given, "/run/dir", 1000.0)
    assert at(2000.0, runs).due == 2000.0 + WAITING, "another wait"


def test_a_spare_and_a_finished_member_wait_for_nothing_that_is_wrong() -> None:
    spare = Job(Pending(), places=((0, 2),), order=GroupOrder(1, "run"))
    done = Job(Stopping(Attempt(1, pid=9), "verdict"), Finish(0, "succeeded", ""))
    for job in (spare, done):
        policy = Policy(limits=AUTO, membership=Membership(group=True, member=2))
        assert notices(job, policy, STARTED, "/run/dir", 100.0).due is None
