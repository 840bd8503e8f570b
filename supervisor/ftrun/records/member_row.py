"""The row of one member in the view of its group, from its run dir."""

import os
from typing import Final

from ftrun.core.text import states
from ftrun.messages.group_view import PACES, TEXT, MemberRow, RankPace
from ftrun.records import reports, summary
from ftrun.records.own_ranks import ENDED
from ftrun.records.run_snapshot import read_snapshot
from ftrun.records.snapshot import RankNow, Snapshot

STEP: Final = 1 << 53  # the largest step that is passed on
DEVICE: Final = 64  # characters of the id of a device


def read_row(run_dir: str, rank: int, node: str, now: float) -> MemberRow:
    """As of `now`, CLOCK_MONOTONIC.  NoRunDir is the only error."""
    return row(read_snapshot(run_dir, now), rank, node, now)


def row(shown: Snapshot, rank: int, node: str, now: float) -> MemberRow:
    """Pure, but for the report that it looks for."""
    active = [one for one in shown.ranks if one.state not in ENDED]
    silent = [one.alive if one.alive is not None else one.age for one in active]
    known = [age for age in silent if age is not None]
    trouble = shown.trouble
    return MemberRow(
        rank=rank,
        node=node[:TEXT],
        phase=shown.phase if shown.paused is None or not shown.alive else states.PAUSED,
        health=summary.headline(shown)[:TEXT],
        attempt=shown.attempt,
        at=now,
        step=shown.step if shown.step is None or shown.step <= STEP else None,
        step_time=shown.step_time,
        beat=round(max(known), 3) if known else None,
        ranks=len(active),
        trouble=None if trouble is None else f"{trouble.cause} in attempt {trouble.attempt}: {trouble.why}"[:TEXT],
        trouble_time=None if trouble is None else trouble.time,
        report=max(reports.collected(shown.run_dir), default=None),
        run_dir=os.path.abspath(shown.run_dir)[:TEXT],
        paces=tuple(_pace(one, one.step_time) for one in active if one.step_time)[:PACES],
    )


def _pace(one: RankNow, step_time: float) -> RankPace:
    return RankPace(one.rank, round(step_time, 6), (one.device or "")[:DEVICE], one.work)
