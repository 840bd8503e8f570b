"""What a spare imports in advance: it asks the members at work what their standbys have imported, until one knows."""

import base64
import binascii
import json
import math
from collections.abc import Callable
from typing import Final, Protocol

from ftrun.helpers.lines import ProtocolLines
from ftrun.host import procfs
from ftrun.messages.codec import Malformed, parse_json
from ftrun.messages.group_view import FilePart, FileRequest
from ftrun.messages.messenger import FoundImports

PAUSE: Final = 5.0  # s between two questions: a member knows it some time after its first heartbeat
MOST: Final = 1 << 16  # bytes; a standby leaves a quarter of that at most
STATE: Final = 1 << 20  # bytes of `state.json`


class MemberFiles(Protocol):
    """The side of a member in the view of its group (group_view.py)."""

    @property
    def at_work(self) -> list[int]: ...
    def ask(self, request: FileRequest, answer: Callable[[FilePart], None], now: float) -> None: ...


def own() -> bytes:
    """What the standbys of this member have imported, as JSON, from `state.json` in the working directory; empty: not
    known."""
    try:
        found = parse_json(procfs.read("state.json", STATE) or b"")
        imports = found.get("imports") if isinstance(found, dict) else None
        return json.dumps(imports).encode() if imports else b""
    except (Malformed, ValueError):
        return b""


class ImportsSeeker:
    """Asks one member at work after the other.  `due`: when `process` is to be called."""

    def __init__(self, lines: ProtocolLines, view: MemberFiles) -> None:
        self._lines, self._view = lines, view
        self._member = -1  # that was asked last
        self._content = b""
        self._asking = False
        self.due = math.inf

    def begin(self, now: float) -> None:
        self.due = now

    def process(self, now: float) -> None:
        if now < self.due or self._asking:
            return
        self.due = now + PAUSE
        members = self._view.at_work
        if members and not self._content:
            self._member = next((one for one in members if one > self._member), members[0])
        elif not members:
            return
        self._asking = True
        request = FileRequest("imports", self._member, "imports", 0, len(self._content))
        self._view.ask(request, lambda part: self._answered(part, now), now)

    def _answered(self, part: FilePart, now: float) -> None:
        self._asking = False
        try:
            content = self._content + base64.b64decode(part.content, validate=True)
        except binascii.Error:
            content = b""
        self._content = b""
        if not part.ok or not 0 < len(content) <= part.size <= MOST:
            return
        if len(content) < part.size:
            self._content, self.due = content, now
            return
        self.due = math.inf
        self._lines.send(FoundImports(content.decode("ascii", "replace")))
