"""The folder of an attempt's reports."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

KEPT: Final = 8  # reports of earlier suspicions in the same attempt


class Folder:
    """`<run_dir>/reports/attempt-<n>`.  OSError if it cannot be written."""

    def __init__(self, run_dir: str, attempt: int) -> None:
        self.path = os.path.join(run_dir, "reports", f"attempt-{attempt}")
        self.report = os.path.join(self.path, "report.md")
        os.makedirs(os.path.join(self.path, "stacks"), exist_ok=True)
        self._retire()

    def write(self, markdown: str, document: Mapping[str, Any], stacks: Mapping[int, str]) -> None:
        """Each file appears whole or not at all; the reports are safe on disk when this returns, the stacks are not:
        those of the ranks are in the reports as well."""
        folder = os.path.join(self.path, "stacks")
        for name in set(os.listdir(folder)) - {f"{pid}.txt" for pid in stacks}:
            os.unlink(os.path.join(folder, name))
        for pid, text in stacks.items():
            _put(os.path.join(folder, f"{pid}.txt"), text, safe=False)
        _put(os.path.join(self.path, "report.json"), json.dumps(document, indent=1) + "\n")
        _put(self.report, markdown)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _retire(self) -> None:
        """What an earlier suspicion reported gets a number; the oldest goes."""
        numbers = sorted({int(m[1]) for name in os.listdir(self.path) if (m := re.match(r"report-(\d+)\.", name))})
        fresh = numbers[-1] + 1 if numbers else 1
        if os.path.exists(self.report):
            numbers.append(fresh)
            for kind in ("md", "json"):
                _quietly(os.replace, self._name(kind), self._name(kind, fresh))
        for number in numbers[:-KEPT]:
            for kind in ("md", "json"):
                _quietly(os.unlink, self._name(kind, number))

    def _name(self, kind: str, number: int | None = None) -> str:
        return os.path.join(self.path, f"report{'' if number is None else f'-{number}'}.{kind}")


def _put(path: str, text: str, safe: bool = True) -> None:
    fresh = f"{path}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))
        file.flush()
        if safe:
            os.fsync(fd)
    os.replace(fresh, path)


def _quietly(call: Any, *paths: str) -> None:
    try:
        call(*paths)
    except FileNotFoundError:
        pass
