"""Many short jobs of groups that lose their coordinator: `--groups --coordinator`."""

import os
from collections import Counter

from proof.chaos import coordinator_plan, group_chaos
from proof.chaos.group_plan import ALL_SUSPENDED, FOLDER, REPLACED
from proof.chaos.series import Result
from support import measured

SUSPENSION = "container stopped"


def _kind(one: dict[str, object]) -> str:
    what, kind = str(one["what"]), str(one["kind"])
    if kind == SUSPENSION:
        return "member 0 suspended" if one["member"] == 0 else "another member suspended"
    if kind in (REPLACED, ALL_SUSPENDED, *FOLDER):
        return f"{kind} ({what})" if what else kind
    if kind == "ftrun killed":
        return f"ftrun of member {'0' if one['member'] == 0 else '1 or 2'} killed: {what}"
    return kind


def page(results: list[Result], seed: int, took: float) -> measured.Measured:
    """The published section."""
    _, _, went = group_chaos.tally(results)
    happened: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    lost = Counter[str]()
    for result in results:
        if result.outcome is None:
            continue
        kinds = Counter(_kind(one) for one in result.outcome.struck)
        happened[result.job.shares] += kinds
        lost += kinds if result.wrong else Counter()
    jobs = sorted(result.outcome.seconds for result in results if result.outcome is not None)
    sharing, failed = sum(result.job.shares for result in results), sum(bool(result.wrong) for result in results)
    ends = ", ".join(f"{name} ({number:,})" for name, number in sorted(went.items()) if name.startswith("ended"))
    both = happened[True] + happened[False]
    return measured.Measured(
        name="15-coordinator-chaos",
        title="Chaos of groups that lose their coordinator",
        made_by="bin/prove chaos --groups --coordinator",
        before=(
            f"The result is {len(results):,} jobs with {both.total():,} faults, of which {failed:,} jobs were "
            f"mishandled, in {took / 60:.0f} minutes with seed {seed}, on a machine with a load of "
            f"{os.getloadavg()[2]:.0f}. The groups are those of the section before, without faults of devices and with "
            f"the shortest timeouts (`--peer-timeout 5s`). In {sharing:,} jobs the members share their state dir, "
            "through a file system of their own each, so that a lease there, of 21 s, names the coordinator. Most "
            "faults strike member 0, some of them while the folder stalls or is away, or soon after each other. "
            f"The median duration of a job is {jobs[len(jobs) // 2]:.0f} s.",
            f"There were {went['ftruns']:,} runs of ftrun and {went['epochs after the first']:,} restarts of a whole "
            f"group. The jobs {ends}; where members ended with different codes, these are separated by /.",
            "After each job the same conditions are checked as above. The first of them: never two epochs are at work, "
            "by the records of all members, also of one that was replaced while it lives. Ranks that were suspended "
            "do nothing meanwhile; once they are resumed, each may finish the step in which it was, and they have to "
            "end within 8 seconds.",
        ),
        head=("fault", "with a shared folder", "without", "in a job that was mishandled"),
        rows=(
            *((kind, *(f"{each[kind]:,}" for each in (*happened.values(), lost))) for kind in sorted(both)),
            ("**total**", *(f"**{each.total():,}**" for each in (*happened.values(), lost))),
        ),
    )


FORM = group_chaos.FORM._replace(options="--groups --coordinator", job=coordinator_plan.job, page=page, enough=50)
