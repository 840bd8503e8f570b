"""The history of a run that goes on, for a process that reads it again and again: each line is read once.

What is kept is bounded: the last attempts with a limited number of their steps.
"""

import os
import time
from typing import Final

from ftrun.records import history, rundir
from ftrun.records.attempts import AttemptHistory, thinned
from ftrun.records.history import RECORDS, STEPS, History, KnownState
from ftrun.records.record_files import GrowingFile
from ftrun.records.steps import StepSample

SAMPLES: Final = 4_000  # steps that are kept at least, of the records and of the samples; a long run has one a minute


class HistoryFollower:
    """Keeps the last `attempts`.  `most`: bytes of each file that are read at first."""

    def __init__(self, run_dir: str, attempts: int, most: int) -> None:
        self._run_dir, self._attempts = run_dir, attempts
        self._records = _end_of(f"{run_dir}/{RECORDS}", most)
        self._step_file = _end_of(f"{run_dir}/{STEPS}", most)
        self._steps: list[StepSample] = []
        self._stepped_at: dict[int, float] = {}  # CLOCK_MONOTONIC of the last sample, by attempt
        self._seen_at: dict[int, float] = {}  # the same of the attempt in state.json
        self._found = AttemptHistory(self._stepped_at, self._seen_at, samples=SAMPLES)

    def read(self) -> History:
        """As `history.read` of the present, for the last attempts.  NoRunDir if there are no records."""
        now = time.time()
        known = history.known_state(self._run_dir, time.monotonic())  # first: a later end is then in the records
        rundir.check(self._run_dir)
        try:
            self._read_steps()
            self._read_records(known)
        except OSError as error:
            raise rundir.NoRunDir(f"{error.filename or self._run_dir}: {error.strerror}") from None
        return history.summed_up(self._run_dir, self._found.copy(), self._steps, now, known)

    def _read_steps(self) -> None:
        try:
            for step in history.parsed_steps(self._step_file.lines()):
                self._steps.append(step)
                self._stepped_at[step.attempt] = step.at
                if len(self._steps) > 2 * SAMPLES:
                    self._steps = thinned(self._steps, SAMPLES)
        except OSError:
            pass  # no rank reports steps; without them the records still have a history

    def _read_records(self, known: KnownState) -> None:
        self._seen_at.clear()
        if known.seen is not None:
            self._seen_at[known.attempt] = known.seen
        for record in history.parsed_records(self._records.lines()):
            self._found.add(record)
            if len(self._found.attempts) > 2 * self._attempts:
                self._forget()
        self._forget()

    def _forget(self) -> None:
        self._found.forget(self._attempts)
        if self._found.attempts:
            oldest = min(attempt.number for attempt in self._found.attempts)
            self._steps = [step for step in self._steps if step.attempt >= oldest]
            for number in [number for number in self._stepped_at if number < oldest]:
                del self._stepped_at[number]


def _end_of(path: str, most: int) -> GrowingFile:
    try:
        return GrowingFile(path, max(0, os.stat(path).st_size - most))
    except OSError:
        return GrowingFile(path)  # it does not exist yet
