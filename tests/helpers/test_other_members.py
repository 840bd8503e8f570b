"""What a member says about its waits, from its evidence helper through the messengers to rank 0, and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.group.waits import BlockedProcess, OutsideLink, Waits
from ftrun.helpers.evidence.other_members import OtherMembers, as_message
from ftrun.helpers.messenger import group_waits
from ftrun.helpers.messenger.group_waits import CoordinatorWaits, MemberWaits
from ftrun.messages import group_waits as messages
from ftrun.messages.codec import Malformed
from ftrun.messages.group_waits import LookMembership
from ftrun.messages.peers import MemberAddress
from support.recorded_lines import RecordedLines
from waitproof import group_waits as seen_here
from waitproof.group_waits import GroupWaits
from waitproof.proof import Facts, Proof

ENDS = "10.0.0.1:5", "10.0.0.2:6"


class Peer:
    def __init__(self, id: bytes) -> None:
        self.id = id


def seen(member: int, fingerprint: str = "print") -> Proof:
    """What a look at this member has found: only the other one may end the wait of its rank."""
    text = ("waits in all_reduce at train.py:9", "all_reduce") if member == 0 else ("waits for a lock at a.py:3", "")
    process = seen_here.Blocked(100 + member, member, *text, links=(0,))
    link = seen_here.Link(ENDS[member], ENDS[1 - member], (0,), 7, True)
    waits = GroupWaits(f"{fingerprint}-{member}", (process,), (link,))
    return Proof("it waits", f"rank {member} waits", group=waits, in_group=True)


class Pair:
    """Two members, each with a run dir; `pass_on` is what their messengers do in a second."""

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / "0", folder / "1"]
        for one in self.folders:
            one.mkdir()
        self.lines = RecordedLines()
        self.to_zero: list[bytes] = []
        self.to_one: list[bytes] = []
        self.now, self.epoch = 100.0, 3
        addresses = [MemberAddress(2, n, "127.0.0.1:9", None, 60, 10, 60, "", "l", f"node-{n}", "b") for n in (0, 1)]

        def send_to_zero(kind: bytes, content: bytes) -> bool:
            self.to_zero.append(content)
            return True

        def send_to_one(rank: int, kind: bytes, content: bytes) -> bool:
            self.to_one.append(content)
            return True

        self.zero = CoordinatorWaits(addresses[0], self.lines, send_to_one)
        self.one = MemberWaits(addresses[1], self.lines, send_to_zero)

    def pass_on(self) -> None:
        self.now += 2 * group_waits.PERIOD
        os.chdir(self.folders[1])
        self.one.process(self.now)
        os.chdir(self.folders[0])
        for content in self.to_zero:
            self.zero.receive(1, "node-b", content)
        self.zero.process(self.now, self.epoch, lambda: {1: Peer(b"id")})
        os.chdir(self.folders[1])
        for content in self.to_one:
            self.one.receive(content)
        self.to_zero.clear()
        self.to_one.clear()

    def look(self, member: int, found: Proof) -> tuple[Proof, bool]:
        """What the next look of this member answers, while the messengers work."""
        others = OtherMembers(LookMembership(str(self.folders[member]), member, 2, self.epoch))
        return others.ask(found, Facts(1, {100 + member: member}, (100 + member,)), lambda _: self.pass_on())


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ftrun.helpers.evidence.other_members.ANSWER", 0.05)
    return Pair(tmp_path)


def test_two_looks_of_each_member_prove_a_deadlock_at_the_member_of_its_cause(two: Pair) -> None:
    two.pass_on()
    assert two.look(0, seen(0)) == (two.look(0, seen(0))[0], False)  # the other one has not answered
    found, again = two.look(1, seen(1))
    assert found.open_reason is not None
    assert again
    assert two.look(0, seen(0))[1]
    found, _ = two.look(1, seen(1))
    assert found.open_reason is None
    assert (found.rank, found.pid) == (1, 101)
    assert "rank 1 on node-b waits for a lock at a.py:3, and rank 0 on node-0 waits in all_reduce" in found.mechanism
    other, _ = two.look(0, seen(0))
    assert other.open_reason == f"{found.mechanism}, which member 1 ends"
    assert two.lines.problems == []


def test_a_member_that_works_is_named_as_the_reason_why_another_one_may_go_on(two: Pair) -> None:
    two.pass_on()
    two.look(0, Proof("rank 0 is running", "rank 0 is running"))
    two.pass_on()
    found, again = two.look(1, seen(1))
    assert (found.open_reason, again) == ("rank 1 waits, and of member 0: rank 0 is running", False)


def test_without_messengers_nothing_is_proved(two: Pair) -> None:
    others = OtherMembers(LookMembership(str(two.folders[1]), 1, 2, 3))
    found, again = others.ask(seen(1), Facts(1), lambda _: None)
    assert (found.open_reason is None, again) == (False, False)


def test_what_is_sent_is_bounded_and_what_is_left_out_is_open() -> None:
    many = tuple(OutsideLink(f"10.0.0.1:{n}", f"10.0.0.2:{n}", (0,), 7, True) for n in range(9000))
    content = messages.dump_waits(Waits(1, 3, "x:1", "print", (BlockedProcess(1, 0),), many), 2)
    assert len(content) <= messages.LIMIT
    found = messages.load_waits(content, 1, 2)
    assert (found.processes, found.links) == ((), ())
    assert "too many" in found.why
    assert 1000 * messages.share(1000) <= messages.TOGETHER
    assert len(messages.dump_waits(Waits(1, 3, "x:1", why="w" * 9999), 1 << 20)) <= messages.LEAST


@pytest.mark.parametrize(
    "changed",
    [
        {"member": 2},
        {"wave": "w" * 65},
        {"links": ()},
        {"processes": (BlockedProcess(1, needs=(1,)),)},
        {"processes": ()},
    ],
    ids=["of another member", "a long word", "no such link", "no such process", "no such holder"],
)
def test_inconsistent_waits_are_refused(changed: dict[str, Any]) -> None:
    waits = seen(1).group
    assert waits is not None
    good = as_message(waits, 1)
    assert messages.load_waits(messages.dump(good), 1, 2) == good
    with pytest.raises(Malformed):
        messages.load_waits(messages.dump(good._replace(**changed)), 1, 2)


def test_a_damaged_file_is_a_problem_and_nothing_else(two: Pair) -> None:
    (two.folders[1] / messages.OWN_FILE).write_bytes(b"{")
    (two.folders[1] / messages.ANSWER_FILE).write_bytes(b"\xff")
    two.pass_on()
    assert len(two.lines.problems) == 1
    assert two.to_zero == []
    assert OtherMembers(LookMembership(str(two.folders[1]), 1, 2, 3)).apply(seen(1), Facts(1)).open_reason is not None


def test_the_values_of_the_proof_are_those_that_are_sent() -> None:
    """They are converted by the names of their fields."""
    assert (seen_here.Blocked._fields, seen_here.Link._fields) == (BlockedProcess._fields, OutsideLink._fields)
