"""Records as entries of journald, by its native protocol: one datagram each, with the fields of the record."""

import json
import socket
import struct
from collections.abc import Callable
from typing import Final

from ftrun.config.derived import JOURNAL as SOCKET
from ftrun.core.text import sentences
from ftrun.records.files.record_files import Record, own_fields

PRIORITIES: Final = {  # of syslog(3); a record without one is `info`
    **dict.fromkeys(("hang", "fault", "escalated"), 3),
    **dict.fromkeys(
        ("suspect", "restart", "recovering", "stalled", "straggler", "problem", "rank_exited", "paused"), 4
    ),
    **dict.fromkeys(("started", "exited", "recovered", "resumed", "ended"), 5),
}
INFO: Final = 6
LEFT_OUT: Final = ("progress", "look")  # there may be very many
LARGEST: Final = 64 << 10  # bytes of an entry


class Journald:
    """An entry that journald does not take at once is dropped; the first failure is a problem."""

    def __init__(self, run_dir: str, problem: Callable[[str], None], path: str = SOCKET) -> None:
        self._run_dir, self._problem, self._path = run_dir, problem, path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._failed = False

    def follow(self, found: Record) -> None:
        if found["event"] in LEFT_OUT:
            return
        try:
            self._socket.sendto(entry(found, self._run_dir), self._path)
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._problem(f"journald does not take a record: {error.strerror}")


def entry(found: Record, run_dir: str) -> bytes:
    """The datagram: FIELD=value lines; a value with a newline is preceded by its length."""
    event, code = str(found["event"]), found.get("exit_code")
    priority = PRIORITIES.get(event, INFO) if event != "ended" or code == 0 else 3
    attempt = found.get("attempt")
    values = {
        "MESSAGE": sentences.printable(sentences.record(f"attempt {attempt}: {event}", own_fields(found))),
        "PRIORITY": str(priority),
        "SYSLOG_IDENTIFIER": "ftrun",
        "FTRUN_EVENT": event,
        "FTRUN_ATTEMPT": str(attempt),
        "FTRUN_RUN_DIR": run_dir,
        "FTRUN_RECORD": json.dumps(found),
    }
    content = b"".join(_field(name, value.encode("utf-8", "replace")) for name, value in values.items())
    if len(content) > LARGEST:
        return b"".join(
            _field(name, value.encode("utf-8", "replace")[:4096]) for name, value in list(values.items())[:6]
        )
    return content


def _field(name: str, value: bytes) -> bytes:
    if b"\n" in value:
        return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name.encode() + b"=" + value + b"\n"
