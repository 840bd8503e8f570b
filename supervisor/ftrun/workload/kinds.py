"""The table of the kinds of `fthang`, and the parser of their arguments."""

import signal
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import Enum

from ftrun.core.named_tuple import NamedTuple
from ftrun.workload import failures, healthy
from ftrun.workload.training import Setting
from ftrun_hooks._section import nanoseconds

DURATION = "6s"  # more than a hang timeout of a few seconds
Begin = Callable[[Setting], None]


class When(Enum):
    START = "before the first step"
    STEP = "after a step"
    EPOCH = "after a step that ends an epoch"


class Kind(NamedTuple):
    """`usage` is its name and its argument; `line` is printed, with its name and `value`, before `begin` is called."""

    usage: str
    description: str
    begin: Begin
    line: str = "hanging: {name}"
    when: When = When.STEP
    torch: bool = False  # PyTorch trains, whatever the mode
    mute: bool = False  # the steps after it only compute: no log, no checkpoint, no sleep

    @property
    def name(self) -> str:
        return self.usage.split()[0]

    def text(self, value: float) -> str:
        return self.line.format(name=self.name, value=value)


def _healthy(name: str, description: str, begin: Begin, when: When = When.STEP, mute: bool = False) -> Kind:
    return Kind(f"{name} [DURATION]", description, begin, "{name} for {value:g} s", when, mute=mute)


def _nothing(setting: Setting) -> None:
    """The training itself has this kind built in."""


FAILURES = (
    Kind("sleep", "the main thread sleeps for ever", failures.sleep),
    Kind("deadlock", "it waits for a lock that it holds", failures.deadlock),
    Kind("gil", "C code blocks and keeps the GIL: no thread runs", failures.gil),
    Kind("native", "a program without Python sleeps for ever", failures.native),
    Kind("collective", "two ranks; one never comes to the all_reduce (PyTorch)", failures.deadlock, torch=True),
    Kind("mismatch", "two ranks, in different collectives (PyTorch)", failures.other_collective, torch=True),
    Kind("dataloader", "a worker never returns with its batch (PyTorch)", _nothing, torch=True),
    Kind("lock-cycle", "two threads, each waits for the lock of the other", failures.lock_cycle),
    Kind("queues", "a parent and a child, each waits for a message of the other", failures.queues),
    Kind("full-pipes", "a child writes into a full pipe, and so does its parent", failures.full_pipes),
    Kind("pipe", "a write into a pipe that nobody reads", failures.pipe),
    Kind("flock", "a file lock that another open file holds", failures.flock),
    Kind("netread", "a read from a server that never answers", failures.netread),
    Kind("nfs-like", "state D, as on a dead file server", failures.nfs_like),
    Kind("stop", "stopped by SIGSTOP", failures.stop),
    Kind("spin", "an endless loop", failures.spin),
    Kind("busy", "an endless loop that calls functions: its stack moves", failures.busy),
    Kind("flag", "an endless loop that waits for a flag, which nobody sets", failures.spin_on_flag),
    Kind("chatty", "deadlock, while a side thread logs and gives heartbeats", failures.chatty),
    Kind("nobeat", "trains for ever without heartbeats", failures.train_without_heartbeats, when=When.START),
    Kind("forkstorm", "processes that fork and end, without end", failures.fork_storm),
    Kind("crash CODE", "ends with this exit code", failures.crash, "crashing: exit code {value}"),
    Kind("signal NAME", "is ended by this signal", failures.die, "killing itself: {value.name}"),
    Kind("orphans N", "leaves N orphans behind and trains on", failures.orphans, "left behind: {value} orphans"),
    Kind("daemon", "leaves a daemon behind and trains on", failures.daemon, "left behind: a daemon"),
)
HEALTHY = (
    Kind("none", "trains without a fault", _nothing, ""),
    _healthy("slow-step", "one step of many small parts", healthy.slow_step),
    _healthy("long-checkpoint", "writes some MB a second, each to the disk", healthy.long_checkpoint),
    _healthy("long-compile", "torch.compile; without --torch, children that compute and write", healthy.long_compile),
    _healthy("long-eval", "computes, between two epochs", healthy.long_eval, When.EPOCH),
    _healthy("quiet-sleep", "a planned pause between two epochs", healthy.quiet_sleep, When.EPOCH),
    _healthy("first-batch", "reads some MB a second before the first step", healthy.first_batch, When.START),
    _healthy("paused-io", "the rest of the steps only compute: no log, no checkpoint", _nothing, mute=True),
)
KINDS = {kind.name: kind for kind in FAILURES + HEALTHY}


def parse(name: str, argument: str | None) -> tuple[Kind, float]:
    """The kind and the value of its argument; ValueError, in one line, if either is wrong."""
    if name not in KINDS:
        raise ValueError(f"unknown kind {name!r}{_near(name, KINDS)}; see fthang --help")
    kind = KINDS[name]
    expected = kind.usage.partition(" ")[2]
    if argument is None and expected == "[DURATION]":
        argument = DURATION
    if (argument is None) == bool(expected):
        raise ValueError(f"{name} takes {'an' if expected else 'no'} argument: fthang {kind.usage}")
    return kind, PARSERS[expected](argument) if argument is not None else 0


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _number(text: str, what: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9) or not least <= int(text) <= most:
        raise ValueError(f"not {what} from {least} to {most}: {text!r}")
    return int(text)


def _signal(text: str) -> signal.Signals:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return signal.Signals(int(text)) if text.isascii() and text.isdigit() else signal.Signals[name]
    except (KeyError, ValueError):
        raise ValueError(f"not a signal: {text!r}{_near(name, signal.Signals.__members__)}") from None


def seconds(text: str) -> float:
    """Raise ValueError if the text is not a duration."""
    return nanoseconds(text) / 1e9


PARSERS: dict[str, Callable[[str], float]] = {
    "CODE": lambda text: _number(text, "an exit code", 0, 255),
    "NAME": _signal,
    "N": lambda text: _number(text, "a number of orphans", 1, 10_000),
    "[DURATION]": seconds,
}
