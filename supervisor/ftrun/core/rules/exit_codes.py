"""The exit codes: one table, a versioned contract with the outer scheduler (DESIGN 2.4)."""

from typing import Final, NamedTuple

CONTRACT_VERSION: Final = 1


class Verdict(NamedTuple):
    name: str
    code: int
    meaning: str
    outer: str  # what the outer scheduler should do


HANG_LIMIT: Final = Verdict("hang-limit", 195, "hung again after the last restart without progress", "reschedule")
USER_FAULT_LIMIT: Final = Verdict(
    "user-fault-limit",
    196,
    "the same user-induced device fault again and again, or different device faults in a row that name no node",
    "reschedule, do not isolate",
)
NODE_FAULT: Final = Verdict(
    "node-fault", 197, "a device fault that restarts do not cure, or an unkillable tree", "isolate the node, reschedule"
)
FAILURE_LIMIT: Final = Verdict("failure-limit", 93, "failed again after the last restart without progress", "fail")
NON_RECOVERABLE: Final = Verdict("non-recoverable", 94, "an error that no restart can cure", "fail now")
INTERNAL: Final = Verdict("internal", 125, "ftrun itself failed", "fail")
NOT_EXECUTABLE: Final = Verdict("not-executable", 126, "the command cannot be executed", "fail")
NOT_FOUND: Final = Verdict("not-found", 127, "the command was not found", "fail")
USAGE: Final = Verdict("usage", 2, "a bad option or value; nothing was started", "fail")

TABLE: Final = tuple(value for value in list(globals().values()) if isinstance(value, Verdict))  # of all above

# Verdicts that carry the command's own status.
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
STOPPED: Final = "stopped"


def own(code: int | None, signal: int | None) -> int:
    """What a shell would say of this end: the code, or 128 + the signal."""
    return 128 + signal if signal else (code or 0)
