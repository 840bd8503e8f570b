"""The report of an attempt that ended without a hang: made from the records when somebody asks for it.  Pure."""

import signal
from collections.abc import Sequence
from typing import Any, Final

from ftrun.core.text import markdown, sentences
from ftrun.records.record_files import Record, own_fields

SHOWN: Final = ("exited", "rank_exited", "fault", "escalated", "problem")
READ: Final = (*SHOWN, "stopping", "restart", "ended")  # the records that it is made from


def document(
    records: Sequence[Record], attempt: int, run_dir: str, tail: Sequence[str], node: str, command: list[Any] | None
) -> dict[str, Any] | None:
    """What is known about how this attempt ended; None if it has not ended badly.  `tail`: the last lines of its
    output, where that is kept; `node`: the host; `command`: its words, None if they are unknown."""
    own = [record for record in records if record.get("attempt") == attempt]
    if (end := _bad_end(own)) is None:
        return None
    following = [record for record in records if _follows(record, attempt)]
    return {
        "schema": 1,
        "attempt": attempt,
        "command": command,
        "node": node,
        "run_dir": run_dir,
        "time": end.get("time"),
        "code": end.get("code"),
        "signal": end.get("signal"),
        "why": end.get("why"),
        "records": [record for record in own if record["event"] in SHOWN],
        "then": following[0] if following else None,
        "output": list(tail),
    }


def _bad_end(own: Sequence[Record]) -> Record | None:
    """The record of the end of this attempt, of which these are the records; None if it has not ended badly."""
    ends = [record for record in own if record["event"] == "exited" and (record.get("code") or record.get("signal"))]
    if not ends or any(record["event"] == "stopping" for record in own[: own.index(ends[-1])]):
        return None  # somebody asked for the end, or ftrun decided it and has a report of its own
    return ends[-1]


def _follows(record: Record, attempt: int) -> bool:
    wanted = {"restart": attempt + 1, "ended": attempt}
    return record["event"] in wanted and record.get("attempt") == wanted[record["event"]]


def concerns(record: Record, attempt: int) -> bool:
    """Whether the report of this attempt is made from this record."""
    return record.get("attempt") == attempt or _follows(record, attempt)


def failed(records: Sequence[Record]) -> list[int]:
    """The attempts for which there is such a report, in order."""
    own: dict[int, list[Record]] = {}
    for record in records:
        if type(number := record.get("attempt")) is int:
            own.setdefault(number, []).append(record)
    return sorted(number for number, found in own.items() if _bad_end(found) is not None)


def lines(found: dict[str, Any]) -> list[str]:
    """The same for a person: first what ended and why, then what ftrun did, then the evidence."""
    ending = f"ended by {sentences.signal(found['signal'])}" if found["signal"] else f"exit code {found['code']}"
    command = " ".join(map(str, found["command"] or ())) or "unknown"
    stack: list[Any] = next((one["stack"] for one in found["records"] if isinstance(one.get("stack"), list)), [])
    text = [
        f"Attempt {found['attempt']} failed: {ending}",
        "",
        f"command  {command}",
        f"host     {found['node'] or 'unknown'}",
        f"time     {found['time']}",
        f"cause    {found['why'] or 'the command gave none'}",
        f"then     {_then(found['then'])}",
        f"do       {what_to_do(found)}",
        f"run dir  {found['run_dir']}",
    ]
    text += ["", "Stack of the crash, the innermost call first:", *(f"  {frame}" for frame in stack)] if stack else []
    text += ["", "Records:"]
    for record in found["records"]:
        fields = own_fields(record, "stack", "output")
        text.append(f"  {record.get('time')} {sentences.record(str(record['event']), fields)}")
    if found["output"]:
        text += ["", "Last lines of its output:", *(f"  {line}" for line in found["output"])]
    else:
        text += ["", "Its output is not kept (ftrun --log-dir DIR keeps it)."]
    return [sentences.printable(line) for line in text]


def what_to_do(found: dict[str, Any]) -> str:
    """What a person can do about this failure."""
    if any(record.get("oom_kills") for record in found["records"]):
        return "give the job more memory, or let it use less (batch size, workers, cache)"
    if any(record["event"] == "fault" for record in found["records"]):
        return f"have the device checked that the records name, on {found['node'] or 'its host'}"
    if found["signal"] == signal.SIGKILL:
        return "find out who sent SIGKILL: `dmesg` and the scheduler say whether memory had run out"
    if (found["then"] or {}).get("event") == "restart":
        return "nothing now, it was started again; if it comes again, mend the cause"
    return "mend the cause; with `--restart-on hang,fault,failure` ftrun starts it again by itself"


def as_markdown(found: dict[str, Any]) -> str:
    """The same in the form of the report of a hang."""
    head, _, *rest = lines(found)
    return f"# {markdown.plain(head)}\n\n{markdown.block(chr(10).join(rest))}\n"


def _then(record: Record | None) -> str:
    if record is None:
        return "nothing yet"
    if record["event"] == "restart":
        return f"ftrun started attempt {record.get('attempt')} ({record.get('consecutive')} in a row without progress)"
    return f"ftrun ended with {record.get('exit_code')} ({record.get('verdict')})"
