"""Memory of another process that is compared with what it was, to the last bit."""

import os
from collections.abc import Iterable
from typing import Final

from ftrun.helpers.evidence.touched_memory import Area

_PAGE: Final = 4096
_CHUNK: Final = 16 * _PAGE


class Memory:
    """The private memory that a process touches.  `memory`: a descriptor of its memory."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._areas: list[Area] = []
        self._pages: dict[int, int] = {}  # hashes of the pages that are not known to change
        self._chunks: dict[int, int] = {}  # hashes of the chunks without a page that is known to change
        self._changing: list[tuple[int, int]] = []  # address and length

    @property
    def changing(self) -> int:
        return sum(length for _, length in self._changing) // _PAGE

    def begin(self, areas: Iterable[Area]) -> None:
        """Compare with the present content of these areas."""
        self._areas, self._pages, self._chunks, self._changing = list(areas), {}, {}, []
        for at, content in self._content():
            self._chunks[at] = hash(content)
            for page in range(0, len(content), _PAGE):
                self._pages[at + page] = hash(content[page : page + _PAGE])

    def changed(self) -> bytes:
        """The content of the pages that are known to change."""
        return b"".join(os.pread(self._memory, length, at) for at, length in self._changing)

    def learn(self) -> bool:
        """Read everything; return whether a page has changed that was not known to."""
        new = False
        for at, content in self._content():
            if self._chunks.get(at) == hash(content):
                continue
            for page in range(0, len(content), _PAGE):
                known = self._pages.get(at + page)
                if known is not None and known != hash(content[page : page + _PAGE]):
                    del self._pages[at + page]
                    self._chunks.pop(at, None)
                    self._add(at + page)
                    new = True
        return new

    def _add(self, page: int) -> None:
        pages = sorted({at + offset for at, length in self._changing for offset in range(0, length, _PAGE)} | {page})
        self._changing = []
        for at in pages:
            if self._changing and sum(self._changing[-1]) == at:
                self._changing[-1] = self._changing[-1][0], self._changing[-1][1] + _PAGE
            else:
                self._changing.append((at, _PAGE))

    def _content(self) -> Iterable[tuple[int, bytes]]:
        for area in self._areas:
            for at in range(area.start, area.end, _CHUNK):
                length = min(_CHUNK, area.end - at)
                content = os.pread(self._memory, length, at)
                if len(content) < length:
                    raise OSError(0, "its memory is not mapped completely")
                yield at, content
