"""Many short jobs with faults, each derived from a seed and an index: `bin/prove chaos`."""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from proof.chaos import forms
from proof.chaos.series import one, page, report, run, tally
from support import measured


def seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bin/prove chaos", description=__doc__)
    parser.add_argument("--for", dest="lasting", type=seconds, default="30m", metavar="DUR", help="90s, 30m, 2h [30m]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10**6), help="[a random one]")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="side by side [4]")
    parser.add_argument("--job", metavar="SEED:INDEX", help="run only this job again")
    parser.add_argument("--ranks", action="store_true", help="jobs of two to four ranks that can recover")
    parser.add_argument("--groups", action="store_true", help="jobs of groups of ftruns, with faults of everything")
    parser.add_argument("--coordinator", action="store_true", help="with --groups: faults of member 0 and its lease")
    given = parser.parse_args()
    form = forms.RANKS if given.ranks else forms.PLAIN
    if given.groups:
        form = forms.COORDINATOR if given.coordinator else forms.GROUPS
    if why := form.refusal():
        print(f"bin/prove chaos: {why}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends what it has started
    if given.job:
        seed, index = map(int, given.job.split(":"))
        result = one(form, seed, index, folder, threading.Event())
        assert result is not None
        print(report(form, result, folder))
        results, stopped = [result], True
    else:
        print(f"seed {given.seed}", flush=True)
        began = time.monotonic()
        results, stopped = run(form, given.seed, given.lasting, given.jobs, folder)
        took = time.monotonic() - began
        happened, lost, went = tally(form, results)
        for kind in sorted(happened):
            print(f"{kind:32} {happened[kind]:5} {lost[kind]:5}")
        print(", ".join(f"{name}: {number}" for name, number in sorted(went.items())))
        faults = f"{happened.total()} faults, {lost.total()} mishandled"
        print(f"{len(results)} jobs, {faults}, {took:.0f} s, seed {given.seed}")
        if happened.total() < form.enough:
            print(f"not published: fewer than {form.enough:,} faults")
        elif not stopped:
            measured.save("reliability", page(form, results, given.seed, took))
    if failed := [result.job.name for result in results if result.wrong]:
        print("failed:", *failed)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 130 if stopped and not given.job else 0


if __name__ == "__main__":
    sys.exit(main())
