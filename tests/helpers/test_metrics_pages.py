"""The dashboard, the alerts and the page name metrics that exist, and are valid."""

import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftrun.helpers.metrics import catalogue
from support.runs import HOUSE

FOLDER = HOUSE / "docs" / "metrics"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
OTHERS = {"instance", "job", "run"}  # labels of Prometheus' own, and of the textfile
VARIABLES = {"$__rate_interval": "5m", "$__range": "6h", "$__interval": "1m", "$instance": ".*"}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DASHBOARD["panels"]
    return found


def of_dashboard() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["expr"]


def expressions() -> list[str]:
    return [*of_dashboard(), *(rule["expr"] for rule in RULES)]


def plain(expression: str) -> str:
    """As Prometheus gets it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def labels_of(expression: str) -> set[str]:
    """The labels that the metrics of this expression have."""
    names = re.findall(r"\bftrun_\w+", re.sub(r'"[^"]*"', "", expression))
    assert names, expression
    return {label for name in names for label in catalogue.BY_NAME[name].labels} | OTHERS


def test_an_expression_names_metrics_and_labels_that_exist() -> None:
    for expression in expressions():
        matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
        grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression)
        used = {*matched, *(name.strip() for names in grouped for name in names.split(","))}
        assert used <= labels_of(expression), expression
        assert not re.search(r"\$[_a-z]", plain(expression)), expression


def test_a_label_is_matched_by_a_value_that_it_can_have() -> None:
    values = {"phase": catalogue.PHASES, "reason": catalogue.REASONS, "why": catalogue.WHYS, "cause": catalogue.CAUSES}
    seen = 0
    for expression in expressions():
        for label, text in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"$]*)"', expression):
            if label in values:
                seen += 1
                assert set(text.split("|")) <= set(values[label]), expression
    assert seen >= 3


def test_a_legend_and_a_text_name_labels_that_exist() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"], panel["title"]
        for target in panel["targets"]:
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels_of(target["expr"]), panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"]["uid"] == "${datasource}"
    for rule in RULES:
        text = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels_of(rule["expr"]), rule["alert"]


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    return found


def check(*words: str | Path) -> str:
    done = subprocess.run([promtool(), *map(str, words)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": plain(e)} for n, e in enumerate(of_dashboard())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in check("check", "rules", file)


# The metrics of ten hours, a value a minute, by the alert that fires then.
SERIES = {
    "FtrunRestarted": {'ftrun_restarts_total{reason="hang",instance="a"}': "0x590 1x10"},
    "FtrunLastRestart": {
        'ftrun_restarts_left{cause="hang",instance="a"}': "3x590 0x10",
        'ftrun_restarts_in_a_row{cause="hang",instance="a"}': "0x590 3x10",
        'ftrun_restarts_left{cause="failure",instance="a"}': "0x600",  # not listed in --restart-on
        'ftrun_restarts_in_a_row{cause="failure",instance="a"}': "0x600",
    },
    "FtrunGoodputLow": {
        'ftrun_lost_seconds_total{why="hang",instance="a"}': "0+15x600",
        'ftrun_lost_seconds_total{why="redone",instance="a"}': "0+15x600",
        'ftrun_wall_seconds_total{instance="a"}': "0+60x600",
    },
    "FtrunCheckpointOld": {
        'ftrun_checkpoint_age_seconds{instance="a"}': "0+60x600",
        'ftrun_phase{phase="running",instance="a"}': "1x600",
    },
    # a: seen by one scrape of a server that has ended since; b: a good end; c: another run has begun since at the same
    # address; d: a good end of a run that has followed a bad one there.
    "FtrunEndedInTrouble": {
        'ftrun_start_time_seconds{instance="a"}': "60x597 stale",
        'ftrun_end_time_seconds{verdict="hang-limit",exit_code="195",instance="a"}': "_x597 35800 stale",
        'ftrun_start_time_seconds{instance="b"}': "60x597 stale",
        'ftrun_end_time_seconds{verdict="succeeded",exit_code="0",instance="b"}': "_x597 35800 stale",
        'ftrun_start_time_seconds{instance="c"}': "60x597 35900x3",
        'ftrun_end_time_seconds{verdict="hang-limit",exit_code="195",instance="c"}': "_x597 35800 stale",
        'ftrun_start_time_seconds{instance="d"}': "60x597 35850x2 stale",
        'ftrun_end_time_seconds{verdict="hang-limit",exit_code="195",instance="d"}': "_x596 35800 stale",
        'ftrun_end_time_seconds{verdict="succeeded",exit_code="0",instance="d"}': "_x598 35950 stale",
    },
    "FtrunGone": {
        'ftrun_up{instance="a"}': "1x590 0x10",
        'ftrun_up{instance="b"}': "1x590 0x10",
        'ftrun_verdict_info{verdict="succeeded",exit_code="0",instance="b"}': "_x590 1x10",
    },
    "FtrunNearHangLimit": {
        'ftrun_stalest_age_seconds{instance="a"}': "0x598 35x2",
        'ftrun_stalest_limit_seconds{instance="a"}': "38x600",
    },
    "FtrunHealingLong": {'ftrun_phase{phase="healing",instance="a"}': "0x580 1x20"},
    "FtrunSilent": {
        'ftrun_up{instance="a",run="train"}': "1x600",
        'node_textfile_mtime_seconds{instance="a",file="/textfile/train.prom"}': "0+60x590 35400x10",
        'ftrun_up{instance="b",run="other"}': "1x600",
        'node_textfile_mtime_seconds{instance="b",file="/textfile/other.prom"}': "0+60x600",
    },
    # a: the target is down, and the run before it there has ended well; b: it has ended well, as a scrape has seen
    "FtrunTargetLost": {
        'ftrun_up{instance="a"}': "1x575 0 1x14 stale",
        'ftrun_verdict_info{verdict="succeeded",exit_code="0",instance="a"}': "_x575 1 stale",
        'up{instance="a"}': "1x590 0x10",
        'ftrun_up{instance="b"}': "1x590 0 stale",
        'up{instance="b"}': "1x591 0x10",
        'ftrun_verdict_info{verdict="succeeded",exit_code="0",instance="b"}': "_x590 1 stale",
        'ftrun_up{instance="c"}': "1x600",
        'up{instance="c"}': "1x600",
    },
    "FtrunMemberLost": {'ftrun_lost_members{instance="a"}': "0x590 1x10", 'ftrun_lost_members{instance="b"}': "0x600"},
    "FtrunWaitingLong": {
        'ftrun_waiting_seconds{instance="a"}': "0x580 0+60x20",
        'ftrun_waiting_seconds{instance="b"}': "0x585 0+60x9 0x6",
    },
    "FtrunStalled": {'ftrun_stalled_seconds{instance="a"}': "0x580 700x20"},
    "FtrunStraggler": {'ftrun_stragglers{instance="a"}': "0x580 1x20"},
    "FtrunPausedLong": {'ftrun_paused{instance="a"}': "0x500 1x100"},
}


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert set(SERIES) == {rule["alert"] for rule in RULES}
    tests = []
    for alert, series in SERIES.items():
        tests.append(
            {
                "name": alert,
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname, instance, alertstate) (ALERTS{alertstate="firing"})',
                        "eval_time": "10h",
                        "exp_samples": [
                            {"labels": f'{{alertname="{alert}",alertstate="firing",instance="a"}}', "value": 1}
                        ],
                    },
                    {"expr": 'count(ALERTS{alertstate="firing"})', "eval_time": "5m", "exp_samples": []},
                ],
            }
        )
    file = tmp_path / "test.yml"
    content = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "5m", "tests": tests}
    file.write_text(yaml.safe_dump(content))
    check("test", "rules", file)


def test_the_page_has_the_current_table() -> None:
    made = runpy.run_path(str(FOLDER / "table.py"))
    page = (HOUSE / "docs" / "metrics.md").read_text()
    assert made["page"](page) == page, "run: python docs/metrics/table.py"


def test_the_page_explains_every_alert_and_no_other() -> None:
    page = (HOUSE / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| `(Ftrun\w+)` \|", page, re.MULTILINE) == [rule["alert"] for rule in RULES]
