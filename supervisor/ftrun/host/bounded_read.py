"""Reads whole regular files that other processes write, up to a size limit: a pipe or a device might never end, and a
file might grow forever."""

import os
import stat
from typing import Final

FLAGS: Final = (
    os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
)  # opening a pipe does not wait for its other end


def read(fd: int, limit: int) -> bytes:
    """Return the content of a regular file and close `fd`.  Raises ValueError if it is not a regular file or has more
    than `limit` bytes."""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        content = b""
        while len(content) <= limit and (chunk := os.read(fd, limit + 1 - len(content))):
            content += chunk
    finally:
        os.close(fd)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit} bytes")
    return content
