"""`ftctl top`: a live view."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ftctl.common import AS_JSON, RUN_DIR, show_json
from ftctl.processes import Meter
from ftctl.top import row_texts, terminal
from ftctl.top import screen as top
from ftctl.top.keys import Chosen, LongText
from ftrun.config.parsers import duration
from ftrun.records.files import record_files, rundir, steps
from ftrun.records.present import group, summary
from ftrun.records.present.group import GroupNow
from ftrun.records.present.run_snapshot import read_snapshot
from ftrun.records.present.snapshot import Snapshot

LEAST: Final = 0.1  # s
RECORDS: Final = 32 << 10  # bytes at the end of the records that are read
DUMB: Final = 10.0  # s at least between frames where a frame cannot overwrite the one before


def interval(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        seconds = duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if seconds < LEAST:
        raise click.BadParameter(f"{value!r} is less than 100ms")
    return seconds


@click.command(
    help="Show a live view: the state, the nearest timeout, the ranks, the devices, the last records; q quits."
)
@RUN_DIR
@click.option(
    "--interval",
    default="1s",
    show_default=True,
    metavar="DUR",
    callback=interval,
    help="Between updates; with --json also into a pipe.",
)
@click.option("--once", is_flag=True, help="Print one frame; the default if standard output is no terminal.")
@AS_JSON
@click.pass_context
def command(ctx: click.Context, run_dir: str | None, interval: float, once: bool, as_json: bool) -> int:
    run = WatchedRun(run_dir)
    if as_json:
        asked = ctx.get_parameter_source("interval") is not click.core.ParameterSource.DEFAULT
        return watch_json(run, interval, once or not (asked or sys.stdout.isatty()))
    if once or not sys.stdout.isatty():
        size = shutil.get_terminal_size()
        drawn = console(size.columns)
        drawn.print(run.frame(top.Screen(size.columns, size.lines, terminal.shows_unicode()), ""), end="\n")
        return 0
    return watch(run, interval)


class WatchedRun:
    """The run as of the last read.  If it cannot be read any more, the last snapshot stays, with a warning."""

    def __init__(self, given: str | None) -> None:
        self._given, self._meter = given, Meter()
        self._dir = rundir.find(given)
        self.shown, self.members = self._read()
        self.records = record_files.last(f"{self._dir}/events.jsonl", RECORDS)
        self.chosen = Chosen()
        self.text: LongText | None = None  # instead of the frame

    def pressed(self, key: str) -> None:
        if self.text is not None:
            self.text = self.text.pressed(key)
        elif key in row_texts.KEYS and not self.chosen.help:
            self.text = row_texts.read(key, self._dir, self.chosen.rank(self.shown.ranks))
        else:
            self.chosen = self.chosen.pressed(key)

    def update(self) -> None:
        try:
            if self._given and not self.shown.alive:
                self._dir = rundir.find(self._given)  # where phases run in sequence, it may be the next one
            self.shown, self.members = self._read()
        except rundir.NoRunDir as error:
            self.shown = self.shown._replace(alive=False, problems=(str(error),))
            return
        self.records = record_files.last(f"{self._dir}/events.jsonl", RECORDS)

    def _read(self) -> tuple[Snapshot, GroupNow | None]:
        own = self._meter.measured(read_snapshot(self._dir))
        members = group.read(own)
        return group.marked(own, members), members

    def frame(self, screen: top.Screen, note: str) -> Text:
        if self.text is not None:
            return self.text.render(*screen)
        paces = [pace for _, pace in steps.paces(self._dir, self.shown.attempt)]
        members = list(group.table(self.members, screen.width)) if self.members is not None else []
        return top.render(self.shown, paces, self.records, note, screen, members, self.chosen)


def note(shown: Snapshot) -> str:
    """The last line of the screen."""
    over = "" if shown.alive else "the run is over; " if shown.phase == "done" else "ftrun is gone; "
    return f"{over}q quits, ? shows all keys  {time.strftime('%H:%M:%S')}"


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        raise  # what it is called for; rich would exit with 1


def console(width: int | None = None) -> Console:
    colours: Final = "auto" if terminal.shows_colours() else None
    return _Terminal(color_system=colours, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def watch_json(run: WatchedRun, seconds: float, once: bool) -> int:
    """One object per update, until the run is over."""
    while True:
        show_json(summary.document(run.shown))
        if once or not run.shown.alive:
            return 0
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            return 0
        run.update()


def watch(run: WatchedRun, seconds: float) -> int:
    """Show the run until q, Ctrl-C or a signal.  Returns 0, or 128 + the number of the signal."""
    screen = console()
    unicode = terminal.shows_unicode()

    def drawn() -> Text:
        # To rich, a dumb terminal has 80 columns.
        columns, lines = shutil.get_terminal_size() if screen.is_dumb_terminal else screen.size
        return run.frame(top.Screen(columns, lines, unicode), note(run.shown))

    while True:
        with terminal.Keys() as keys:
            try:
                if screen.is_dumb_terminal:  # it cannot move the cursor: one frame after another
                    ended = until_key(run, keys, max(seconds, DUMB), lambda: screen.print(drawn(), soft_wrap=True))
                else:
                    with Live(
                        console=screen, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
                    ) as live:
                        ended = until_key(run, keys, seconds, lambda: live.update(drawn(), refresh=True))
            except OSError:  # the terminal has hung up
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 128 + signal.SIGHUP
        if ended != terminal.STOP:
            return 0 if ended == signal.SIGINT else 128 + ended if ended else 0
        os.kill(os.getpid(), signal.SIGSTOP)  # until fg


def until_key(run: WatchedRun, keys: terminal.Keys, seconds: float, draw: Callable[[], None]) -> int:
    """Draw at first, after each event, and every `seconds`.  Returns the signal that has ended it; 0 for the key q."""
    draw()
    due = time.monotonic() + seconds
    while True:
        event = keys.wait(due - time.monotonic())
        if event in ("q", "Q") and not run.chosen.help and run.text is None:
            return 0
        if isinstance(event, str):
            run.pressed(event)
        if isinstance(event, int) and event != signal.SIGWINCH:
            return event
        if event is None:
            run.update()
            due = time.monotonic() + seconds
        draw()
