"""The messenger's part in the view of the group: what it accepts from others, and what it gives away."""

from __future__ import annotations

import base64
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.test_coordinator import running
from ftrun.core.group import membership
from ftrun.helpers.messenger.group_link import GroupLink
from ftrun.helpers.messenger.group_view import CoordinatorSide, MemberSide, OwnMember
from ftrun.helpers.messenger.imports import ImportsSeeker
from ftrun.helpers.messenger.present_stacks import PresentStacks
from ftrun.messages import group_view as messages
from ftrun.messages.codec import Malformed
from ftrun.messages.group_view import FilePart, FileRequest, GroupView, MemberRow
from ftrun.messages.messenger import FoundImports, Straggler
from ftrun.messages.peers import MemberAddress
from support.recorded_lines import RecordedLines
from support.runs import wait_for


class Connection:
    id = b"peer"


def address(rank: int, size: int = 3) -> MemberAddress:
    return MemberAddress(size, rank, "127.0.0.1:9", None, 60.0, 10.0, 60.0, "", "life", f"node-{rank}", "boot")


def row(rank: int, **more: object) -> MemberRow:
    return MemberRow(rank, f"node-{rank}", "running", "healthy", 1, 5.0)._replace(**more)  # type: ignore[arg-type]


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(folder: Path, attempt: int, content: bytes = b"why") -> Path:
    made = folder / "reports" / f"attempt-{attempt}"
    (made / "stacks").mkdir(parents=True)
    (made / "report.md").write_bytes(content)
    return made


def test_a_report_is_read_in_parts_and_nothing_else_is(run_dir: Path) -> None:
    own = OwnMember(address(1), RecordedLines())
    assert "no report was written" in own.read(FileRequest("a", 1, "report.md")).why
    report(run_dir, 1)
    content = os.urandom(3 * messages.PART // 2)
    made = report(run_dir, 10, content)
    first = own.read(FileRequest("a", 1, "report.md"))
    assert (first.ok, first.attempt, first.size) == (True, 10, len(content))
    rest = own.read(FileRequest("a", 1, "report.md", 10, messages.PART))
    assert b"".join(map(base64.b64decode, (first.content, rest.content))) == content
    assert own.read(FileRequest("a", 1, "report.md", 10, len(content))).content == ""
    assert base64.b64decode(own.read(FileRequest("a", 1, "report.md", 1)).content) == b"why"
    assert "attempts with a report: 1, 10" in own.read(FileRequest("a", 1, "report.md", 2)).why
    assert not own.read(FileRequest("a", 1, "stacks")).ok
    (made / "stacks" / "7.txt").write_text("main")
    assert base64.b64decode(own.read(FileRequest("a", 1, "stacks")).content) == b"== 7.txt ==\nmain\n"
    (run_dir / "secret").write_text("secret")
    (made / "report.json").symlink_to(run_dir / "secret")
    (run_dir / "elsewhere").mkdir()
    (run_dir / "elsewhere" / "report.md").write_text("secret")
    (run_dir / "reports" / "attempt-11").symlink_to(run_dir / "elsewhere")
    assert not own.read(FileRequest("a", 1, "report.json", 10)).ok
    assert not own.read(FileRequest("a", 1, "report.md", 11)).ok


def test_rank_0_passes_requests_on_and_drops_what_is_invalid(run_dir: Path) -> None:
    sent: list[tuple[int, bytes, bytes]] = []
    lines = RecordedLines()

    def send(rank: int, kind: bytes, content: bytes) -> bool:
        sent.append((rank, kind, content))
        return rank != 2

    side = CoordinatorSide(address(0), lines, send)
    side.receive(1, messages.ASK, messages.dump(FileRequest("mine", 2, "report.md")), 1.0)
    (_, _, passed), (to, kind, refused) = sent
    assert (to, kind) == (1, messages.FILE_PART)
    part = messages.load(FilePart, refused)
    assert (part.id, part.ok) == ("mine", False)
    assert messages.load(FileRequest, passed).id != "mine"

    sent.clear()
    answers: list[FilePart] = []
    side.ask(FileRequest("x", 1, "report.md"), answers.append, 1.0)
    asked = messages.load(FileRequest, sent[0][2])
    foreign = messages.dump(FilePart(asked.id, True, "", 1, 3, "d2h5"))
    side.receive(2, messages.FILE_PART, foreign, 1.0)
    assert answers == [], "only the member that was asked may answer"
    side.receive(1, messages.FILE_PART, foreign, 1.0)
    assert [(one.id, one.content) for one in answers] == [("x", "d2h5")]
    side.receive(1, messages.FILE_PART, foreign, 1.0)
    assert len(answers) == 1

    for content in (b"", b"[]", messages.dump(row(2)), messages.dump(row(1, paces=((0, 1.0),) * 99))):
        side.receive(1, messages.ROW, content, 1.0)
    assert len(lines.problems) == 4
    side.ask(FileRequest("late", 1, "report.md"), answers.append, 1.0)
    known = membership.new_coordinator(0.0, membership.GroupShape(3), 60.0, 10.0)
    side.process(1e9, known, dict)
    assert (answers[-1].id, answers[-1].ok) == ("late", False)


def test_a_member_keeps_the_last_view_with_its_own_times(run_dir: Path) -> None:
    side = MemberSide(address(2), RecordedLines(), lambda kind, content: False)
    view = GroupView(1, 3, 0, 1000.0, 4, "run", "", (1,), (row(0, at=998.0), row(1, at=1000.0)))
    side.receive(messages.VIEW, messages.dump(view), 50.0)
    side.process(1e9)
    kept = messages.load(GroupView, (run_dir / messages.FILE).read_bytes())
    assert (kept.rank, kept.now, kept.waits_for) == (2, 50.0, (1,))
    assert [(one.rank, one.at) for one in kept.rows] == [(0, 48.0), (1, 50.0)]
    with pytest.raises(Malformed):
        side.receive(messages.VIEW, b"{}", 51.0)
    answers: list[FilePart] = []
    side.ask(FileRequest("q", 1, "report.md"), answers.append, 52.0)
    assert [one.why for one in answers] == ["there is no connection to rank 0"]


def test_who_takes_the_place_of_member_0_has_seen_it(run_dir: Path) -> None:
    """Its row is shown on, as that of one that is lost."""
    link = GroupLink(address(1), str(run_dir), RecordedLines())
    try:
        assert isinstance(link._link.view, MemberSide)
        view = GroupView(1, 3, 0, 1000.0, 4, "run", "", (), (row(0, at=998.0), row(1, at=1000.0)))
        link._link.view.receive(messages.VIEW, messages.dump(view), time.monotonic())
        for lead in (link._lead, link._follow):
            lead("127.0.0.1:9")
            assert link._link.view.rows[0].node == "node-0"
    finally:
        link.close(False)


def test_a_member_that_connects_again_is_present_until_it_is_lost(run_dir: Path) -> None:
    """Otherwise two members could take themselves for the first one, and both report the loss of rank 0."""
    side = CoordinatorSide(address(0), RecordedLines(), lambda rank, kind, content: True)
    group = running(3)
    for member in (1, 2):
        side.receive(member, messages.ROW, messages.dump(row(member)), 1.0)

    def present(now: float, *connected: int) -> list[int]:
        side.process(now, group.coordinator, lambda: dict.fromkeys(connected, Connection()))
        view = messages.load(GroupView, (run_dir / messages.FILE).read_bytes())
        return [one.rank for one in view.rows if one.present]

    later = time.monotonic() + 1000
    assert present(later, 2) == [1, 2]
    group.gone(1)
    assert present(later + 10, 2) == [2]


def test_a_rank_that_is_slow_against_the_ranks_of_all_members_is_marked(run_dir: Path) -> None:
    lines = RecordedLines()
    side = CoordinatorSide(address(0), lines, lambda rank, kind, content: True)
    known = membership.new_coordinator(0.0, membership.GroupShape(3), 60.0, 10.0)

    def marked(now: float, *times: float) -> list[tuple[int, int, float, float]]:
        for member, seconds in enumerate(times, 1):
            paces = (messages.RankPace(7, seconds, "d"), messages.RankPace(8, 1.0))
            side.receive(member, messages.ROW, messages.dump(row(member, paces=paces)), now)
        side.process(now + 2, known, lambda: {1: Connection(), 2: Connection()})
        view = messages.load(GroupView, (run_dir / messages.FILE).read_bytes())
        assert not any(one.paces for one in view.rows)
        return [(one.rank, slow.rank, slow.usual, slow.since) for one in view.rows for slow in one.slow]

    later = time.monotonic() + 1000
    assert marked(later, 1.0, 1.4) == []
    assert marked(later + 10, 1.0, 1.6) == [(2, 7, 1.0, 0.0)]
    assert marked(later + 20, 1.0, 1.6) == [(2, 7, 1.0, 10.0)]
    assert lines.sent == []
    marked(later + 71, 1.0, 1.6)
    assert lines.sent == [Straggler(7, 1.6, 1.0, 61.0, 2, "node-2", "d")]
    assert marked(later + 80, 1.0, 1.0) == []


class Others:
    """A view of members at work, of which each answers as `own` says it."""

    def __init__(self, own: dict[int, OwnMember]) -> None:
        self.own, self.asked = own, list[int]()
        self.at_work: list[int] = []

    def ask(self, request: FileRequest, answer: Callable[[FilePart], None], now: float) -> None:
        self.asked.append(request.member)
        self.own[request.member].answer(request, answer, now)


def test_a_spare_asks_the_members_at_work_until_one_knows_what_to_import(run_dir: Path) -> None:
    lines, others = RecordedLines(), Others({rank: OwnMember(address(rank), RecordedLines()) for rank in range(3)})
    seeker = ImportsSeeker(lines, others)
    seeker.process(1.0)
    seeker.begin(1.0)
    seeker.process(1.0)
    assert others.asked == []  # nobody works
    others.at_work = [0, 2]
    for _ in range(3):
        seeker.process(seeker.due)
    assert (others.asked, lines.sent) == ([0, 2, 0], [])
    imports = {"modules": ["m" * messages.PART], "command": ["train"]}
    (run_dir / "state.json").write_text(json.dumps({"schema": 1, "imports": imports}))
    for _ in range(2):
        seeker.process(seeker.due)
    assert others.asked == [0, 2, 0, 2, 2]  # the rest comes from the same member
    (found,) = lines.sent
    assert isinstance(found, FoundImports)
    assert (json.loads(found.content), seeker.due) == (imports, math.inf)


def test_a_rank_that_does_not_run_is_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "events.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    stacks, answers = PresentStacks(), list[FilePart]()

    def answered() -> bool:
        stacks.process(0.0)
        return bool(answers)

    stacks.ask(FileRequest("a", 1, "present stacks", rank=5), answers.append, 0.0)
    wait_for(answered, "the answer")
    assert (answers[0].ok, answers[0].why) == (False, f"{tmp_path}: no rank 5 runs")
