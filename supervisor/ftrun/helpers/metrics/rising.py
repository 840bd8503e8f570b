"""Counters that only ever rise, whatever happens to ftrun.

An ftrun that was killed is followed by one that goes on from its last record, a little behind what was scraped by
then.  Prometheus takes any fall for a start from zero, and would count everything twice.  So what a counter showed is
kept beside the records, and a new ftrun's counts are added to it from where that one began.
"""

import json
import os
from collections.abc import Iterable
from typing import Any, Final

from ftrun.helpers.metrics.catalogue import COUNTERS
from ftrun.helpers.metrics.readings import Reading
from ftrun.host import own, procfs

NAME: Final = "metrics.json"
SCHEMA: Final = 1


class Rising:
    """`problem`: why it cannot be kept; then it is known for as long as we live."""

    def __init__(self, run_dir: str) -> None:
        self.problem: str | None = None
        self._path = f"{run_dir}/{NAME}"
        self._began, self._known = _load(self._path)
        self._saved: object = None

    def follow(self, began: str | None, found: Iterable[Reading]) -> list[Reading]:
        """The same, with the counters as they are to be shown.  `began`: which ftrun counted; None: nobody knows."""
        result = [self._shown(reading, began) if reading.name in COUNTERS else reading for reading in found]
        if began is not None:
            self._began = began
            self._save()
        return result

    def _shown(self, reading: Reading, began: str | None) -> Reading:
        key = " ".join((reading.name, *reading.labels))
        shown, last = self._known.get(key, (0.0, 0.0))
        if began is None:
            return reading._replace(value=shown)
        if began != self._began:
            last = min(last, reading.value)
        self._known[key] = shown, last = shown + max(0.0, reading.value - last), max(reading.value, last)
        return reading._replace(value=shown)

    def _save(self) -> None:
        if self._known == self._saved:
            return
        content = json.dumps({"schema": SCHEMA, "began": self._began, "counters": self._known}).encode("ascii")
        try:
            with open(own.fresh(f"{self._path}.new"), "wb") as stream:
                stream.write(content)
            os.replace(f"{self._path}.new", self._path)
            self._saved = dict(self._known)
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}; counters may fall when ftrun is started again"


def _load(path: str) -> tuple[str | None, dict[str, tuple[float, float]]]:
    """Nothing, for whatever is not what we wrote."""
    try:
        found: Any = json.loads(procfs.read(path) or b"")
        if found["schema"] != SCHEMA:
            return None, {}
        pairs = {str(key): (float(shown), float(last)) for key, (shown, last) in found["counters"].items()}
        return str(found["began"]), {key: pair for key, pair in pairs.items() if all(0 <= n < 1e15 for n in pair)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, {}
