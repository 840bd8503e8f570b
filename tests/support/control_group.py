"""A control group with little memory."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.runs import wait_for

PARENT = Path("/sys/fs/cgroup")


@contextmanager
def limited(name: str, memory: int, end: Callable[[], object]) -> Iterator[list[str]]:
    """A prefix: what follows it may have so many bytes of memory.  `end` ends all of that."""
    second = (PARENT / "cgroup.controllers").exists()
    group = (PARENT if second else PARENT / "memory") / name
    limit, swap = ("memory.max", "memory.swap.max") if second else ("memory.limit_in_bytes", "memory.swappiness")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        try:
            (group / limit).write_text(str(memory))
            (group / "cgroup.procs").open("a").close()
        except OSError as error:
            pytest.skip(f"{group} takes no limit: {error.strerror}")
        if (group / swap).exists():
            (group / swap).write_text("0")
        yield ["sh", "-ec", f'echo $$ >{group}/cgroup.procs\nexec "$@"', "sh"]
    finally:
        end()
        wait_for(lambda: _removed(group), "the end of the control group")


def _removed(group: Path) -> bool:
    """The kernel may still count processes that have just been reaped."""
    try:
        group.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
