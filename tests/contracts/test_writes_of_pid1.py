"""How PID 1 writes to others."""

import ast

from support.runs import HOUSE

PRODUCT = HOUSE / "supervisor" / "ftrun"
# Writes of PID 1's code that need no `writing()`, by file and function.
UNGUARDED = {
    ("host/beat_file.py", "_put"),  # within the size that was allocated under the same limit
    ("host/signals.py", "requeue"),  # PID 1 reads that pipe itself
    ("host/standby_process.py", "_become"),  # in the child, whose pipe the standby of its parent reads
    ("host/spawn.py", "_become"),  # in the child, after it got the command's signal settings
}
WRITES = {"write", "writev", "pwrite", "pwritev", "send", "sendall", "sendmsg", "sendto"}


def test_pid1_writes_to_others_without_raising_signals() -> None:
    """A broken pipe raises SIGPIPE, a file size limit SIGXFSZ; PID 1 would forward either to a healthy command."""
    bare = []
    for path in [*PRODUCT.glob("pid1/**/*.py"), *PRODUCT.glob("host/*.py")]:
        name = path.relative_to(PRODUCT).as_posix()
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and (name, function.name) not in UNGUARDED:
                bare += [f"{name}:{call.lineno}" for call in _unguarded(function)]
    assert not bare, f"within `with writing():` of host/signals.py: {bare}"


def _unguarded(node: ast.AST) -> list[ast.Call]:
    """Calls of the kernel's writing functions below `node` outside of any `with writing()`."""
    if isinstance(node, ast.With) and any(_called(item.context_expr) == "writing" for item in node.items):
        return []
    found = [node] if isinstance(node, ast.Call) and _is_write(node) else []
    return found + [call for child in ast.iter_child_nodes(node) for call in _unguarded(child)]


def _is_write(call: ast.Call) -> bool:
    """`os.write` and its kind, and those of sockets and streams; not the clients' own `send`, which ends in
    `host/helpers.py`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in WRITES:
        return False
    owner = ast.unparse(call.func.value)
    return owner == "os" or "socket" in owner or "stream" in owner


def _called(expression: ast.expr) -> str:
    return ast.unparse(expression.func) if isinstance(expression, ast.Call) else ""
