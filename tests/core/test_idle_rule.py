"""The rule that needs no beats, where it meets what the ranks say."""

import pytest

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import GroupMember, report
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job, Running, Starting, Suspect
from ftrun.core.machine.values import Attempt, Finding, Rank, Section
from ftrun.core.rules.idle import DeviceUse, Idle, Thresholds, TreeSample, idle_for, observe, unchanged_for
from ftrun.core.rules.liveness import Limits, assess
from ftrun.core.rules.policy import Membership, Policy

QUIET = tuple(TreeSample(float(at), 1.0, 0.0, 0.0) for at in range(1, 11))
LIMITS = Limits(hang=None, start=None, section=None, idle=4.0, idle_given=True)


def found(*ranks: Rank, since: float = 0.0, now: float = 10.0, limits: Limits = LIMITS) -> Finding | None:
    idle = Idle(idle_since=since, idle_samples=QUIET)
    return assess(Attempt(1, pid=100, spawned_at=0.0, ranks=ranks, idle=idle), now, limits).finding


def test_a_tree_without_work_is_idle() -> None:
    finding = found()
    assert finding is not None
    assert (finding.rule, finding.rank, finding.age, finding.limit, finding.pid) == ("idle", None, 10.0, 4.0, 100)
    assert found(since=6.5) is None
    assert found(limits=LIMITS._replace(idle=None)) is None
    assert found(limits=LIMITS._replace(idle_given=False)) is None, "by itself only where an accelerator is used"


def test_a_movement_is_work_also_of_a_rank_that_has_ended() -> None:
    moved = Rank(0, 100, moved_at=7.0)
    assert found(moved) is None
    assert found(moved._replace(done=True)) is None
    assert found(moved._replace(present=False)) is None
    assert found(moved._replace(moved_at=5.0)) is not None


def test_time_in_sections_is_not_idle() -> None:
    moved = Rank(0, 100, moved_at=1.0)
    assert found(moved._replace(sections=(Section("pause", 2.0, 3600.0),))) is None
    assert found(moved._replace(credit=6.0)) is None, "one that was closed"
    assert found(moved._replace(credit=4.0)) is not None
    assert found(moved._replace(sections=(Section("pause", 2.0, 3600.0, side=True),))) is not None


def test_devices_are_unchanged_also_where_logs_are_written() -> None:
    """The rule over all containers, each of which reports this about itself."""
    idle = Idle()
    for second in range(1, 7):
        spins = DeviceUse("GPU-1", util=100.0, memory_util=0.0, power=80.0)
        idle = observe(idle, TreeSample(float(second), 1.0, 0.0, 1e6, (spins,)), Thresholds())
    assert idle_for(idle, 10.0) == 0.0
    assert unchanged_for(idle, 10.0) == 10.0
    works = observe(idle, TreeSample(7.0, 1.0, 0.0, 0.0, (spins._replace(util=40.0),)), Thresholds())
    assert unchanged_for(works, 10.0) == 0.0
    assert unchanged_for(idle._replace(accelerator=False), 10.0) == 0.0


def test_the_group_rule_needs_all_containers_unchanged() -> None:
    still = Idle(accelerator=True, device_samples=QUIET, unchanged_since=2.0)
    assert assess(Attempt(1, idle=still), 10.0, LIMITS).finding is None
    assert assess(Attempt(1, idle=still, group_is_idle=True), 10.0, LIMITS).finding is not None
    raised = still._replace(unchanged_raised=16.0, raised=0.0)
    assert assess(Attempt(1, idle=raised, group_is_idle=True), 10.0, LIMITS).finding is None


def test_in_a_group_a_member_that_does_nothing_may_wait_for_one_that_works() -> None:
    idle, alone = Idle(idle_since=2.0, idle_samples=QUIET, accelerator=True), LIMITS._replace(idle_given=False)
    group = alone._replace(idle_together=True)
    assert assess(Attempt(1, idle=idle), 10.0, alone).finding is not None
    assert assess(Attempt(1, idle=idle), 10.0, group).finding is None
    assert assess(Attempt(1, idle=idle, group_is_idle=True), 10.0, group).finding is not None
    assert assess(Attempt(1, idle=idle), 10.0, group._replace(idle_given=True)).finding is not None


def test_a_member_reports_that_it_does_nothing_unless_it_has_announced_that() -> None:
    policy = Policy(limits=LIMITS._replace(idle_together=True), membership=Membership(group=True))
    rank = Rank(0, pid=7, moved_at=1.0)
    attempt = Attempt(1, idle=Idle(idle_since=2.0, idle_samples=QUIET), ranks=(rank,))
    assert reported(attempt, 10.0, policy)
    assert not reported(attempt, 3.0, policy)
    paused = attempt._replace(ranks=(rank._replace(sections=(Section("pause", 2.0, 3600.0),)),))
    assert not reported(paused, 10.0, policy)
    assert not reported(attempt._replace(idle=attempt.idle._replace(raised=16.0)), 10.0, policy), "evidence cleared it"


def reported(attempt: Attempt, now: float, policy: Policy) -> bool:
    return report(
        Job(Running(attempt, None)), GroupMember(1, "life", "node", "boot"), policy, now, False
    ).devices_unchanged


def test_evidence_raises_the_limit_of_all_containers() -> None:
    idle = Idle(accelerator=True, device_samples=QUIET, unchanged_since=2.0)
    finding = Finding("idle", None, 8.0, 4.0, pid=100)
    job = Job(Suspect(Attempt(1, pid=100, idle=idle, group_is_idle=True), finding, 99.0))
    after, _ = decide(job, ev.EvidenceCollected(10.0, (), (), "its Python stack moves"), Policy(limits=LIMITS))
    assert isinstance(after.phase, Starting)
    assert after.phase.attempt.idle.unchanged_raised == 16.0


def test_writes_do_not_clear_a_suspicion_of_the_group() -> None:
    spins = DeviceUse("GPU-1", util=100.0, memory_util=0.0, power=80.0)
    idle = Idle(accelerator=True, device_samples=QUIET, unchanged_since=2.0)
    attempt = Attempt(1, pid=100, idle=idle, group_is_idle=True)
    finding = Finding("idle", None, 8.0, 4.0, pid=100)
    job, policy = Job(Suspect(attempt, finding, 99.0)), Policy(limits=LIMITS)
    wrote = ev.TreeSampled(11.0, TreeSample(11.0, 1.0, 0.0, 1e6, (spins,)))
    after, effects = decide(job, wrote, policy)
    assert isinstance(after.phase, Suspect)
    assert effects == (), "nor is it raised anew each time"
    worked = wrote._replace(sample=wrote.sample._replace(devices=(spins._replace(memory_util=50.0),)))
    assert isinstance(decide(job, worked, policy)[0].phase, Starting)


def sampled(job: Job, at: float, policy: Policy, cpu: float = 0.0) -> Job:
    return decide(job, ev.TreeSampled(at, TreeSample(at, 1.0, cpu, 0.0)), policy)[0]


@pytest.mark.parametrize("given", [False, True])
def test_without_evidence_only_a_time_that_was_given_ends_an_idle_job(given: bool) -> None:
    """Whether somebody waits at a terminal only the evidence can say."""
    policy, rank = Policy(limits=LIMITS._replace(auto=True, idle_given=given)), Rank(0, pid=7, moved_at=10.0, step=5)
    job = Job()
    for event in (ev.Started(0.0), ev.CommandSpawned(1.0, 7), ev.BeatsRead(10.0, (rank,))):
        job, _ = decide(job, event, policy)
    for at in range(11, 17):
        job = sampled(job, float(at), policy)
    assert isinstance(job.phase, Suspect), "a job that has given heartbeats, without an accelerator"
    assert job.phase.deadline is not None
    _, effects = decide(job, ev.DeadlineReached(job.phase.deadline), policy)
    assert next(one.event for one in effects if isinstance(one, do.Persist)) == ("hang" if given else "cleared")


def test_an_idle_tree_from_the_first_sample_to_the_verdict() -> None:
    policy = Policy(limits=LIMITS)
    job = Job()
    for event in (ev.Started(0.0), ev.CommandSpawned(0.0, 100)):
        job, _ = decide(job, event, policy)
    for at in (1.0, 2.0, 3.0):
        job = sampled(job, at, policy)
    assert isinstance(job.phase, Starting), "too few samples"
    job = sampled(job, 4.0, policy)
    assert isinstance(job.phase, Suspect)
    assert job.phase.finding.rule == "idle"

    cleared, _ = decide(job, ev.EvidenceCollected(5.0, (), (), "its Python stack moves"), policy)
    assert isinstance(cleared.phase, Starting | Running)
    for at in (6.0, 7.0, 8.0, 9.0):
        cleared = sampled(cleared, at, policy)
        assert isinstance(cleared.phase, Starting), "it may last twice as long"
    assert isinstance(sampled(cleared, 10.5, policy).phase, Suspect)

    assert isinstance(sampled(job, 5.0, policy, cpu=0.9).phase, Starting), "it works"
    _, effects = decide(job, ev.EvidenceCollected(5.0, (), (), None), policy)
    assert [effect.event for effect in effects if isinstance(effect, do.Persist)][:1] == ["hang"]
