"""Evidence that is collected before the limit passes: when, and that no verdict depends on it."""

from typing import Final
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job, Paused, Running, Suspect
from ftrun.core.machine.values import Attempt, Finding, Ledger, LookState, Rank
from ftrun.core.rules import early_evidence
from ftrun.core.rules.early_evidence import SPACING
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy

LIMIT: Final = 60.0
POLICY: Final = Policy(limits=Limits(hang=LIMIT, start=None, section=None))
AUTO: Final = POLICY._replace(limits=POLICY.limits._replace(auto=True, start=LIMIT))
MOVED: Final = 1000.0
DUE: Final = MOVED + LIMIT


class Watched:
    """A job with one rank, which is awake whenever the decision asks for it, and beats at given times."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy, self.rank, self.wakes = policy, Rank(0, pid=7, moved_at=MOVED, step=1), 0
        self.effects = list[tuple[float, do.Effect]]()
        attempt = Attempt(1, pid=7, spawned_at=900.0, ranks=(self.rank,))
        self.job = Job(Running(attempt), ledger=Ledger(start_cnt=1))
        self.read(MOVED)

    def read(self, now: float) -> None:
        self.happen(ev.BeatsRead(now, (self.rank,)))

    def happen(self, event: ev.Event) -> None:
        self.job, effects = decide(self.job, event, self.policy)
        self.effects += [(event.now, effect) for effect in effects]

    def beat(self, now: float) -> None:
        """The rank moves; ftrun reads that only when it is awake the next time."""
        self.run(now)
        self.rank = self.rank._replace(moved_at=now, step=(self.rank.step or 0) + 1)

    def run(self, until: float) -> None:
        while isinstance(self.job.phase, Running) and (at := self.job.phase.deadline) is not None and at < until:
            self.wakes += 1
            self.read(at)

    def investigations(self) -> list[tuple[float, float | None]]:
        return [(now, e.due) for now, e in self.effects if isinstance(e, do.Investigate)]

    def records(self) -> list[str]:
        return [e.event for _, e in self.effects if isinstance(e, do.Persist)]

    @property
    def attempt(self) -> Attempt:
        assert isinstance(self.job.phase, Running | Suspect)
        return self.job.phase.attempt


@pytest.mark.parametrize("before", [3.0, 0.5, 0.001])
def test_a_rank_that_moves_in_the_last_moment_is_not_suspected_and_its_evidence_is_dropped(before: float) -> None:
    seen = Watched()
    seen.beat(DUE - before)
    seen.run(DUE + LIMIT / 2)
    assert [due for _, due in seen.investigations()] == [pytest.approx(DUE)]
    assert seen.attempt.early.finding is None
    assert not {"suspect", "cleared", "hang"} & set(seen.records())


def test_after_one_in_vain_there_is_none_for_a_hundred_times_as_long_and_a_hang_is_found_without() -> None:
    seen, at = Watched(), MOVED
    for _ in range(3):
        at += LIMIT - 0.1
        seen.beat(at)
    assert len(seen.investigations()) == 1
    assert seen.attempt.early.earliest >= DUE + SPACING * early_evidence.WORK
    seen.run(at + LIMIT + 1)
    assert [due for _, due in seen.investigations()] == [pytest.approx(DUE), None]


@given(st.lists(st.floats(0.01, 0.2), min_size=1, max_size=50), st.sampled_from([0.5, 2.0, 30.0, 3600.0]))
def test_a_job_that_moves_five_times_within_its_limit_is_not_woken_more(steps: list[float], limit: float) -> None:
    def wakes() -> int:
        seen, end = Watched(POLICY._replace(limits=POLICY.limits._replace(hang=limit))), MOVED
        for step in steps:
            end += step * limit
            seen.beat(end)
        assert seen.investigations() == []
        return seen.wakes

    with patch.object(early_evidence, "follow", lambda attempt, *_: (attempt, None, None)):
        before = wakes()
    assert wakes() == before


def test_a_pause_and_a_stop_by_the_user_drop_it() -> None:
    seen = Watched()
    seen.run(DUE)
    assert seen.attempt.early.finding is not None
    seen.happen(ev.CommandStopped(DUE - 1, 20))
    assert seen.attempt.early.finding is None
    paused = Watched()
    paused.run(DUE)
    paused.job = paused.job._replace(paused=Paused(DUE - 1, DUE + 100))
    paused.read(DUE - 0.5)
    assert paused.attempt.early.finding is None


def test_it_waits_for_a_look_that_is_under_way_and_no_look_begins_beside_it() -> None:
    finding = Finding("step", 0, 57.0, LIMIT, 1, pid=7)
    attempt = Attempt(1, look=LookState(begun=DUE - 4))
    assert early_evidence.follow(attempt, finding, DUE, DUE - 3) == (attempt, None, None)
    free = attempt._replace(look=LookState())
    begun, at, found = early_evidence.follow(free, finding, DUE, DUE - 3)
    assert (at, found) == (None, finding._replace(age=LIMIT))
    assert early_evidence.follow(begun, finding, DUE, DUE - 2) == (begun, None, None)
    seen = Watched(AUTO)
    seen.job = seen.job._replace(phase=Running(begun._replace(spawned_at=900.0, ranks=(seen.rank,))))
    seen.read(DUE - 2)
    assert not any(isinstance(effect, do.Look) for _, effect in seen.effects)


def test_a_finding_that_looks_have_proved_needs_none() -> None:
    proved = Finding("deadlock", 0, 14.0, 15.0)
    assert early_evidence.follow(Attempt(1), proved, 10.0, 9.9) == (Attempt(1), None, None)
