"""Reading a whole file that others write: a pipe or a device might never end, and a file might grow for ever."""

import os
import stat
from typing import Final

FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # nobody waits for the other end of a pipe


def read(fd: int, limit: int) -> bytes:
    """All of a regular file; `fd` is closed.  ValueError for what is none, or has more than `limit` bytes."""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no regular file")
        content = b""
        while len(content) <= limit and (chunk := os.read(fd, limit + 1 - len(content))):
            content += chunk
    finally:
        os.close(fd)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit} bytes")
    return content
