"""Which step a checkpoint file has, by its path.  Pure."""

import re
from typing import Final

_WORDS: Final = ("step", "iter", "iteration", "checkpoint", "ckpt", "epoch")  # the first one that is there has the step
_NAMED: Final = tuple(re.compile(rf"(?:^|[^a-z]){word}s?[-_=.]?(\d{{1,18}})(?!\d)", re.ASCII) for word in _WORDS)
_GLOBAL: Final = re.compile(r"global(?=step|_step)_?")
_PLAIN: Final = re.compile(r"^(?:[^_.].*[-_=])?(\d{1,18})$", re.ASCII)  # `100`, `snapshot-100`, but not `llama3`
_PART: Final = re.compile(r"(?:rank|shard|part|of|worker|stage|device|gpu)[-_=]?\d+$", re.ASCII)  # of one checkpoint


def step_of(path: str) -> int | None:
    """The number after a word like `step` or `checkpoint`, in the name of the file or of the nearest folder that has
    one; else the one at the end of the name.  None: each save replaces the one before (`last.pt`)."""
    parts = [_GLOBAL.sub("", part.lower()) for part in reversed(path.split("/")) if part]
    for part in parts:
        for pattern in _NAMED:
            if found := pattern.findall(part):
                return int(found[-1])
    stem = parts[0].partition(".")[0] if parts else ""
    plain = None if _PART.search(stem) else _PLAIN.match(stem)
    return int(plain[1]) if plain else None
