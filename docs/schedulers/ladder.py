"""The levels of recovery, one after the other: `python docs/schedulers/local.py --demo`, or `bin/demo ladder`."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

RANKS = "--nproc-per-node 3 --hang-timeout 1m"
# What is shown | options of the scheduler | of ftrun | the failure in the first schedule | what the transcript must say
LADDER = f"""
a step is retried | | {RANKS} | rank-retry | restarts in place: none, 1 x retry below a restart; ended with 0
one rank is replaced | | {RANKS} | rank-killed | restarts in place: none, 1 x rank below a restart; ended with 0
restart upon suspension | --hang-retry | | sleep | 1 x hang; ended with 0
the same in vain | --hang-retry | | sleep --times 99 | 93 failure-limit: the job fails
the same, rescheduled | --hang-retry | --after-limit reschedule | sleep --times 99 | 195 hang-limit: job-level
unconditional job-level rescheduling | --unconditional | | crash 1 | 1 of the command: job-level rescheduling 1 of 3
failures in a row | | --restart-on failure | crash 1 --times 99 | 93 failure-limit: the job fails
in-place recovery | --fault node-a passing | | none | 1 x fault; ended with 0
isolated job-level rescheduling | --fault node-a critical | | none | isolating node-a, job-level rescheduling 1 of 3
pod-level rescheduling | --pods 2 --pod-retry-num 1 --fault node-b critical | | none | isolating node-b, pod-level
"""
OF_RANKS = re.compile(r"rank \d|\[ftrun\] .*(replac|retry the step|move again)")  # what a recovery looks like
OPTIONS = "--job-retry-num 3 {} -- --hang-timeout 1s --max-restarts 1 --grace 1s --backoff 100ms {} sh -c"


def demo(fthang: str, run: Callable[[list[str], Path], str]) -> int:
    """0 if every level held.  `run` runs a job and returns its transcript.  Timeouts are about a second, so that all of
    it takes less than a minute."""
    train = f"exec {fthang} {{}} --steps 120 --checkpoint-dir $FTRUN_STATE_DIR/checkpoints"  # on shared storage
    broken = 0
    for line in LADDER.strip().splitlines():
        title, ours, ftruns, failure, expected = (word.strip() for word in line.split("|"))
        print(f"\n--- {title}", flush=True)
        script = f"[ $MA_SCHEDULE_CNT -gt 1 ] && {train.format('none')}; {train.format(failure)}"
        with tempfile.TemporaryDirectory(prefix="ladder-") as folder:
            said = run([*OPTIONS.format(ours, ftruns).split(), script], Path(folder))
            for log in sorted(Path(folder).glob("node-*/*/output.log")):
                _show(log.read_text().splitlines(), str(log.parent.relative_to(folder)))
        if expected not in said:
            broken += 1
            print(f"!!! this level did not hold: it lacks {expected!r}")
    return int(broken > 0)


def _show(lines: list[str], where: str) -> None:
    """The starts in one line, and each line about single ranks."""
    starts = [line for line in lines if line.startswith(("start ", "finished "))]
    shown = [f"{where}: {'; '.join(starts)}"] if starts else []
    for line in [*shown, *filter(OF_RANKS.match, lines)]:
        print(f"    {line}", flush=True)
