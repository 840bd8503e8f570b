"""The very end of ftrun: the exit of the job, the requests to helpers that it still waits for, and its own failure."""

import time
from typing import Final

from ftrun.core.machine import effects as do
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences
from ftrun.host import reaper
from ftrun.host.tree import RECHECK
from ftrun.pid1.bootstrap import Setup
from ftrun.pid1.clients.registry import Clients

FINISHING: Final = 5.0  # s for the helpers to complete their last requests


def job_exit(end: do.Exit, last: bool, stop: int | None) -> do.Exit:
    """The exit of the job: after a stop signal the next phase is not started, even if this one exited with 0."""
    if last or end.code or stop is None:
        return end
    return do.Exit(128 + stop, exit_codes.STOPPED, f"stopped from outside by {sentences.signal(stop)}")


class LastRequests:
    """The verdict for the other ftruns, and the work at the end of the container, for which there are `grace` seconds,
    or (None) no limit."""

    def __init__(self, clients: Clients, grace: float | None) -> None:
        self._clients, now = clients, time.monotonic()
        self._until: dict[str, float | None] = dict.fromkeys(("history", "verdict", "group"), now + FINISHING)
        self._until["exit hooks"] = None if grace is None else now + grace + FINISHING

    @property
    def _waited(self) -> list[float | None]:
        return [self._until[what] for what in self._clients.unfinished]

    @property
    def are_complete(self) -> bool:
        return not self._waited

    @property
    def late(self) -> str | None:
        """What was not completed in time, for a record."""
        now = time.monotonic()
        if any(until is not None and now >= until for until in self._waited):
            return f"not completed at the end: {', '.join(self._clients.unfinished)}"
        return None

    def timeout(self, others: list[float | None]) -> float | None:
        """Milliseconds until something is due; `others`: other times at which the caller has work."""
        times = [time for time in (*self._waited, *others) if time is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None


# --- an internal error of ftrun ---------------------------------------------------------------------------------------


def give_up(problem: BaseException, setup: Setup, policy: Policy, attempt: int) -> do.Exit:
    """Send SIGTERM to the tree, and SIGKILL after the grace, until the kill timeout; record the error and the end."""
    journal, tree = setup.journal, setup.tree
    try:
        import traceback  # needed for an internal error only

        text = "".join(traceback.format_exception(problem))
    except Exception:  # the disk is gone, or there is no memory: the tree is ended all the same
        text = repr(problem)
    journal.log(text)
    journal.record("problem", attempt, (("traceback", text),), True)
    why = f"ftrun itself failed ({problem!r})"
    setup.console.print(f"{why}; ending the command; traceback: {journal.path}/run.log", severity="error")
    deadline = time.monotonic() + policy.limits.grace
    tree.terminate()
    while time.monotonic() < deadline + policy.limits.kill_timeout:
        reaper.reap()
        members = tree.members()
        if (not members and tree.is_empty()) or (members and tree.beyond_reach(members)):
            break
        if time.monotonic() >= deadline:
            tree.kill()
        time.sleep(RECHECK)
    end = do.Exit(exit_codes.INTERNAL.code, exit_codes.INTERNAL.name, f"ftrun itself failed: {problem!r}")
    fields = (("verdict", end.verdict), ("exit_code", end.code), ("why", end.message))
    journal.record("ended", attempt, fields, True)
    return end
