"""The page of the records.  Which there are, and their fields, is read from the code: `do.Persist(...)` and
`persist(...)` by their syntax, the fields of the core's by playing all transcripts.  Only their meaning is written
here, and a test holds the two together."""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from made.played import HOUSE, played
from made.record_meanings import MEANING

INTRO: Final = """# Records

Generated from the code by `docs/reference.py`.

`events.jsonl` in the run dir has one JSON object a line, in the order of the events. Decisions (a hang, a restart
with its count, an end by a verdict) are on disk before anything is done about them. Every record has these fields:

- `schema` (int): 1; it changes when the meaning of a field changes, not with new fields and records
- `time`: the wall-clock time, ISO-8601 UTC
- `mono` (float): the time of CLOCK_MONOTONIC, in seconds, for differences; it restarts with each boot
- `event`: the name of the record
- `attempt` (int): the attempt to which it belongs, 1 for the first

A field is text unless its type is named; `why` is a sentence. Times are in seconds. A field without a value is `null`
or absent. Skip a line that is not a JSON object: a killed ftrun may leave an incomplete one.
"""
# What the name of a field says already.
PLAIN: Final = (
    *("its number", "its step", "its code", "its name", "its host", "its process id", "its member", "its exit code"),
    *("a sentence", "one sentence", "the reason", "for how long", "`--grace`", "of the report", "path of the report"),
)


def page() -> str:
    lines = [INTRO]
    described: dict[tuple[str, str], str] = {}  # a field with its words, and the record that has described it
    for name, (when, fields) in MEANING.items():
        lines += [f"## {name}", "", f"{when[0].upper()}{when[1:]}.", ""]
        repeated: dict[str, list[str]] = {}
        for field, words in fields.items():
            item = f"`{field}`{_type(name, field)}"
            if words in PLAIN:
                repeated.setdefault("", []).append(item)
            elif (record := described.setdefault((item, words), name)) == name:
                lines.append(f"- {item}: {words}")
            else:
                repeated.setdefault(record, []).append(item)
        lines += [
            f"- {', '.join(items)}" + (f": as in [`{record}`](#{record})" if record else "")
            for record, items in repeated.items()
        ]
        if fields:
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


# What the transcripts do not show: fields that the loop and the helpers add.
TYPES: Final = {
    ("started", "command"): "list",
    ("started", "pid"): "int",
    ("started", "annotations"): "object",
    ("hang", "io"): "int",
    ("exited", "stack"): "list",
    ("exited", "output"): "object",
    ("paused", "for"): "float",
    ("order", "ok"): "bool",
    **{("standby", name): "int" for name in ("ready", "forked", "of", "warm", "local_rank", "memory")},
    ("standby", "seconds"): "float",
    **{("lost", name): "int" for name in ("member", "working", "exit_code")},
    ("lost", "wait"): "float",
    ("waiting", "seconds"): "float",
    **{("straggler", name): "int" for name in ("rank", "member")},
    **{("straggler", name): "float" for name in ("step_time", "usual", "seconds", "work")},
}
JSON: Final = {"NoneType": "null", "tuple": "list"}
APPENDS: Final = ("self.context.records.append", "self._context.records.append")


def _type(record: str, field: str) -> str:
    """In brackets; nothing for a text."""
    seen = played().records.get(record, {}).get(field) or {TYPES.get((record, field), "str")}
    if "float" in seen:
        seen = seen - {"int"}
    found = ", ".join(sorted({JSON.get(one, one) for one in seen} - {"null"}))
    return "" if found == "str" else f" ({found})"


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
            elif ast.unparse(node.func) in APPENDS and isinstance(node.args[0], ast.Tuple):
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
    """`do.Persist`, `persist` of the writer of records, and the journal's own `record`."""
    if not isinstance(called, ast.Attribute):
        return False
    on_journal = isinstance(called.value, ast.Attribute) and called.value.attr == "_journal"
    return called.attr in ("Persist", "persist") or (called.attr == "record" and on_journal)


def _tuples(nodes: Sequence[ast.AST]) -> list[ast.Tuple]:
    return [inner for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Tuple)]


def _strings(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _pairs(nodes: Sequence[ast.AST]) -> set[str]:
    """The names in `(("name", value), ...)`."""
    return {name for pair in _tuples(nodes) if len(pair.elts) == 2 for name in _strings(pair.elts[:1])}
