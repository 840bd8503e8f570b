"""Restart a small process tree, replace a rank, or start warm thousands of times; no figure of ftrun may grow."""

import argparse
import math
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from proof.soak.growth import FILLED, Growth, grown, growths
from proof.soak.running import FORMS, Broken, Plan, Soak
from proof.soak.samples import SUPERVISOR, Sample
from support.measured import Measured, save
from support.runs import Mode, need_pid1

MODES: Final[tuple[Mode, ...]] = ("pid1", "subreaper")
NAMES: Final = {"pid1": "PID 1", "subreaper": "subreaper"}
COLUMNS: Final = {"descriptors": 1, "threads": 1, "rss": 1024, "pss": 1024}  # and what the figure is divided by
REPEATED: Final = {"restarts": ("restarts", 0), "ranks": ("replaced ranks", 2), "warm": ("warm starts", 4)}
BEFORE: Final = {
    "restarts": (
        "One ftrun restarts a small process tree {plan.restarts:,} times: a parent, two children, one child in its "
        "own session and a daemon. Half of the restarts follow an exit, and half a signal, except that one in "
        "{plan.hang} follows a hang (with evidence, a report, and a child that ignores SIGTERM) and one in {plan.look} "
        "a request by `ftctl restart`. All ordinary helpers run: the checkpoint watcher, the output, the state store, "
        "the sampler, the messenger and the metrics."
    ),
    "ranks": (
        "One of two recoverable ranks dies {plan.restarts:,} times and is replaced alone, while the other keeps its "
        "process; each keeps a snapshot of every step. The ordinary helpers run."
    ),
    "warm": (
        "A command fails {plan.restarts:,} times and goes on each time in a standby, for which it waits before. The "
        "ordinary helpers run, and ftrun starts a standby 0.1 s after the first heartbeat instead of 0.5 s."
    ),
}
KNOWN: Final = {
    "events.jsonl": "a few records per restart, which are the history of the job",
    "run.log": "a line per restart",
    "output.log": "the output of the command",
    "steps.jsonl": "a line per minute with steps, and one per attempt with steps",
    "reports": "a report per hang",
}


def main() -> int:
    parser = argparse.ArgumentParser("bin/prove soak", description=__doc__)
    parser.add_argument("--restarts", type=int, default=10_000, metavar="N", help="of each form of ftrun [%(default)s]")
    parser.add_argument(
        "--for", dest="minutes", type=float, metavar="MIN", default=math.inf, help="at most so long [no limit]"
    )
    parser.add_argument("--form", choices=FORMS, default="restarts", help="what is repeated [%(default)s]")
    parser.add_argument("--as", dest="modes", choices=MODES, nargs="*", default=MODES, help="[both]")
    parser.add_argument("--ftrun", metavar="PROGRAM", help="measure an installed one [bin/ftrun]")
    parser.add_argument("--dry", action="store_true", help="publish nothing")
    given = parser.parse_args()
    found: dict[Mode, Soaked] = {}
    restarts = given.restarts
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `&` has the first one ignored
        signal.signal(number, signal.default_int_handler)
    try:
        for mode in given.modes:
            look = max(1, given.restarts // (100 if given.minutes == math.inf else 500))
            plan = Plan(restarts, look, form=given.form, seconds=given.minutes * 60)
            found[mode] = soaked(mode, plan, (given.ftrun,) if given.ftrun else ())
            restarts = found[mode].restarts  # as many in the other mode
    except Broken as why:
        print(f"broken: {why}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    wrong = [f"{NAMES[mode]}: {line}" for mode, one in found.items() for line in grown(one.samples)]
    if not given.dry:
        plan = Plan(min(one.restarts for one in found.values()), form=given.form)
        print(save("reliability", section(found, plan, wrong)))
    print(*wrong, sep="\n")
    return 1 if wrong else 0


class Soaked(NamedTuple):
    """`restarts`: how many repetitions there were; `seconds`: of the whole measurement."""

    restarts: int
    seconds: float
    samples: list[Sample]


def soaked(mode: Mode, plan: Plan, program: Sequence[str] = ()) -> Soaked:
    """`program`: instead of the ftrun of this checkout."""
    samples = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ft-") as folder, Soak(Path(folder), plan, mode, program) as soak:
        for sample in soak.samples():
            samples.append(sample)
            ftrun = sample.processes[SUPERVISOR]
            line = f"{NAMES[mode]}: {sample.restarts + 1} starts, {ftrun.rss} KiB, {ftrun.descriptors} descriptors"
            print(f"\r{line} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return Soaked(soak.restarts, time.monotonic() - began, samples)


def section(soaks: dict[Mode, Soaked], plan: Plan, wrong: list[str]) -> Measured:
    found = {mode: one.samples for mode, one in soaks.items()}
    minutes = " and ".join(f"{one.seconds / 60:.0f}" for one in soaks.values())
    before = (
        f"{BEFORE[plan.form].format(plan=plan)} ftrun is measured from outside, each time that the command waits.",
        f"A figure is the median of the first tenth of the samples after the warm-up, which is also a tenth, and at "
        f"least {FILLED} of so many repetitions; a figure after an arrow is the median of the last tenth, if it "
        "differs.",
    )
    made_by = "bin/prove soak" + ("" if plan.form == "restarts" else f" --form {plan.form}")
    made_by += f" --restarts {plan.restarts}" if plan.restarts != Plan().restarts else ""
    what, number = REPEATED[plan.form]
    heads = ("mode", "process", "descriptors", "threads", "RSS, MiB", "PSS, MiB")
    rows = tuple(row for mode, samples in found.items() for row in _rows(mode, samples))
    first = next(iter(found))
    verdict = "No figure grew." if not wrong else f"**These figures grew:** {'; '.join(wrong)}."
    after = (
        f"{verdict} The measurement took {minutes} minutes.",
        *(
            f"As {NAMES[mode]}, the counts of ftrun in {soaks[mode].restarts:,} {what} were: {_rest(samples)}"
            for mode, samples in found.items()
        ),
        f"These entries of the run dir grow by design: {_growing(found[first])}.",
    )
    title = f"{plan.restarts:,} {what} in one run of ftrun"
    return Measured(f"2{number}-soak", title, made_by, before, heads, rows, after)


def _rows(mode: Mode, samples: list[Sample]) -> list[tuple[str, ...]]:
    known = growths(samples)
    names = [name for name, what in known if what == "rss"]
    return [
        (NAMES[mode], f"`{name}`", *(_cell(known[name, what], each) for what, each in COLUMNS.items()))
        for name in names
    ]


def _cell(growth: Growth, each: int) -> str:
    first, last = (f"{value / each:.1f}" if each > 1 else f"{value:.0f}" for value in (growth.first, growth.last))
    return first if first == last else f"{first} → {last}"


def _rest(samples: list[Sample]) -> str:
    known = growths(samples)
    names = {
        ("all", "processes"): "processes",
        ("all", "zombies"): "zombies",
        ("files", "/dev/shm"): "files in /dev/shm",
        ("files", "TMPDIR"): "files in the temp folder",
        ("files", "state"): "files in the state dir",
        (SUPERVISOR, "inotify"): "inotify instances of the supervisor",
    }
    return ", ".join(f"{name} {_cell(known[key], 1)}" for key, name in names.items() if key in known) + "."


def _growing(samples: list[Sample]) -> str:
    first, last = samples[0], samples[-1]
    between = max(1, last.restarts - first.restarts)
    found = []
    for name, size in sorted(last.sizes.items(), key=lambda one: -one[1]):
        each = (size - first.sizes.get(name, 0)) / between
        if each >= 1:
            found.append(f"`{name}` by {each:,.0f} B per restart ({KNOWN.get(name, 'for an unknown reason')})")
    return ", ".join(found)


if __name__ == "__main__":
    need_pid1()
    sys.exit(main())
