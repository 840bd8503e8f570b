"""The forms of `bin/prove chaos`, by the options that choose them."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from proof.chaos import check, coordinator_plan, group_check, group_faults, group_play, plan, play, world
from proof.chaos.group_plan import (
    ALL_SUSPENDED,
    CONGESTED,
    DISKS,
    FOLDER,
    FOR_EVER,
    LINK_CUT,
    REPLACED,
    GroupJob,
    GroupOutcome,
    job,
    ranks_job,
)
from proof.chaos.plan import Job, Outcome, Training
from proof.chaos.rank_plan import RankJob
from proof.chaos.series import Form, described, options
from support import hosts

# --- one ftrun --------------------------------------------------------------------------------------------------------


def describe(made: Job, outcome: Any) -> Iterator[str]:
    yield from (f"{made.mode}, {made.place}, {made.training}", options(made.options))
    yield from (f"planned: {fault}" for fault in made.faults)
    if outcome is not None:
        for s in outcome.injected:
            yield f"injected at {s.at:.3f} into ftrun {s.run}, start {s.attempt}: {s.fault}"
        for number, run in enumerate(outcome.runs):
            yield from described(run, str(number), 12)


def faults(outcome: Outcome) -> Counter[str]:
    kinds = Counter(s.fault.kind for s in outcome.injected)
    kinds.update(f"training {r['does']}" for r in outcome.attempts if "does" in r)
    kinds.update(beside(outcome.job.training))
    kinds.update(["start with a changed uptime"] * (len(outcome.runs) - 1) * (outcome.job.place == "other uptime"))
    kinds.update([f"start with a {outcome.job.place}"] * len(outcome.runs) * (outcome.job.place in world.PROCS))
    return kinds


def beside(training: Training | RankJob) -> Counter[str]:
    kinds = Counter(f"beside: {kind}" for kind in training.beside)
    kinds.update(["checkpoint rewritten in place"] * training.rewrites)
    return kinds


def went(outcome: Outcome) -> Counter[str]:
    starts = sum("resumed" in record for record in outcome.attempts)
    return Counter({"runs of ftrun": len(outcome.runs), "starts of the command": starts})


# --- ranks and groups -------------------------------------------------------------------------------------------------


def group_refusal() -> str | None:
    return world.refusal() or hosts.refusal() or group_faults.refusal()


def describe_group(made: GroupJob, outcome: Any) -> Iterator[str]:
    yield f"{made.shape}, devices {made.devices}, {made.base._replace(options=(), inner=())}"
    yield options(made.base.options)
    yield from (f"planned: {fault}" for fault in (*made.base.inner, *made.outer))
    if outcome is not None:
        yield from (f"happened: {one}" for one in outcome.struck)
        yield f"after {outcome.seconds:.1f} s"
        for run in outcome.runs:
            yield from described(run, f"{run.member}-{run.container}, from {run.began:.3f}", 8)


def group_faults_of(outcome: GroupOutcome) -> Counter[str]:
    return Counter(_kind(one) for one in outcome.struck) + beside(outcome.job.base)


def _kind(one: dict[str, Any]) -> str:
    if "moment" in one:
        return f"{one['kind']} ({one['moment']})"
    named = one["kind"] in ("ftrun killed", "device fault", "operator request", LINK_CUT, CONGESTED, *DISKS)
    lasting = ", for ever" if one.get("lasting") == FOR_EVER else ""
    return (f"{one['kind']}: {one['what']}" if named else str(one["kind"])) + lasting


def coordinator_faults(outcome: GroupOutcome) -> Counter[str]:
    shared = ", with a shared folder" * outcome.job.shares
    return Counter(_of_coordinator(one) + shared for one in outcome.struck)


def _of_coordinator(one: dict[str, Any]) -> str:
    kind = str(one["kind"])
    if kind == "container stopped":
        return "member 0 suspended" if one["member"] == 0 else "another member suspended"
    if kind in (REPLACED, ALL_SUSPENDED, *FOLDER):
        return f"{kind} ({one['what']})" if one["what"] else kind
    if kind == "ftrun killed":
        return f"ftrun of member {'0' if one['member'] == 0 else '1 or 2'} killed: {one['what']}"
    return kind


def group_went(outcome: GroupOutcome) -> Counter[str]:
    """How the job went on and ended; members that ended with different codes have these separated by /."""
    records = [record for run in outcome.runs for record in run.records]
    proved = {(r["attempt"], r["round"], r["rung"]) for r in records if r["event"] == "recovered"}
    found = Counter(f"recoveries by the rung {rung}" for _, _, rung in proved)
    epochs = sorted({one["epoch"] for one in outcome.rounds})
    sizes = [len({one["rank"] for one in outcome.rounds if one["epoch"] == epoch}) for epoch in epochs]
    found["restarts of all ranks"] = max(0, len(epochs) - 1)
    found["changes of the number of ranks"] = sum(a != b for a, b in pairwise(sizes))
    for event, name in (("healing", "healings"), ("removed", "devices taken out"), ("returned", "devices back")):
        found[name] = sum(record["event"] == event for record in records)
    found["runs of ftrun"] = len(outcome.runs)
    codes = sorted({run.code for run in outcome.last if not run.killed}, key=str)
    found[f"jobs that ended with {'/'.join(map(str, codes))}"] = 1
    return +found


PLAIN = Form(
    "",
    "10-chaos",
    "Chaos",
    "A job is a small training under ftrun, as PID 1 of a PID namespace or as a subreaper; its options, children and "
    "faults are random. Devices are those of a fake driver library.",
    1_000,
    world.refusal,
    plan.job,
    play.play,
    check.check,
    describe,
    faults,
    went,
)
GROUPS = Form(
    "--groups",
    "14-group-chaos",
    "Chaos of groups, with faults of everything",
    "A job is a group of two or three ftruns, each PID 1 of a container on a host of its own (a network namespace with "
    "a link to a bridge), with a /dev/shm of its own and two devices of a fake driver library. The size of the group "
    "is fixed or MIN:MAX, and there may be a spare. Most of what happens to the network lasts up to four seconds, some "
    "for longer than `--peer-timeout` (15 s), some for ever.",
    300,
    group_refusal,
    job,
    group_play.play,
    group_check.check,
    describe_group,
    group_faults_of,
    group_went,
)
RANKS = GROUPS._replace(
    options="--ranks",
    name="12-rank-chaos",
    title="Chaos of ranks that recover",
    about="A job is one ftrun with two to four ranks that add numbers over TCP in each step and keep snapshots; some "
    "have worker processes, or `except Exception` around the step. The faults strike in a step, within `keep`, "
    "`restore`, the leaving of a round and the beginning of the next, or from outside.",
    enough=500,
    job=ranks_job,
)
COORDINATOR = GROUPS._replace(
    options="--groups --coordinator",
    name="15-coordinator-chaos",
    title="Chaos of groups that lose their coordinator",
    about="The groups are those of `--groups`, without faults of devices and with the shortest timeouts "
    "(`--peer-timeout 5s`). Most of them share their state dir, through a file system of their own each, so that a "
    "lease there, of 21 s, names the coordinator. Most faults strike member 0, some of them while the folder stalls or "
    "is away, or soon after each other.",
    enough=50,
    job=coordinator_plan.job,
    faults=coordinator_faults,
)
FORMS = (PLAIN, RANKS, GROUPS, COORDINATOR)
