"""What a helper would tell PID 1, kept for the test."""

from typing import Any

from ftrun.helpers.lines import ProtocolLines


class RecordedLines(ProtocolLines):
    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.problems: list[str] = []

    def send(self, message: tuple[Any, ...]) -> None:
        self.sent.append(message)

    def problem(self, what: str) -> None:
        self.problems.append(what)
