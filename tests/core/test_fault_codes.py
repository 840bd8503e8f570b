"""What the codes of vendors mean, and the files that say so."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.accelerators.table import BY_NAME
from ftrun.core.rules.fault_codes import SEVERITIES, UNKNOWN, FaultEntry, look_up, normal, parse
from ftrun.helpers.probe import device

SHARED = Path(__file__).resolve().parents[3] / "shared" / "faults"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared facts are not here")
LEVELS = {
    "NotHandleFault": "warning",
    "SubHealthFault": "warning",
    "RestartRequest": "minor",
    "RestartBusiness": "minor",
    "FreeRestartNPU": "minor",
    "RestartNPU": "major",
    "PreSeparateNPU": "critical",
    "SeparateNPU": "critical",
}
IMMEDIATE = {
    "IGNORE": "warning",
    "RESTART_APP": "minor",
    "RESET_GPU": "major",
    "RESTART_BM": "critical",
    "RESTART_VM": "critical",
    "CHECK_MECHANICALS": "critical",
}
BY_THE_PROGRAM = {"CHECK_APP/CUDA", "INVESTIGATE_SW", "WORKFLOW_XID_13", "WORKFLOW_XID_31"}
WORKFLOWS = {45: "warning", 48: "major", 74: "major", 154: "warning"}


def load(name: str) -> Any:
    return json.loads((SHARED / name).read_text(encoding="utf-8"))


# The format


def test_a_table_is_parsed() -> None:
    text = "# of a site\n0x80c98002 user  wrong   input # and why\n\n079 critical\nrecovery:reset major\n"
    assert parse(text) == {
        "80C98002": FaultEntry("user", "wrong input"),
        "79": FaultEntry("critical", ""),
        "recovery:reset": FaultEntry("major", ""),
    }


def test_a_class_of_faults_that_a_retry_may_cure_is_parsed() -> None:
    assert parse("79 minor retry:memory  a page\n80 warning retry:network\n81 warning not retry:network") == {
        "79": FaultEntry("minor", "a page", "memory"),
        "80": FaultEntry("warning", "", "network"),
        "81": FaultEntry("warning", "not retry:network"),
    }


def test_what_mindcluster_retries_is_retried() -> None:
    """Its constants UceFaultCode and HcclRetryFaultCode, and the seeds' fault of a link."""
    table = device.built_in_table("ascend")
    assert (look_up(table, "0x80E01801").retry, look_up(table, "80E01801").severity) == ("memory", "minor")
    assert [look_up(table, code).retry for code in ("8C1F860B", "81078603")] == ["network", "network"]
    retried = [entry for name in BY_NAME for entry in device.built_in_table(name).values() if entry.retry]
    assert {entry.severity for entry in retried} <= {"warning", "minor"}, "what needs a reset is cured by no retry"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("79 critical\n80 grave x", "line 2: 'grave' is not one of warning, user,"),
        ("79", "line 1: '' is not one"),
        ("\n79 major\n79 major again\n079 minor", "line 4: 79 is already listed as major"),
        ("79\x00critical", "line 1"),
        ("79 minor retry:soon x", "line 1: 'retry:soon' is not one of retry:memory, retry:network"),
    ],
)
def test_a_malformed_line_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("0x80c98002", "80C98002"),
        ("[0x80C98002]", "80C98002"),
        (" 80C98002 ", "80C98002"),
        ("[ 0x0000001d ]", "0000001D"),
        ("079", "79"),
        ("79", "79"),
        ("000", "0"),
        ("recovery:reset", "recovery:reset"),
        ("lost", "lost"),
        ("", ""),
        ("0x", "0x"),
        ("²", "²"),
    ],
)
def test_codes_have_one_normal_form(code: str, expected: str) -> None:
    assert normal(code) == expected


def test_severities_have_the_names_of_modelarts_and_one_synonym() -> None:
    text = "1 warning\n2 minor\n3 major\n4 critical\n5 ignore\n6 minor+user"
    assert [entry.severity for entry in parse(text).values()] == [
        *("warning", "minor", "major", "critical", "warning", "minor+user")
    ]


def test_a_code_is_found_in_any_form_and_others_are_unknown() -> None:
    table = parse("80C98002 user x")
    assert look_up(table, "[0x80c98002]") == FaultEntry("user", "x")
    assert look_up(table, "80C98003") == UNKNOWN == FaultEntry("unknown", "not in the table")


@given(code=st.text(alphabet="0123456789aAfFxX[] :z²٣") | st.text())
def test_a_normal_form_is_stable(code: str) -> None:
    assert normal(normal(code)) == normal(code)
    assert normal(f" [{code}] ") == normal(code)


# Our tables


@pytest.mark.parametrize("vendor", ["ascend", "nvidia"])
def test_every_line_is_an_entry_with_a_reason(vendor: str) -> None:
    lines = Path(BY_NAME[vendor].faults).read_text(encoding="utf-8").splitlines()
    table = device.built_in_table(vendor)
    assert all(entry.why for entry in table.values())
    assert len(table) == sum(not line.startswith("#") and line != "" for line in lines)
    assert "Source:" in "".join(lines[:4])
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("vendor", "code", "severity"),
    [
        ("ascend", "80C98002", "minor+user"),
        ("ascend", "80C98003", "minor"),  # User/Hardware
        ("ascend", "A2301001", "minor"),  # the milder of two levels
        ("ascend", "80E18402", "critical"),
        ("nvidia", "13", "user"),
        ("nvidia", "45", "warning"),
        ("nvidia", "48", "major"),
        ("nvidia", "79", "critical"),
        ("nvidia", "94", "minor"),
        ("nvidia", "145", "unknown"),
        ("nvidia", "recovery:none", "warning"),
        ("nvidia", "recovery:reboot", "critical"),
        ("nvidia", "recovery:drain_reset", "major"),
        ("nvidia", "recovery:9", "unknown"),
        ("nvidia", "lost", "critical"),
    ],
)
def test_known_codes_have_these_severities(vendor: str, code: str, severity: str) -> None:
    assert look_up(device.built_in_table(vendor), code).severity == severity


@shared
def test_every_ascend_code_has_the_severity_of_its_level() -> None:
    table = dict(device.built_in_table("ascend"))
    causes = load("ascend-codes-joined.json")
    levels: dict[str, set[str]] = {}
    for name, codes in load("faultCode.json").items():
        for code in codes:
            levels.setdefault(code, set()).add(name.removesuffix("Codes"))
    for code, names in levels.items():
        expected = min((LEVELS[name] for name in names), key=SEVERITIES.index)
        if causes.get(code, {}).get("class") == "User":
            expected += "+user"
        assert table.pop(code).severity == expected, code
    for code, cause in causes.items():
        assert set(cause["level"]) == levels.get(code, set())
        if code not in levels and cause["component"] == "NPU":  # no chip reports those of servers and BMCs
            assert table.pop(code).severity == "unknown"
    assert table == {}


@shared
def test_no_sentence_is_copied_from_the_sources() -> None:
    theirs = {cause["cause_en"].lower() for cause in load("ascend-codes-joined.json").values()}
    assert not theirs & {entry.why.lower() for entry in device.built_in_table("ascend").values()}


@shared
def test_every_xid_has_the_severity_of_its_action() -> None:
    table = {code: entry for code, entry in device.built_in_table("nvidia").items() if code.isdigit()}
    for xid in load("nvidia-xid-catalog.json")["entries"]:
        expected = WORKFLOWS.get(xid["code"], IMMEDIATE.get(xid["immediate"], "unknown"))
        if xid["immediate"] == "RESTART_APP" and xid["investigatory"] in BY_THE_PROGRAM:
            expected = "user"
        if expected == "unknown" and xid["description"] == "Unused":
            assert str(xid["code"]) not in table
        else:
            assert table.pop(str(xid["code"])).severity == expected, xid
    assert table == {}
