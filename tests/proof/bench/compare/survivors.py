"""The processes of a failed start that are still alive when the next start begins."""

from __future__ import annotations

import sys
from pathlib import Path

from proof.bench.compare.hang import NVIDIA, Watch
from proof.bench.compare.kit import Contained, contained, made_by
from proof.bench.compare.peers import CIRCUSD, DUMB_INIT, FT_LAUNCHER, OURS, SUPERVISORD, TINI, TORCHRUN
from proof.bench.compare.trainee_family import KINDS
from proof.bench.compare.trainees import apart
from support.measured import Measured
from support.runs import wait_for

NAME = "60-survivors"
WAYS = (
    Watch(OURS, "", ("--restart-on=failure", "--max-restarts=off")),
    Watch(CIRCUSD, "", ()),
    Watch(SUPERVISORD, "autorestart=true", ("autorestart=true",)),
    Watch(TORCHRUN, "--max-restarts", ("--max-restarts=9",)),
    Watch(FT_LAUNCHER, "--max-restarts", NVIDIA),
)
FAMILY = (sys.executable, str(Path(__file__).with_name("trainee_family.py")))


def living(way: Watch, ranks: int = 1) -> list[str]:
    """The kinds of processes that survive, as the second start observes them."""
    with contained(apart(way.peer), *FAMILY, ranks=ranks, options=way.options) as run:
        return survivors(run)


def survivors(run: Contained) -> list[str]:
    """The kinds that the second start has written to `living`."""
    path = run.folder / "living"

    def look() -> bool:
        assert path.exists() or run.process.poll() is None, f"ended: {run.output}"
        return path.exists()

    wait_for(look, f"a second start: {run.output[-500:]}", 60)
    return path.read_text().splitlines()


def measure(short: bool) -> Measured:
    rows = []
    for way in WAYS:
        if way.peer.installed:
            for ranks in (1, 2) if way.peer in (TORCHRUN, FT_LAUNCHER) else (1,):
                runs = [set(living(way, ranks)) for _ in range(1 if short else 3)]
                rows.append((way.peer.titled + ", of two ranks the other one fails" * (ranks == 2), *_cells(runs)))
    rows += [(peer.titled, "no restart", *[""] * len(KINDS)) for peer in (TINI, DUMB_INIT) if peer.installed]
    return Measured(
        NAME,
        "Processes that survive a restart",
        made_by(NAME),
        (
            "A program starts six processes and fails; its next start checks which of them are still alive. Each of "
            "the compared programs is the first process of its container.",
        ),
        ("program", "survivors", *KINDS),
        tuple(rows),
        (
            "A process that survives holds memory, devices and ports, and may write to files that the next start "
            "reads. ftrun ends all processes that descend from the command, even if they have detached themselves, and "
            "waits for `--grace` (10 s) if one ignores SIGTERM. torchrun and ft_launcher end the process group of a "
            "rank that is still alive; they do not search for processes that a failed rank has left behind. "
            "supervisord and circus end a process group when they are asked to stop it, not when the program fails.",
        ),
    )


def _cells(runs: list[set[str]]) -> list[str]:
    """The number of survivors over all runs, and for each kind whether it survived in any run."""
    numbers = sorted({len(run) for run in runs})
    most = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return [f"{most} of {len(KINDS)}", *("survives" if any(kind in run for run in runs) else "–" for kind in KINDS)]
