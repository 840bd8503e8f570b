"""Sentences for a person, made from values."""

from collections.abc import Iterable, Mapping
from signal import Signals
from typing import Final

from ftrun.core.machine.effects import Exit
from ftrun.core.machine.values import TOUCH, Ledger, Section
from ftrun.core.rules import exit_codes
from ftrun.core.text.durations import seconds

SHORT: Final = 150  # characters of foreign text in a line of ours
SHORTER: Final = 100  # of one of several
REASON: Final = 240  # of why, as long as it is
STACK: Final = "; stack: "
UNWATCHED: Final = (
    "a hang would not be noticed: no heartbeat has come from the command, and no timeout is set that needs none "
    "(--start-timeout, --idle-timeout)"
)
UNSAID: Final = (
    exit_codes.NOT_EXECUTABLE.name,
    exit_codes.NOT_FOUND.name,
)  # what a shell says of these is all there is
OFTEN: Final = {1: "once", 2: "twice"}
BECAUSE: Final = {
    "hang": "because of a hang",
    "fault": "because of a device fault",
    "failure": "because of a failure",
    "manual": "by an operator",
    "peer": "because of another node",
}


def printable(text: str) -> str:
    """On one line, and nothing in it that a terminal acts upon; what cannot be shown is written out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(text: str, most: int = SHORT) -> str:
    """At most so many characters: of a long text the beginning and the end.  No bracket is cut but one that is longer
    than half of that."""
    if len(text) <= most:
        return text
    start = len(text) - (most - 3) // 3
    for opened, closed in _brackets(text):
        if opened < start <= closed:  # the end begins before that bracket, or after it
            start = opened if len(text) - opened <= most // 2 else min(closed + 1, len(text))
            break
    room = max(0, most - 3 - (len(text) - start))
    opened = next((opened for opened, closed in _brackets(text) if opened < room <= closed), room)
    return f"{text[: opened if 2 * opened >= room else room].rstrip()}...{text[start:].lstrip()}"


def _brackets(text: str) -> list[tuple[int, int]]:
    """Where each begins and ends that is no part of another."""
    found: list[tuple[int, int]] = []
    open_: list[int] = []
    for place, letter in enumerate(text):
        if letter in "([{":
            open_.append(place)
        elif letter in ")]}" and open_:
            begun = open_.pop()
            found = [one for one in found if one[0] < begun]
            found.append((begun, place))
    return found


def sentence(*parts: str) -> str:
    """What is there of what, why and what next."""
    return "; ".join(part for part in parts if part)


def several(number: int, what: str) -> str:
    """`1 process`, `9 processes`."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what}{'es' if what.endswith('s') else 's'}"


def restarted(counts: Mapping[str, int]) -> str:
    """`restarted once because of a hang`, `restarted 3 times: twice by an operator, once because of another node`."""
    each = [f"{_times(number)} {BECAUSE.get(why, f'because of {why}')}" for why, number in counts.items()]
    if len(each) == 1:
        return f"restarted {each[0]}"
    return f"restarted {_times(sum(counts.values()))}: {', '.join(each)}"


def _times(number: int) -> str:
    return OFTEN.get(number, f"{number} times")


def signal(number: int) -> str:
    """`signal 15 (SIGTERM)`."""
    try:
        return f"signal {number} ({Signals(number).name})"
    except ValueError:  # a real-time one
        return f"signal {number}"


def ordinal(number: int) -> str:
    last = number % 10 if number % 100 not in (11, 12, 13) else 0
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def rank(number: int | None) -> str:
    if number is None:
        return "the command"
    if number < TOUCH:
        return f"process {TOUCH - number} (no RANK)"
    return "the touch file" if number == TOUCH else f"rank {number}"


def member(number: int, pid: int, inside: str = "") -> str:
    """A rank together with its process, which is named once; `inside` tells where it is."""
    return rank(number) + inside + ("" if number < TOUCH else f", process {pid}")


def stack(seen: Mapping[str, object]) -> str:
    """Where it hangs, as the evidence says; nothing if nobody knows."""
    if seen.get("evidence"):
        return f"evidence: {seen['evidence']}"
    return f"{STACK[2:]}{short(str(seen['why']))}" if seen.get("why") else ""


def killing(seen: Mapping[str, object]) -> str:
    number = seen.get("processes")
    return f"killing {several(number, 'process')}" if isinstance(number, int) and number else "killing the command"


def report(seen: Mapping[str, object]) -> str:
    """Where to read more."""
    if "report" not in seen:
        return ""
    return f"report: {seen['report']}" if seen["report"] else "no report could be written"


def sections(opened: tuple[Section, ...]) -> str:
    return " > ".join(s.name for s in opened)


def record(event: str, fields: Iterable[tuple[str, object]]) -> str:
    """A record as `-v` shows it: `hang rank=3 age=41.2 why="a text"`; what has no value is left out."""
    return " ".join([event, *(f"{name}={_value(value)}" for name, value in fields if value is not None)])


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f'"{text}"' if not text or " " in text else text


# --- the end ----------------------------------------------------------------------------------------------------------


def last_lines(
    end: Exit,
    ledger: Ledger,
    run_dir: str,
    lasted: float,
    restarts: Mapping[str, int],
    lost: str = "",
    phase: str = "",
    spoke: bool = False,
) -> str | None:
    """The last line of a run: how it ended, what it came to, what it cost, and what comes next.

    `restarts`: of all time in this run dir, by reason; `lost`: what `account.summary` says; `lasted`: in seconds.
    None where there is nothing to tell: a command that reported nothing, and that we did nothing to and (`spoke`) said
    nothing of.
    """
    verdict = next(
        (known for known in exit_codes.TABLE if known.name == end.verdict and end.verdict not in UNSAID), None
    )
    done = {why: number for why, number in restarts.items() if number}
    step = max((step for step in (ledger.best_step, ledger.last_step) if step is not None), default=None)
    reported = done or step is not None or ledger.last_checkpoint is not None
    if verdict is None and not reported and (not spoke or end.verdict in UNSAID):
        return None
    why = "" if end.verdict == exit_codes.SUCCEEDED else short(end.message.partition(STACK)[0], SHORTER)
    starts = several(ledger.start_cnt, "start") + (f" ({restarted(done)})" if done else "")
    reached = "" if step is None else f", step {step}"
    if ledger.last_checkpoint is not None:
        reached += f", checkpoint {short(ledger.last_checkpoint.rstrip('/').rpartition('/')[2], SHORTER)}"
    return (f"phase {phase} " if phase else "") + sentence(
        f"ended with {end.code} ({end.verdict}) after {seconds(lasted)}: {why or starts + reached}",
        f"{starts}{reached}" if why else "",
        lost,
        f"the scheduler should {verdict.outer}" if verdict is not None else "",
        f"records: {run_dir}",
    )
