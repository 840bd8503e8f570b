"""PID 1's side of a look: one that fails is one problem and shows nothing, and none runs beside an investigation."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.core.machine import events as ev
from ftrun.core.machine.states import Job, Running, Stopping
from ftrun.core.machine.values import Attempt, EarlyEvidence, Finding, LocalRank, LookState, Rank
from ftrun.core.rules.policy import Policy
from ftrun.messages import evidence as messages
from ftrun.messages.helpers import Problem
from ftrun.pid1.clients.evidence import EvidenceClient

NOW = 1000.0
RANKS = (Rank(0, pid=11, moved_at=990.0), Rank(1, pid=12, claimed_at=980.0), Rank(2, pid=13, moved_at=970.0))
ATTEMPT = Attempt(1, pid=10, spawned_at=900.0, ranks=RANKS, look=LookState(begun=NOW))
FINDING = Finding("deadlock", 1, 60.0, 50.0)
LOOKED = ev.Looked(NOW - 1, None, "it waits for itself", "f", 1, 12, 0.2)
REPLY = messages.Reply(None, "train.py:3", 0.0, 0, 1, None, False)


class World:
    """The client, and what it asked of the helpers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[messages.EvidenceRequest | messages.LookRequest] = []
        self.removed = 0
        self.sent: list[messages.Overdue] = []
        self.running = True
        helpers = SimpleNamespace(
            add=self._add, remove=self._remove, send=self._send, is_running=lambda name: self.running
        )
        work_dir, tree = SimpleNamespace(path="/run", given="/run"), SimpleNamespace(command=None)
        empty: dict[str, Any] = {"devices": (), "powers": {}, "records": [], "group": None}
        context: Any = SimpleNamespace(
            tree=tree, policy=Policy(), helpers=helpers, work_dir=work_dir, excluded=(99,), **empty
        )
        monkeypatch.setattr("time.monotonic", lambda: NOW)
        self.context, self.client = context, EvidenceClient(context)

    def _add(self, name: str, line: str, once: bool, expendable: bool) -> None:
        assert (name, once, expendable) == ("evidence", True, True)
        self.requests.append(messages.REQUESTS.load(line.encode()))

    def _remove(self, name: str) -> None:
        assert name == "evidence"
        self.removed += 1

    def _send(self, name: str, line: bytes) -> None:
        assert name == "evidence"
        self.sent.append(messages.ON_TIME.load(line))

    def lines(self) -> list[str]:
        """What is printed."""
        return [line for _, _, line in self.context.records if line is not None]

    def problems(self) -> list[str]:
        found = [str(dict(fields)["what"]) for name, fields, _ in self.context.records if name == "problem"]
        self.context.records.clear()
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_the_ranks_that_stand_still_for_the_longest_time_come_first_and_one_that_ended_with_0_is_done(
    world: World,
) -> None:
    world.client.look(ATTEMPT)
    (request,) = world.requests
    assert isinstance(request, messages.LookRequest)
    assert (request.root, request.now, request.excluded) == (10, NOW, (99,))
    assert [rank.rank for rank in request.ranks] == [2, 1, 0]
    ranks = tuple(Rank(n, pid=11 + n, present=n == 0, moved_at=990.0) for n in range(3))
    processes = LocalRank(0, 0, 11), LocalRank(1, 1, 12, 991.0, code=0), LocalRank(2, 2, 13, 991.0, code=1)
    world.client.look(ATTEMPT._replace(ranks=ranks, processes=processes))
    assert [rank.done for rank in world.requests[-1].ranks] == [False, True, False]


def test_the_answer_is_an_event_and_a_second_one_is_not(world: World) -> None:
    world.client.look(ATTEMPT)
    assert world.client.handle(LOOKED, NOW) == [LOOKED._replace(now=NOW)]
    assert world.client.handle(LOOKED, NOW) == []
    assert world.client.on_end(NOW) == []
    assert (world.client.deadline, world.problems()) == (None, [])


def test_a_look_that_fails_is_one_problem_in_an_attempt_and_never_a_verdict(world: World) -> None:
    for _ in range(2):
        world.client.look(ATTEMPT)
        world.client.parse(messages.EVENTS.dump(Problem("an error")))
        assert world.client.on_end(NOW) == [ev.Looked(NOW, f"{messages.UNKNOWN}: an error", failed=True)]
    assert world.lines() == ["evidence: whether the job hangs is not known: an error; the command is not affected"]
    assert world.problems() == ["whether the job hangs is not known: an error"]
    world.client.on_spawning()
    world.client.look(ATTEMPT)
    why = "whether the job hangs is not known: a look at it ended without a result"
    assert world.client.on_end(NOW) == [ev.Looked(NOW, why, failed=True)]
    assert world.problems() == [why]


def test_that_no_hang_may_be_found_is_printed_once_in_an_attempt(world: World) -> None:
    for attempt in (1, 2):
        world.client.on_spawning()
        for _ in range(2):
            world.client.investigate(FINDING, ATTEMPT)
            for what in ("the report could not be written", f"{messages.UNKNOWN}: no memory"):
                world.client.parse(messages.EVENTS.dump(Problem(what)))
        line = "evidence: whether the job hangs is not known: no memory; the command is not affected"
        assert world.lines() == [line] * attempt


def test_a_look_that_is_late_is_ended(world: World) -> None:
    world.client.look(ATTEMPT)
    deadline = world.client.deadline
    assert deadline is not None
    assert world.client.settle(deadline - 0.1) == []
    assert world.removed == 0
    why = "whether the job hangs is not known: a look at it was not complete in time"
    assert world.client.settle(deadline) == [ev.Looked(deadline, why, failed=True)]
    assert (world.removed, world.client.deadline) == (1, None)
    assert world.problems() == [why]


def test_an_investigation_takes_the_place_of_a_look(world: World) -> None:
    world.client.look(ATTEMPT)
    world.client.investigate(FINDING, ATTEMPT)
    assert [type(request) for request in world.requests] == [messages.LookRequest, messages.EvidenceRequest]
    assert world.client.handle(LOOKED, NOW) == [], "it was on its way"
    assert world.client.deadline is None
    (event,) = world.client.handle(REPLY, NOW)
    assert isinstance(event, ev.EvidenceCollected)
    assert world.problems() == []


@pytest.mark.parametrize(
    "job", [Job(Running(ATTEMPT._replace(look=LookState()))), Job(Stopping(ATTEMPT, "term")), Job()], ids=str
)
def test_a_look_that_nobody_awaits_is_ended(world: World, job: Job) -> None:
    world.client.look(ATTEMPT)
    world.client.follow(Job(Running(ATTEMPT)), NOW, False)
    assert world.removed == 0
    world.client.follow(job, NOW, False)
    assert (world.removed, world.client.deadline) == (1, None)
    assert world.client.handle(LOOKED, NOW) == []
    assert world.problems() == []


def test_evidence_that_was_begun_early_is_completed_with_what_is_known_when_the_limit_has_passed(world: World) -> None:
    world.client.investigate_early(FINDING._replace(age=50.0), NOW + 4, ATTEMPT)
    (request,) = world.requests
    assert isinstance(request, messages.EvidenceRequest)
    assert (request.due, request.now) == (NOW + 4, NOW + 4)
    assert world.client.handle(REPLY, NOW) == [], "nothing was asked yet"
    later = ATTEMPT._replace(ranks=(RANKS[0]._replace(moved_at=NOW - 1), *RANKS[1:]))
    world.client.investigate(FINDING, later)
    assert len(world.requests) == 1, "the same helper"
    (overdue,) = world.sent
    assert (overdue.finding, overdue.now) == (FINDING, NOW)
    assert {rank.rank: rank.moved_at for rank in overdue.ranks}[0] == NOW - 1
    (event,) = world.client.handle(REPLY, NOW)
    assert isinstance(event, ev.EvidenceCollected)


@pytest.mark.parametrize("how", ["another finding", "dead", "ended"])
def test_a_finding_without_early_evidence_is_investigated_anew(world: World, how: str) -> None:
    world.client.investigate_early(FINDING, NOW + 4, ATTEMPT)
    finding = FINDING._replace(rank=2) if how == "another finding" else FINDING
    world.running = how != "dead"
    if how == "ended":
        assert world.client.on_end(NOW) == []
    world.client.investigate(finding, ATTEMPT)
    _, again = world.requests
    assert isinstance(again, messages.EvidenceRequest)
    assert (again.due, again.finding, world.sent) == (None, finding, [])


def test_evidence_that_was_begun_early_ends_when_the_job_has_moved(world: World) -> None:
    early = ATTEMPT._replace(look=LookState(), early=EarlyEvidence(FINDING, NOW + 4, NOW))
    world.client.investigate_early(FINDING, NOW + 4, early)
    world.client.follow(Job(Running(early)), NOW, False)
    assert world.removed == 0
    world.client.follow(Job(Running(early._replace(early=EarlyEvidence()))), NOW, False)
    assert world.removed == 1
    world.client.follow(Job(Running(early._replace(early=EarlyEvidence()))), NOW, False)
    assert (world.removed, world.problems()) == (1, [])
