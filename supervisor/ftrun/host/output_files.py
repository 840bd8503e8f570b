"""The files into which the output of the command goes, where stdout and stderr are files that ftrun has inherited."""

import os
import stat

from ftrun.host import mounts


def present() -> tuple[tuple[str, int], ...]:
    """Each file and its present size: what comes later is not of this attempt.  A file on a network disk, which may
    block, is left out, and so are pipes and terminals."""
    found: dict[str, int] = {}
    for number in (1, 2):
        try:
            if mounts.is_on_network_volume(number):
                continue
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode) and status.st_nlink:
                found[os.readlink(f"/proc/self/fd/{number}")] = status.st_size
        except OSError:
            pass  # it is closed
    return tuple(found.items())
