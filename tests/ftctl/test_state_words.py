"""One state has one word everywhere: in the core, `ftctl`, the page, the metrics, and the readers of records."""

import re
from pathlib import Path

import pytest

from ftctl.page import feed
from ftctl.verbs.status import condition
from ftrun.core.group.losses import LossWait
from ftrun.core.machine.states import PHASES
from ftrun.core.machine.values import LocalRank, Rank, Section
from ftrun.core.text import states
from ftrun.helpers.metrics import catalogue
from ftrun.host import procfs
from ftrun.messages import group_view
from ftrun.messages.group_view import GroupView, MemberRow
from ftrun.records.present import group, own_ranks, summary
from ftrun.records.present.group import GroupNow
from ftrun.records.present.live_verdict import rank_now
from ftrun.records.present.snapshot import RankNow, Snapshot, StalledRank

ROOT = Path(__file__).resolve().parents[2]
RUN = Snapshot("/run", True, "running", 2, "hang", step=7)
METRICS = {metric.name: metric.help for metric in catalogue.METRICS}
DRAWN = (ROOT / "supervisor/ftctl/page/draw.js").read_text()


def test_the_phases_of_the_core_are_those_of_the_table() -> None:
    names = {phase.__name__.lower() for phase in PHASES}
    assert set(states.RUN) - {"cut off"} == names - {"pending"} | {"waiting", "spare", "finished"}


def test_the_page_knows_each_phase_and_takes_its_words_from_the_table() -> None:
    table = re.search(r"const PHASES = \{(.*?)\n\};", DRAWN, re.DOTALL)
    assert table is not None
    keys = re.findall(r'^  "?([a-z ]+)"?: \["', table[1], re.MULTILINE)
    assert set(keys) == set(states.RUN) - {"done"}  # a verdict is good or bad by its exit code
    assert "now.state" in DRAWN
    assert not [words for words in states.RUN.values() if words in DRAWN]


def test_metrics_have_the_same_words() -> None:
    assert METRICS["ftrun_phase"].endswith(f": {', '.join(states.RUN)}.")
    assert METRICS["ftrun_ranks"].endswith(f": {', '.join(states.RANKS)}.")


def test_ranks_have_no_other_state() -> None:
    ranks = [
        Rank(0, done=True),
        Rank(1, present=False),
        Rank(2, sections=(Section("eval", 1.0),)),
        Rank(3),
        Rank(4, moved_at=1.0),
    ]
    shown = [rank_now(rank, None, 2.0, None) for rank in ranks]
    shown += own_ranks.with_stall([rank_now(Rank(7, moved_at=1.0), None, 900.0, None)], StalledRank(7, 899.0))
    shown += own_ranks.with_processes((), [LocalRank(5, 5, 9, exited_at=1.0, code=1), LocalRank(6, 6, 10)], 1.0)
    assert {rank.state for rank in shown} == set(states.RANKS)
    assert set(feed.STATES) == set(states.RANKS)
    assert {name: words for name, words in summary.RANK_STATES.items() if name != states.QUIET} == states.RANKS


@pytest.mark.parametrize("state", states.RANKS)
def test_the_status_counts_each_state_of_a_rank_in_its_words(state: str) -> None:
    rank = RankNow(0, 1, state)
    assert f"ranks       1: 1 {states.RANKS[state]}" in summary.lines(RUN._replace(ranks=(rank,)))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            LossWait((2,), 1, 48.2, "go on", 2),
            "member 2 is lost; the group waits 48s more for it, then goes on with 2 of 3 members",
        ),
        (
            LossWait((2,), 1, 0.0, "end", code=195),
            "member 2 is lost; the group does not wait for it any more, and the job ends with 195",
        ),
        (
            LossWait((1, 2), 2, 20.0, "replace"),
            "members 1, 2 are lost; spares take their places in 20s, when it is certain that nothing of them runs any "
            "more",
        ),
        (
            LossWait((0, 1), 2, 20.0, "start"),
            "earlier ftruns of members 0, 1 may still be at work; all start in 20s, when their leases are over, or as "
            "soon as they are certainly dead",
        ),
        (
            LossWait(tuple(range(8)), 10, 9.0, "end", code=195),
            "members 0, 1, 2, 3, 4, 5, 6, 7 and 2 more are lost; the group waits 9s more for them, then the job ends "
            "with 195",
        ),
    ],
)
def test_the_wait_for_lost_members_is_one_sentence_everywhere(loss: LossWait, words: str) -> None:
    assert group.loss_sentence(loss, 3) == words
    found = GroupNow(3, 0, 1, "stop", "", (0, *loss.members), (), {}, None, loss)
    assert f"; waits for member 0; {words}" in group.headline(found) or 0 in loss.members
    assert group.document(found)["loss"] == {**loss._asdict(), "text": words}
    waiting = RUN._replace(phase="waiting")
    assert group.marked(waiting, found).next == f"{words[0].upper()}{words[1:]}."
    assert group.marked(waiting, found).deadline == loss.left
    assert group.marked(RUN, found).next == RUN.next  # its ranks work: nothing is due here
    assert group.marked(RUN, found).lost_members == loss.number


@pytest.mark.parametrize("rank", [0, 1])
def test_the_wait_for_lost_members_goes_on_between_two_views(tmp_path: Path, rank: int) -> None:
    shown = RUN._replace(run_dir=str(tmp_path), phase="waiting")
    view = GroupView(1, 3, rank, 100.0, 1, "stop", boot=procfs.boot_id(), loss=LossWait((2,), 1, 60.0, "go on", 2))
    (tmp_path / group_view.FILE).write_bytes(group_view.dump(view))
    for now, left in ((100.0, 60.0), (112.0, 48.0), (1000.0, 0.0)):
        found = group.read(shown, now)
        assert found is not None
        assert found.loss == LossWait((2,), 1, left, "go on", 2)
    (tmp_path / group_view.FILE).write_bytes(group_view.dump(view._replace(boot="another")))
    found = group.read(shown, 100.0)
    assert found is not None
    assert found.loss is None


def rows_of(*phases: str) -> tuple[MemberRow, ...]:
    return tuple(MemberRow(n, f"node-{n}", phase, f"{phase}, attempt 1", 1, 0.0) for n, phase in enumerate(phases))


AGES: dict[int, float | None] = {0: 1.0, 1: 1.0, 2: 1.0}
CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2} UTC"
FINE = GroupNow(3, 1, 1, "run", "", (), rows_of(*["running"] * 3), AGES, 1.0, lease=660.0)


@pytest.mark.parametrize(
    ("found", "phase", "words"),
    [
        (
            FINE._replace(contact=60.0),
            "running",
            rf"member 0 \(node-0\) is missing: no contact for 60s; it is waited for until {CLOCK}, 10m more, then the "
            r"job ends with 195; this member: running, attempt 2 after a hang",
        ),
        (
            FINE._replace(loss=LossWait((2,), 1, 48.0, "go on", 2)),
            "waiting",
            r"member 2 \(node-2\) is lost; the group waits 48s more for it, then goes on with 2 of 3 members, at "
            rf"{CLOCK}; this member: waiting, attempt 2 after a hang",
        ),
        (
            FINE._replace(ages=AGES | {2: 20.0}),
            "running",
            r"no contact with member 2 \(node-2\) for 20s; this member: .*",
        ),
        (FINE._replace(waits_for=(0, 1, 2)), "waiting", r"the next start waits for members 0, 2; this member: .*"),
        (
            FINE._replace(rows=rows_of("running", "running", "suspect")),
            "running",
            r"member 2 \(node-2\): suspect, attempt 1; this member: running, .*",
        ),
    ],
)
def test_the_first_line_is_that_of_the_whole_job(found: GroupNow, phase: str, words: str) -> None:
    shown = group.marked(RUN._replace(phase=phase), found)
    assert re.fullmatch(words, summary.headline(shown)), summary.headline(shown)
    assert not re.search(r"healthy|[0-9]s\b|UTC", summary.headline(shown, ages=False))
    assert condition(shown) == 3
    assert feed.payload(shown, [], found)["job"]["lost"] is (shown.lost_members != 0)
    assert group.marked(shown._replace(phase="running"), FINE).job is None


def test_a_member_that_waits_says_until_when_it_waits_for_rank_0() -> None:
    shown = group.marked(RUN._replace(phase="waiting"), FINE._replace(contact=60.0))
    assert (shown.deadline, shown.lost_members) == (600.0, 1)
    assert re.fullmatch(rf"Member 0 \(node-0\) is missing: .* until {CLOCK}, 10m more, .* with 195\.", shown.next or "")
