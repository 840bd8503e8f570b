"""`ftctl top`: a live view."""

import os
import shutil
import signal
import sys
import time
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ftrun.cli import printing, terminal
from ftrun.cli.common import AS_JSON, RUN_DIR
from ftrun.config.parsers import duration
from ftrun.views import record_tail, rundir, steps, summary, top
from ftrun.views.run_snapshot import read_snapshot
from ftrun.views.snapshot import Snapshot

LEAST: Final = 0.1  # s
SEEDED: Final = 32 << 10  # bytes of records, for the last of them
DUMB: Final = 10.0  # s at least where each frame is a page of paper more


def interval(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        seconds = duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds < LEAST:
        raise click.BadParameter(f"{value!r} is less than 100ms")
    return seconds


@click.command(
    help="A live view: how it stands, how near the deadline is, the ranks, the devices, the last records; q quits."
)
@RUN_DIR
@click.option("--interval", default="1s", show_default=True, metavar="DUR", callback=interval, help="Between looks.")
@click.option("--once", is_flag=True, help="One look; also where standard output is no terminal.")
@AS_JSON
def command(run_dir: str | None, interval: float, once: bool, as_json: bool) -> int:
    watched = Watched(run_dir)
    if as_json:
        return watch_json(watched, interval, once)
    if once or not sys.stdout.isatty():
        size = shutil.get_terminal_size()
        drawn = console(size.columns)
        drawn.print(frame(watched, top.Screen(size.columns, size.lines, terminal.shows_unicode()), ""), end="\n")
        return 0
    return watch(watched, interval)


class Watched:
    """The run, as of the last look; what cannot be read any more stays as it was last seen, with a word on it."""

    def __init__(self, given: str | None) -> None:
        self._given = given
        self._dir = rundir.find(given)
        self.shown = read_snapshot(self._dir)
        self.records = record_tail.last(f"{self._dir}/events.jsonl", SEEDED)

    def look(self) -> None:
        try:
            if self._given and not self.shown.alive:
                self._dir = rundir.find(self._given)  # of several phases maybe the next
            self.shown = read_snapshot(self._dir)
        except rundir.NoRunDir as error:
            self.shown = self.shown._replace(alive=False, problems=(str(error),))
            return
        self.records = record_tail.last(f"{self._dir}/events.jsonl", SEEDED)

    @property
    def paces(self) -> list[float]:
        return [pace for _, pace in steps.paces(self._dir, self.shown.attempt)]


def frame(watched: Watched, size: top.Screen, note: str) -> Text:
    return top.render(watched.shown, watched.paces, watched.records, note, size)


def note(shown: Snapshot, live: bool) -> str:
    """The last line."""
    keys = "q quits" if live else ""
    over = "" if shown.alive else "it is over; " if shown.phase == "done" else "nothing runs here any more; "
    return f"{over}{keys}  {time.strftime('%H:%M:%S')}"


def console(width: int | None = None) -> Console:
    colours: Final = "auto" if terminal.shows_colours() else None
    return Console(color_system=colours, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def watch_json(watched: Watched, seconds: float, once: bool) -> int:
    """One object a look, until the run is over."""
    while True:
        printing.show_json(summary.document(watched.shown))
        if once or not watched.shown.alive:
            return 0
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            return 0
        watched.look()


def watch(watched: Watched, seconds: float) -> int:
    """Until q, Ctrl-C or a signal; 128 + its number then."""
    screen = console()
    while True:
        with terminal.Keys() as keys:
            try:
                ended = (on_paper if screen.is_dumb_terminal else live)(watched, keys, screen, seconds)
            except OSError:  # it has hung up
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 128 + signal.SIGHUP
        if ended != terminal.STOP:
            return 0 if ended == signal.SIGINT else 128 + ended if ended else 0
        os.kill(os.getpid(), signal.SIGSTOP)  # until fg


def live(watched: Watched, keys: terminal.Keys, screen: Console, seconds: float) -> int:
    unicode = terminal.shows_unicode()

    def drawn() -> Text:
        width, height = screen.size
        return frame(watched, top.Screen(width, height, unicode), note(watched.shown, live=True))

    with Live(
        drawn(), console=screen, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as at:
        at.refresh()
        due = time.monotonic() + seconds
        while True:
            heard = keys.wait(due - time.monotonic())
            if heard in ("q", "Q"):
                return 0
            if isinstance(heard, int) and heard != signal.SIGWINCH:
                return heard
            if heard is None:
                watched.look()
                due = time.monotonic() + seconds
            at.update(drawn(), refresh=True)


def on_paper(watched: Watched, keys: terminal.Keys, screen: Console, seconds: float) -> int:
    """For a terminal that cannot go back: frame after frame."""
    while True:
        width, height = screen.size
        screen.print(
            frame(watched, top.Screen(width, height, terminal.shows_unicode()), note(watched.shown, live=True))
        )
        due = time.monotonic() + max(seconds, DUMB)
        while (heard := keys.wait(due - time.monotonic())) is not None:
            if heard in ("q", "Q"):
                return 0
            if isinstance(heard, int) and heard != signal.SIGWINCH:
                return heard
        watched.look()
