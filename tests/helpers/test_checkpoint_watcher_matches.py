"""When a match counts, over made-up series of events."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ftrun.helpers.checkpoint_watcher.disk import FileLook
from ftrun.helpers.checkpoint_watcher.matches import (
    FOLDER_SETTLE,
    LOOKS,
    PATIENCE,
    SETTLE,
    FileEvent,
    Wait,
    after,
    after_look,
    postponed,
)

LOOK, OTHER = FileLook(1, 1), FileLook(1, 2)
FOLDER, CHANGED = FileLook(1, 1, folder=True), FileLook(1, 2, folder=True)
CREATED, OPENED, WRITTEN, READ = FileEvent.CREATED, FileEvent.OPENED, FileEvent.WRITTEN, FileEvent.READ
GROWING = [(at, FileLook(1, at, folder=True)) for at in range(0, 401, 50)]
Results = list[float | str | None]


def results(*series: tuple[float, FileEvent | FileLook | None], wait: Wait | None = None) -> Results:
    """After each event, and each look at a time: when the next look is due, or that the match counts or is gone."""
    found: Results = []
    for now, what in series:
        if isinstance(what, FileEvent):
            wait, counts = after(wait, what, now), False
        else:
            wait, counts = after_look(wait or Wait(0), what, now)
        found.append("counts" if counts else "gone" if wait is None else wait.due)
    return found


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ([(0, CREATED), (0, OPENED), (100, WRITTEN), (100 + SETTLE, LOOK)], [SETTLE, None, 100 + SETTLE, "counts"]),
        ([(0, WRITTEN), (SETTLE, None)], [SETTLE, "gone"]),
        ([(0, CREATED), (SETTLE, LOOK), (1, LOOK)], [SETTLE, 2 * SETTLE, "counts"]),
        ([(0, CREATED), (SETTLE, LOOK), (1, OTHER)], [SETTLE, 2 * SETTLE, 1 + SETTLE]),
        # A reader of a file that was linked into place only delays it.
        ([(0, CREATED), (0.1, OPENED), (9, READ)], [SETTLE, None, 9 + SETTLE]),
        # Opened again, it waits for the close, or until nothing has changed for long.
        (
            [(1, WRITTEN), (1.2, OPENED), (6.2, LOOK), (6.2 + PATIENCE, LOOK)],
            [1 + SETTLE, 1.2 + PATIENCE, 6.2 + LOOKS, "counts"],
        ),
        ([(1, WRITTEN), (1.2, OPENED), (6.2, LOOK), (7, WRITTEN)], [1.5, 1.2 + PATIENCE, 6.2 + LOOKS, 7 + SETTLE]),
        # Of two writers both are waited for.
        (
            [(0, CREATED), (0, OPENED), (0.1, OPENED), (0.2, WRITTEN), (3, WRITTEN)],
            [SETTLE, None, None, 0.2 + PATIENCE, 3 + SETTLE],
        ),
        (
            [(0, FOLDER), *((at, CHANGED) for at in range(1, 6)), (1 + FOLDER_SETTLE, CHANGED)],
            [at + LOOKS for at in range(6)] + ["counts"],
        ),
        # A folder that took long to write has to rest for long.
        ([*GROWING, (499, GROWING[-1][1]), (500, GROWING[-1][1])], [*(at + LOOKS for at, _ in GROWING), 500, "counts"]),
        ([(0, OPENED), (0, READ), (0, FileEvent.LOST)], ["gone"] * 3),
    ],
)
def test_a_match_counts_when_nothing_has_changed_it_for_a_while(
    series: list[tuple[float, FileEvent | FileLook | None]], expected: Results
) -> None:
    assert results(*series) == expected


def test_an_expensive_or_postponed_look_is_repeated_later() -> None:
    wait, _ = after_look(Wait(0), LOOK, 0, took=2)
    assert wait is not None
    assert wait.due == 40
    assert postponed(Wait(5, opens=2, made=True, look=LOOK, since=1), 6) == Wait(6 + LOOKS, 2, True, look=LOOK, since=1)


class File(RuleBasedStateMachine):
    """One path, its writers and readers, and a clock.  inotify reports all events, or that some were lost."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.there, self.version = 0.0, False, 0
        self.writers = self.readers = 0
        self.maker = False  # it was created by open, and has not been closed yet
        self.wait: Wait | None = None
        self.counted: int | None = None  # the version that counted last
        self.touched = 0.0  # time of the last change

    def handle(self, what: FileEvent) -> None:
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
        self.handle(FileEvent.CREATED)
        if not linked:
            self.writers = 1
            self.handle(FileEvent.OPENED)

    @rule()
    @precondition(lambda self: self.there)
    def write(self) -> None:
        if self.writers:
            self.version, self.touched = self.version + 1, self.now

    @rule(writes=st.booleans())
    @precondition(lambda self: self.there and not self.maker)
    def open(self, writes: bool) -> None:
        self.writers, self.readers = self.writers + writes, self.readers + (not writes)
        self.handle(FileEvent.OPENED)

    @rule()
    @precondition(lambda self: self.writers)
    def close(self) -> None:
        self.writers, self.maker = self.writers - 1, False
        self.handle(FileEvent.WRITTEN)

    @rule()
    @precondition(lambda self: self.readers)
    def close_reader(self) -> None:
        self.readers -= 1
        self.handle(FileEvent.READ)

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
            look = FileLook(1, self.version) if self.there else None
            self.wait, counts = after_look(self.wait, look, self.now)
            if counts:
                self.count()
        self.now = until

    def count(self) -> None:
        assert self.there, "it is gone"
        assert not self.maker, "it is still being written"
        assert self.now - self.touched >= SETTLE - 1e-9, "it was changed just now"
        self.counted = self.version

    @invariant()
    def a_match_without_changes_has_counted(self) -> None:
        rests = self.there and not self.writers and not self.readers
        if rests and self.now - self.touched > 3 * PATIENCE:
            assert self.counted == self.version
            assert self.wait is None, "no look is due any more"


TestFile: Any = File.TestCase
TestFile.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
