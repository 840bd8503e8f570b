"""report.json: the content of the report for programs.  Pure."""

from typing import Any, Final

from ftrun.helpers.evidence import wait_text
from ftrun.helpers.evidence.changes import Change
from ftrun.helpers.evidence.flight_recorder import Answer
from ftrun.helpers.evidence.nccl_ras import Reached, View, sentences_of
from ftrun.helpers.evidence.report import Facts, first_to_stop, late, ranks_by_stack, what_to_do
from ftrun.messages.evidence import RankState

SCHEMA: Final = 1


def document(facts: Facts) -> dict[str, Any]:
    """The content of report.json."""
    request, verdict = facts.request, facts.verdict
    content = {
        "schema": SCHEMA,
        "attempt": request.attempt,
        "command": list(facts.job),
        "node": facts.node,
        "time": facts.time,
        "since": facts.since,
        "finding": request.finding._asdict(),
        "mechanism": facts.mechanism,
        "do": what_to_do(facts),
        "graph": wait_text.document(facts.graph),
        "verdict": verdict._asdict(),
        "where": facts.suspect.location if facts.suspect else None,
        "suspect": request.suspect,
        "seconds_between_looks": facts.seconds,
        "first_to_stop": [rank.rank for rank in first_to_stop(request.ranks)],
        "ranks": [_rank(rank, request.now) for rank in request.ranks],
        "groups": [{"stack": list(stack), "ranks": list(ranks)} for stack, ranks in ranks_by_stack(facts).items()],
        "processes": [_process(change, facts) for change in facts.changes],
        "collectives": {
            "late": late(facts),
            "ranks": {str(rank): _answer(answer) for rank, answer in sorted(facts.answers.items())},
        },
        "nccl": None if facts.nccl is None else _nccl(facts.nccl),
        "hccl": list(facts.hccl),
        "files": {str(number): what for number, what in facts.files.opened} if facts.files else None,
        "call": facts.files.call if facts.files else None,
        "devices": [device._asdict() for device in request.devices],
        "output": dict(facts.output),
        "missing": [{"what": what, "why": why} for what, why in facts.missing],
    }
    return {name: decodable(value) for name, value in content.items()}


def _rank(rank: RankState, now: float) -> dict[str, Any]:
    def ago(at: float | None) -> float | None:
        return None if at is None else max(0.0, now - at)

    return {
        **{name: getattr(rank, name) for name in ("rank", "pid", "step", "present", "done")},
        "moved_ago": ago(rank.moved_at),
        "alive_ago": ago(rank.alive_at),
        "sections": list(rank.sections),
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


def _nccl(view: View) -> dict[str, Any]:
    differences = [
        {"communicator": one.name, "kind": found.kind, "reached": [_reached(reached) for reached in found.reached]}
        for one in view.communicators
        for found in one.differences
    ]
    silent = [member._asdict() for one in view.communicators for member in one.silent]
    found = {"found": sentences_of(view), "differences": differences, "silent": silent}
    names = [one.name for one in view.communicators]
    return {**found, "communicators": names, "stands": view.stands, "problem": view.problem}


def _reached(reached: Reached) -> dict[str, Any]:
    members = [member._asdict() for member in reached.members]
    return {"launched": reached.launched, "number": reached.number, "members": members}


def decodable(value: Any) -> Any:
    """The value with undecodable bytes written as escapes, so that every JSON reader accepts it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {decodable(str(name)): decodable(inner) for name, inner in value.items()}
    return [decodable(inner) for inner in value] if isinstance(value, list | tuple) else value
