"""The words for the states of a run, of its ranks and of its group: one table for `ftctl`, the page, metrics and the
readers of records."""

from typing import Final

# The phases of a run (`phase` in the JSON, the label of `ftrun_phase`): the word, and what it says.
RUN: Final = {
    "launching": "the command is being executed",
    "starting": "the first heartbeat is awaited",
    "running": "making progress",
    "suspect": "it may hang, evidence is being collected",
    "stopping": "the process tree is being ended",
    "healing": "a device is healed, or the platform permits no start yet",
    "waiting": "the next start is due later",
    "spare": "held ready to take the place of a lost member",
    "finished": "its command has succeeded, and the other members still work",
    "done": "ended with a verdict",
    "cut off": "ftrun is gone and left no verdict",
}
LIVE: Final = ("starting", "running", "suspect")  # the command runs and is watched
PAUSED: Final = "paused"  # shown in place of the phase while an operator has suspended the verdicts
SUSPENDED: Final = "suspended"  # shown in place of the phase while job control has stopped the command
NO_CONTACT: Final = "no contact"  # shown in place of the phase of another member of the group that is not heard of
UNKNOWN: Final = "unknown"  # the same while it is rank 0, through which all is heard, that is not heard of
STRAGGLER: Final = "straggler"  # shown beside the state of a rank that is slow against the median of the others
STALLED: Final = "stalled"  # shown in place of the health of a job that stands still, and is not proved to hang
QUIET: Final = "quiet"  # shown in place of `moving` for a rank that has not moved for half its timeout

# The states of a rank (`state` in the JSON, the label of `ftrun_ranks`): the name, and the words in a sentence.
RANKS: Final = {
    "starting": "starting",
    "moving": "moving",
    "stalled": "stalled",
    "section": "in a section",
    "done": "done",
    "gone": "gone",
    "exited": "exited",
}
ENDED_RANKS: Final = ("done", "gone", "exited")

# What the coordinator has ordered (`what` in `group.json`), in words.
GROUP: Final = {
    "run": "running",
    "stop": "all members stop, to start again",
    "end": "ending",
    "wait": "waiting for members",
}


def group(what: str) -> str:
    """An order in words; an unknown one, of a newer ftrun, as it is."""
    return GROUP.get(what, what)
