"""Many short jobs of groups with faults of everything at once, each derived from a seed and an index: `--groups`."""

import os
import pickle
import shutil
import threading
import traceback
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from proof.chaos import coordinator_plan
from proof.chaos.described import last
from proof.chaos.group_check import check
from proof.chaos.group_plan import CONGESTED, DISKS, FOR_EVER, LINK_CUT, GroupJob, GroupOutcome, job
from proof.chaos.group_play import play
from proof.chaos.play import Stopped
from support import measured

ENOUGH = 300  # faults
FOUND = """\
- In a group with fewer members than the complete job, a process that the platform wanted replaced
  (`RestartFaultProcess` in `reset.json`) went on: the platform's number of its rank was taken for that in the smaller
  job (`tests/core/test_faults_of_ranks.py`).
- A spare ended with 195 after a job that had succeeded, where the helper of member 0 had died just before the end: the
  new one did not wait for a spare that had not reconnected yet (`tests/helpers/test_messenger_group.py`)."""
TAIL = 60  # records of an ftrun in a job that failed


class GroupResult(NamedTuple):
    """`outcome` is None if the harness itself failed; `wrong` has the reason."""

    job: GroupJob
    outcome: GroupOutcome | None
    wrong: list[str]


def one(
    seed: int,
    index: int,
    folder: Path,
    stop: threading.Event,
    outcomes: Path | None = None,
    coordinator: bool = False,
) -> GroupResult | None:
    """One job; None if it was stopped.  `coordinator`: of coordinator_plan.py.  The folder of a failed one is kept, and
    in `outcomes` what is known of each, so that it can be checked again."""
    made = coordinator_plan.job(seed, index) if coordinator else job(seed, index)
    mine = folder / f"groups-{seed}-{index}"
    try:
        outcome = play(made, mine, stop)
        if outcomes is not None:
            (outcomes / f"{seed}-{index}.pickle").write_bytes(pickle.dumps(outcome))
        wrong = check(outcome)
    except Stopped:
        return None
    except Exception:
        return GroupResult(made, None, [f"the harness failed: {traceback.format_exc()}"])
    if not wrong:
        shutil.rmtree(mine, ignore_errors=True)
    return GroupResult(made, outcome, wrong)


def report(result: GroupResult, folder: Path) -> str:
    """A description of the job and of what was wrong."""
    made, outcome = result.job, result.outcome
    lines = [f"--- {made.name} {'failed' if result.wrong else 'passed'}", *(f"  {wrong}" for wrong in result.wrong)]
    lines += [f"  {made.shape}, devices {made.devices}, {made.base._replace(options=(), inner=())}"]
    lines += [f"  {' '.join(f'--{name}={text}' for name, text in made.base.options)}"]
    lines += [f"  planned: {fault}" for fault in (*made.base.inner, *made.outer)]
    if outcome is not None:
        lines += [f"  happened: {one}" for one in outcome.struck]
        lines.append(f"  after {outcome.seconds:.1f} s")
        for run in outcome.runs:
            killed = ", killed by the chaos" if run.killed else ""
            lines.append(f"  ftrun {run.member}-{run.container}: code {run.code}{killed}, from {run.began:.3f}")
            lines += last(run.records, TAIL)
            lines += [f"    | {line}" for line in run.stderr.splitlines()[-8:]]
    how = "--groups --coordinator" if made.moves else "--groups"
    lines.append(f"  folder: {folder}; again: bin/prove chaos {how} --job {made.name}")
    return "\n".join(lines)


def summary(results: list[GroupResult]) -> tuple[Counter[str], Counter[str], Counter[str]]:
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


def page(results: list[GroupResult], seed: int, took: float) -> measured.Measured:
    """The published section."""
    happened, lost, went = summary(results)
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
        head=("fault (moment)", "injected", "mishandled"),
        rows=(
            *((kind, f"{happened[kind]:,}", f"{lost[kind]:,}") for kind in sorted(happened)),
            ("**total**", f"**{happened.total():,}**", f"**{lost.total():,}**"),
        ),
        after=(
            "The network: a link is cut (its host detects that, or not), carries so little that messages are late or "
            "lost (the kernel's token bucket filter), or what one ftrun sends to the others is dropped while the "
            "training goes on. Most of it lasts for up to four seconds, some for longer than `--peer-timeout` (15 s), "
            "some for ever. A silence of the ftruns that is shorter than that has to end nothing.",
            "These defects were found by earlier runs with faults of the platform and the network. Both are fixed, "
            "each with a test:",
            FOUND,
            "The following is accepted: where the run dir could not be written, records are missing, but those that "
            "exist are the core's, in its order; an ftrun whose run dir is read-only when its container comes back is "
            "started once that is over; a spare that `ftctl stop` is for ends alone; and 195 for a member that was cut "
            "off, or whose connection to member 0 was, while others end with 0. An ftrun of these jobs looks at its "
            "devices twice a second.",
        ),
    )
