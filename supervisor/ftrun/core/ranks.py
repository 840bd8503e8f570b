"""Which process speaks for a rank."""

from collections.abc import Iterable

from ftrun.core.values import Rank


def one_each(claimed: Iterable[Rank]) -> tuple[Rank, ...]:
    """One view a rank, the lowest first, where several processes claimed the same.

    A launcher that called a hook once, or a data worker that beats, must neither hide the process that trains nor be
    waited for in its place: those that step come before those that only beat, and of equals the last that moved.
    Where the one that stepped has died, another stands in for it and begins when that one ended.  What any of them
    reported (a checkpoint, the word that no restart helps) is kept.
    """
    by_rank: dict[int, list[Rank]] = {}
    for rank in claimed:
        by_rank.setdefault(rank.rank, []).append(rank)
    return tuple(_one(by_rank[number]) for number in sorted(by_rank))


def _one(views: list[Rank]) -> Rank:
    if len(views) == 1:
        return views[0]
    speaker = max(views, key=_weight)
    last = max(view.moved_at or 0.0 for view in views)
    if speaker.step is None and (speaker.moved_at or 0.0) < last:
        speaker = speaker._replace(claimed_at=max(speaker.claimed_at, last), moved_at=None)
    fatal = next((v.fatal for v in views if v.fatal is not None), None)
    saved = max(views, key=lambda v: -1 if v.checkpoint_step is None else v.checkpoint_step)
    return speaker._replace(fatal=fatal, checkpoint_step=saved.checkpoint_step, checkpoint_path=saved.checkpoint_path)


def _weight(view: Rank) -> tuple[bool, bool, float]:
    trains = view.step is not None and (view.present or view.done)
    return trains, view.present and not view.done, view.moved_at or view.claimed_at
