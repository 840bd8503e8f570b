"""When a match counts, over made-up series of events."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ftrun.helpers.checkpoint_watcher.waits import (
    FOLDER_SETTLE,
    LOOKS,
    PATIENCE,
    SETTLE,
    FileEvent,
    Look,
    Wait,
    after,
    after_look,
    postponed,
)

LOOK, OTHER = Look(1, 1), Look(1, 2)


def follow(*series: tuple[float, FileEvent]) -> Wait | None:
    wait = None
    for at, what in series:
        wait = after(wait, what, at)
    return wait


def due(wait: Wait | None) -> float:
    assert wait is not None
    assert wait.due is not None
    return wait.due


def test_written_and_closed_counts_at_the_first_look() -> None:
    wait = follow((0, FileEvent.CREATED), (0, FileEvent.OPENED))
    assert wait is not None
    assert wait.due is None, "it is being written"
    wait = after(wait, FileEvent.WRITTEN, 100)
    assert due(wait) == 100 + SETTLE
    assert wait is not None
    assert after_look(wait, LOOK, 100 + SETTLE) == (None, True)
    assert after_look(wait, None, 100 + SETTLE) == (None, False), "it was deleted again"


def test_linked_into_place_counts_at_the_second_equal_look() -> None:
    wait = follow((0, FileEvent.CREATED))
    wait, counts = after_look(wait or Wait(0), LOOK, due(wait))
    assert not counts
    assert wait is not None
    assert due(wait) == 2 * SETTLE
    assert after_look(wait, LOOK, 1) == (None, True)
    wait, counts = after_look(wait, OTHER, 1)
    assert (due(wait), counts) == (1 + SETTLE, False)


def test_a_reader_of_what_was_linked_into_place_only_delays_it() -> None:
    wait = follow((0, FileEvent.CREATED), (0.1, FileEvent.OPENED), (9, FileEvent.READ))
    assert due(wait) == 9 + SETTLE


def test_opened_again_it_waits_for_the_close_or_for_long_rest() -> None:
    wait = follow((0, FileEvent.CREATED), (0, FileEvent.OPENED), (1, FileEvent.WRITTEN), (1.2, FileEvent.OPENED))
    assert due(wait) == 1.2 + PATIENCE
    wait, counts = after_look(wait or Wait(0), LOOK, 6.2)
    assert (due(wait), counts) == (6.2 + LOOKS, False)
    assert after_look(wait or Wait(0), LOOK, 6.2 + PATIENCE) == (None, True), "who holds it open only reads it"
    assert due(after(wait, FileEvent.WRITTEN, 7)) == 7 + SETTLE


def test_two_that_write_are_both_waited_for() -> None:
    wait = follow((0, FileEvent.CREATED), (0, FileEvent.OPENED), (0.1, FileEvent.OPENED), (0.2, FileEvent.WRITTEN))
    assert due(wait) == 0.2 + PATIENCE
    assert due(after(wait, FileEvent.WRITTEN, 3)) == 3 + SETTLE


def test_a_folder_rests_longer() -> None:
    folder, changed = Look(1, 1, folder=True), Look(1, 2, folder=True)
    wait, _ = after_look(Wait(0), folder, 0)
    assert due(wait) == LOOKS
    wait, counts = after_look(wait or Wait(0), changed, 1)
    for at in range(2, 6):
        wait, counts = after_look(wait or Wait(0), changed, at)
        assert (due(wait), counts) == (at + LOOKS, False)
    assert after_look(wait or Wait(0), changed, 1 + FOLDER_SETTLE) == (None, True)


def test_a_folder_that_took_long_rests_long() -> None:
    wait: Wait | None = Wait(0)
    for at in range(0, 401, 50):
        wait, _ = after_look(wait or Wait(0), Look(1, at, folder=True), at)
    assert after_look(wait or Wait(0), Look(1, 400, folder=True), 499)[1] is False
    assert after_look(wait or Wait(0), Look(1, 400, folder=True), 500)[1] is True


def test_a_dear_look_is_rare() -> None:
    wait, _ = after_look(Wait(0), LOOK, 0, took=2)
    assert due(wait) == 40


def test_what_is_busy_is_looked_at_later() -> None:
    assert postponed(Wait(5, opens=2, made=True, look=LOOK, since=1), 6) == Wait(6 + LOOKS, 2, True, look=LOOK, since=1)


def test_what_nobody_waits_for_is_no_news() -> None:
    for what in (FileEvent.OPENED, FileEvent.READ, FileEvent.LOST):
        assert after(None, what, 0) is None


class File(RuleBasedStateMachine):
    """One path, its writers and readers, and a clock.  inotify tells all, or loses some and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.there, self.version = 0.0, False, 0
        self.writers = self.readers = 0
        self.maker = False  # it was made by open, and nobody has closed it yet
        self.wait: Wait | None = None
        self.counted: int | None = None  # the version that counted last
        self.touched = 0.0  # when anything was done to it last

    def tell(self, what: FileEvent) -> None:
        self.touched = self.now
        self.wait = after(self.wait, what, self.now)

    @initialize(linked=st.booleans())
    def begin(self, linked: bool) -> None:
        self.make(linked)

    @rule(linked=st.booleans())
    @precondition(lambda self: not self.there)
    def make(self, linked: bool) -> None:
        self.there, self.version, self.maker = True, self.version + 1, not linked
        self.writers = self.readers = 0
        self.tell(FileEvent.CREATED)
        if not linked:
            self.writers = 1
            self.tell(FileEvent.OPENED)

    @rule()
    @precondition(lambda self: self.there)
    def write(self) -> None:
        if self.writers:
            self.version, self.touched = self.version + 1, self.now

    @rule(writes=st.booleans())
    @precondition(lambda self: self.there and not self.maker)
    def open(self, writes: bool) -> None:
        self.writers, self.readers = self.writers + writes, self.readers + (not writes)
        self.tell(FileEvent.OPENED)

    @rule()
    @precondition(lambda self: self.writers)
    def close(self) -> None:
        self.writers, self.maker = self.writers - 1, False
        self.tell(FileEvent.WRITTEN)

    @rule()
    @precondition(lambda self: self.readers)
    def close_reader(self) -> None:
        self.readers -= 1
        self.tell(FileEvent.READ)

    @rule()
    @precondition(lambda self: self.there)
    def delete(self) -> None:
        self.there, self.wait, self.writers, self.readers, self.maker = False, None, 0, 0, False

    @rule()
    @precondition(lambda self: self.there and (self.wait is not None or not self.writers))
    def found_by_a_listing(self) -> None:
        if self.counted != self.version:
            self.wait = after(self.wait, FileEvent.FOUND, self.now)

    @rule()
    @precondition(lambda self: not self.writers)
    def lose(self) -> None:
        self.wait = after(self.wait, FileEvent.LOST, self.now)

    @rule(seconds=st.sampled_from([0.1, 0.3, 0.6, 1.1, 6.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.wait is not None and self.wait.due is not None and self.wait.due <= until:
            self.now = max(self.now, self.wait.due)
            look = Look(1, self.version) if self.there else None
            self.wait, counts = after_look(self.wait, look, self.now)
            if counts:
                self.count()
        self.now = until

    def count(self) -> None:
        assert self.there, "it is gone"
        assert not self.maker, "it is still being written"
        assert self.now - self.touched >= SETTLE - 1e-9, "it was not left alone"
        self.counted = self.version

    @invariant()
    def what_rests_has_counted(self) -> None:
        rests = self.there and not self.writers and not self.readers
        if rests and self.now - self.touched > 3 * PATIENCE:
            assert self.counted == self.version
            assert self.wait is None, "and nobody wakes up for it"


TestFile: Any = File.TestCase
TestFile.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
