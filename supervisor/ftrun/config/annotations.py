"""Annotations of the platform as options: from a file of the Kubernetes downward API, or from the JSON of a job.

The downward API writes one `key="value"` per line, with the value quoted as Go does it (Kubernetes, "Downward API").
ModelArts has the same keys in the JSON with which a job is created: `{"kind": "job", "metadata": {"annotations":
{...}}}` ("Training Job Restart Upon Suspension", "Recovering a Training Job").  The keys are those of ModelArts
(`fault-tolerance/...`) and of MindCluster (`fault-retry-times`, `recover-strategy`).  The platform writes the file
without a user who could correct it, so an invalid value is reported and ignored.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple

RETRY: Final = "fault-tolerance/job-retry-num"
UNCONDITIONAL: Final = "fault-tolerance/job-unconditional-retry"
HANG: Final = "fault-tolerance/hang-retry"
POD: Final = "fault-tolerance/pod-retry-num"
TIMES: Final = "fault-retry-times"
STRATEGY: Final = "recover-strategy"
ATTEMPTS: Final = (  # number of restarts by the outer scheduler
    "jobset.sigs.k8s.io/restart-attempt",
    "volcano.sh/job-retry-count",
    "batch.kubernetes.io/job-index-failure-count",
)
JOBS: Final = (  # identifies the job over all its schedules; the first that is present counts
    "jobset.sigs.k8s.io/jobset-uid",
    "scheduling.k8s.io/group-name",  # Volcano: name and UID of the job
    "batch.kubernetes.io/controller-uid",
)
DEFAULT: Final = "hang,fault"  # of --restart-on
STRATEGIES: Final = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")


class Annotations(NamedTuple):
    """`texts`: option texts.  `relayed`: annotations for the outer scheduler or the framework.  `problems`: one line
    each.  `attempts`: restarts by the outer scheduler, if known.  `job`: identifies the job, if known.
    `only_report_hangs`: auto restart is enabled but restart upon suspension is not, so a suspended job is left as it
    is."""

    path: str = ""
    texts: tuple[tuple[str, str], ...] = ()
    relayed: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    attempts: int | None = None
    job: str = ""
    only_report_hangs: bool = False


def read(path: str, content: str) -> Annotations:
    """Never raises: an invalid value becomes a problem."""
    problems: list[str] = []
    found = _pairs(content, problems)

    def get(key: str, reader: Callable[[str], Any], what: str) -> Any:
        try:
            return reader(found[key]) if key in found else None
        except ValueError:
            problems.append(f"{key} is {found[key][:60]!r}, which is not {what}; the annotation is ignored")
            return None

    retry = get(RETRY, _number(1, 128), "a number from 1 to 128")
    hang = get(HANG, _boolean, "true or false")
    unconditional = get(UNCONDITIONAL, _boolean, "true or false")
    pod = get(POD, _number(1, 1 << 30), "a number above 0")
    times = get(TIMES, _number(0, 1 << 30), "a number")
    strategy = get(STRATEGY, _strategies, f"a list of {', '.join(STRATEGIES)}") or ()
    attempts = [get(key, _number(0, 1 << 30), "a number") for key in ATTEMPTS]
    valid = ((RETRY, retry), (POD, pod), (TIMES, times), (STRATEGY, strategy or None))
    needy = [key for key, on in ((HANG, hang), (UNCONDITIONAL, unconditional), (POD, pod)) if on]
    if retry is None and needy:  # ModelArts ("Fault Recovery Trigger Modes"): each of these is set in addition to it
        without = f"{'has' if len(needy) == 1 else 'have'} no effect without a valid {RETRY}"
        problems.append(f"{' and '.join(needy)} {without}; the defaults of ftrun hold")
        hang = unconditional = pod = None
    # Without valid retries of the job the default of --restart-on holds, so that a fault is still recovered in place.
    hangs = hang is not False if retry is None else hang
    causes = [
        cause for cause, on in (("hang", hangs), ("fault", True), ("failure", "recover-in-place" in strategy)) if on
    ]
    restart_on = ",".join(causes)
    texts = [] if retry is None and restart_on == DEFAULT else [("restart-on", restart_on)]
    if hang:  # ModelArts ("Restart upon Suspension", degradation policies): after three in a row the job has failed
        texts.append(("after-limit", "fail"))
    if unconditional or times:
        texts.append(("unconditional-retry", "on"))
    if pod:
        texts.append(("replace-members", "on"))
    relayed = [(key, found[key]) for key, value in valid if value is not None]
    restarts = next((count for count in attempts if count is not None), None)
    job = next((found[key] for key in JOBS if found.get(key)), "")
    only_report_hangs = (bool(retry) and not hang) or hang is False
    return Annotations(path, tuple(texts), tuple(relayed), tuple(problems), restarts, job, only_report_hangs)


def _pairs(content: str, problems: list[str]) -> dict[str, str]:
    if content.lstrip().startswith("{"):
        return _from_job(content, problems)
    found, others = {}, []
    for line in content.splitlines():
        key, equals, text = line.strip().partition("=")
        if not key or (not equals and key.startswith("#")):
            continue
        if not equals:
            others.append(key)
        elif text.startswith('"'):
            try:
                found[key] = str(json.loads(text))
            except ValueError:  # Go escapes some characters differently from JSON; no value that ftrun reads has them
                found[key] = text.strip('"')
        else:
            found[key] = text
    if others:
        problems.append(
            f"{others[0][:60]!r} is not an annotation" + f", nor are {len(others) - 1} others" * (len(others) > 1)
        )
    return found


def _from_job(content: str, problems: list[str]) -> dict[str, str]:
    """The annotations and labels in the JSON of a job, in its metadata alone, or in a plain JSON object."""
    try:
        job = json.loads(content)
    except (ValueError, RecursionError) as error:
        problems.append(f"the file is not JSON: {str(error)[:80]}")
        return {}
    metadata = job.get("metadata", job)
    tables = [metadata[name] for name in ("labels", "annotations") if name in metadata] if _is_object(metadata) else []
    if metadata is job and not tables and "kind" not in job:
        tables = [job]
    if not tables or not all(map(_is_object, tables)):
        problems.append('the file has no object at metadata.annotations: {"metadata": {"annotations": {...}}}')
        return {}
    return {key: text if isinstance(text, str) else json.dumps(text) for table in tables for key, text in table.items()}


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.strip().removeprefix("+")  # strconv.Atoi, with which platforms read it, takes a sign
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 12 and least <= int(digits) <= most):
            raise ValueError(text)
        return int(digits)

    return read


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def _strategies(text: str) -> tuple[str, ...]:
    named = tuple(name.strip() for name in text.split(",") if name.strip())
    if not named or not set(named) <= set(STRATEGIES):
        raise ValueError(text)
    return named
