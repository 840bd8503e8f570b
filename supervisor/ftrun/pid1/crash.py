"""When ftrun itself failed: say why, and end the tree cleanly."""

import time

from ftrun.core.machine import effects as do
from ftrun.core.rules import exit_codes
from ftrun.host import reaper, tree_killer
from ftrun.host.console import Console
from ftrun.host.journal import Journal
from ftrun.host.tree import Tree


def give_up(
    problem: BaseException, journal: Journal, console: Console, tree: Tree, grace: float, kill: float, attempt: int
) -> do.Exit:
    """SIGTERM to the tree, SIGKILL after `grace` s, and at most `kill` s for that; recorded before and after."""
    try:
        import traceback  # not needed by a PID 1 that works

        text = "".join(traceback.format_exception(problem))
    except Exception:  # a disk that is gone, no memory: what there is to say is said, and the tree is ended
        text = repr(problem)
    journal.log(text)
    journal.record("problem", attempt, (("traceback", text),), True)
    why = f"ftrun itself failed ({problem!r})"
    console.say(f"{why}; ending the command; traceback: {journal.path}/run.log", severity="error")
    deadline = time.monotonic() + grace
    tree.terminate()
    while time.monotonic() < deadline + kill:
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
