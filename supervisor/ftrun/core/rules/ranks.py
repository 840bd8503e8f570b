"""Which process represents a rank, and which processes without a rank are watched separately."""

from collections.abc import Iterable, Sequence

from ftrun.core.machine.values import Rank, unranked


def one_each(claimed: Iterable[Rank]) -> tuple[Rank, ...]:
    """One view for each rank, the lowest first, also where several processes claimed it; then processes without a rank.

    A launcher that called a hook once, or a data worker that sends heartbeats, must neither hide the process that
    trains nor be waited for in its place.  So processes that step come before those that only send heartbeats, and
    among equals the one that moved last.  Where the process that stepped has died, another one replaces it, and counts
    from the time that it ended.  Reports of any of them (a checkpoint, files, a non-recoverable error) are kept.

    Where several processes have no rank and at least two of them step (Hogwild, `multiprocessing.spawn`), each of those
    has a view of its own, numbered by `unranked`, so that one that hangs is not hidden by the others.  A process that
    started another one of them is left out, since after a step of its own it may wait for them.  It is watched only
    when all of them are gone, in their place.
    """
    by_rank: dict[int, list[Rank]] = {}
    for rank in claimed:
        by_rank.setdefault(rank.rank, []).append(rank)
    found = [view for number in sorted(by_rank) for view in _views_of_rank(by_rank[number])]
    return tuple(sorted(found, key=lambda view: (view.rank < 0, abs(view.rank))))


def _views_of_rank(views: list[Rank]) -> list[Rank]:
    apart = [] if any(view.ranked for view in views) else _workers(views)
    if len(apart) < 2:
        return [_merge(views)]
    others = [view for view in views if view not in apart]
    each = [view._replace(rank=unranked(view.pid)) for view in apart]
    if not others:
        return each
    if any(view.present or view.done for view in apart):
        return [_with_reports(each[0], [each[0], *others]), *each[1:]]
    return [_counted_from_others(_representative(others), views), *each]


def _workers(views: Sequence[Rank]) -> list[Rank]:
    """The processes that stepped, without ancestors of others among them."""
    stepped = [view for view in views if view.step is not None]
    parents = {pid for view in stepped for pid in view.parents}
    return sorted((view for view in stepped if view.pid not in parents), key=lambda view: view.pid)


def _merge(views: list[Rank]) -> Rank:
    if len(views) == 1:
        return views[0]
    return _with_reports(_counted_from_others(_representative(views), views), views)


def _representative(views: list[Rank]) -> Rank:
    return max(views, key=_weight)


def _counted_from_others(speaker: Rank, views: list[Rank]) -> Rank:
    """The speaker, counted from the last movement of the processes that moved after it, since it may have waited for
    them.  For a speaker that steps, a data worker that only sends heartbeats does not count."""
    last = max(view.moved_at or 0.0 for view in views if speaker.step is None or view.step is not None)
    if (speaker.moved_at or 0.0) < last and not speaker.done:
        return speaker._replace(claimed_at=max(speaker.claimed_at, last), moved_at=None)
    return speaker


def _with_reports(speaker: Rank, views: list[Rank]) -> Rank:
    """The speaker with the reports of all of them."""
    fatal = next((v.fatal for v in views if v.fatal is not None), None)
    saved = max(views, key=lambda v: -1 if v.checkpoint_step is None else v.checkpoint_step)
    return speaker._replace(
        fatal=fatal,
        checkpoint_step=saved.checkpoint_step,
        checkpoint_path=saved.checkpoint_path,
        saved=tuple(file for view in views for file in view.saved),
        resumed=tuple(file for view in views for file in view.resumed),
    )


def _weight(view: Rank) -> tuple[bool, bool, float]:
    trains = view.step is not None and (view.present or view.done)
    return trains, view.present and not view.done, view.moved_at or view.claimed_at
