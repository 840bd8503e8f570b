"""How the tests themselves wait, and how PID 1 writes: one place for each."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.ports import BLOCK, BLOCKS, FIRST, free_ports
from support.runs import DEADLINE, HOUSE, wait_for

PRODUCT = HOUSE / "supervisor" / "ftrun"
# Writes of PID 1's code that need no `writing()`, by file and function.
UNGUARDED = {
    ("host/beat_file.py", "_put"),  # within the size that was allocated under the same limit
    ("host/signals.py", "requeue"),  # PID 1 reads that pipe itself
    ("host/standby_process.py", "_become"),  # in the child, whose pipe the standby of its parent reads
    ("host/spawn.py", "_become"),  # in the child, after it got the command's signal settings
}
WRITES = {"write", "writev", "pwrite", "pwritev", "send", "sendall", "sendmsg", "sendto"}


def raising(errors: list[Exception]) -> Callable[[], str]:
    def look() -> str:
        if errors:
            raise errors.pop(0)
        return "found"

    return look


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "no such file"),
        PermissionError(13, "not yet open to us"),
        ConnectionRefusedError(111, "nobody listens yet"),
        ProcessLookupError(3, "no such process"),
        ValueError("Unterminated string"),
        KeyError("step"),
        IndexError("list index out of range"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_be_read_yet_is_waited_for(error: Exception) -> None:
    assert wait_for(raising([error, error])) == "found"


def test_the_deadline_shows_the_last_error() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s: the file; the last look at it: KeyError: 'step'"):
        wait_for(raising([KeyError("step")]), "the file", 0.0)


@pytest.mark.parametrize("error", [AttributeError("typo"), TypeError("none"), AssertionError("ended")])
def test_errors_of_the_test_itself_are_raised_at_once(error: Exception) -> None:
    with pytest.raises(type(error)):
        wait_for(raising([error]))


def test_ports_are_given_to_one_process_and_never_by_the_kernel() -> None:
    ours = free_ports(3)
    # Another process that begins its search at the same number.
    code = f"import os; os.getpid = lambda: {os.getpid()}\nfrom support.ports import free_ports\nprint(*free_ports(3))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=HOUSE / "tests", timeout=DEADLINE, check=True
    )
    theirs = [int(word) for word in done.stdout.split()]
    assert len({*ours, *theirs}) == 6
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(*ours, *theirs) < lowest or lowest < FIRST + BLOCK * BLOCKS  # a machine with another range than usual


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
