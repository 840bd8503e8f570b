"""An invented snapshot of a run, for tests of what is made from one."""

from typing import Any

from ftrun.records.files.recent_events import Incident
from ftrun.records.present.snapshot import DeviceNow, Limit, RankNow, Snapshot


def ranks(number: int) -> tuple[RankNow, ...]:
    """All of them step; rank 3 (of fewer than 6, the one in the middle) has been silent for most of its limit."""
    silent = min(3, number // 2)
    found = []
    for rank in range(number):
        section = "evaluation" if rank % 97 == 5 else None
        age = 31.0 if rank == silent else 0.1 + rank % 7 / 10
        shown = RankNow(rank, 4000 + rank, "section" if section else "moving", 812 - (rank == silent), section=section)
        found.append(shown._replace(moved=age, alive=0.1, rule="step", age=age, limit=38.0, step_time=0.42))
    return tuple(found)


def snapshot(number: int = 8, devices: int = 8, **changed: Any) -> Snapshot:
    """A run of so many ranks, one of which is about to be suspected."""
    found = ranks(number)
    silent = found[min(3, number // 2)] if found else None
    shown = Snapshot(
        run_dir="/run/dir",
        alive=True,
        phase="running",
        attempt=2,
        reason="hang",
        command=("torchrun", "--standalone", "--nproc-per-node", str(number), "train.py"),
        version="0.1.0",
        pid=4000,
        began="2026-11-21T10:00:00.000Z",
        wall=7380.0,
        up=812.0,
        counts={"hang": 1, "fault": 0, "failure": 0},
        left={"hang": 2, "fault": 3, "failure": 0},
        restarts={"hang": 1, "fault": 0},
        step=812,
        best_step=812,
        step_time=0.42,
        checkpoint="/checkpoints/step-800",
        checkpoint_step=800,
        checkpoint_age=250.0,
        checkpoint_time="2026-11-21T12:00:00.000Z",
        ranks=found,
        slowest=silent,
        stalest=silent,
        limits=(
            Limit("hang", 38.0, "option"),
            Limit("start", 3600.0, "default"),
            Limit("section", 3600.0, "default"),
            Limit("idle", None, "option"),
        ),
        deadline=7.0,
        next="Rank 3 would be suspected in 7s: 31s without a step (timeout 38s).",
        devices=tuple(
            DeviceNow(f"GPU-{n}", "NVIDIA H100", 98.0 - n, 71 << 30, 80 << 30, 640.0, 1.2) for n in range(devices)
        ),
        trouble=Incident(
            "2026-11-21T09:49:08.000Z",
            1,
            "hang",
            "rank 3 stopped at step 790, 41s ago (limit 38s)",
            "/run/dir/reports/attempt-1/report.md",
        ),
        lost={"hang": 41.0, "redone": 12.6, "startup": 30.0, "stopping": 0.5},
        goodput=0.9887,
    )
    return shown._replace(**changed)
