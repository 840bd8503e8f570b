"""Reads `state.json`."""

from typing import Any, Final, NamedTuple

from ftrun.core.machine.values import Ledger
from ftrun.host import procfs
from ftrun.messages.codec import Malformed
from ftrun.messages.state import load_state
from ftrun.views import validated

LIMIT: Final = 4 << 20  # bytes


class State(NamedTuple):
    """`ledger`: None if it cannot be read.  `rest`: the other parts.  `problem`: why something is missing, one line."""

    ledger: Ledger | None = None
    rest: dict[str, Any] = {}  # noqa: RUF012 - a value, never changed
    problem: str | None = None

    def part(self, name: str) -> dict[str, Any]:
        """`run`, `now` ...; empty if there is none."""
        found = self.rest.get(name)
        return found if isinstance(found, dict) else {}


def load(run_dir: str) -> State:
    """Never raises."""
    path = f"{run_dir}/state.json"
    content = procfs.read(path, LIMIT)
    if content is None:
        return State(problem=f"{path} cannot be read: only the records are shown")
    try:
        ledger, rest = load_state(content)
    except Malformed as error:
        return State(problem=f"{path}: {error}: only the records are shown")
    if (name := validated.misfit(rest, validated.STATE)) is not None:
        return State(ledger, problem=f"{path}: {name} is malformed: only the records are shown")
    return State(ledger, rest)
