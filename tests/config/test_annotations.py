"""The annotations of the platform, as the downward API writes them: their effects, and invalid ones."""

import json
import re
from pathlib import Path

import pytest

from ftrun.config.annotations import Annotations, read

RETRY, UNCONDITIONAL = "fault-tolerance/job-retry-num", "fault-tolerance/job-unconditional-retry"
HANG, POD = "fault-tolerance/hang-retry", "fault-tolerance/pod-retry-num"
TIMES, STRATEGY = "fault-retry-times", "recover-strategy"
JOBSET = "jobset.sigs.k8s.io/restart-attempt"


def parse(**annotations: str) -> Annotations:
    return read("file", "\n".join(f"{key}={json.dumps(value)}" for key, value in annotations.items()))


EFFECTS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing": ({}, {}),
    "retries of the job": ({RETRY: "8"}, {"restart-on": "fault"}),
    "the minimum of retries": ({RETRY: "1"}, {"restart-on": "fault"}),
    "the maximum of retries": ({RETRY: "128"}, {"restart-on": "fault"}),
    "hangs too": ({RETRY: "8", HANG: "true"}, {"restart-on": "hang,fault", "after-limit": "fail"}),
    "no hangs": ({RETRY: "8", HANG: "false"}, {"restart-on": "fault"}),
    "unconditional": ({RETRY: "8", UNCONDITIONAL: "True"}, {"restart-on": "fault", "unconditional-retry": "on"}),
    "not unconditional": ({RETRY: "8", UNCONDITIONAL: "false"}, {"restart-on": "fault"}),
    "retries of the pod": ({RETRY: "8", POD: "3"}, {"restart-on": "fault", "replace-members": "on"}),
    "MindCluster's retries": ({TIMES: "3"}, {"unconditional-retry": "on"}),
    "no retries of MindCluster": ({TIMES: "0"}, {}),
    "in place": ({STRATEGY: "recover-in-place, retry"}, {"restart-on": "hang,fault,failure"}),
    "in place without hangs": ({STRATEGY: "recover-in-place", HANG: "false"}, {"restart-on": "fault,failure"}),
    "no hangs, without retries": ({HANG: "false"}, {"restart-on": "fault"}),
    "a sign": ({RETRY: "+3", TIMES: "+0"}, {"restart-on": "fault"}),
    "spaces": (
        {RETRY: " 3 ", HANG: " true", POD: "2\n"},
        {"restart-on": "hang,fault", "after-limit": "fail", "replace-members": "on"},
    ),
    "elsewhere": ({STRATEGY: "recover,exit"}, {}),
    "all annotations": (
        {RETRY: "8", HANG: "true", UNCONDITIONAL: "true", POD: "3", STRATEGY: "recover-in-place"},
        {
            "restart-on": "hang,fault,failure",
            "after-limit": "fail",
            "unconditional-retry": "on",
            "replace-members": "on",
        },
    ),
}


@pytest.mark.parametrize("case", EFFECTS.values(), ids=EFFECTS.keys())
def test_an_annotation_sets_its_options(case: tuple[dict[str, str], dict[str, str]]) -> None:
    given, options = case
    found = parse(**given)
    assert dict(found.texts) == options
    assert found.problems == ()
    assert dict(found.relayed) == {key: given[key] for key in (RETRY, POD, TIMES, STRATEGY) if key in given}


WRONG = [
    *[(RETRY, text) for text in ("abc", "0", "129", "-1", "3.5", "", "1e2", "²", "٣", "9" * 5000, "++3", "+ 3", "+")],
    *[(key, text) for key in (HANG, UNCONDITIONAL) for text in ("maybe", "1", "")],
    *[(POD, text) for text in ("-1", "many")],
    (TIMES, "often"),
    *[(STRATEGY, text) for text in ("", " , ", "recover-in-place,magic")],
    *[(JOBSET, text) for text in ("", "none", "-1")],
]


@pytest.mark.parametrize(("key", "text"), WRONG, ids=range(len(WRONG)))
def test_an_invalid_value_is_a_problem_and_ignored(key: str, text: str) -> None:
    found = parse(**{key: text})
    (problem,) = found.problems
    assert problem.startswith(f"{key} is ")
    assert "the annotation is ignored" in problem
    assert found == Annotations("file", problems=found.problems)


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_a_problem_is_one_short_printable_line(size: int) -> None:
    found = read("file", f'{HANG}="{"x" * size}"\n{"y" * size}\n{RETRY}="a\\nb\\u001b"')
    assert len(found.problems) == 3
    assert all(len(problem) < 400 and problem.isprintable() for problem in found.problems)


@pytest.mark.parametrize("retries", [{}, {RETRY: "129"}, {RETRY: "three"}])
def test_what_needs_job_retries_has_no_effect_without_them_and_the_defaults_hold(retries: dict[str, str]) -> None:
    """By default a fault is recovered in place, and so is a hang."""
    found = parse(**retries, **{HANG: "true", POD: "3"})
    assert (found.texts, found.only_report_hangs) == ((), False)
    without = f"{HANG} and {POD} have no effect without a valid {RETRY}; the defaults of ftrun hold"
    assert found.problems[-1] == without
    assert len(found.problems) == 1 + len(retries)


QUOTED = {
    f'{RETRY}="8"\n': "8",
    f"{RETRY}=8": "8",
    f'  {RETRY}="8"\r\n': "8",
    f'{RETRY}="3"\n{RETRY}="8"': "8",
    f'other="a\\"b\\nc=d"\n{RETRY}="8"': "8",
    f'# a comment\n\nother="\\x00\\a\\U0001f600"\n{RETRY}="8"\nempty=""': "8",
    f'{RETRY}="\\u0038"': "8",
}


@pytest.mark.parametrize("content", QUOTED)
def test_a_value_is_quoted_as_in_go_or_not_at_all(content: str) -> None:
    found = read("file", content)
    assert dict(found.relayed) == {RETRY: QUOTED[content]}
    assert found.problems == ()


SOURCES = Path(__file__).resolve().parents[3] / "shared" / "seeds"
JOB = {"kind": "job", "metadata": {"annotations": {RETRY: "8", UNCONDITIONAL: "true", HANG: "true", POD: "3"}}}


def test_the_json_of_the_sources() -> None:
    """As ModelArts creates a job; numbers and booleans may be unquoted."""
    found = read("file", json.dumps(JOB, indent=4))
    assert (found.problems, found.only_report_hangs) == ((), False)
    assert dict(found.texts) == {
        "restart-on": "hang,fault",
        "after-limit": "fail",
        "unconditional-retry": "on",
        "replace-members": "on",
    }
    assert dict(found.relayed) == {RETRY: "8", POD: "3"}
    unquoted = {"metadata": {"labels": {TIMES: 3}, "annotations": {RETRY: 8, HANG: True}}}
    found = read("file", json.dumps(unquoted))
    assert (found.problems, dict(found.relayed)) == ((), {RETRY: "8", TIMES: "3"})
    assert dict(found.texts) == {"restart-on": "hang,fault", "after-limit": "fail", "unconditional-retry": "on"}
    assert read("file", json.dumps(JOB["metadata"])).texts == read("file", json.dumps(JOB)).texts
    assert dict(read("file", json.dumps({RETRY: "8"})).texts) == {"restart-on": "fault"}


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources are not here")
def test_every_json_in_the_sources_is_read() -> None:
    texts = [file.read_text() for file in sorted(SOURCES.iterdir())]
    jobs = [text[m.start() :] for text in texts for m in re.finditer(r'\{\s*"kind"', text)]
    found = [text[: json.JSONDecoder().raw_decode(text)[1]] for text in jobs]
    assert len(found) == 3
    for text in found:
        job = read("file", text)
        assert job.problems == ()
        assert dict(job.relayed)[RETRY] in ("3", "8")


NO_JOB = [
    "one\ntwo\nthree",
    "{",
    '{"kind": "job"}',
    '{"metadata": {}}',
    '{"metadata": 7}',
    '{"metadata": {"annotations": []}}',
    "{}{",
]


@pytest.mark.parametrize("content", NO_JOB)
def test_a_file_without_annotations_is_one_problem(content: str) -> None:
    found = read("file", content)
    assert len(found.problems) == 1
    assert found == Annotations("file", problems=found.problems)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({RETRY: "3"}, True), ({RETRY: "3", HANG: "false"}, True), ({RETRY: "3", HANG: "true"}, False), ({}, False)],
)
def test_without_hang_retry_a_hang_is_only_reported(given: dict[str, str], expected: bool) -> None:
    assert parse(**given).only_report_hangs is expected


def test_a_label_or_annotation_identifies_the_job() -> None:
    uid, group = "batch.kubernetes.io/controller-uid", "scheduling.k8s.io/group-name"
    assert parse(**{uid: "u", group: "train-4f"}).job == "train-4f"
    assert parse(**{uid: "u"}).job == "u"
    assert parse(**{RETRY: "3"}).job == ""


def test_unknown_keys_are_ignored() -> None:
    content = 'kubernetes.io/config.seen="2026-11-21T10:00:00Z"\nfault-tolerance/unheard-of="1"\n=\nx='
    assert read("file", content) == Annotations("file")


@pytest.mark.parametrize(
    ("given", "attempts"),
    [
        ({}, None),
        ({JOBSET: "0"}, 0),
        ({JOBSET: "2"}, 2),
        ({"volcano.sh/job-retry-count": "3"}, 3),
        ({JOBSET: "1", "volcano.sh/job-retry-count": "3"}, 1),
        ({JOBSET: "x", "volcano.sh/job-retry-count": "3"}, 3),
    ],
)
def test_the_restart_count_of_the_scheduler_is_read(given: dict[str, str], attempts: int | None) -> None:
    assert parse(**given).attempts == attempts
