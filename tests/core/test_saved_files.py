"""Which saved files are progress."""

import pytest

from ftrun.core.machine.values import Attempt, Ledger, Rank, SavedFile
from ftrun.core.rules.policy import Policy, credited, progress
from ftrun.core.rules.saved_files import MOST, advanced, remembered


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
def test_newer_state_is_what_follows_from_the_newest(inherited: str, resumed: str, saved: str, newer: bool) -> None:
    one, other = Rank(0, step=3, saved=files(saved)), Rank(1, step=3, resumed=files(resumed))
    assert advanced(Attempt(2, inherited=files(inherited), ranks=(one, other))) is newer
    alone = Rank(0, step=3, saved=files(saved), resumed=files(resumed))
    attempt = Attempt(2, inherited=files(inherited), ranks=(alone,))
    assert progress(Ledger(best_step=9), attempt, 9.0, Policy()) == ("save" if newer else None)
    # What the program reports by itself decides alone.
    assert progress(Ledger(best_step=9, best_checkpoint=7), attempt, 9.0, Policy()) is None
    assert progress(Ledger(best_step=9), attempt, 9.0, Policy(files=True)) is None


def test_what_was_saved_is_remembered_once_by_its_path_the_newest_last() -> None:
    rank = Rank(0, saved=files("/b@2 /a@3"))
    ledger = credited(Ledger(saved=files("/a@1 /c@1")), Attempt(1, ranks=(rank, Rank(1))), None)
    assert ledger.saved == files("/c@1 /b@2 /a@3")
    assert credited(ledger, Attempt(1, ranks=(rank,)), None) == ledger
    many = tuple(SavedFile(f"/{number}", "1") for number in range(MOST + 5))
    assert remembered((), (Rank(0, saved=many),)) == many[5:]
