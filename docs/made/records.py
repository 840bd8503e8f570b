"""The page of the records.  Which there are, and their fields, is read from the code: `do.Persist(...)` and
`_persist(...)` by their syntax, the fields of the core's by playing all transcripts.  Only their meaning is written
here, and a test holds the two together."""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from made.played import HOUSE, played

INTRO: Final = """# Records

Made from the code by `docs/reference.py`.

`events.jsonl` in the run dir: one JSON object a line, in the order in which things happened. What decides (a hang, a
restart with its count, an end by a verdict) is on disk before anything is done about it. Every record has

| field | meaning |
| --- | --- |
| `schema` | 1; it changes when a field changes its meaning. New fields and new records may come without |
| `time` | when, ISO-8601 UTC, by the wall clock |
| `mono` | the same by CLOCK_MONOTONIC, in seconds: for differences; it starts anew with each boot |
| `event` | which record |
| `attempt` | the start that it belongs to, 1 for the first |

Times are seconds. A field that has no value is `null` or absent. A reader passes over a line that is no JSON object: a
killed ftrun may leave half a line. `ftctl events --json` prints them, `ftctl events -f` follows.
"""
FINDING: Final = {
    "rule": "`step`, `start`, `section` or `idle`",
    "rank": "which; -1: the touch file; -1 - pid: one of several processes without RANK; `null`: the whole command",
    "age": "how long it has been silent",
    "limit": "what it has passed",
    "step": "its step",
    "section": "the section that is overdue",
    "pid": "its process",
    "learned": "true: nobody gave that limit, so evidence may raise it",
}
FAULT: Final = {
    "device": "its id",
    "code": "the vendor's",
    "severity": "ignore, user, minor, major, critical or unknown",
    "why": "what the code stands for",
}
END: Final = {"verdict": "its name", "exit_code": "of ftrun", "why": "one sentence"}
# In the order in which one meets them: when it is written, and the fields of its own.
MEANING: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "started": (
        "the command is about to be started, for the first time by this ftrun",
        {
            "reason": "`first`; `failure` if this run dir has starts of an earlier ftrun in this schedule, "
            "however that one ended",
            "start_cnt": "`MA_PROC_START_CNT`",
            "epoch": "of the group, if ftrun is one of one",
            "version": "of ftrun",
            "command": "its words",
            "pid": "of ftrun",
            "phase": "name of the `[[phase]]`, if there are phases",
            "annotations": "of the platform, for whoever reads this",
        },
    ),
    "spawned": ("the command has been executed", {"pid": "of the command"}),
    "first_beat": ("the first rank has moved", {"rank": "which", "step": "at which step, if it says"}),
    "progress": (
        "a newer checkpoint, or the first step of this attempt beyond all earlier ones: counts begin anew",
        {
            "by": "`checkpoint`, `step`, `save` (it resumed from its newest file and saved a newer one) or "
            "`stable` (`--stable-after`)",
            "step": "the highest",
            "checkpoint": "path of the newest",
            "seen": "with `--progress`: when the file was seen complete, as `mono`",
        },
    ),
    "learned": (
        "`--hang-timeout auto` has a new limit",
        {
            "limit": "the new one",
            "why": "a sentence",
            "usual": "the 99th percentile of the last thousand silences",
            "longest": "of all but the first ten",
            "steps": "how many silences are known",
        },
    ),
    "suspect": ("a limit was passed; evidence is being gathered", FINDING),
    "cleared": ("the suspicion was none", {"why": "what cleared it"}),
    "hang": (
        "the verdict: it hangs",
        FINDING
        | {
            "why": "where in the code, as far as anyone knows",
            "cpu": "cores that the suspect and its children used between the two looks",
            "io": "bytes a second that they read and wrote",
            "report": "path of the report",
            "processes": "how many there are in the tree",
            "evidence": "`none in time`: nobody could look",
            "waits": "whether, by its stack, it waits for others",
        },
    ),
    "fault": ("a device reports a fault", FAULT),
    "healing": ("the tree is dead and a fault is being cured, or the platform permits no start", FAULT),
    "removed": ("the command goes on without a device", {"device": "which", "left": "how many are left"}),
    "platform": (
        "the platform wants the command to end, or to start again with other pods",
        {"what": "`end` or `restart`", "why": "by which field of reset.json"},
    ),
    "returned": (
        "a device that was taken out is well again, and the next start has it",
        {"device": "which", "devices": "how many the command has then", "why": "why it is taken for well"},
    ),
    "stopping": (
        "the tree is being ended",
        {
            "by": "`SIGTERM` or `SIGKILL`: ftrun; `outside`: a signal was passed on",
            "grace": "before SIGKILL",
            "signal": "its number, if from outside",
        },
    ),
    "exited": (
        "the command ended",
        {
            "code": "its exit code, or",
            "signal": "what killed it",
            "why": "the first cause, if it failed",
            "rule": "by which rule of `core/rules/crash_causes.py` that was judged",
            "oom_kills": "processes that the kernel killed for memory meanwhile",
        },
    ),
    "killed": ("SIGKILL was needed", {"processes": "how many"}),
    "restart": (
        "the command is about to be started again",
        {
            "reason": "hang, fault, failure, manual or peer",
            "start_cnt": "`MA_PROC_START_CNT` of the new start",
            "consecutive": "restarts in a row without progress, for this cause",
            "epoch": "of the group, if ftrun is one of one",
        },
    ),
    "escalated": (
        "restarts in place are at their end",
        {"cause": "hang, fault, failure, or what else it was", **END},
    ),
    "paused": ("no verdicts from now on, by order", {"for": "how long; `null`: until it is resumed"}),
    "resumed": (
        "judging again",
        {"stood": "seconds of the pause in which no rank had moved, up to now; `null`: nobody tells"},
    ),
    "order": (
        "an order of `ftctl`, and the answer to it",
        {
            "what": "restart, stop, pause or resume",
            "id": "of the order",
            "by": "who gave it",
            "ok": "whether it is obeyed",
            "why": "the answer, a sentence",
        },
    ),
    "group": (
        "an order of rank 0 to the whole group that says something new; at rank 0 also what it has seen",
        {
            "what": "`wait`; `run`: the command of this epoch; `stop`: it is over; `end`: all is; "
            "`cut`: rank 0 was not heard in time either; `noted`: what rank 0 saw",
            "epoch": "the number of the start, of all together",
            "why": "a sentence",
            "cause": "of the next start: hang, fault, failure, manual or peer; absent while that is open",
            "node": "where the trouble began",
            "rank": "the rank that stopped first, as far as anyone knows",
            "step": "its step",
            "verdict": "with `end`: its name",
            "exit_code": "with `end`: that of all",
        },
    ),
    "problem": (
        "something is not as it should be, and the job goes on",
        {
            "what": "a sentence",
            "helper": "which helper said so",
            "annotations": "the file with a value that is none",
            "traceback": "ftrun itself failed: the end is near, with 125",
        },
    ),
    "listening": (
        "a helper serves others: `--metrics`",
        {"helper": "which", "address": "`HOST:PORT`, with the port that it got"},
    ),
    "ended": ("over; what helpers still had to say, and answers to orders, may follow", END),
}


def page() -> str:
    lines = [INTRO]
    for name, (when, fields) in MEANING.items():
        lines += [f"## {name}", "", f"{when[0].upper()}{when[1:]}.", ""]
        if fields:
            lines += ["| field | type | meaning |", "| --- | --- | --- |"]
            lines += [f"| `{field}` | {_types(name, field)} | {words} |" for field, words in fields.items()]
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


# What the transcripts do not show: fields that the loop and the helpers add.
TYPES: Final = {
    ("started", "command"): "list",
    ("started", "pid"): "int",
    ("started", "annotations"): "object",
    ("hang", "io"): "int",
    ("paused", "for"): "float, null",
    ("order", "ok"): "bool",
}
JSON: Final = {"NoneType": "null"}


def _types(record: str, field: str) -> str:
    seen = played().records.get(record, {}).get(field)
    if not seen:
        return TYPES.get((record, field), "str")
    if "float" in seen:
        seen = seen - {"int"}
    return ", ".join(sorted((JSON.get(one, one) for one in seen), key=lambda one: one == "null"))


@cache
def named() -> dict[str, set[str]]:
    """Every record that the code writes, by its syntax, with the fields that stand in the same call, or for a record
    that the client of a helper writes in the same case or function."""
    found: dict[str, set[str]] = {}
    for path in sorted((HOUSE / "supervisor" / "ftrun").rglob("*.py")):
        for scope, node in _scoped(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            if _writes(node.func):
                for name in _strings(node.args[:1]):
                    found.setdefault(name, set()).update(_pairs(node.args[1:]))
            elif ast.unparse(node.func) == "self.context.records.append" and isinstance(node.args[0], ast.Tuple):
                for name in _strings(node.args[0].elts[:1]):
                    found.setdefault(name, set()).update(_pairs([scope]))
    return found


def _scoped(node: ast.AST, scope: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Each node below this one, after the innermost case or function that it stands in."""
    scope = node if scope is None or isinstance(node, ast.match_case | ast.FunctionDef) else scope
    for inner in ast.iter_child_nodes(node):
        yield scope, inner
        yield from _scoped(inner, scope)


def _writes(called: ast.expr) -> bool:
    """`do.Persist`, `self._persist`, and the journal's own `record`."""
    if not isinstance(called, ast.Attribute):
        return False
    on_journal = isinstance(called.value, ast.Attribute) and called.value.attr == "_journal"
    return called.attr in ("Persist", "_persist") or (called.attr == "record" and on_journal)


def _tuples(nodes: Sequence[ast.AST]) -> list[ast.Tuple]:
    return [inner for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Tuple)]


def _strings(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _pairs(nodes: Sequence[ast.AST]) -> set[str]:
    """The names in `(("name", value), ...)`."""
    return {name for pair in _tuples(nodes) if len(pair.elts) == 2 for name in _strings(pair.elts[:1])}
