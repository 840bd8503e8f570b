"""Reports events to commands and webhooks: `notifier RUN_DIR OFFSET`, started by PID 1.

It follows the records from the byte OFFSET on.  The file at descriptor 3, a `Destinations` (messages/exports.py), says
which records are reported, and where.  Each destination has a thread of its own and a bounded queue, so that one that
does not answer holds up no other.  When stdin has ended, the last records are read, and what is not reported within
END s is given up.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from ftrun import __version__
from ftrun.core.text import redaction, sentences
from ftrun.core.text.durations import seconds
from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.helpers.notifier import incidents
from ftrun.helpers.notifier.incidents import Due, Incidents
from ftrun.host import clock, procfs, work_dir
from ftrun.messages import group_view
from ftrun.messages.codec import EXACT, Malformed
from ftrun.messages.exports import Destinations
from ftrun.messages.helpers import PROBLEMS
from ftrun.records.files import recent_events, state
from ftrun.records.files.record_files import GrowingFile, Record, own_fields, record

PERIOD: Final = 0.5  # s between two reads of the records
TIMEOUT: Final = 10.0  # s for an attempt
DELAYS: Final = (1.0, 5.0, 25.0)  # s before each further attempt
END: Final = 4.0  # s at the end of ftrun
WAITING: Final = 256  # notifications for one destination
DESTINATIONS: Final = 3  # descriptor
MOST: Final = 1 << 20  # bytes of it
SCHEMA: Final = 1


@helper(PROBLEMS)
def main(argv: list[str], lines: ProtocolLines) -> None:
    asked = EXACT.load(Destinations, os.pread(DESTINATIONS, MOST, 0))
    Notifier(argv[0], int(argv[1]), asked, lines).run()


class Notifier:
    """Reads the records, and gives those that are asked for to the senders."""

    def __init__(self, run_dir: str, offset: int, asked: Destinations, lines: ProtocolLines) -> None:
        self._run_dir, self._asked, self._lines = run_dir, asked, lines
        self._records = GrowingFile(f"{run_dir}/events.jsonl")
        self._records.at = offset  # the beginning of a line: PID 1 writes whole ones
        self._incidents = Incidents(asked.names, asked.node, asked.member, self._rows, self._limit)
        self._full = False  # the disk of the run dir
        self.lock = threading.Lock()
        self._senders: list[Sender] = [Command(command, self) for command in asked.commands]
        self._senders += [Webhook(url, asked.slack, self) for url in asked.urls]

    def run(self) -> None:
        while not self._lines.ended:
            self._lines.pause(PERIOD)
            self._report(False)
        self._report(True)
        until = time.monotonic() + END
        for sender in self._senders:
            try:
                sender.queue.put_nowait(None)
            except queue.Full:
                pass  # it does not answer
        for sender in self._senders:
            sender.join(max(0.0, until - time.monotonic()))
        for sender in self._senders:
            if sender.is_alive():  # PID 1 reads no more; this goes to run.log
                left = f"not reported when ftrun ended: {sentences.several(sender.waiting, 'notification')}"
                print(f"{sender.name}: {left}: {sender.why or 'no answer yet'}", file=sys.stderr, flush=True)
            sender.give_up()

    def problem(self, what: str) -> None:
        """Report a problem; any thread may call this."""
        with self.lock:
            self._lines.problem(what)

    def _report(self, ended: bool) -> None:
        found = [self._located(one) for line in self._records.lines() if (one := record(line)) is not None]
        now = time.monotonic()
        taken = [due for one in found for due in self._incidents.take(one, now)]
        due = [*taken, *self._incidents.overdue(now, ended), *self._disk()]
        command = state.load(self._run_dir).rest.run.command if due else ()
        for new in due:
            for sender in self._senders:
                sender.put(notification(new, self._asked, self._run_dir, command))

    def _disk(self) -> list[Due]:
        """The notification that the disk of the run dir is full, once: what is not recorded is not reported either."""
        before, self._full = self._full, work_dir.is_full(self._run_dir)
        if before or not self._full or "disk" not in self._asked.names:
            return []
        found = state.load(self._run_dir).rest.now.attempt
        attempt = None if found is None else found.number
        return [Due("disk", {"event": "disk", "time": clock.timestamp(), "attempt": attempt, "run_dir": self._run_dir})]

    def _limit(self) -> int | None:
        return state.load(self._run_dir).rest.run.max_restarts

    def _located(self, found: Record) -> Record:
        """The record with the host of a lost member, which the others of its group know from before its loss."""
        if found["event"] != "lost" or found.get("node"):
            return found
        return found | {"node": next((row.node for row in self._rows() if row.rank == found.get("member")), "")}

    def _rows(self) -> tuple[group_view.MemberRow, ...]:
        """The rows of the members of the group, as far as this member knows them."""
        try:
            content = procfs.read(f"{self._run_dir}/{group_view.FILE}", group_view.FILE_LIMIT)
            return group_view.load(group_view.GroupView, content or b"", group_view.FILE_LIMIT).rows
        except Malformed:
            return ()


class Sender(threading.Thread, ABC):
    """One destination.  `name` is for messages; it holds no secret."""

    def __init__(self, name: str, owner: Notifier) -> None:
        super().__init__(name=name, daemon=True)
        self.queue: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING)
        self.why = ""  # the last attempt failed
        self._owner = owner
        self._put = self._done = 0
        self.start()

    def put(self, found: dict[str, Any]) -> None:
        try:
            self.queue.put_nowait(found)
            self._put += 1
        except queue.Full:
            self._owner.problem(f"{self.name}: {WAITING} notifications wait already; newer ones are dropped")

    @property
    def waiting(self) -> int:
        """Notifications that have neither arrived nor been given up."""
        return self._put - self._done

    def run(self) -> None:
        while (found := self.queue.get()) is not None:
            for delay in (*DELAYS, None):
                if (why := self.send(found)) is None:
                    break
                self.why = why
                if delay is None:
                    self._owner.problem(f"{self.name}: a notification of `{found['event']}` failed: {why}")
                else:
                    time.sleep(delay)
            self._done += 1

    @abstractmethod
    def send(self, found: dict[str, Any]) -> str | None:
        """Send a notification.  Returns None, or why it failed, on one line."""

    def give_up(self) -> None:
        """The helper ends: leave nothing behind."""


class Command(Sender):
    """Runs the command by `sh -c`, with the notification on stdin; its output goes to `run.log`."""

    def __init__(self, command: str, owner: Notifier) -> None:
        self._command, self._running = command, 0  # process group; 0: none
        super().__init__(f"--on-event {redaction.redact(sentences.short(command))}", owner)

    def send(self, found: dict[str, Any]) -> str | None:
        variables = {"FTRUN_EVENT": found["event"], "FTRUN_RUN_DIR": found["run_dir"], "FTRUN_MESSAGE": found["text"]}
        variables["FTRUN_ATTEMPT"] = str(found["attempt"])
        try:
            child = subprocess.Popen(
                ["sh", "-c", self._command],
                stdin=subprocess.PIPE,
                stdout=2,
                env=os.environ | variables,
                start_new_session=True,
            )
        except OSError as error:
            return str(error.strerror)
        self._running = child.pid
        try:
            child.communicate(json.dumps(found).encode(), TIMEOUT)
        except subprocess.TimeoutExpired:
            self.give_up()
            child.wait()
            return f"it did not end within {TIMEOUT:.0f} s"
        finally:
            self._running = 0
        return f"it ended with {child.returncode}" if child.returncode else None

    def give_up(self) -> None:
        if group := self._running:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Webhook(Sender):
    """Sends the notification by POST, or with `slack` only its text, as Slack and Mattermost take it."""

    def __init__(self, url: str, slack: bool, owner: Notifier) -> None:
        self._url, self._slack = url, slack
        host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]  # the path of a webhook is its secret
        super().__init__(f"--webhook {host}", owner)

    def send(self, found: dict[str, Any]) -> str | None:
        content = {"text": found["text"]} if self._slack else found
        headers = {"Content-Type": "application/json", "User-Agent": f"ftrun/{__version__}"}
        request = urllib.request.Request(self._url, json.dumps(content).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT):
                return None
        except urllib.error.HTTPError as error:
            return f"it answered {error.code}"
        except (OSError, ValueError) as error:  # no connection, no certificate, a malformed answer
            return sentences.printable(str(getattr(error, "reason", None) or error))
        except Exception as error:  # http.client has errors that are neither
            return repr(error)


def notification(due: Due, asked: Destinations, run_dir: str, command: Sequence[str]) -> dict[str, Any]:
    """The JSON body (docs/howto/notifications.md)."""
    found, attempt = due.record, due.record.get("attempt")
    where = f"ftrun on {asked.node}, attempt {attempt} of {sentences.short(asked.job or ' '.join(command), 80)}"
    return {
        "schema": SCHEMA,
        "event": due.event,
        "time": found.get("time"),
        "attempt": attempt,
        "job": asked.job,
        "node": asked.node,
        "command": list(command),
        "run_dir": run_dir,
        "text": sentences.printable(f"{where}: {_text(due)}"),
        "incident": due.about,
        "record": found,
    }


def _text(due: Due) -> str:
    """An incident with all that is known about it; an end and a wait with what can be done."""
    if due.about is None:
        return sentence(due.record)
    if due.event in ("ended", "lost", "waiting"):
        return sentences.sentence(sentence(due.record), due.about["do"])
    return incidents.text(due.about)


def sentence(found: Record) -> str:
    """What the record says, for a person."""
    match found["event"]:
        case "ended":
            return f"ended with {found.get('exit_code')} ({found.get('verdict')}): {found.get('why') or ''}"
        case "restart":
            return f"started again ({found.get('reason')}, {found.get('consecutive')} in a row without progress)"
        case "stalled":
            return _stalled(found)
        case "straggler":
            return _straggler(found)
        case "lost":
            return _lost(found)
        case "waiting":
            return f"no command has run for {seconds(state.number(found.get('seconds')) or 0.0)}: {found.get('why')}"
        case "disk":
            lost = "the job goes on, but nothing that happens is recorded or reported until there is space on it"
            return f"the disk of the run dir {found.get('run_dir')} is full: {lost}"
        case "frozen":
            return sentences.frozen(state.number(found.get("seconds")) or 0.0)
        case "recovering":
            return f"recovery by {found.get('rung')}: {found.get('why')}"
        case "hang" | "fault":
            return f"{found['event']}: {recent_events.why(found)}"
    return sentences.record(str(found["event"]), own_fields(found))


def _lost(found: Record) -> str:
    """Who is lost, for how long it is waited for, and what follows."""
    why, wait, then = str(found.get("why")), state.number(found.get("wait")), str(found.get("then"))
    name = f"member {found.get('member')}"
    what = why if why.startswith(name) else f"{name} is lost: {why}"
    if wait is None:
        return what
    follows = {"go on": f"{found.get('working')} members go on without it", "replace": "a spare takes its place"}
    ends = f"the job ends with {found.get('exit_code')}"
    return f"{what}; it is waited for {seconds(wait)}, then {follows.get(then, ends)}"


def _stalled(found: Record) -> str:
    rank, age = state.integer(found.get("rank")), state.number(found.get("age")) or 0.0
    since = f"{sentences.rank(rank)} has not moved for {seconds(age)}"
    return sentences.sentence(since, *(state.string(found.get(name)) or "" for name in ("wait", "advice")))


def _straggler(found: Record) -> str:
    rank, member = (state.integer(found.get(name)) for name in ("rank", "member"))
    times = [state.number(found.get(name)) or 0.0 for name in ("step_time", "usual", "seconds")]
    work = state.number(found.get("work"))
    node, device = (state.string(found.get(name)) or "" for name in ("node", "device"))
    return sentences.straggler(rank or 0, times[0], times[1], times[2], member, node, device, work)
