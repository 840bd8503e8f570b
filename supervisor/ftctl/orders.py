"""What goes through the control channel of a running ftrun: the verbs that send it a command, and the files of other
members of its group (`ftctl report --member`, `stacks --member`)."""

import base64
import binascii
import getpass
import json
import os
import socket
import stat
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ftctl.common import AS_JSON, RUN_DIR, UserError
from ftrun.config.parsers import duration
from ftrun.config.whole_number import WholeNumber
from ftrun.core.rules import exit_codes
from ftrun.core.text import states
from ftrun.core.text.sentences import printable
from ftrun.messages import operator
from ftrun.messages.group_view import MOST, FileRequest
from ftrun.messages.operator import ControlVerb
from ftrun.records.files import rundir
from ftrun.records.past import schedules
from ftrun.records.present.run_snapshot import read_snapshot
from ftrun.records.present.snapshot import Snapshot
from ftrun.records.present.summary import headline

if TYPE_CHECKING:
    import zmq

PATIENCE: Final = 15.0  # s for a reply: longer than the messenger waits for PID 1
APPEARING: Final = 10.0  # s; the channel is created after the start of the command
RETRY: Final = 0.05  # s
POLL: Final = 1  # s
Awaited = Callable[[Snapshot, Snapshot], str | None]  # of the snapshots before the command and now
OTHER_CLOCK: Final = ", because the clock of ftrun differs (a time namespace); run ftctl in its container"
STARTED: Final = (*states.LIVE, "stopping", "done")  # phases of a command that was executed
VALID: Final = 0.9  # part of PATIENCE in which a request may still be carried out


@click.command(help="Stop the whole process tree and start the command again.  It uses no restart budget.")
@RUN_DIR
@AS_JSON
@click.option("--wait", "waits", is_flag=True, help="Wait until the command has been started again.")
def restart(run_dir: str | None, as_json: bool, waits: bool) -> None:
    run_verb("restart", run_dir, as_json, awaits=_restarted if waits else None)


@click.command(help="Stop the command (SIGTERM, the grace period, SIGKILL); ftrun exits with its exit code.")
@RUN_DIR
@AS_JSON
@click.option("--wait", "waits", is_flag=True, help="Wait until ftrun has ended.")
def stop(run_dir: str | None, as_json: bool, waits: bool) -> None:
    run_verb("stop", run_dir, as_json, awaits=_ended if waits else None)


def _lasting(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    help="Suspend the detection of hangs and device faults, for a debugger: until `ftctl resume`, or for a given time."
)
@RUN_DIR
@AS_JSON
@click.option("--for", "lasting", callback=_lasting, metavar="DUR", help="Resume automatically after so long.")
def pause(run_dir: str | None, as_json: bool, lasting: float | None) -> None:
    run_verb("pause", run_dir, as_json, lasting)


@click.command(help="Resume detection.  The time of the pause counts towards no timeout.")
@RUN_DIR
@AS_JSON
def resume(run_dir: str | None, as_json: bool) -> None:
    run_verb("resume", run_dir, as_json)


def run_verb(
    verb: ControlVerb, given: str | None, as_json: bool, lasting: float | None = None, awaits: Awaited | None = None
) -> None:
    """Run a verb and print the reply.  A run dir that was not given is named, as it may not be the intended one.
    `awaits` returns what has happened once it has, and is asked until then."""
    run_dir = rundir.find(given, own=True)
    before = read_snapshot(run_dir)
    try:
        reply = exchange(run_dir, verb, lasting=lasting)
        why = str(reply["why"])
        if not reply["ok"]:
            raise UserError(f"{verb} refused: {why}")
    except UserError as error:
        if (pid := read_snapshot(run_dir).stopped) is None:
            raise
        raise UserError(f"{error}; ftrun itself is stopped: `kill -CONT {pid}` continues it") from None
    while awaits is not None:
        if (happened := awaits(before, read_snapshot(run_dir))) is not None:
            why = happened
            break
        time.sleep(RETRY)
    if as_json:
        click.echo(json.dumps({"ok": True, "why": why, "run_dir": run_dir}))
    else:
        click.echo(printable(why if given else f"{run_dir}: {why}"))


def _restarted(before: Snapshot, now: Snapshot) -> str | None:
    """It may have ended again before it is seen to run."""
    executed = now.alive or now.verdict not in (exit_codes.NOT_EXECUTABLE.name, exit_codes.NOT_FOUND.name)
    if now.attempt > before.attempt and now.phase in STARTED and executed:
        return f"attempt {now.attempt} was started" + ("" if now.alive else f"; {headline(now)}")
    if not now.alive:
        raise UserError(f"{now.run_dir}: {headline(now)}")
    return None


def _ended(before: Snapshot, now: Snapshot) -> str | None:
    return None if now.alive else headline(now)


def exchange(
    run_dir: str,
    verb: ControlVerb,
    read: FileRequest | None = None,
    lasting: float | None = None,
    patience: float = PATIENCE,
) -> dict[str, Any]:
    """The reply of ftrun as it came; UserError if it cannot be reached, or does not reply within `patience` s."""
    import zmq

    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = f"/proc/self/fd/{folder}/{operator.SOCKET}"  # the path of a socket may have at most 107 bytes
        _await(run_dir, path)
        request = operator.ControlRequest(
            "1", verb, f"{_user()}, process {os.getpid()}", lasting, time.monotonic() + VALID * patience, read
        )
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.maxmsgsize = 1 << 16
            dealer.connect(f"ipc://{path}")
            dealer.send(operator.dump_request(request))
            _wait(run_dir, dealer, patience)
            reply = operator.load_reply(dealer.recv())
            if reply["why"] == operator.EXPIRED and request.until is not None and time.monotonic() < request.until:
                reply["why"] += OTHER_CLOCK
            return reply
    except operator.RequestRefused as error:
        raise UserError(f"{run_dir}/{operator.SOCKET}: {error}") from None
    finally:
        os.close(folder)


def _wait(run_dir: str, dealer: "zmq.Socket[bytes]", patience: float) -> None:
    """Wait for the reply; UserError if there is none."""
    until = time.monotonic() + patience
    while not dealer.poll(POLL * 1000):
        if not read_snapshot(run_dir).alive and not dealer.poll(0):
            raise UserError(f"{run_dir}: ftrun ended before it answered")
        if time.monotonic() > until:
            raise UserError(f"{run_dir}: ftrun does not answer; the command has expired and will not be carried out")


def _await(run_dir: str, path: str) -> None:
    """Wait until the control channel is open; UserError if it is not, and will not be."""
    until = time.monotonic() + APPEARING
    while (why := _connection_error(path)) is not None:
        if not read_snapshot(run_dir).alive:
            raise UserError(f"no ftrun runs in {run_dir}")
        if isinstance(why, PermissionError):
            raise UserError(f"{run_dir}/{operator.SOCKET}: run ftctl as the user of ftrun, or as root")
        missing = isinstance(why, FileNotFoundError | ConnectionRefusedError)
        if not missing or time.monotonic() > until:
            what = "its control channel is missing" if missing else str(why.strerror)
            raise UserError(f"ftrun runs in {run_dir}, but {what}; `ftctl events` may say why")
        time.sleep(RETRY)


def _connection_error(path: str) -> OSError | None:
    """Why the channel cannot be connected to, if so: ZeroMQ itself would wait for ever."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return OSError(0, f"its {operator.SOCKET} is not a socket")
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


COLLECTED: Final = 90.0  # s for stacks that have to be collected
What = Literal["report.md", "report.json", "stacks", "present stacks"]
MEMBER: Final = click.option(
    "--member",
    type=WholeNumber(0),
    metavar="M",
    help="Of this member of the group, by way of rank 0, encrypted as all messages of the group.",
)


def read_report(run_dir: str, member: int, attempt: int) -> str:
    """The report of that member as Markdown: from the member itself, else the copy in the state dir; UserError if there
    is neither."""
    try:
        return read_file(run_dir, member, "report.md", attempt).decode("utf-8", "replace")
    except UserError as why:
        if (copy := schedules.kept_report(run_dir, member, attempt)) is None:
            raise UserError(f"{why}; the state dir has no copy of its report") from None
        return copy


def read_file(run_dir: str, member: int, what: What, attempt: int, rank: int | None = None) -> bytes:
    """A file of that member, from any member that runs; UserError if it cannot be read.  `attempt` 0: the last one with
    a report.  `rank`: only that rank of its present stacks."""
    content = b""
    while True:
        patience = COLLECTED if what == "present stacks" and not content else PATIENCE
        reply = exchange(
            run_dir, "read", FileRequest("1", member, what, attempt, len(content), rank), patience=patience
        )
        part = reply.get("part")
        if not reply.get("ok") or not isinstance(part, dict):
            raise UserError(str(reply.get("why") or "the reply is not valid"))
        attempt, more, size = _part(part)
        content += more
        if not more or len(content) >= min(size, MOST):
            return content


def _part(part: dict[str, Any]) -> tuple[int, bytes, int]:
    try:
        return int(part["attempt"]), base64.b64decode(str(part["content"]), validate=True), int(part["size"])
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise UserError("the reply is not valid") from None
