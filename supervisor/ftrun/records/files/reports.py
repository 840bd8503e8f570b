"""The reports in a run dir: of attempts that hung, which the evidence helper wrote, and of attempts that failed, which
are made from the records."""

import os
import re
import signal
import stat
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from ftrun.core.rules import exit_codes
from ftrun.core.text import markdown, sentences
from ftrun.host import procfs
from ftrun.host.output_pipes import LOG, RANK_LOG
from ftrun.records.files import recent_events, record_files, state
from ftrun.records.files.record_files import Record, own_fields

SHOWN: Final = ("exited", "rank_exited", "fault", "escalated", "problem")
READ: Final = (*SHOWN, "stopping", "restart", "ended")  # the records that it is made from
LIMIT: Final = 64 << 20  # bytes of a report
TAIL: Final = 1 << 20  # bytes of output that are read
LINES: Final = 30  # lines of output that are shown


def _bad_end(own: Sequence[Record]) -> Record | None:
    """The record of the end of this attempt, of which these are the records; None if it has not ended badly."""
    ends = [record for record in own if recent_events.is_failure(record)]
    if not ends or any(record["event"] == "stopping" for record in own[: own.index(ends[-1])]):
        return None  # somebody asked for the end, or ftrun decided it and has a report of its own
    return ends[-1]


def _follows(record: Record, attempt: int) -> bool:
    wanted = {"restart": attempt + 1, "ended": attempt}
    return record["event"] in wanted and record.get("attempt") == wanted[record["event"]]


def failed(run_dir: str) -> list[int]:
    """The attempts that failed, in order, whose reports are made from the records."""
    own: dict[int, list[Record]] = {}
    for record in list(record_files.search_back(f"{run_dir}/events.jsonl", READ))[::-1]:
        if type(number := record.get("attempt")) is int:
            own.setdefault(number, []).append(record)
    return sorted(number for number, found in own.items() if _bad_end(found) is not None)


def failure_lines(found: dict[str, Any]) -> list[str]:
    """A failure for a person: first what ended and why, then what ftrun did, then the evidence."""
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
        f"do       {_what_to_do(found)}",
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


def _what_to_do(found: dict[str, Any]) -> str:
    """What a person can do about this failure."""
    if any(record.get("oom_kills") for record in found["records"]):
        return "give the job more memory, or let it use less (batch size, workers, cache)"
    if any(record["event"] == "fault" for record in found["records"]):
        return f"have the device checked that the records name, on {found['node'] or 'its host'}"
    if found["signal"] == signal.SIGKILL:
        return "find out who sent SIGKILL: `dmesg` and the scheduler say whether memory had run out"
    if found["code"] == exit_codes.shell_status(None, signal.SIGINT):  # of a program that handles it
        return "nothing, if somebody ended it by Ctrl-C; else mend the cause"
    then = found["then"] or {}
    if not then:
        return "nothing yet: `ftctl status` shows what follows"
    if then["event"] == "restart":
        return "nothing now, it was started again; if it comes again, mend the cause"
    if then.get("verdict") == exit_codes.FAILURE_LIMIT.name:
        return "mend the cause; it was started again as often as is permitted without progress"
    if then.get("verdict") != exit_codes.FAILED or any(record["event"] == "escalated" for record in found["records"]):
        return "mend the cause, and start the job again"
    return "mend the cause; with `--restart-on hang,fault,failure` ftrun starts it again by itself"


def failure_markdown(found: dict[str, Any]) -> str:
    """A failure in the form of the report of a hang."""
    head, _, *rest = failure_lines(found)
    return f"# {markdown.plain(head)}\n\n{markdown.block(chr(10).join(rest))}\n"


def _then(record: Record | None) -> str:
    if record is None:
        return "nothing yet"
    if record["event"] == "restart":
        return f"ftrun started attempt {record.get('attempt')} ({record.get('consecutive')} in a row without progress)"
    return f"ftrun ended with {record.get('exit_code')} ({record.get('verdict')})"


def collected(run_dir: str) -> list[int]:
    """The attempts of which there is evidence, in order."""
    try:
        names = os.listdir(f"{run_dir}/reports")
    except OSError:
        return []
    found = (re.fullmatch(r"attempt-(\d{1,9})", name, re.ASCII) for name in names)
    return sorted(int(one[1]) for one in found if one)


def hung(run_dir: str) -> list[int]:
    """The attempts with a report.md, in order."""
    return [number for number in collected(run_dir) if os.path.exists(path(run_dir, number))]


def path(run_dir: str, attempt: int, name: str = "report.md") -> str:
    return f"{run_dir}/reports/attempt-{attempt}/{name}"


def known(run_dir: str) -> list[int]:
    """The attempts with a report of either kind, in order."""
    return sorted({*hung(run_dir), *failed(run_dir)})


def failure(run_dir: str, attempt: int) -> dict[str, Any] | None:
    """The report of an attempt that failed, as JSON values; None if it did not fail."""
    records, run = _records_of(run_dir, attempt), state.load(run_dir).rest.run
    own = [record for record in records if record.get("attempt") == attempt]
    if (end := _bad_end(own)) is None:
        return None
    command: list[Any] | None = list(run.command)
    if not command:  # there is no state.json
        started = record_files.search_back(f"{run_dir}/events.jsonl", ("started",))
        found = next(started, {}).get("command")
        command = found if isinstance(found, list) else None
    return {
        "schema": 1,
        "attempt": attempt,
        "command": command,
        "node": run.node,
        "run_dir": run_dir,
        "time": end.get("time"),
        "code": end.get("code"),
        "signal": end.get("signal"),
        "why": end.get("why"),
        "records": [record for record in own if record["event"] in SHOWN],
        "then": next((record for record in records if _follows(record, attempt)), None),
        "output": _tail(run_dir, attempt) or _tail_elsewhere(run_dir, end),
    }


def text(run_dir: str, attempt: int) -> str | None:
    """The report of this attempt as Markdown; None if there is none."""
    content = procfs.read(path(run_dir, attempt), LIMIT)
    if content is not None:
        return _with_recurrence(content.decode("utf-8", "replace"), run_dir, attempt)
    found = failure(run_dir, attempt)
    return None if found is None else failure_markdown(found)


def _with_recurrence(report: str, run_dir: str, attempt: int) -> str:
    """The report of a hang, which says below its title whether it is not the first one at its place."""
    hangs = record_files.search_back(f"{run_dir}/events.jsonl", ("hang",))  # none is kept: there may be very many
    own = next((one for one in hangs if one.get("attempt") == attempt), None)
    again = ""
    if own is not None:
        where = recent_events.place(own)
        again = recent_events.recurred(1 + sum(recent_events.place(one) == where for one in hangs), own)
    title, _, rest = report.partition("\n\n")
    if not again or not title.startswith("# "):
        return report
    return f"{title}\n\n**{markdown.plain(again[0].upper() + again[1:])}.**\n\n{rest}"


def _records_of(run_dir: str, attempt: int) -> list[Record]:
    """The records from which the report of this attempt is made.  The others are not kept: there may be very many."""
    found: list[Record] = []
    for record in record_files.search_back(f"{run_dir}/events.jsonl", READ):
        if record.get("attempt") == attempt or _follows(record, attempt):
            found.append(record)
        elif found and (state.integer(record.get("attempt")) or attempt) < attempt:
            break  # all that is older is of earlier attempts
    return found[::-1]


def _tail_elsewhere(run_dir: str, end: Record) -> list[str]:
    """The last lines of the output from the files of the command, where its output goes into files; ftrun's own lines
    are left out.  A file of another user than that of the records is not read: a reader of a report may have more
    rights than they."""
    named = end.get("output")
    found: list[str] = []
    for path, size in named.items() if isinstance(named, dict) else ():
        if type(size) is not int or size <= 0 or not _same_owner(path, f"{run_dir}/events.jsonl"):
            continue
        lines = (line.decode("utf-8", "replace") for line in record_files.backwards(path, TAIL, end=size))
        found += [*islice((line for line in lines if not line.startswith("[ftrun]")), LINES)][::-1]
    return found


def _same_owner(path: str, other: str) -> bool:
    try:
        found = os.stat(path)
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.stat(other).st_uid
    except (OSError, ValueError):
        return False


def output_files(run_dir: str) -> list[tuple[int | None, str]]:
    """The files with the output of the command, each with the number of its local rank; None, the last one: of all."""
    try:
        names = os.listdir(run_dir)
    except OSError:
        return []
    ranks = sorted(int(found[1]) for name in names if (found := re.fullmatch(RANK_LOG.format(r"(\d+)"), name)))
    whole: list[tuple[int | None, str]] = [(None, f"{run_dir}/{LOG}")] if LOG in names else []
    return [*((rank, f"{run_dir}/{RANK_LOG.format(rank)}") for rank in ranks), *whole]


def _tail(run_dir: str, attempt: int) -> list[str]:
    """The last lines of the output of this attempt, where it is kept; with the number of the rank where there are
    several."""
    found = []
    for rank, file in output_files(run_dir):
        own: list[str] = []  # from the end on: the last attempt, whose report is read most, is there
        for line in record_files.backwards(file, TAIL):
            shown = line.decode("utf-8", "replace")
            if mark := re.fullmatch(r"--- attempt (\d+) ---", shown):
                if int(mark[1]) <= attempt:
                    break
                own = []  # these were of a later one
            elif len(own) < LINES:
                own.append(shown)
        found += [shown if rank is None else f"[{rank}] {shown}" for shown in reversed(own)]
    return found
