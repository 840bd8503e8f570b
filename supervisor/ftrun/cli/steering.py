"""The verbs that give an order to the ftrun of a run dir, over its control channel."""

import getpass
import json
import os
import socket
import stat
import time
from typing import TYPE_CHECKING, Final

import click

from ftrun.cli.common import AS_JSON, RUN_DIR, UserError
from ftrun.config.parsers import duration
from ftrun.core.text.sentences import printable
from ftrun.messages import operator
from ftrun.views import rundir
from ftrun.views.run_snapshot import read_snapshot

if TYPE_CHECKING:
    import zmq

PATIENCE: Final = 15.0  # s for an answer: longer than the other side takes to say that there is none
APPEARING: Final = 10.0  # s; the channel is made when the command has started
LOOK: Final = 0.05  # s
SLICE: Final = 1  # s
HEARD: Final = 0.9  # of that time in which an order may still be obeyed


@click.command(help="End the whole process tree and start the command again.  It counts as no restart in a row.")
@RUN_DIR
@AS_JSON
def restart(run_dir: str | None, as_json: bool) -> None:
    give("restart", run_dir, as_json)


@click.command(help="End the command (SIGTERM, the grace, SIGKILL), and ftrun with its code.")
@RUN_DIR
@AS_JSON
def stop(run_dir: str | None, as_json: bool) -> None:
    give("stop", run_dir, as_json)


def _lasting(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    help="No verdicts, neither on silence nor on devices: for a debugger.  Until `ftctl resume`, or for a given time."
)
@RUN_DIR
@AS_JSON
@click.option("--for", "lasting", callback=_lasting, metavar="DUR", help="Judge again by itself after so long.")
def pause(run_dir: str | None, as_json: bool, lasting: float | None) -> None:
    give("pause", run_dir, as_json, lasting)


@click.command(help="Judge again.  The time of the pause counts for nobody.")
@RUN_DIR
@AS_JSON
def resume(run_dir: str | None, as_json: bool) -> None:
    give("resume", run_dir, as_json)


def give(verb: str, given: str | None, as_json: bool, lasting: float | None = None) -> None:
    """What a verb does.  A run dir that we found by ourselves is named: it may not be the one that was meant."""
    run_dir = rundir.find(given)
    why = order(run_dir, verb, lasting)
    if as_json:
        click.echo(json.dumps({"ok": True, "why": why, "run_dir": run_dir}))
    else:
        click.echo(printable(why if given else f"{run_dir}: {why}"))


def order(run_dir: str, verb: str, lasting: float | None = None) -> str:
    """What ftrun says it does about it; Trouble if it does not, or cannot be asked."""
    import zmq

    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{folder}/{operator.SOCKET}"  # the path of a socket may have 107 bytes
        _await(run_dir, path)
        request = operator.Request(
            "1", verb, f"{_user()}, process {os.getpid()}", lasting, time.monotonic() + HEARD * PATIENCE
        )
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.maxmsgsize = 1 << 16
            dealer.connect(f"ipc://{path}")
            dealer.send(operator.dump_request(request))
            _wait(run_dir, dealer)
            reply = operator.load_reply(dealer.recv())
    except operator.RequestRefused as error:
        raise UserError(f"{run_dir}/{operator.SOCKET}: {error}") from None
    finally:
        os.close(folder)
    if not reply.ok:
        raise UserError(f"{verb} refused: {reply.why}")
    return reply.why


def _wait(run_dir: str, dealer: "zmq.Socket[bytes]") -> None:
    """For the answer; Trouble if there is none."""
    until = time.monotonic() + PATIENCE
    while not dealer.poll(SLICE * 1000):
        if not read_snapshot(run_dir).alive and not dealer.poll(0):
            raise UserError(f"{run_dir}: ftrun ended before it answered")
        if time.monotonic() > until:
            raise UserError(f"{run_dir}: ftrun does not answer; what it has not heard by now it will not obey")


def _await(run_dir: str, path: str) -> None:
    """Until somebody listens there; Trouble where nobody does, or will."""
    until = time.monotonic() + APPEARING
    while (why := _deaf(path)) is not None:
        if not read_snapshot(run_dir).alive:
            raise UserError(f"no ftrun runs in {run_dir}")
        if isinstance(why, PermissionError):
            raise UserError(f"{run_dir}/{operator.SOCKET}: of another user; ask as that one, or as root")
        missing = isinstance(why, FileNotFoundError | ConnectionRefusedError)
        if not missing or time.monotonic() > until:
            what = "its control channel is not there" if missing else str(why.strerror)
            raise UserError(f"ftrun runs in {run_dir}, but {what}; `ftctl events` may say why")
        time.sleep(LOOK)


def _deaf(path: str) -> OSError | None:
    """Why nobody listens there, if so: ZeroMQ itself would wait for ever."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return OSError(0, f"its {operator.SOCKET} is no socket")
        with socket.socket(socket.AF_UNIX) as tried:
            tried.connect(path)
    except OSError as error:
        return error
    return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid without a name
        return f"uid {os.getuid()}"
