"""The folder in which the reports of an attempt are written."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from ftrun.host import safe_files

KEPT: Final = 8  # reports of earlier suspicions in the same attempt


class Folder:
    """`<run_dir>/reports/attempt-<n>`; symbolic links are not followed.  OSError if it cannot be written."""

    def __init__(self, run_dir: str, attempt: int) -> None:
        self.path = os.path.join(run_dir, "reports", f"attempt-{attempt}")
        self.report = os.path.join(self.path, "report.md")
        os.makedirs(run_dir, 0o700, exist_ok=True)
        reports = safe_files.open_subfolder("reports", os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._folder = safe_files.open_subfolder(f"attempt-{attempt}", reports)
        self._stacks = safe_files.open_subfolder("stacks", self._folder)
        self.picture = f"waits-{self._retire()}.svg"

    def write(self, markdown: str, document: Mapping[str, Any], stacks: Mapping[int, str], picture: str = "") -> None:
        """Write each file atomically; `picture` under the name `self.picture`, to which report.md refers.  The reports
        are synced to disk when this returns; the rest is not, because what matters most of it is in the reports."""
        for name in set(os.listdir(self._stacks)) - {f"{pid}.txt" for pid in stacks}:
            os.unlink(name, dir_fd=self._stacks)
        for pid, text in stacks.items():
            _put(f"{pid}.txt", self._stacks, text, sync=False)
        if picture:
            _put(self.picture, self._folder, picture, sync=False)
        _put("report.json", self._folder, json.dumps(document, indent=1) + "\n")
        _put("report.md", self._folder, markdown)
        os.fsync(self._folder)

    def _retire(self) -> int:
        """Rename the report of an earlier suspicion to a numbered file, and delete the oldest ones.  Returns the number
        that the new report gets when it is renamed; its picture has that number from the beginning."""
        folder = self._folder
        numbers = sorted({int(m[1]) for name in os.listdir(folder) if (m := re.match(r"report-(\d+)\.", name))})
        fresh = numbers[-1] + 1 if numbers else 1
        if os.path.exists(self.report):
            numbers.append(fresh)
        for kind in ("md", "json"):
            with suppress(FileNotFoundError):
                os.replace(f"report.{kind}", f"report-{fresh}.{kind}", src_dir_fd=folder, dst_dir_fd=folder)
            for number in numbers[:-KEPT]:
                with suppress(FileNotFoundError):
                    os.unlink(f"report-{number}.{kind}", dir_fd=folder)
        for number in numbers[:-KEPT]:
            with suppress(FileNotFoundError):
                os.unlink(f"waits-{number}.svg", dir_fd=folder)
        return numbers[-1] + 1 if numbers else 1


def _put(name: str, folder: int, text: str, sync: bool = True) -> None:
    fd = safe_files.create(f"{name}.new", folder=folder)
    with open(fd, "wb") as file:
        file.write(text.encode("utf-8", "backslashreplace"))
        file.flush()
        if sync:
            os.fsync(fd)
    os.replace(f"{name}.new", name, src_dir_fd=folder, dst_dir_fd=folder)
