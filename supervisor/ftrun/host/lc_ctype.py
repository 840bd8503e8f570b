"""Restores the variable LC_CTYPE, which Python sets when it starts."""

import os


def restore_lc_ctype() -> None:
    """Give LC_CTYPE the value with which this process was started, or remove it.  In the C locale, which most
    containers have, Python sets it (PEP 538), and the command would inherit that."""
    if os.environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return
    try:
        with open("/proc/self/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return
    given = [entry.partition(b"=")[2] for entry in entries if entry.startswith(b"LC_CTYPE=")]
    if given:
        os.environb[b"LC_CTYPE"] = given[0]
    else:
        del os.environ["LC_CTYPE"]
