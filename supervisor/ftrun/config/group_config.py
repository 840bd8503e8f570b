"""The group that this ftrun is a member of, from the platform and the options; the options take precedence.

This uses no network: names need not resolve yet.
"""

import os
import re
from typing import Final

from ftrun.config.option_table import ConfigError, Settings
from ftrun.config.option_values import file_content
from ftrun.config.parsers import endpoint as checked
from ftrun.core.named_tuple import NamedTuple
from ftrun.platforms import Environment, PlatformMembership, Surroundings, discover

PORT: Final = 29470  # of rank 0; torch has 29400 and 29500
SECRET: Final = "/run/secrets/ftrun/group"  # used if it exists and --group-secret-file is not given
LENGTHS: Final = (16, 65536)  # bytes of a secret


class Group(NamedTuple):
    """`source`: where the group is known from, as text.  Without a `secret` the endpoint is on loopback.  `least`,
    `spares`, `replaces`, `scale_out`: as in `core.group.membership.GroupShape`."""

    size: int
    rank: int
    endpoint: str  # HOST:PORT of rank 0
    secret: str | None  # path
    wait: float  # s
    job: str  # distinguishes two groups on one port; may be empty
    source: str
    least: int = 0
    spares: int = 0
    replaces: bool = False
    scale_out: bool = False

    @property
    def is_elastic(self) -> bool:
        """Whether the number of members that work may change."""
        return bool(self.spares or (self.least and self.least < self.size))

    @property
    def address(self) -> str:
        """The host of the endpoint, without brackets; empty if that means any interface."""
        host = self.endpoint.rpartition(":")[0].removeprefix("[").removesuffix("]")
        return "" if host.strip("0.:") == "" else host


def current_group(settings: Settings) -> tuple[Group | None, str]:
    """The result of `group` for this process."""
    try:
        with open("/etc/hosts", "rb") as stream:
            hosts = stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        hosts = ""
    return group(settings, os.environ, os.uname().nodename, hosts)


def group(settings: Settings, environment: Environment, host: str, hosts: str) -> tuple[Group | None, str]:
    """The group, or None for an ftrun without one, then possibly with one line for the user on the reason.

    ConfigError for options that are missing or contradict each other.  If only the platform reports a group, and there
    is neither a secret nor an endpoint on loopback, the user has not asked for a group: the job runs without one.
    """
    least, asked, spares = 0, settings.group_size, settings.spares
    if isinstance(asked, tuple):
        least, asked = asked
    alone = "--spares has no effect: there is no group of several members (--group-size)" if spares else ""
    if asked in (None, 1):
        return None, alone
    # Under an outer ftrun the environment describes the outer one.
    found = None if "FTRUN_BEAT_DIR" in environment else discover(Surroundings(environment, host, hosts, asked))
    found = found or PlatformMembership("nothing")
    size = found.size if asked == "auto" else asked
    requested = size == asked or settings.group_rank is not None or not (settings.group_endpoint or ":").startswith(":")
    if size is not None and size <= 1:
        return None, alone
    if size is not None and spares + max(least, 1) > size:
        needed = f"at least {least} of them work" if least else "at least one of them works"
        raise ConfigError(f"--spares: {spares} of {size} members are too many, because {needed} (--group-size)")
    secret = settings.group_secret_file or (SECRET if size is not None and os.path.lexists(SECRET) else None)
    if secret:
        read_secret(secret)
    if size is None:
        if requested:
            raise ConfigError("--group-size: the number of members is not known; give --group-size N")
        note = "no group: there is a secret, but the number of members is not known; give --group-size N"
        return None, note if secret else alone
    endpoint = _endpoint(settings.group_endpoint, found.host)
    if not (requested or secret or (endpoint and is_loopback(endpoint))):
        return None, f"no group: {found.source} reports {size} members, but there is no --group-secret-file"
    try:
        rank = found.rank if settings.group_rank is None else settings.group_rank
        if rank is None:
            raise ConfigError(f"--group-rank: the rank among {size} members is not known; give --group-rank N")
        if rank >= size:
            origin = "" if settings.group_rank is not None else f" (from {found.source})"
            raise ConfigError(f"--group-rank: {rank}{origin} is out of range; the ranks are 0 to {size - 1}")
        if endpoint is None:
            raise ConfigError("--group-endpoint: the address of rank 0 is not known; give --group-endpoint HOST:PORT")
        try:
            checked(endpoint)
        except ValueError as error:
            raise ConfigError(f"--group-endpoint: {error}") from None
        if not secret and not is_loopback(endpoint):
            raise ConfigError(f"--group-secret-file: a secret is needed, because {endpoint} is not on loopback")
    except ConfigError as error:
        if requested or secret:
            raise
        return None, f"no group: {error}"
    # With a given rank, each member may be a job step of its own, so that the platform's job name differs by member.
    from_platform = settings.group_rank is None
    return Group(
        size=size,
        rank=rank,
        endpoint=endpoint,
        secret=os.path.abspath(secret) if secret else None,
        wait=settings.wait_peer,
        job=settings.group_job or (found.job if from_platform else ""),
        source=found.source if from_platform or found.size == size else "options",
        least=least,
        spares=spares,
        replaces=settings.replace_members,
        scale_out=settings.scale_out == "checkpoint",
    ), ""


def read_secret(path: str) -> bytes:
    """The secret, without surrounding whitespace, which an editor may add; ConfigError if the file is not valid."""
    content = file_content("group-secret-file", path).strip()
    if not LENGTHS[0] <= len(content) <= LENGTHS[1]:
        size = f"it has {'more than ' * (len(content) > LENGTHS[1])}{min(len(content), LENGTHS[1])} bytes"
        raise ConfigError(
            f"--group-secret-file {path}: {size if content else 'it is empty'}; "
            f"a secret has {LENGTHS[0]} to {LENGTHS[1]:,}; to make one: head -c 32 /dev/urandom | base64"
        )
    return content


def is_loopback(endpoint: str) -> bool:
    """Whether the endpoint is on loopback, by its text alone, because a name may resolve to any address."""
    return re.fullmatch(r"(localhost|127(\.\d{1,3}){3}|\[::1\]):\d+", endpoint, re.ASCII) is not None


def _endpoint(given: str | None, host: str | None) -> str | None:
    """The given endpoint, with a missing part taken from the platform or the default."""
    if given and not given.startswith(":"):
        return given
    if not host:
        return None
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{host}{given or f':{PORT}'}"
