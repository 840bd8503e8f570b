"""Which process represents a rank, and which processes without a rank are watched separately."""

from collections.abc import Iterable, Sequence

from ftrun.core.machine.values import Rank, unranked


def one_each(claimed: Iterable[Rank]) -> tuple[Rank, ...]:
    """One representative for each rank, the lowest first, also where several processes claimed it; then processes
    without a rank.

    A launcher that called a hook once, or a data worker that sends heartbeats, must neither hide the process that
    trains nor be waited for in its place.  So processes that step come before those that only send heartbeats, and
    among equals the one that moved last.  Where the process that stepped has died, another process replaces it, and
    counts from the time that it ended.  Reports of any of them (a checkpoint, files, a non-recoverable error) are kept.

    Where several processes have no rank and at least two of them step (Hogwild, `multiprocessing.spawn`), each of those
    represents itself, numbered by `unranked`, so that one that hangs is not hidden by the others.  A process that
    started another one of them is left out, since after a step of its own it may wait for them.  It is watched only
    when all of them are gone, in their place.
    """
    by_rank: dict[int, list[Rank]] = {}
    for rank in claimed:
        by_rank.setdefault(rank.rank, []).append(rank)
    found = [process for number in sorted(by_rank) for process in _representatives(by_rank[number])]
    return tuple(sorted(found, key=lambda process: (process.rank < 0, abs(process.rank))))


def _representatives(processes: list[Rank]) -> list[Rank]:
    if len(processes) == 1:
        return processes
    apart = [] if any(process.ranked for process in processes) else _workers(processes)
    if len(apart) < 2:
        return [_with_reports(_counted_from_others(_representative(processes), processes), processes)]
    others = [process for process in processes if process not in apart]
    each = [process._replace(rank=unranked(process.pid)) for process in apart]
    if not others:
        return each
    if any(process.present or process.done for process in apart):
        return [_with_reports(each[0], [each[0], *others]), *each[1:]]
    return [_counted_from_others(_representative(others), processes), *each]


def _workers(processes: Sequence[Rank]) -> list[Rank]:
    """The processes that stepped, without ancestors of others among them."""
    stepped = [process for process in processes if process.step is not None]
    parents = {pid for process in stepped for pid in process.parents}
    return sorted((process for process in stepped if process.pid not in parents), key=lambda process: process.pid)


def _representative(processes: list[Rank]) -> Rank:
    return max(processes, key=_weight)


def _counted_from_others(representative: Rank, processes: list[Rank]) -> Rank:
    """The representative, counted from the last movement of the processes that moved after it, since it may have waited
    for them.  For a representative that steps, a data worker that only sends heartbeats does not count."""
    last = max(
        process.moved_at or 0.0 for process in processes if representative.step is None or process.step is not None
    )
    if (representative.moved_at or 0.0) < last and not representative.done:
        return representative._replace(claimed_at=max(representative.claimed_at, last), moved_at=None)
    return representative


def _with_reports(representative: Rank, processes: list[Rank]) -> Rank:
    """The representative with the reports of all of them."""
    fatal = next((p.fatal for p in processes if p.fatal is not None), None)
    saved = max(processes, key=lambda p: -1 if p.checkpoint_step is None else p.checkpoint_step)
    return representative._replace(
        fatal=fatal,
        checkpoint_step=saved.checkpoint_step,
        checkpoint_path=saved.checkpoint_path,
        saved=tuple(file for process in processes for file in process.saved),
        resumed=tuple(file for process in processes for file in process.resumed),
    )


def _weight(process: Rank) -> tuple[bool, bool, float]:
    trains = process.step is not None and (process.present or process.done)
    return trains, process.present and not process.done, process.moved_at or process.claimed_at
