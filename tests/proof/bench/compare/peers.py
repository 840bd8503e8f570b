"""The programs that ftrun is compared with: which are installed, and the command line of each for a command."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from support.runs import FTRUN


class Peer(NamedTuple):
    """`arguments(folder, command, ranks, options)`: the command line; configuration files are written to `folder`.

    `options` are arguments of its command line; for supervisord and circusd, lines of the section of the command, which
    override the default lines."""

    name: str
    program: str  # searched in PATH; empty: always available
    package: str  # the Python distribution that has its version; empty: none
    arguments: Callable[[Path, Sequence[str], int, Sequence[str]], list[str]]

    @property
    def installed(self) -> bool:
        return not self.program or shutil.which(self.program) is not None

    @property
    def titled(self) -> str:
        return titled(self.name, self.package)

    def command(self, folder: Path, *command: str, ranks: int = 1, options: Sequence[str] = ()) -> list[str]:
        """`ranks`: the number of copies, if the program starts them itself (the last four of ALL)."""
        return self.arguments(folder, command, ranks, options)


def titled(name: str, package: str, form: str = "{name} {version}") -> str:
    """The name with the version of the package, if that is installed."""
    try:
        return form.format(name=name, package=package, version=version(package)) if package else name
    except PackageNotFoundError:
        return name


def _bare(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
    return list(command)


def _ftrun(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
    return [*FTRUN, "--run-dir", str(folder / "run"), *options, "--", *command]


def _before(program: str) -> Callable[[Path, Sequence[str], int, Sequence[str]], list[str]]:
    """The command line of a program that precedes the command."""
    return lambda folder, command, ranks, options: [program, *options, "--", *command]


def _supervisord(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
    lines = [
        "[supervisord]",
        "nodaemon=true",
        "user=root",
        "logfile=/dev/null",
        "logfile_maxbytes=0",
        f"pidfile={folder}/supervisord.pid",
        "[program:x]",
        "process_name=%(program_name)s_%(process_num)d",
        "command=" + shlex.join(command).replace("%", "%%"),
        f"numprocs={ranks}",
        "startsecs=0",
        "stopasgroup=true",
        "killasgroup=true",
        "stdout_logfile=/dev/fd/1",
        "stdout_logfile_maxbytes=0",
        "stderr_logfile=/dev/fd/2",
        "stderr_logfile_maxbytes=0",
    ]
    conf = folder / "supervisord.conf"
    conf.write_text("\n".join(_settled(lines, options)) + "\n")
    return ["supervisord", "-n", "-c", str(conf)]


def _circusd(folder: Path, command: Sequence[str], ranks: int, options: Sequence[str]) -> list[str]:
    lines = [
        "[circus]",
        f"endpoint=ipc://{folder}/circus.endpoint",
        f"pubsub_endpoint=ipc://{folder}/circus.pubsub",
        "statsd=False",
        "[watcher:x]",
        "cmd=" + shlex.join(command),
        f"numprocesses={ranks}",
        "copy_env=True",
        "stop_children=True",
    ]
    conf = folder / "circus.ini"
    conf.write_text("\n".join(_settled(lines, options)) + "\n")
    return ["circusd", str(conf)]


def _settled(lines: list[str], options: Sequence[str]) -> list[str]:
    """Each key once: the programs refuse a second one."""
    given = {option.partition("=")[0] for option in options}
    return [line for line in lines if line.partition("=")[0] not in given] + list(options)


def _launched(program: str) -> Callable[[Path, Sequence[str], int, Sequence[str]], list[str]]:
    """torchrun or ft_launcher on one node, with the unchanged command."""
    head = [program, "--standalone", "--no-python"]
    return lambda folder, command, ranks, options: [*head, f"--nproc-per-node={ranks}", *options, *command]


BARE = Peer("bare", "", "", _bare)
OURS = Peer("ftrun", "", "", _ftrun)
TINI = Peer("tini", "tini", "", _before("tini"))
DUMB_INIT = Peer("dumb-init", "dumb-init", "", _before("dumb-init"))
SUPERVISORD = Peer("supervisord", "supervisord", "supervisor", _supervisord)
CIRCUSD = Peer("circusd", "circusd", "circus", _circusd)
TORCHRUN = Peer("torchrun", "torchrun", "torch", _launched("torchrun"))
FT_LAUNCHER = Peer("ft_launcher", "ft_launcher", "nvidia-resiliency-ext", _launched("ft_launcher"))
ALL = (BARE, OURS, TINI, DUMB_INIT, SUPERVISORD, CIRCUSD, TORCHRUN, FT_LAUNCHER)
PYTHON = (sys.executable, "-S", "-E")


def installed(*among: Peer) -> list[Peer]:
    """The installed ones of `among`, by default of ALL."""
    return [peer for peer in among or ALL if peer.installed]
