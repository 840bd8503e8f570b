"""The whole group from any member, by way of encrypted messages between hosts, also when member 0 is gone.

In the gate tests/cli/test_group_orders.py has the status and the report of a group."""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from support.hosts import Container, Hosts
from support.runs import HOUSE, wait_for

CODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
import ftrun_hooks as ft
for step in range(1_000_000):
    ft.beat(step)
    time.sleep(3600 if sys.argv[2] == "1" and step == 20 and ft.attempt().start_cnt == 1 else 0.02)
"""


def view(container: Container) -> dict[str, Any]:
    """The group as that member shows it; empty before there is a view."""
    done = container.ftctl("status", "--all", "--json")
    return (json.loads(done.stdout)["group"] if done.returncode == 0 else None) or {}


def headed(container: Container, words: str) -> bool:
    """Whether the first sentence of its status matches."""
    return re.search(words, " ".join(container.ftctl("status").stdout.split())) is not None


def rows(container: Container) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in view(container).get("members", ())}


@pytest.mark.slow
def test_each_member_shows_all_and_reads_the_report_of_another(hosts: Callable[[int], Hosts]) -> None:
    here = hosts(3)
    options = ("--hang-timeout", "5s", "--grace", "1s", "--peer-timeout", "60s")
    members = [
        here.start(
            rank,
            *here.group(rank, 3, wait="60s"),
            *options,
            *("--state-dir", str(here.folder / "state")),
            *("--node-name", f"node-{rank}", "--", sys.executable, "-c", CODE, str(HOUSE / "hooks"), str(rank)),
        )
        for rank in range(3)
    ]

    def second_attempts(member: Container) -> bool:
        """Also that rank 0 waits for nobody any more: the rows and its order come in messages of their own."""
        group, found = view(member), rows(member)
        steps = [row["attempt"] == 2 and (row["step"] or 0) > 0 for row in found.values()]
        return len(steps) == 3 and all(steps) and found[1]["report"] == 1 and group["waits_for"] == []

    for member in members:
        wait_for(partial(second_attempts, member), "the second attempt of all members")
        found = view(member)
        assert (found["size"], found["seen_from"]) == (3, member.rank)
        by_rank = rows(member)
        assert [by_rank[rank]["node"] for rank in range(3)] == ["node-0", "node-1", "node-2"]
        assert by_rank[1]["trouble"].startswith("hang in attempt 1: rank")
        assert by_rank[2]["trouble"] is None

    for reader in members:
        report = reader.ftctl("report", "--member", "1")
        assert report.returncode == 0, report
        assert report.stdout == members[1].ftctl("report").stdout
    stacks = members[2].ftctl("stacks", "--member", "1", "--last-report")
    assert "<string>:7 <module>" in stacks.stdout, stacks
    own = members[1].ftctl("report").stdout
    for reader in (members[0], members[2]):
        head, _, rest = reader.ftctl("report").stdout.partition("\n\n")
        assert " ".join(head.split()).startswith("hang on member 1 (node-1): member 1 (node-1): rank"), head
        assert rest == own
        assert re.search(r"incident +.*hang in attempt 1: member 1", reader.ftctl("status").stdout)
    now = members[2].ftctl("stacks", "--member", "0")
    assert now.returncode == 0, now
    assert now.stdout.startswith("as of 20")
    assert "rank 0:\n    <string>:7 <module>" in now.stdout, now
    nobody = members[0].ftctl("stacks", "--member", "2", "--rank", "5")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "no rank 5 runs; these do: 2" in nobody.stderr, nobody
    none = members[1].ftctl("report", "--member", "2")
    assert (none.returncode, none.stdout) == (1, "")
    assert "no report was written by member 2" in none.stderr

    members[0].kill()
    wait_for(lambda: rows(members[2])[0]["gone"], "member 2 to miss member 0")
    found = view(members[2])
    assert found["contact"] > 0
    assert len(found["members"]) == 3
    assert rows(members[2])[1]["trouble"].startswith("hang in attempt 1: rank")
    missed = "no contact with member 0 for "
    wait_for(lambda: missed in members[2].ftctl("status", "--all").stdout, "the line about it")
    text = members[2].ftctl("status", "--all")
    for member in members[1:]:
        words = r"^member 0 \(node-0\) is missing: no contact for .*; it is waited for until \S+ UTC, .* with 195;"
        wait_for(partial(headed, member, words), "who is missing, and until when it is waited for")
    assert members[1].ftctl("status", "--exit-code").returncode == 3
    assert "last heard of" in text.stdout
    wait_for(lambda: members[2].ftctl("report", "--member", "1").returncode == 0, "the copy in the state dir")
    assert members[2].ftctl("report", "--member", "1").stdout == members[1].ftctl("report").stdout
    lost = members[2].ftctl("report", "--member", "0")
    assert (lost.returncode, lost.stdout) == (1, "")
    assert "rank 0" in lost.stderr
