"""The table of the kinds of `fthang`, and the parser of their arguments."""

import signal
from collections.abc import Callable
from enum import Enum

from ftrun.config.parsers import near
from ftrun.core.named_tuple import NamedTuple
from ftrun.workload import failures, healthy, rank_failures
from ftrun.workload.training import Setting
from ftrun_hooks._section import nanoseconds

DURATION = "6s"  # more than a hang timeout of a few seconds
BeginFailure = Callable[[Setting], None]


class When(Enum):
    START = "before the first step"
    STEP = "after a step"
    EPOCH = "after a step that ends an epoch"
    # In a recoverable training of several ranks; another rank asks for a retry after the step.
    LEAVE = "while the rank leaves its round"
    GO = "when the next round begins"
    RESTORE = "while the next round loads its state"


class FailureKind(NamedTuple):
    """`usage` is its name and its argument; `line` is printed, with its name and `value`, before `begin` is called."""

    usage: str
    description: str
    begin: BeginFailure
    line: str = "hanging: {name}"
    when: When = When.STEP
    torch: bool = False  # PyTorch trains, whatever the mode
    mute: bool = False  # the steps after it only compute: no log, no checkpoint, no sleep
    ranks: bool = False  # one rank of a recoverable training (ranks.py)

    @property
    def name(self) -> str:
        return self.usage.split()[0]

    @property
    def between_rounds(self) -> bool:
        return self.when in (When.LEAVE, When.GO, When.RESTORE)

    def text(self, value: float) -> str:
        return self.line.format(name=self.name, value=value)


def _healthy(
    name: str, description: str, begin: BeginFailure, when: When = When.STEP, mute: bool = False
) -> FailureKind:
    return FailureKind(f"{name} [DURATION]", description, begin, "{name} for {value:g} s", when, mute=mute)


def _rank(name: str, description: str, begin: BeginFailure, line: str, when: When = When.STEP) -> FailureKind:
    return FailureKind(f"rank-{name}", description, begin, line, when, ranks=True)


def _nothing(setting: Setting) -> None:
    """The training itself has this kind built in."""


FAILURES = (
    FailureKind("sleep", "the main thread sleeps for ever", failures.sleep),
    FailureKind("deadlock", "it waits for a lock that it holds", failures.deadlock),
    FailureKind("gil", "C code blocks and keeps the GIL: no thread runs", failures.gil),
    FailureKind("native", "a program without Python sleeps for ever", failures.native),
    FailureKind("collective", "two ranks; one never comes to the all_reduce (PyTorch)", failures.deadlock, torch=True),
    FailureKind("mismatch", "two ranks, in different collectives (PyTorch)", failures.other_collective, torch=True),
    FailureKind("dataloader", "a worker never returns with its batch (PyTorch)", _nothing, torch=True),
    FailureKind("lock-cycle", "two threads, each waits for the lock of the other", failures.lock_cycle),
    FailureKind("queues", "a parent and a child, each waits for a message of the other", failures.queues),
    FailureKind("full-pipes", "a child writes into a full pipe, and so does its parent", failures.full_pipes),
    FailureKind("pipe", "a write into a pipe that nobody reads", failures.pipe),
    FailureKind("flock", "a file lock that another open file holds", failures.flock),
    FailureKind("netread", "a read from a server that never answers", failures.netread),
    FailureKind("nfs-like", "state D, as on a dead file server", failures.nfs_like),
    FailureKind("stop", "stopped by SIGSTOP", failures.stop),
    FailureKind("spin", "an endless loop", failures.spin),
    FailureKind("busy", "an endless loop that calls functions: its stack moves", failures.busy),
    FailureKind("flag", "an endless loop that waits for a flag, which nobody sets", failures.spin_on_flag),
    FailureKind("chatty", "deadlock, while a side thread logs and gives heartbeats", failures.chatty),
    FailureKind("nobeat", "trains for ever without heartbeats", failures.train_without_heartbeats, when=When.START),
    FailureKind("forkstorm", "processes that fork and end, without end", failures.fork_storm),
    FailureKind("crash CODE", "ends with this exit code", failures.crash, "crashing: exit code {value}"),
    FailureKind("signal NAME", "is ended by this signal", failures.die, "killing itself: {value.name}"),
    FailureKind("orphans N", "leaves N orphans behind and trains on", failures.orphans, "left behind: {value} orphans"),
    FailureKind("daemon", "leaves a daemon behind and trains on", failures.daemon, "left behind: a daemon"),
)
HEALTHY = (
    FailureKind("none", "trains without a fault", _nothing, ""),
    _healthy("slow-step", "one step of many small parts", healthy.slow_step),
    _healthy("long-checkpoint", "writes some MB a second, each to the disk", healthy.long_checkpoint),
    _healthy("long-compile", "torch.compile; without --torch, children that compute and write", healthy.long_compile),
    _healthy("long-eval", "computes, between two epochs", healthy.long_eval, When.EPOCH),
    _healthy("quiet-sleep", "a planned pause between two epochs", healthy.quiet_sleep, When.EPOCH),
    _healthy("first-batch", "reads some MB a second before the first step", healthy.first_batch, When.START),
    _healthy("paused-io", "the rest of the steps only compute: no log, no checkpoint", _nothing, mute=True),
)
KILLED = "killing itself: SIGKILL"
RANKS = (
    FailureKind("rank-none", "trains without a fault", _nothing, "", ranks=True),
    _rank("killed", "is ended by SIGKILL", rank_failures.kill, KILLED),
    _rank("exit", "ends with os._exit", rank_failures.leave_at_once, f"crashing: exit code {rank_failures.EXIT_CODE}"),
    _rank("exception", "raises an exception", rank_failures.throw, "raising ValueError"),
    _rank("retry", "raises ft.Retry", rank_failures.retry, "raising ft.Retry"),
    _rank("daemon", "dies and leaves a daemon behind", rank_failures.daemon, "left behind: a daemon; " + KILLED),
    _rank("stop", "is stopped by SIGSTOP", failures.stop, "hanging: {name}"),
    _rank("gil", "C code blocks and keeps the GIL", failures.gil, "hanging: {name}"),
    _rank("lock", "waits for a lock that it holds", failures.deadlock, "hanging: {name}"),
    _rank("in-keep", "dies within run.keep", rank_failures.kill_in_keep, "killing itself in run.keep: SIGKILL"),
    _rank("in-leave", "dies while it leaves a round", rank_failures.kill, KILLED, When.LEAVE),
    _rank("in-restore", "dies within run.restore", rank_failures.kill, KILLED, When.RESTORE),
    _rank("in-go", "dies when the next round begins", rank_failures.kill, KILLED, When.GO),
    _rank("ignore", "never leaves its round", rank_failures.ignore, "hanging: {name}", When.LEAVE),
)
KINDS = {kind.name: kind for kind in FAILURES + HEALTHY + RANKS}


def parse(name: str, argument: str | None) -> tuple[FailureKind, float]:
    """The kind and the value of its argument; ValueError, in one line, if either is wrong."""
    if name not in KINDS:
        raise ValueError(f"unknown kind {name!r}{near(name, KINDS)}; see fthang --help")
    kind = KINDS[name]
    expected = kind.usage.partition(" ")[2]
    if argument is None and expected == "[DURATION]":
        argument = DURATION
    if (argument is None) == bool(expected):
        raise ValueError(f"{name} takes {'an' if expected else 'no'} argument: fthang {kind.usage}")
    return kind, PARSERS[expected](argument) if argument is not None else 0


def _number(text: str, what: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9) or not least <= int(text) <= most:
        raise ValueError(f"not {what} from {least} to {most}: {text!r}")
    return int(text)


def _signal(text: str) -> signal.Signals:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return signal.Signals(int(text)) if text.isascii() and text.isdigit() else signal.Signals[name]
    except (KeyError, ValueError):
        raise ValueError(f"not a signal: {text!r}{near(name, signal.Signals.__members__)}") from None


def seconds(text: str) -> float:
    """Raise ValueError if the text is not a duration."""
    return nanoseconds(text) / 1e9


PARSERS: dict[str, Callable[[str], float]] = {
    "CODE": lambda text: _number(text, "an exit code", 0, 255),
    "NAME": _signal,
    "N": lambda text: _number(text, "a number of orphans", 1, 10_000),
    "[DURATION]": seconds,
}
