"""Many short jobs of groups with faults of everything at once: `--groups`."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from proof.chaos import group_faults, world
from proof.chaos.group_check import check
from proof.chaos.group_plan import CONGESTED, DISKS, FOR_EVER, LINK_CUT, GroupJob, job
from proof.chaos.group_play import play
from proof.chaos.series import HEAD, Form, Result, last, options, output, table
from support import hosts, measured

TAIL = 60  # records of an ftrun in a job that failed


def refusal() -> str | None:
    return world.refusal() or hosts.refusal() or group_faults.refusal()


def describe(made: GroupJob, outcome: Any) -> Iterator[str]:
    yield f"{made.shape}, devices {made.devices}, {made.base._replace(options=(), inner=())}"
    yield options(made.base.options)
    yield from (f"planned: {fault}" for fault in (*made.base.inner, *made.outer))
    if outcome is not None:
        yield from (f"happened: {one}" for one in outcome.struck)
        yield f"after {outcome.seconds:.1f} s"
        for run in outcome.runs:
            killed = ", killed by the chaos" if run.killed else ""
            yield f"ftrun {run.member}-{run.container}: code {run.code}{killed}, from {run.began:.3f}"
            yield from (*last(run.records, TAIL), *output(run.stderr, 8))


def tally(results: Sequence[Result]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Faults by kind, those of them in a job that failed, and how the jobs went on and ended."""
    happened, lost, went = Counter[str](), Counter[str](), Counter[str]()
    for result in results:
        if (outcome := result.outcome) is None:
            continue
        kinds = Counter(_kind(one) for one in outcome.struck)
        happened += kinds
        lost += kinds if result.wrong else Counter()
        records = [record for run in outcome.runs for record in run.records]
        epochs = {one["epoch"] for one in outcome.rounds}
        proved = {(r["attempt"], r["round"], r["rung"]) for r in records if r["event"] == "recovered"}
        went.update(rung for _, _, rung in proved)
        went["epochs after the first"] += max(0, len(epochs) - 1)
        sizes = [len({o["rank"] for o in outcome.rounds if o["epoch"] == epoch}) for epoch in sorted(epochs)]
        went["changes of the number of ranks"] += sum(a != b for a, b in pairwise(sizes))
        went["healings"] += sum(record["event"] == "healing" for record in records)
        went["devices taken out"] += sum(record["event"] == "removed" for record in records)
        went["devices that came back"] += sum(record["event"] == "returned" for record in records)
        went["ftruns"] += len(outcome.runs)
        went[
            f"ended with {'/'.join(map(str, sorted({run.code for run in outcome.last if not run.killed}, key=str)))}"
        ] += 1
    return happened, lost, went


def _kind(one: dict[str, object]) -> str:
    if "moment" in one:
        return f"{one['kind']} ({one['moment']})"
    named = one["kind"] in ("ftrun killed", "device fault", "operator request", LINK_CUT, CONGESTED, *DISKS)
    lasting = ", for ever" if one.get("lasting") == FOR_EVER else ""
    return (f"{one['kind']}: {one['what']}" if named else str(one["kind"])) + lasting


def page(results: list[Result], seed: int, took: float) -> measured.Measured:
    """The published section."""
    happened, lost, went = tally(results)
    jobs = sorted(result.outcome.seconds for result in results if result.outcome is not None)
    ends = {name: number for name, number in went.items() if name.startswith("ended")}
    failed = [result for result in results if result.wrong]
    return measured.Measured(
        name="14-group-chaos",
        title="Chaos of groups, with faults of everything",
        made_by="bin/prove chaos --groups",
        before=(
            f"The result is {len(results):,} short jobs with {happened.total():,} faults, of which {lost.total():,}, "
            f"those of {len(failed):,} jobs, were mishandled, in {took / 60:.0f} minutes with seed {seed}, on a "
            f"machine with a load of {os.getloadavg()[2]:.0f}. A job is a group of two or three ftruns, each PID 1 of "
            "a container on a host of its own (a network namespace with a link to a bridge), with a /dev/shm of its "
            "own and two devices of a fake driver library. The size of the group is "
            "fixed or MIN:MAX, and there may be a spare. Each ftrun starts two recoverable ranks, or one for each "
            "device that is left (`--min-devices`), most have standbys, and heal commands work or fail. The faults "
            "strike ranks (from inside and outside), devices and their driver, standbys, helpers, whole containers, "
            "ftruns (whose container comes back in place, anew or never), /dev/shm, run dirs, state dirs and folders "
            "of reports (full or read-only, for a while or for ever) and the network (below); there are termination "
            "signals, requests of an operator, also `ftctl stop`, and what a platform writes into `reset.json`. "
            "All of it follows from the seed and the index of the job. The median "
            f"duration of a job is {jobs[len(jobs) // 2]:.0f} s.",
            f"There were {went['ftruns']:,} runs of ftrun, {went['epochs after the first']:,} restarts of a whole "
            f"group, of which {went['changes of the number of ranks']:,} were with another number of ranks, "
            f"{went['rank']:,} replacements of ranks, {went['retry']:,} retries, {went['healings']:,} healings, and "
            f"{went['devices taken out']:,} devices were taken out, of which {went['devices that came back']:,} came "
            f"back. The jobs {', '.join(f'{name} ({number:,})' for name, number in sorted(ends.items()))}; where "
            "members ended with different codes, these are separated by /.",
            "After each job these conditions are checked: each value after each step, and the values at the end, are "
            "those of a run without faults, whatever the number of ranks was; no step of a round or an epoch is done "
            "after a step of a later one, anywhere in the group, and no epoch begins while ranks of an earlier one "
            "exist; no rank works in an epoch or round whose start is not on record yet; "
            "within an epoch, who is not on record as replaced has "
            "kept its process; no epoch begins below a recorded checkpoint, and no round below the snapshot before it; "
            "each rung of recovery is permitted and follows a finer one, and a fault; each ftrun has ended once, with "
            "the code of its records and of the "
            "termination message, which a fault explains; the records are in order; no process is left, and nothing in "
            "/dev/shm or in the folder for temporary files; `ftctl` ends, and what it calls done is on record; a stop "
            "of one member ends all; what the platform reports is on record, and a process that it wants replaced does "
            "not go on; where the run dir could not be written, ftrun says that records are missing; "
            "and the pure core, given the events on which each ftrun had decided, comes to the same records, field by "
            "field.",
        ),
        head=HEAD,
        rows=table(happened, lost),
        after=(
            "The network: a link is cut (its host detects that, or not), carries so little that messages are late or "
            "lost (the kernel's token bucket filter), or what one ftrun sends to the others is dropped while the "
            "training goes on. Most of it lasts for up to four seconds, some for longer than `--peer-timeout` (15 s), "
            "some for ever. A silence of the ftruns that is shorter than that has to end nothing.",
            "The following is accepted: where the run dir could not be written, records are missing, but those that "
            "exist are the core's, in its order; an ftrun whose run dir is read-only when its container comes back is "
            "started once that is over; a spare that `ftctl stop` is for ends alone; and 195 for a member that was cut "
            "off, or whose connection to member 0 was, while others end with 0. An ftrun of these jobs looks at its "
            "devices twice a second.",
        ),
    )


FORM = Form("--groups", refusal, job, play, check, describe, tally, page, enough=300)
