"""The report, for a tired person and for machines.  Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ftrun.core.machine.values import TOUCH, Rank
from ftrun.core.rules import hang_rules
from ftrun.core.text import durations, sentences
from ftrun.helpers.evidence.classification import Change, Classification
from ftrun.helpers.evidence.files import Files
from ftrun.helpers.evidence.flight_recorder import Answer, laggards
from ftrun.helpers.evidence.markdown import block, code, plain, printable, table
from ftrun.helpers.evidence.request import Request
from ftrun.helpers.evidence.stacks import Thread

SCHEMA: Final = 1
WHERE: Final = 500  # characters
PROGRAM: Final = 100  # of its command line, in a table
_STOPPED: Final = {"T": "is stopped by SIGSTOP", "t": "is stopped by a debugger"}
ROWS: Final = 100  # of a table in report.md; all are in report.json


class Facts(NamedTuple):
    """All that is known.  `changes` has the suspect's first, then the ranks'.  `missing`: what could not be had, and
    why.  `time` is the wall clock at `request.now`, ISO-8601 UTC; `since`: when the suspect last moved.  `chain`: the
    processes from the suspect to the one for which, in the end, it waits."""

    request: Request
    verdict: Classification
    changes: Sequence[Change]
    seconds: float  # from look to look
    time: str
    since: str
    missing: Sequence[tuple[str, str]] = ()
    commands: Mapping[int, str] = {}
    files: Files | None = None
    answers: Mapping[int, Answer] = {}
    output: Mapping[str, str] = {}
    chain: Sequence[int] = ()

    @property
    def suspect(self) -> Change | None:
        return next((c for c in self.changes if c.pid == self.request.suspect), None)


def where(facts: Facts) -> str:
    """Where the suspect is, and whom it waits for: for a verdict.  Empty if it is gone."""
    suspect = facts.suspect
    places = [*_cause(facts), suspect.place] if suspect and not suspect.gone else []
    return printable("; ".join(places + laggards(facts.answers)))[:WHERE]


def _cause(facts: Facts) -> list[str]:
    """What is wrong with the suspect, and with the process that it waits for in the end: the best facts first."""
    last = facts.chain[-1] if facts.chain else facts.request.suspect
    found = list[str]()
    for change in facts.changes:
        stopped = _STOPPED.get(change.seen.stat.state, "")
        if change.gone or change.pid not in (last, facts.request.suspect):
            continue
        dead = f"is in state D in {change.seen.wchan or 'the kernel'}" if change.seen.stat.state == "D" else ""
        state = stopped or dead
        if change.pid != facts.request.suspect:
            told = f"{_named(facts, change)} {state}" if state else f"it waits for {_named(facts, change)}"
            found.append(f"{told}, at {change.place}")
        elif state:
            found.append(f"{_named(facts, change)} {state}")
    return sorted(found, key=lambda told: " is stopped " not in told)


def _named(facts: Facts, change: Change) -> str:
    finding = facts.request.finding
    if change.pid == finding.pid and finding.rank is not None:
        return sentences.rank(finding.rank)
    rank = next((r for r in facts.request.ranks if r.pid == change.pid), None)
    return sentences.rank(rank.rank) if rank is not None else f"process {change.pid} ({change.seen.stat.name})"


def sentence(facts: Facts) -> str:
    """Which rank, where in the code, since when, by which rule."""
    finding, suspect = facts.request.finding, facts.suspect
    told = hang_rules.sentence(finding)
    place = f"at {code(suspect.place)}" if suspect and not suspect.gone else "its process is gone"
    late = "".join(f"; {plain(line)}" for line in laggards(facts.answers))
    told = plain(told[:1].upper() + told[1:])
    return f"**{told}, since {facts.since}: {place}{late}. Rule: {plain(finding.rule)}.**"


def markdown(facts: Facts) -> str:
    """report.md."""
    verdict, suspect = facts.verdict, facts.suspect
    why = f"Cleared: {verdict.cleared}" if verdict.cleared else f"Not cleared: {verdict.reason}"
    parts = [sentence(facts), plain(why) + ".", plain(_first(facts))]
    parts += _ranks(facts) + _groups(facts)
    if suspect is not None:
        parts += _suspect(suspect, facts.files)
    parts += ["## Processes", _processes(facts)]
    if facts.request.devices:
        parts += ["## Devices", _devices(facts.request.devices)]
    for path, text in facts.output.items():
        parts += [f"## Last lines of {code(path)}", block(text)]
    if facts.missing:
        parts += ["## What could not be had", *(f"* {code(what)}: {plain(why)}" for what, why in facts.missing)]
    return "\n\n".join(part for part in parts if part) + "\n"


def document(facts: Facts) -> dict[str, Any]:
    """report.json."""
    request, verdict = facts.request, facts.verdict
    found = {
        "schema": SCHEMA,
        "attempt": request.attempt,
        "time": facts.time,
        "since": facts.since,
        "finding": request.finding._asdict(),
        "verdict": verdict._asdict(),
        "where": facts.suspect.place if facts.suspect else None,
        "suspect": request.suspect,
        "seconds_between_looks": facts.seconds,
        "first_to_stop": [rank.rank for rank in first_to_stop(request.ranks)],
        "ranks": [_rank(rank, request.now) for rank in request.ranks],
        "groups": [{"stack": list(stack), "ranks": list(ranks)} for stack, ranks in grouped(facts).items()],
        "processes": [_process(change, facts) for change in facts.changes],
        "collectives": {
            "late": laggards(facts.answers),
            "ranks": {str(rank): _answer(answer) for rank, answer in sorted(facts.answers.items())},
        },
        "files": {str(number): what for number, what in facts.files.opened} if facts.files else None,
        "call": facts.files.call if facts.files else None,
        "devices": list(request.devices),
        "output": dict(facts.output),
        "missing": [{"what": what, "why": why} for what, why in facts.missing],
    }
    return {name: _clean(value) for name, value in found.items()}


def stack_text(change: Change) -> str:
    """stacks/<pid>.txt: every thread, the innermost frame first; where the main thread was before; the kernel's."""
    lines = [f"{change.pid} ({printable(change.seen.stat.name)}) {change.seen.stat.state} {change.seen.wchan or '-'}"]
    for thread in change.stack.threads if change.stack else ():
        marks = "".join((", active" if thread.active else "", ", holds the GIL" if thread.gil else ""))
        lines += ["", printable(f"thread {thread.tid or '-'} {thread.name or '-'}{marks}")]
        lines += _frames(thread)
    if change.moved and change.before and change.before.main:
        lines += ["", "the main thread in the look before:", *_frames(change.before.main)]
    if change.seen.kernel:
        lines += ["", "kernel:", *(printable(f"    {line}") for line in change.seen.kernel.splitlines())]
    return "\n".join(lines) + "\n"


def _frames(thread: Thread) -> list[str]:
    return [printable(f"    {frame.file}:{frame.line} {frame.name}") for frame in thread.frames]


def first_to_stop(ranks: Sequence[Rank]) -> list[Rank]:
    """Those that last moved the longest ago, of all that are waited for."""
    waited = [rank for rank in ranks if rank.present and not rank.done and rank.moved_at is not None]
    earliest = min((rank.moved_at or 0.0 for rank in waited), default=0.0)
    return [rank for rank in waited if rank.moved_at == earliest]


def grouped(facts: Facts) -> dict[tuple[str, ...], list[int]]:
    """The ranks by the stack of their main thread, the smallest group first: the odd one out is of interest."""
    by_pid = {change.pid: change for change in facts.changes}
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in facts.request.ranks:
        change = by_pid.get(rank.pid)
        if change is not None and not change.gone:
            frames = change.main.frames if change.main else ()
            stack = tuple(f"{f.file}:{f.line} {f.name}" for f in frames) or (change.place,)
            groups.setdefault(stack, []).append(rank.rank)
    return dict(sorted(groups.items(), key=lambda group: len(group[1])))


def _first(facts: Facts) -> str:
    first, request = first_to_stop(facts.request.ranks), facts.request
    if len(request.ranks) < 2 or not first:
        return ""
    names = ", ".join(sentences.rank(rank.rank) for rank in first)
    at = "" if first[0].step is None else f" after step {first[0].step}"
    return f"First to stop: {names}{at}, {durations.seconds(request.now - (first[0].moved_at or 0.0))} ago."


def _ranks(facts: Facts) -> list[str]:
    if not facts.request.ranks:
        return []

    def ago(at: float | None) -> str:
        return "never" if at is None else durations.seconds(max(0.0, facts.request.now - at))

    rows = []
    for rank in facts.request.ranks[:ROWS]:
        state = "done" if rank.done else "" if rank.present else "gone"
        answer = facts.answers.get(rank.rank)
        told = "" if answer is None else "; ".join(_told(answer)) or "nothing recorded"
        inside = code(sentences.sections(rank.sections)) if rank.sections else ""
        step = "" if rank.step is None else str(rank.step)
        number = str(rank.rank) if rank.rank >= TOUCH else "no RANK"
        numbers = [number, str(rank.pid), step, ago(rank.moved_at), ago(rank.alive_at)]
        rows.append([*numbers, inside, plain(told), state])
    heads = ["rank", "pid", "step", "moved, ago", "last beat, ago", "section", "last collective", ""]
    return ["## Ranks", table(heads, rows), _more(len(facts.request.ranks))]


def _told(answer: Answer) -> list[str]:
    if answer.problem:
        return [answer.problem]
    at = [f"{c.number} {c.name} of {g}{', not left' if c.open else ''}" for g, c in answer.last.items()]
    return at + [f"waits in {call}" for call in answer.waiting]


def _rank_number(rank: int) -> str:
    """Its number; a process without RANK has none."""
    return str(rank) if rank >= TOUCH else sentences.rank(rank)


def _groups(facts: Facts) -> list[str]:
    groups = grouped(facts)
    if not groups:
        return []
    parts = ["## Stacks of the ranks"]
    for stack, ranks in list(groups.items())[:ROWS]:
        shown = ", ".join(map(_rank_number, ranks[:32])) + (", ..." if len(ranks) > 32 else "")
        parts += [f"{'Rank' if len(ranks) == 1 else f'{len(ranks)} ranks:'} {shown}", block("\n".join(stack))]
    return parts


def _suspect(suspect: Change, files: Files | None) -> list[str]:
    parts = ["## The suspect", block(stack_text(suspect).rstrip("\n"))]
    if files is not None:
        call = f"\n\nIts main thread is in {code(files.call)}." if files.call else ""
        rows = [[str(number), code(what)] for number, what in files.opened]
        parts += [f"It has open:{call}", table(["", "file"], rows), f"{files.more} more." if files.more else ""]
    return parts


def _processes(facts: Facts) -> str:
    rows = []
    for c in facts.changes[:ROWS]:
        moved = {None: "not seen twice", True: "moved", False: "the same"}[c.moved]
        rates = [f"{c.cpu:.0%}", f"{c.cpu_all:.0%}", _number(c.io), _number(c.calls), _number(c.switches)]
        state = "gone" if c.gone else f"{c.seen.stat.state} {c.seen.wchan or '-'}"
        name = code(facts.commands.get(c.pid) or c.seen.stat.name, PROGRAM)
        rows.append([str(c.pid), name, plain(state), *rates, moved, code(c.main.place) if c.main else ""])
    heads = [
        "pid",
        "program",
        "state",
        "CPU, main thread",
        "CPU, all",
        "I/O, B/s",
        "calls/s",
        "switches/s",
        "stack",
        "at",
    ]
    return f"{table(heads, rows)}\n\n{_more(len(facts.changes))}".rstrip()


def _devices(devices: Sequence[Mapping[str, Any]]) -> str:
    heads = list(dict.fromkeys(str(name) for device in devices for name in device))[:20]
    rows = [[code(str(device.get(head, ""))) for head in heads] for device in devices[:ROWS]]
    return table([plain(head) for head in heads], rows)


def _more(count: int) -> str:
    return f"{count - ROWS} more are in report.json." if count > ROWS else ""


def _number(value: float | None) -> str:
    return "not told" if value is None else f"{value:.0f}"


def _rank(rank: Rank, now: float) -> dict[str, Any]:
    def ago(at: float | None) -> float | None:
        return None if at is None else max(0.0, now - at)

    return {
        **{name: getattr(rank, name) for name in ("rank", "pid", "step", "present", "done")},
        "moved_ago": ago(rank.moved_at),
        "alive_ago": ago(rank.alive_at),
        "sections": [section.name for section in rank.sections],
    }


def _process(c: Change, facts: Facts) -> dict[str, Any]:
    return {
        **{name: getattr(c.seen.stat, name) for name in ("pid", "parent", "name", "state", "threads", "start")},
        **{name: getattr(c, name) for name in ("cpu", "cpu_all", "io", "calls", "switches", "moved", "gone")},
        "command": facts.commands.get(c.pid),
        "uid": c.seen.uid,
        "wchan": c.seen.wchan,
        "stack": [frame._asdict() for frame in c.main.frames] if c.main else None,
        "kernel": c.seen.kernel.splitlines(),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    last = {group: collective._asdict() for group, collective in answer.last.items()}
    return {"pid": answer.pid, "last": last, "waiting": list(answer.waiting), "problem": answer.problem}


def _clean(value: Any) -> Any:
    """Undecodable bytes in names become text that every reader of JSON takes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(str(name)): _clean(inner) for name, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list | tuple) else value
