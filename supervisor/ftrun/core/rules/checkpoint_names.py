"""Which step a checkpoint file has, by its path.  Pure."""

import re
from typing import Final

_WORDS: Final = ("step", "iter", "iteration", "checkpoint", "ckpt", "epoch")  # the first one that is there has the step
# Patterns are compiled at the first checkpoint: PID 1 loads this file before it starts the command.
_NAMED: Final = tuple(rf"(?a)(?:^|[^a-z]){word}s?[-_=.]?(\d{{1,18}})(?!\d)" for word in _WORDS)
_GLOBAL: Final = r"global(?=step|_step)_?"
_PLAIN: Final = r"(?a)^(?:[^_.].*[-_=])?(\d{1,18})$"  # `100`, `snapshot-100`, but not `llama3`
_PART: Final = r"(?a)(?:rank|shard|part|of|worker|stage|device|gpu)[-_=]?\d+$"  # of one checkpoint


def step_of(path: str) -> int | None:
    """The number after a word like `step` or `checkpoint`, in the name of the file or of the nearest folder that has
    one; else the one at the end of the name.  None: each save replaces the one before (`last.pt`)."""
    parts = [re.sub(_GLOBAL, "", part.lower()) for part in reversed(path.split("/")) if part]
    for part in parts:
        for pattern in _NAMED:
            if found := re.findall(pattern, part):
                return int(found[-1])
    stem = parts[0].partition(".")[0] if parts else ""
    plain = None if re.search(_PART, stem) else re.match(_PLAIN, stem)
    return int(plain[1]) if plain else None
