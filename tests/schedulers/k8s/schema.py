"""What the tests need of two custom resources, restated by hand: names, enums, what is required, what excludes what.

JobSet: api/jobset/v1alpha2/jobset_types.go of kubernetes-sigs/jobset, read at 0336a8f (later than v0.10, which brought
onJobFailureMessagePatterns).
Volcano: pkg/apis/batch/v1alpha1/job.go and pkg/apis/bus/v1alpha1 of volcano-sh/apis at commits 032c8b6 and 23f27aa, and
validatePolicies of pkg/webhooks/admission/jobs/validate/util.go of volcano-sh/volcano at 08812f6.
Pod and Job templates in them are `object` here: kubernetes-validate has their schemas.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]
TEXT: Final[Schema] = {"type": "string", "minLength": 1}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT, "uniqueItems": True}


def closed(required: str, **properties: Schema) -> Schema:
    """An object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def resource(version: str, kind: str, spec: Schema) -> Schema:
    metadata = closed("name", name=TEXT, namespace=TEXT, labels={"type": "object"}, annotations={"type": "object"})
    return closed(
        "apiVersion kind metadata spec",
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


JOBSET: Final = resource(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    closed(
        "replicatedJobs",
        replicatedJobs=array(
            closed("name template", name=TEXT, groupName=TEXT, replicas=COUNT, template={"type": "object"})
        ),
        failurePolicy=closed(
            "",
            maxRestarts=COUNT,
            restartStrategy={"enum": ["Recreate", "BlockingRecreate", "InPlaceRestart"]},
            rules=array(
                closed(
                    "name action",
                    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                    action={
                        "enum": [
                            "FailJobSet",
                            "RestartJobSet",
                            "RestartJobSetAndIgnoreMaxRestarts",
                            "RestartJob",
                            "RestartJobAndIgnoreMaxRestarts",
                        ]
                    },
                    onJobFailureReasons=TEXTS
                    | {"items": {"enum": ["PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded"]}},
                    onJobFailureMessagePatterns=TEXTS,
                    targetReplicatedJobs=TEXTS,
                )
            ),
        ),
    ),
)

EVENTS: Final = ["*", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated"]
POLICY: Final = closed(
    "action",
    action={
        "enum": ["AbortJob", "RestartJob", "RestartTask", "RestartPod", "TerminateJob", "CompleteJob", "ResumeJob"]
    },
    event={"enum": EVENTS},
    events=array({"enum": EVENTS}),
    exitCode={"type": "integer", "not": {"const": 0}},
    timeout=TEXT,
) | {
    # An exit code or events, not both, not neither.
    "oneOf": [{"required": ["exitCode"]}, {"anyOf": [{"required": ["event"]}, {"required": ["events"]}]}]
}
VOLCANO: Final = resource(
    "batch.volcano.sh/v1alpha1",
    "Job",
    closed(
        "tasks",
        schedulerName=TEXT,
        minAvailable=COUNT,
        maxRetry=COUNT,
        queue=TEXT,
        plugins={"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        policies=array(POLICY),
        tasks=array(
            closed(
                "name replicas template",
                name=TEXT,
                replicas=COUNT,
                minAvailable=COUNT,
                maxRetry=COUNT,
                policies=array(POLICY),
                template={"type": "object"},
            )
        ),
    ),
)
