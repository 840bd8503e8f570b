"""A file for the textfile collector of node_exporter, which may read it at any instant."""

import os


def write(path: str, content: bytes) -> None:
    """All of it or nothing, readable by all.  OSError.  A name without `.prom` is none of the collector's."""
    folder, name = os.path.split(os.path.abspath(path))
    beside = f"{folder}/.{name}.new"
    try:
        os.unlink(beside)  # of one of us that was killed; it may belong to somebody else
    except FileNotFoundError:
        pass
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as stream:
            stream.write(content)
            os.fchmod(fd, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def run_of(path: str) -> str:
    """What tells it from others in its folder."""
    return os.path.basename(path).removesuffix(".prom")
