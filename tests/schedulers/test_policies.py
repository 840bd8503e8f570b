"""The functions that judge the manifests agree with the tables that the controllers test themselves with.

The cases are restated from TestMatchPodFailurePolicy of Kubernetes (pkg/controller/job/pod_failure_policy_test.go),
from the documentation and failure_policy.go of JobSet, and from applyPolicies of Volcano."""

from typing import Any

import pytest

from schedulers.k8s.policies import JOB_FAILED, Matched, jobset_failure, pod_failure, volcano_failure

Rules = list[dict[str, Any]]
EXIT = "Container main for pod jobs/train-0-x failed with exit code {} matching FailJob rule at index {}"
CONDITION = "Pod jobs/train-0-x has condition DisruptionTarget matching FailJob rule at index 0"
DISRUPTED = {"DisruptionTarget": "True"}
FAILED_WITH_2 = Matched("FailJob", EXIT.format(2, 1))


def on(action: str, *values: int, operator: str = "In", **more: str) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values)} | more}


def when(action: str, status: str = "True", kind: str = "DisruptionTarget") -> dict[str, Any]:
    return {"action": action, "onPodConditions": [{"type": kind, "status": status}]}


PODS: dict[str, tuple[Rules, dict[str, int], dict[str, str], Matched | None]] = {
    "unknown action": ([on("Strange", 1, 2), on("FailJob", 2, 3)], {"main": 2}, {}, FAILED_WITH_2),
    "unknown operator": ([on("Ignore", 2, operator="Strange"), on("FailJob", 2)], {"main": 2}, {}, FAILED_WITH_2),
    "index": ([on("FailIndex", 1, 2, 3)], {"main": 2}, {}, Matched("FailIndex")),
    "a container that ended well": ([on("FailJob", 111, operator="NotIn")], {"init": 0, "main": 111}, {}, None),
    "not zero": ([on("FailJob", 0, operator="NotIn")], {"main": 1}, {}, Matched("FailJob", EXIT.format(1, 0))),
    "the first rule wins": ([on("Count", 2), on("FailJob", 2)], {"main": 2}, {}, Matched("Count")),
    "another container": ([on("FailJob", 2, containerName="other")], {"main": 2, "other": 0}, {}, None),
    "condition": ([when("FailJob")], {"main": 2}, DISRUPTED, Matched("FailJob", CONDITION)),
    "another status": ([when("Ignore", "False")], {}, DISRUPTED, None),
    "another condition": ([when("Ignore")], {}, {"Ready": "True"}, None),
}


@pytest.mark.parametrize(("rules", "codes", "conditions", "wanted"), PODS.values(), ids=PODS)
def test_pod_failure_policies_of_kubernetes(
    rules: Rules, codes: dict[str, int], conditions: dict[str, str], wanted: Matched | None
) -> None:
    assert pod_failure(rules, codes, conditions) == wanted


FAIL: dict[str, Any] = {"action": "FailJobSet"}
JOBSETS: dict[str, tuple[Rules, str]] = {
    "no rules": ([], "RestartJobSet"),
    "another reason": ([FAIL | {"onJobFailureReasons": ["BackoffLimitExceeded"]}], "RestartJobSet"),
    "one of the reasons": ([FAIL | {"onJobFailureReasons": [JOB_FAILED, "DeadlineExceeded"]}], "FailJobSet"),
    "another job": ([FAIL | {"targetReplicatedJobs": ["leader"]}, {"action": "RecreateJob"}], "RecreateJob"),
    "its message": ([FAIL | {"onJobFailureMessagePatterns": ["exit code 9[34] "]}], "FailJobSet"),
    "another message": ([FAIL | {"onJobFailureMessagePatterns": ["exit code 3 "]}], "RestartJobSet"),
}


@pytest.mark.parametrize(("rules", "wanted"), JOBSETS.values(), ids=JOBSETS)
def test_failure_policies_of_jobset(rules: Rules, wanted: str) -> None:
    assert jobset_failure(rules, JOB_FAILED, EXIT.format(93, 0)) == wanted


FAILED = {"event": "PodFailed", "action": "RestartJob"}
CODE = {"exitCode": 93, "action": "TerminateJob"}
VOLCANO: dict[str, tuple[Rules, Rules, str]] = {
    "no rules": ([], [], "SyncJob"),
    "by its code": ([CODE, FAILED], [], "TerminateJob"),
    "an event before it wins": ([FAILED, CODE], [], "RestartJob"),
    "another code": ([{**CODE, "exitCode": 94}], [], "SyncJob"),
    "of several": ([{"events": ["PodEvicted", "PodFailed"], "action": "AbortJob"}], [], "AbortJob"),
    "the task's first": ([CODE], [{"event": "PodFailed", "action": "RestartTask"}], "RestartTask"),
}


@pytest.mark.parametrize(("policies", "of_task", "wanted"), VOLCANO.values(), ids=VOLCANO)
def test_policies_of_volcano(policies: Rules, of_task: Rules, wanted: str) -> None:
    assert volcano_failure(policies, of_task, 93) == wanted
