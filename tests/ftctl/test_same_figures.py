"""All views show the same lost time and goodput."""

import pytest

from ftctl.page.feed import payload
from ftctl.timeline import html, timeline
from ftctl.verbs.timeline import document as timeline_document
from ftrun.helpers.metrics import catalogue
from ftrun.records.past import history
from ftrun.records.present import run_snapshot, summary
from support.runs import Runs, python
from support.runs import runs as runs

# Three ranks with different step times; in the first start one of them hangs.  They report checkpoints, or the next
# start begins at an earlier step.
RANK = """
import os, time
rank, first, saves = int(os.environ["RANK"]), ft.attempt().start_cnt == 1, sys.argv[1] == "saves"
for step in range(1 if first else 6, 16):
    ft.beat(step)
    if saves and step % 5 == 0 and rank == 0:
        ft.checkpoint(step)
    time.sleep(0.02 * (1 + rank))
    if first and rank == 1 and step == 8:
        time.sleep(3600)
"""
RANKS = """
import os, subprocess
ranks = [subprocess.Popen(sys.argv[1:], env=os.environ | {"RANK": str(rank)}) for rank in range(3)]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.parametrize("kind", ["saves", "steps"])
def test_all_views_show_the_same_figures_for_several_ranks(runs: Runs, kind: str) -> None:
    run = runs.ends(0, "--hang-timeout", "1s", "--grace", "off", *python(RANKS, *python(RANK, kind)))
    run_dir = str(run.run_dir)
    account, shown, drawn = run.state["account"], run_snapshot.read_snapshot(run_dir), history.read(run_dir)
    assert account["lost"]["hang"] > 0.9
    assert shown.goodput is not None
    lost = {why: seconds for why, seconds in account["lost"].items() if seconds}

    status = summary.document(shown)
    assert (status["goodput"], status["lost"]) == (shown.goodput, pytest.approx(lost))
    page = payload(shown, [])
    assert (page["goodput"], page["lost"]) == (status["goodput"], status["lost"])
    document = timeline_document(drawn)
    assert (document["goodput"], document["totals"]) == (status["goodput"], pytest.approx(status["lost"]))
    for why, seconds in account["lost"].items():
        assert drawn.drawn_totals[why] == pytest.approx(seconds, abs=1.0), why
    metrics = {(reading.name, *reading.labels): reading.value for reading in catalogue.readings(shown)}
    assert metrics["ftrun_goodput_ratio",] == shown.goodput
    assert metrics["ftrun_lost_seconds_total", "hang"] == status["lost"]["hang"]

    percent = f"goodput {100 * shown.goodput:.0f}%"
    assert percent in run.stderr
    assert percent in timeline.describe(drawn)
    assert percent in html.render(drawn)
    assert summary.goodput(shown).startswith(percent.removeprefix("goodput "))
