"""What Kubernetes, JobSet and Volcano do with a container that has failed, restated from their controllers.

No package on a registry holds these controllers, so that their own code cannot run here.  `test_policies.py` holds
each of these functions to a table of cases.  Those of Kubernetes are restated from the tests of its controller; those
of JobSet from its documentation and its code, and those of Volcano from its code, which have no such tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Rule = Mapping[str, Any]
JOB_FAILED = "PodFailurePolicy"  # the reason of a Job that failed by its podFailurePolicy
PODS = "jobs/train-0-x"


class Matched(NamedTuple):
    """`message`: that of the Job, which only the action FailJob gives it."""

    action: str
    message: str | None = None


def pod_failure(
    rules: Sequence[Rule], codes: Mapping[str, int], conditions: Mapping[str, str] | None = None
) -> Matched | None:
    """matchPodFailurePolicy (pkg/controller/job/pod_failure_policy.go); `codes` by container, `conditions` by type.

    None: the failure is counted against the limit."""
    for index, rule in enumerate(rules):
        action, what = rule["action"], None
        if wanted := rule.get("onExitCodes"):
            what = next(
                (
                    f"Container {name} for pod {PODS} failed with exit code {code}"
                    for name, code in codes.items()
                    if code and wanted.get("containerName") in (None, name) and _operator(wanted, code)
                ),
                None,
            )
        elif patterns := rule.get("onPodConditions"):
            has = conditions or {}
            what = next(
                (
                    f"Pod {PODS} has condition {name}"
                    for name, status in has.items()
                    if any((one["type"], one.get("status", "True")) == (name, status) for one in patterns)
                ),
                None,
            )
        if what is None or action not in ("Ignore", "Count", "FailIndex", "FailJob"):
            continue  # a rule with an action that it does not know is passed over
        return Matched(action, f"{what} matching FailJob rule at index {index}" if action == "FailJob" else None)
    return None


def _operator(wanted: Rule, code: int) -> bool:
    return {"In": code in wanted["values"], "NotIn": code not in wanted["values"]}.get(wanted["operator"], False)


def jobset_failure(rules: Sequence[Rule], reason: str, message: str, replicated_job: str = "node") -> str:
    """ruleIsApplicable (pkg/controllers/failure_policy.go) for a Job that failed; no rule: RestartJobSet."""
    for rule in rules:
        reasons, patterns = rule.get("onJobFailureReasons"), rule.get("onJobFailureMessagePatterns")
        targets = rule.get("targetReplicatedJobs")
        if (
            (not reasons or reason in reasons)
            and (not patterns or any(re.search(pattern, message) for pattern in patterns))
            and (not targets or replicated_job in targets)
        ):
            return str(rule["action"])
    return "RestartJobSet"


def volcano_failure(policies: Sequence[Rule], of_task: Sequence[Rule], code: int, event: str = "PodFailed") -> str:
    """applyPolicies (pkg/controllers/job/job_controller_util.go): those of the task first; else it only looks again."""
    for policy in (*of_task, *policies):
        events = [*policy.get("events", ()), *([policy["event"]] if "event" in policy else ())]
        if event in events or "*" in events or policy.get("exitCode") == code:
            return str(policy["action"])
    return "SyncJob"
