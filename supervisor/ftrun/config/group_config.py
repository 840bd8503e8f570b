"""The group that this ftrun is a member of: what the platform says, and what the options say, which win.

The network is asked nothing here: names need not resolve yet.
"""

import os
import re
import stat
from typing import Final, NamedTuple

from ftrun.config.option_table import ConfigError, Settings
from ftrun.config.parsers import endpoint as checked
from ftrun.platforms.base import Environment, Membership, Surroundings
from ftrun.platforms.table import discover

PORT: Final = 29470  # of rank 0; torch has 29400 and 29500
SECRET: Final = "/run/secrets/ftrun/group"  # where one is taken from without being named
LENGTHS: Final = (16, 65536)  # bytes of a secret


class Group(NamedTuple):
    """`source` says it, for a person; without a `secret` the endpoint is on loopback."""

    size: int
    rank: int
    endpoint: str  # HOST:PORT of rank 0
    secret: str | None  # path
    wait: float  # s
    job: str  # tells two groups on one port apart; may be empty
    source: str


def ours(settings: Settings) -> tuple[Group | None, str]:
    """`group` of this process."""
    try:
        with open("/etc/hosts", "rb") as stream:
            hosts = stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        hosts = ""
    return group(settings, os.environ, os.uname().nodename, hosts)


def group(settings: Settings, environment: Environment, host: str, hosts: str) -> tuple[Group | None, str]:
    """The group, or None for an ftrun on its own, then maybe with one line for a person on why it is.

    ConfigError for what contradicts itself or is missing.  But where only the platform speaks of a group, and there is
    neither a secret nor an endpoint on loopback, nobody has asked for one: the job goes on as it would without.
    """
    given = {name: settings[f"group-{name}"].value for name in ("size", "rank", "endpoint", "secret-file", "job")}
    if given["size"] in (None, 1):
        return None, ""
    # The environment of an outer ftrun's command says what that one is.
    found = None if "FTRUN_BEAT_DIR" in environment else discover(Surroundings(environment, host, hosts, given["size"]))
    found = found or Membership("nothing")
    size = found.size if given["size"] == "auto" else given["size"]
    asked = size == given["size"] or given["rank"] is not None or not (given["endpoint"] or ":").startswith(":")
    if size is not None and size <= 1:
        return None, ""
    secret: str | None = given["secret-file"]
    if secret:
        read_secret(secret)
    elif size is not None and os.path.lexists(SECRET):
        secret = SECRET
    if size is None:
        if asked:
            raise ConfigError("--group-size: nothing says how many members there are; write --group-size N")
        return None, "on its own: there is a secret, but nothing says of how many; --group-size N" if secret else ""
    endpoint = _endpoint(given["endpoint"], found.host)
    if not (asked or secret or (endpoint and is_loopback(endpoint))):
        return None, f"on its own: {found.source} tells of {size} members, but there is no --group-secret-file"
    try:
        rank = found.rank if given["rank"] is None else given["rank"]
        if rank is None:
            raise ConfigError(f"--group-rank: nothing says which of {size} members this is; write --group-rank N")
        if rank >= size:
            by = "" if given["rank"] is not None else f", as {found.source} says,"
            raise ConfigError(f"--group-rank: {rank}{by} is none of {size} members; they are 0 to {size - 1}")
        if endpoint is None:
            raise ConfigError("--group-endpoint: nothing says where rank 0 is; write --group-endpoint HOST:PORT")
        _check(endpoint)
        if secret:
            read_secret(secret)
        elif not is_loopback(endpoint):
            raise ConfigError(f"--group-secret-file: it is needed, because {endpoint} is not on loopback")
    except ConfigError as error:
        if asked or secret:
            raise
        return None, f"on its own: {error}"
    platform = given["rank"] is None  # else its name of the job, as of a step for each member, may be another for each
    return Group(
        size=size,
        rank=rank,
        endpoint=endpoint,
        secret=os.path.abspath(secret) if secret else None,
        wait=settings["wait-peer"].value,
        job=given["job"] or (found.job if platform else ""),
        source=found.source if platform or found.size == size else "options",
    ), ""


def read_secret(path: str) -> bytes:
    """Without the white space around it, which an editor may add; ConfigError with one line if it is none."""
    try:
        # Nobody waits for the other end of a pipe.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):  # what is read again is to be the same
                raise ConfigError(f"--group-secret-file {path}: it is no regular file")
            content = stream.read(LENGTHS[1] + 1).strip()
    except OSError as error:
        raise ConfigError(f"--group-secret-file {path}: {error.strerror}") from None
    if not LENGTHS[0] <= len(content) <= LENGTHS[1]:
        size = f"it has {min(len(content), LENGTHS[1])} bytes{' and more' * (len(content) > LENGTHS[1])}"
        raise ConfigError(
            f"--group-secret-file {path}: {size if content else 'it is empty'}; "
            f"a secret has {LENGTHS[0]} to {LENGTHS[1]:,}: head -c 32 /dev/urandom | base64"
        )
    return content


def is_loopback(endpoint: str) -> bool:
    """As it is written: a name may become any address."""
    return re.fullmatch(r"(localhost|127(\.\d{1,3}){3}|\[::1\]):\d+", endpoint, re.ASCII) is not None


def _endpoint(given: str | None, host: str | None) -> str | None:
    """Where one part is missing, the platform's."""
    if given and not given.startswith(":"):
        return given
    if not host:
        return None
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{host}{given or f':{PORT}'}"


def _check(endpoint: str) -> None:
    try:
        checked(endpoint)
    except ValueError as error:
        raise ConfigError(f"--group-endpoint: {error}") from None
