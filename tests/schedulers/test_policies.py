"""The functions that judge the manifests agree with the tables that the controllers test themselves with.

The cases are restated from TestMatchPodFailurePolicy of Kubernetes (pkg/controller/job/pod_failure_policy_test.go),
from the documentation and failure_policy.go of JobSet, and from applyPolicies of Volcano."""

from typing import Any

import pytest

from schedulers.k8s.policies import JOB_FAILED, Matched, jobset_failure, pod_failure, volcano_failure

Rules = list[dict[str, Any]]
EXIT = "Container main for pod jobs/train-0-x failed with exit code {} matching FailJob rule at index {}"
CONDITION = "Pod jobs/train-0-x has condition DisruptionTarget matching FailJob rule at index 0"


def on(action: str, *values: int, operator: str = "In", **more: str) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values)} | more}


def when(action: str, status: str = "True", kind: str = "DisruptionTarget") -> dict[str, Any]:
    return {"action": action, "onPodConditions": [{"type": kind, "status": status}]}


@pytest.mark.parametrize(
    ("rules", "codes", "conditions", "wanted"),
    [
        pytest.param([], {"main": 2}, {}, None, id="no rules"),
        pytest.param(
            [on("Strange", 1, 2), on("FailJob", 2, 3)],
            {"main": 2},
            {},
            Matched("FailJob", EXIT.format(2, 1)),
            id="unknown action",
        ),
        pytest.param(
            [when("Strange"), when("Ignore")],
            {},
            {"DisruptionTarget": "True"},
            Matched("Ignore"),
            id="unknown action for a condition",
        ),
        pytest.param(
            [on("Ignore", 1, 2, operator="Strange"), on("FailJob", 2, 3)],
            {"main": 2},
            {},
            Matched("FailJob", EXIT.format(2, 1)),
            id="unknown operator",
        ),
        pytest.param([on("Ignore", 1, 2, 3)], {"main": 2}, {}, Matched("Ignore"), id="ignore"),
        pytest.param([on("FailJob", 1, 2, 3)], {"main": 2}, {}, Matched("FailJob", EXIT.format(2, 0)), id="fail"),
        pytest.param([on("FailIndex", 1, 2, 3)], {"main": 2}, {}, Matched("FailIndex"), id="fail the index"),
        pytest.param(
            [on("FailJob", 111, operator="NotIn")],
            {"init": 0, "main": 111, "support": 0},
            {},
            None,
            id="a container that ended well matches no rule",
        ),
        pytest.param(
            [on("FailJob", 0, operator="NotIn")],
            {"main": 1, "support": 0},
            {},
            Matched("FailJob", EXIT.format(1, 0)),
            id="not zero",
        ),
        pytest.param(
            [on("Count", 1, 2, 3), on("FailJob", 4, 5, 6)],
            {"main": 6},
            {},
            Matched("FailJob", EXIT.format(6, 1)),
            id="the second rule",
        ),
        pytest.param([on("Count", 1, 2, 3)], {"bar": 2}, {}, Matched("Count"), id="count"),
        pytest.param([on("Count", 2), on("FailJob", 2)], {"main": 2}, {}, Matched("Count"), id="the first rule wins"),
        pytest.param(
            [on("FailJob", 2, containerName="other")], {"main": 2, "other": 0}, {}, None, id="of another container"
        ),
        pytest.param(
            [when("FailIndex")], {}, {"DisruptionTarget": "True"}, Matched("FailIndex"), id="index, condition"
        ),
        pytest.param(
            [when("FailJob")], {"main": 2}, {"DisruptionTarget": "True"}, Matched("FailJob", CONDITION), id="condition"
        ),
        pytest.param([when("Ignore", "False")], {}, {"DisruptionTarget": "False"}, Matched("Ignore"), id="false"),
        pytest.param([when("Ignore", "False")], {}, {"DisruptionTarget": "True"}, None, id="another status"),
        pytest.param([when("Ignore")], {}, {"Ready": "True"}, None, id="another condition"),
    ],
)
def test_pod_failure_policies_of_kubernetes(
    rules: Rules, codes: dict[str, int], conditions: dict[str, str], wanted: Matched | None
) -> None:
    assert pod_failure(rules, codes, conditions) == wanted


@pytest.mark.parametrize(
    ("rules", "reason", "wanted"),
    [
        pytest.param([], JOB_FAILED, "RestartJobSet", id="no rules"),
        pytest.param([{"action": "FailJobSet"}], JOB_FAILED, "FailJobSet", id="any reason"),
        pytest.param(
            [{"action": "FailJobSet", "onJobFailureReasons": ["BackoffLimitExceeded"]}],
            JOB_FAILED,
            "RestartJobSet",
            id="another reason",
        ),
        pytest.param(
            [{"action": "FailJobSet", "onJobFailureReasons": [JOB_FAILED, "DeadlineExceeded"]}],
            JOB_FAILED,
            "FailJobSet",
            id="one of the reasons",
        ),
        pytest.param(
            [{"action": "FailJobSet", "targetReplicatedJobs": ["leader"]}, {"action": "RecreateJob"}],
            JOB_FAILED,
            "RecreateJob",
            id="another replicated job",
        ),
        pytest.param(
            [{"action": "FailJobSet"}, {"action": "RestartJobSet"}], JOB_FAILED, "FailJobSet", id="the first rule wins"
        ),
        pytest.param(
            [{"action": "FailJobSet", "onJobFailureMessagePatterns": ["exit code 9[34] "]}],
            JOB_FAILED,
            "FailJobSet",
            id="its message",
        ),
        pytest.param(
            [{"action": "FailJobSet", "onJobFailureMessagePatterns": ["exit code 3 ", "exit code 95 "]}],
            JOB_FAILED,
            "RestartJobSet",
            id="another message",
        ),
    ],
)
def test_failure_policies_of_jobset(rules: Rules, reason: str, wanted: str) -> None:
    assert jobset_failure(rules, reason, EXIT.format(93, 0)) == wanted


FAILED = {"event": "PodFailed", "action": "RestartJob"}
CODE = {"exitCode": 93, "action": "TerminateJob"}


@pytest.mark.parametrize(
    ("policies", "of_task", "wanted"),
    [
        pytest.param([], [], "SyncJob", id="no rules"),
        pytest.param([CODE, FAILED], [], "TerminateJob", id="by its code"),
        pytest.param([FAILED, CODE], [], "RestartJob", id="an event before it wins"),
        pytest.param([{**CODE, "exitCode": 94}], [], "SyncJob", id="another code"),
        pytest.param([{"events": ["PodEvicted"], "action": "RestartJob"}], [], "SyncJob", id="another event"),
        pytest.param([{"events": ["PodEvicted", "PodFailed"], "action": "AbortJob"}], [], "AbortJob", id="of several"),
        pytest.param([{"event": "*", "action": "AbortJob"}], [], "AbortJob", id="any event"),
        pytest.param([CODE], [{"event": "PodFailed", "action": "RestartTask"}], "RestartTask", id="the task's first"),
    ],
)
def test_policies_of_volcano(policies: Rules, of_task: Rules, wanted: str) -> None:
    assert volcano_failure(policies, of_task, 93) == wanted
