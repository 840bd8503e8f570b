"""Budgets, waits, and what counts as progress."""

import pytest

from ftrun.core.machine.values import Attempt, Cause, Ledger, Rank, SavedFile, Section
from ftrun.core.rules.policy import MOST_SAVED, Policy, has_advanced, is_exhausted, progress, with_progress, with_saved

CAUSES: tuple[Cause, ...] = ("hang", "fault", "failure")


def attempt(step: int | None = None, checkpoint: int | None = None, spawned_at: float = 0.0) -> Attempt:
    path = None if checkpoint is None else f"/ckpt/{checkpoint}"
    seen = Rank(0, moved_at=1.0, step=step, checkpoint_step=checkpoint, checkpoint_path=path)
    return Attempt(1, spawned_at=spawned_at, ranks=(seen,))


@pytest.mark.parametrize("cause", CAUSES)
def test_the_budget_allows_three_restarts(cause: Cause) -> None:
    ledger = Ledger()
    for _ in range(3):
        assert not is_exhausted(ledger, cause, Policy())
        ledger = ledger.counted(cause)
    assert is_exhausted(ledger, cause, Policy())
    assert not any(is_exhausted(ledger, other, Policy()) for other in CAUSES if other != cause)
    assert not is_exhausted(ledger, cause, Policy(max_restarts=None))
    assert is_exhausted(Ledger(), cause, Policy(max_restarts=0))


@pytest.mark.parametrize(
    ("ledger", "reached", "now", "expected"),
    [
        # Checkpoints, wherever one was ever reported: only a newer one.
        (Ledger(), attempt(checkpoint=0), 0, "checkpoint"),
        (Ledger(best_checkpoint=5), attempt(checkpoint=6), 0, "checkpoint"),
        (Ledger(best_checkpoint=5), attempt(checkpoint=5), 9999, None),
        (Ledger(best_checkpoint=5, best_step=7), attempt(step=800), 9999, None),
        (Ledger(best_checkpoint=5, best_step=7), attempt(step=800, checkpoint=5), 9999, None),
        # Else steps: only beyond the highest seen before.
        (Ledger(), attempt(step=0), 0, "step"),
        (Ledger(best_step=7), attempt(step=8), 0, "step"),
        (Ledger(best_step=7), attempt(step=7), 9999, None),
        (Ledger(best_step=7), attempt(), 9999, None),
        # Else time.
        (Ledger(), Attempt(1), 3600, "stable"),
        (Ledger(), Attempt(1), 3599.9, None),
        (Ledger(), Attempt(1, spawned_at=100), 3600, None),
    ],
)
def test_progress(ledger: Ledger, reached: Attempt, now: float, expected: str | None) -> None:
    assert progress(ledger, reached, now, Policy()) == expected


@pytest.mark.parametrize("reached", [attempt(), attempt(step=9), attempt(step=9, checkpoint=5), Attempt(1)])
def test_where_checkpoint_files_are_watched_only_they_are_progress(reached: Attempt) -> None:
    """`ev.Saved` says so when one came; a newer checkpoint that the program reports counts as well."""
    watched, ledger = Policy(files=True), Ledger(best_checkpoint=5)
    assert progress(ledger, reached, 1e9, watched) is None
    assert progress(ledger, attempt(checkpoint=6), 0, watched) == "checkpoint"
    assert progress(Ledger(), attempt(step=9), 0, watched) is None


SAVE, OUTER, INNER = Section("save", 1.0, automatic=True), Section("outer", 2.0), Section("inner", 3.0)


@pytest.mark.parametrize(
    ("ranks", "section"),
    [
        ((), None),
        ((Rank(0),), None),
        ((Rank(0, sections=(OUTER, INNER)),), "outer"),
        ((Rank(0), Rank(1, sections=(INNER,)), Rank(2, sections=(OUTER,))), "inner"),
        ((Rank(0, sections=(SAVE, INNER)),), "inner"),
        ((Rank(0, sections=(SAVE,)), Rank(1, sections=(OUTER,))), "outer"),
        ((Rank(0, sections=(SAVE,)),), None),
        ((Rank(0, broken="eval"),), "eval"),
        ((Rank(0, sections=(SAVE,), broken="eval"),), "eval"),
        ((Rank(0, sections=(OUTER,), broken="eval"),), "outer"),
    ],
)
def test_the_section_that_a_restart_may_want_to_skip(ranks: tuple[Rank, ...], section: str | None) -> None:
    """The outermost that the lowest rank is in, or that an exception closed; never one that the hooks opened."""
    assert Attempt(1, ranks=ranks).section == section
    assert with_progress(Ledger(last_section="earlier"), Attempt(1, ranks=ranks), None).last_section == section


def test_time_away_is_not_stable() -> None:
    away = Attempt(1, aways=((10.0, 20.0),))
    assert progress(Ledger(), away, 3609.9, Policy()) is None
    assert progress(Ledger(), away, 3610, Policy()) == "stable"
    assert progress(Ledger(), away, 1e9, Policy(stable_after=None)) is None


def test_the_best_of_all_ranks_is_kept() -> None:
    saved = Rank(0, step=3, checkpoint_step=2, checkpoint_path="/a"), Rank(3, checkpoint_step=4, checkpoint_path="/b")
    ranks = *saved, Rank(1, step=5), Rank(2)
    after = with_progress(Ledger(), Attempt(1, ranks=ranks), "checkpoint")
    assert (after.best_step, after.last_step, after.best_checkpoint, after.last_checkpoint) == (5, 5, 4, "/b")
    for what in ("checkpoint", "step", "stable"):
        reset = with_progress(Ledger(hang=1, fault=2, failure=3), Attempt(1, ranks=ranks), what)
        assert (reset.hang, reset.fault, reset.failure) == (0, 0, 0)


# --- files that the program saves by itself ---------------------------------------------------------------------------


def files(text: str) -> tuple[SavedFile, ...]:
    return tuple(SavedFile(*word.split("@")) for word in text.split())


@pytest.mark.parametrize(
    ("inherited", "resumed", "saved", "newer"),
    [
        ("/c/last.pt@1", "/c/last.pt@1", "/c/last.pt@2", True),
        ("/c/epoch_1.pt@1 /c/epoch_2.pt@2", "/c/epoch_2.pt@2", "/c/epoch_3.pt@3", True),
        ("/c/run_1/last.pt@1", "/c/run_1/last.pt@1", "/c/run_2/last.pt@2", True),
        ("/c/fresh.tmp@1", "/c/last.pt@1", "/c/fresh.tmp@2", True),  # renamed in between
        ("/c/last.pt", "/c/last.pt@1", "/c/last.pt", True),  # through an open file: its version is not known
        ("/c/tmp1_ab2c9z@-7", "/c/epoch_2.pt@1.2.7", "/c/tmpx8yq_wvu@-8", True),  # through one with a name by chance
        ("/c/tmp1_ab2c9z@-7", "/c/epoch_2.pt@1.2.8", "/c/tmpx8yq_wvu@-8", False),  # another file
        ("/c/last.pt@1.2", "/c/last.pt@1.2.7", "/c/last.pt@3.4", True),
        ("/c/last.pt@1", "/c/last.pt@1", "", False),  # nothing saved since
        ("", "", "/c/last.pt@1", False),  # the first ever: from scratch
        ("", "/c/last.pt@1", "/c/last.pt@2", False),  # of no earlier attempt
        ("/c/last.pt@1", "", "/c/last.pt@2", False),  # from scratch again
        ("/r/1/last.pt@1", "", "/r/2/last.pt@2", False),  # in a new folder
        ("/c/last.pt@1", "/c/pretrained.pt@0", "/c/last.pt@2", False),
        ("/c/epoch_1.pt@1 /c/epoch_2.pt@2", "/c/epoch_1.pt@1", "/c/epoch_2.pt@3", False),  # reached before
        ("/c/first.pt@1 /c/second.pt@2", "/c/first.pt@1", "/c/second.pt@3", False),  # a stage from scratch
        ("/c/last.pt@1", "/c/last.pt@5", "/c/last.pt@6", False),  # written anew before it was loaded
    ],
)
def test_a_file_saved_after_resuming_from_the_newest_is_progress(
    inherited: str, resumed: str, saved: str, newer: bool
) -> None:
    one, other = Rank(0, step=3, saved=files(saved)), Rank(1, step=3, resumed=files(resumed))
    assert has_advanced(Attempt(2, inherited=files(inherited), ranks=(one, other))) is newer
    alone = Rank(0, step=3, saved=files(saved), resumed=files(resumed))
    attempt = Attempt(2, inherited=files(inherited), ranks=(alone,))
    assert progress(Ledger(best_step=9), attempt, 9.0, Policy()) == ("save" if newer else None)
    # What the program reports by itself decides alone.
    assert progress(Ledger(best_step=9, best_checkpoint=7), attempt, 9.0, Policy()) is None
    assert progress(Ledger(best_step=9), attempt, 9.0, Policy(files=True)) is None


def test_saved_files_are_kept_once_by_path_the_newest_last() -> None:
    rank = Rank(0, saved=files("/b@2 /a@3"))
    ledger = with_progress(Ledger(saved=files("/a@1 /c@1")), Attempt(1, ranks=(rank, Rank(1))), None)
    assert ledger.saved == files("/c@1 /b@2 /a@3")
    assert with_progress(ledger, Attempt(1, ranks=(rank,)), None) == ledger
    many = tuple(SavedFile(f"/{number}", "1") for number in range(MOST_SAVED + 5))
    assert with_saved((), (Rank(0, saved=many),)) == many[5:]
