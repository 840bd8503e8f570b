"""The exit codes: one table, which is a versioned contract with the outer scheduler (docs/reference.md)."""

from typing import Final

from ftrun.core.named_tuple import NamedTuple

CONTRACT_VERSION: Final = 2


class Verdict(NamedTuple):
    """`outer`: what the outer scheduler should do, as the end of "the scheduler should ...".  `ends_group`: of one
    member, it ends the whole group at once.  `replaceable`: except where the group can go on without that member, which
    then ends alone.  `about_node`: it is about one node, so that no failure of another member explains it.  `logged`:
    the last line of a run says what the scheduler should do."""

    name: str
    code: int
    meaning: str
    outer: str
    ends_group: bool
    replaceable: bool
    about_node: bool
    logged: bool


HANG_LIMIT: Final = Verdict(
    "hang-limit",
    195,
    "hung again after the last restart without progress",
    "reschedule the job",
    ends_group=False,
    replaceable=False,
    about_node=False,
    logged=True,
)
USER_FAULT_LIMIT: Final = Verdict(
    "user-fault-limit",
    196,
    "the same user-induced device fault recurred, or different device faults in a row did not point at one node",
    "reschedule the job without isolating the node",
    ends_group=True,
    # ModelArts ("Unconditional Job-Level Rescheduling"): what the user's input causes ends all pods of the job.
    replaceable=False,
    about_node=True,
    logged=True,
)
NODE_FAULT: Final = Verdict(
    "node-fault",
    197,
    "a device fault that restarts do not cure, or an unkillable tree",
    "isolate the node and reschedule the job",
    ends_group=True,
    replaceable=True,
    about_node=True,
    logged=True,
)
FAILURE_LIMIT: Final = Verdict(
    "failure-limit",
    93,
    "failed again after the last restart without progress",
    "mark the job as failed",
    ends_group=False,
    replaceable=False,
    about_node=False,
    logged=True,
)
NON_RECOVERABLE: Final = Verdict(
    "non-recoverable",
    94,
    "an error that no restart can cure",
    "mark the job as failed at once",
    ends_group=False,
    replaceable=False,
    about_node=False,
    logged=True,
)
SHUTDOWN_HANG: Final = Verdict(
    "shutdown-hang",
    95,
    "the training reached its end or its exit, and its processes hung while they shut down, also after a restart",
    "mark the job as failed; look whether its training is complete",
    ends_group=False,
    replaceable=False,
    about_node=False,
    logged=True,
)
INTERNAL: Final = Verdict(
    "internal",
    125,
    "ftrun itself failed",
    "mark the job as failed",
    ends_group=True,
    replaceable=True,
    about_node=False,
    logged=True,
)
# A shell reports the next two with a message of its own, and there is nothing to add.
NOT_EXECUTABLE: Final = Verdict(
    "not-executable",
    126,
    "the command cannot be executed",
    "mark the job as failed",
    ends_group=False,
    replaceable=False,
    about_node=False,
    logged=False,
)
NOT_FOUND: Final = Verdict(
    "not-found",
    127,
    "the command was not found",
    "mark the job as failed",
    ends_group=False,
    replaceable=False,
    about_node=False,
    logged=False,
)
USAGE: Final = Verdict(
    "usage",
    2,
    "a bad option or value; nothing was started",
    "mark the job as failed",
    ends_group=False,
    replaceable=False,
    about_node=False,
    logged=True,
)

TABLE: Final = tuple(value for value in list(globals().values()) if isinstance(value, Verdict))  # all verdicts above

# Verdicts that carry the command's own status.
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
STOPPED: Final = "stopped"


def named(verdict: object) -> Verdict | None:
    """None for one that carries the command's own status, or that is not known."""
    return next((known for known in TABLE if known.name == verdict), None)


def shell_status(code: int | None, signal: int | None) -> int:
    """The status that a shell reports for this end: the exit code, or 128 plus the signal number."""
    return 128 + signal if signal else (code or 0)
