"""Handling of an internal error of ftrun: report it, and end the process tree cleanly."""

import time

from ftrun.core.machine import effects as do
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.host import reaper, tree_killer
from ftrun.pid1.bootstrap import Setup


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
        time.sleep(tree_killer.RECHECK)
    end = do.Exit(exit_codes.INTERNAL.code, exit_codes.INTERNAL.name, f"ftrun itself failed: {problem!r}")
    fields = (("verdict", end.verdict), ("exit_code", end.code), ("why", end.message))
    journal.record("ended", attempt, fields, True)
    return end
