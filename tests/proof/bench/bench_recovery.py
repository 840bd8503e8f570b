"""The reaction time of a group of containers, each on a host of its own, to the failure of one.

    python tests/proof/bench/bench_recovery.py [SIZE] [RUNS]

Each host is a network namespace, each container a real ftrun, and the clock the one of their records (CLOCK_MONOTONIC).
The command is tiny, so that the figures are those of ftrun: the timeout of a hang and the backoff before a restart,
which applies to failures only, are set and printed with the figures.  A killed ftrun and a silent link each end a
separate group.
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "supervisor"), str(ROOT / "hooks")]

from support.group_runs import Group  # noqa: E402
from support.hosts import Container, Hosts, refusal  # noqa: E402

OPTIONS = ("--max-restarts", "off", "--backoff", "10ms", "--grace", "1s")
HANG = ("--hang-timeout", "1s")  # only where hangs are measured: who waits for the dead would be taken for hanging
FOR_EVER = ("--steps", "1000000", "--step-time", "0.02", "--every", "10")
Samples = dict[str, list[float]]


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    if why := refusal():
        sys.exit(f"no hosts in network namespaces: {why}")
    samples: Samples = {}
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        _with_group(Path(folder, "kills"), size, lambda group: _kills(group, runs, samples))
        _with_group(Path(folder, "hangs"), size, lambda group: _hangs(group, runs, samples), runs)
        for number in range(max(1, runs // 4)):
            _with_group(Path(folder, f"ftrun-{number}"), size, lambda group: _ftrun_killed(group, samples))
            _with_group(Path(folder, f"zero-{number}"), size, lambda group: _zero_killed(group, samples))
        for number in range(max(1, runs // 10)):
            _with_group(Path(folder, f"link-{number}"), size, lambda group: _link_silent(group, samples))
    print(f"{size} containers, {os.cpu_count()} cores; s")
    for name, found in samples.items():
        print(
            f"{name:62} median {statistics.median(found):6.2f}  "
            f"least {min(found):6.2f}  most {max(found):6.2f}  of {len(found)}"
        )


def _with_group(folder: Path, size: int, measure: Callable[[Group], None], hangs: int = 0) -> None:
    chance = random.Random(7)
    failures = [f"hang:{chance.randrange(size)}:{100 * (n + 1)}" for n in range(hangs)]
    words = [argument for failure in failures for argument in ("--failure", failure)]
    here = Hosts(folder, size)
    try:
        options = (*OPTIONS, *HANG) if hangs else (*OPTIONS, "--hang-timeout", "off")
        group = Group(here, *FOR_EVER, *words, options=options, wait="60s")
        group.begin()
        group.until_started(1)
        measure(group)
        wrong = list(group.book.wrong())
        assert not wrong, wrong
    finally:
        here.close()


def _kills(group: Group, runs: int, samples: Samples) -> None:
    """kill -9 of one command after the other."""
    for number in range(runs):
        _settled(group)
        victim = group.rank(number % group.size)
        command, then = victim.command, time.monotonic()
        os.kill(command, signal.SIGKILL)
        group.until_started(number + 2)
        ends = [_time(one, "exited", then) for one in group.hosts.last if one is not victim]
        _add(samples, "kill -9 of a command: the others' commands ended", max(ends) - then)
        _add(samples, "kill -9 of a command: all executed again", _again(group, then) - then)
        _add(samples, "kill -9 of a command: all at work again", _at_work(group, number + 2) - then)


def _hangs(group: Group, runs: int, samples: Samples) -> None:
    """From the verdict, the first `hang` record of any of them."""
    last = time.monotonic()
    for number in range(runs):
        group.until_started(number + 2)
        hangs = [r["mono"] for one in group.hosts.last for r in one.named("hang") if r["mono"] > last]
        verdict, last = min(hangs), time.monotonic()
        ends = [_time(one, "exited", verdict) for one in group.hosts.last]
        _add(samples, "verdict of a hang (limit 1 s): all commands ended", max(ends) - verdict)
        _add(samples, "verdict of a hang (limit 1 s): all executed again", _again(group, verdict) - verdict)


def _ftrun_killed(group: Group, samples: Samples) -> None:
    _settled(group)
    then = time.monotonic()
    group.rank(group.size - 1).kill()
    _noticed(group, samples, "kill -9 of an ftrun", then, {group.size - 1})


def _zero_killed(group: Group, samples: Samples) -> None:
    _settled(group)
    then = time.monotonic()
    group.rank(0).kill()
    time.sleep(0.5)  # a new container comes so much later: that is what is measured
    group.start(0)
    group.until_started(2)
    _add(samples, "kill -9 of rank 0's ftrun, 0.5 s, a new one: all executed again", _again(group, then) - then)


def _link_silent(group: Group, samples: Samples) -> None:
    _settled(group)
    then = time.monotonic()
    group.hosts.hosts[group.size - 1].cut(silent=True)
    _noticed(group, samples, "a silent link", then, {group.size - 1})
    ends = _time(group.rank(group.size - 1), "exited", then)
    _add(samples, "a silent link: the command of who is cut off ended", ends - then)


def _noticed(group: Group, samples: Samples, what: str, then: float, but: set[int]) -> None:
    """The others end their commands."""
    others = [one for one in group.hosts.last if one.rank not in but]
    _add(
        samples, f"{what}: the first of the others notices", min(_time(one, "stopping", then) for one in others) - then
    )
    _add(samples, f"{what}: the commands of all others ended", max(_time(one, "exited", then) for one in others) - then)


def _settled(group: Group) -> None:
    """Wait until all have run for a while: starting uses a processor, which must not delay the next failure."""
    epoch = group.book.epochs[-1]
    group.until_started(epoch)
    before = group.book.step
    group.until_step(before + 10)
    time.sleep(0.5)  # a pause: nothing tells when the processors are done with the start of the others


def _time(one: Container, event: str, after: float) -> float:
    """Of the first such record after that."""
    until = time.monotonic() + 60
    while True:
        if found := [r["mono"] for r in one.named(event) if r["mono"] >= after]:
            return float(found[0])
        assert time.monotonic() < until, f"no {event}: {one.log()}"
        time.sleep(0.01)


def _again(group: Group, after: float) -> float:
    return max(_time(one, "spawned", after) for one in group.hosts.last)


def _at_work(group: Group, epoch: int) -> float:
    return float(max(line["time"] for line in group.book.named("start", epoch=epoch)))


def _add(samples: Samples, name: str, value: float) -> None:
    samples.setdefault(name, []).append(value)


if __name__ == "__main__":
    main()
