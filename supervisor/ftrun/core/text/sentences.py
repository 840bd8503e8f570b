"""Sentences for a person, made from values."""

from collections.abc import Iterable, Mapping, Sequence
from signal import Signals
from typing import Final

from ftrun.core.machine.effects import Exit
from ftrun.core.machine.values import TOUCH, Ledger, Section
from ftrun.core.rules import exit_codes
from ftrun.core.text.durations import seconds, step_duration

SHORT: Final = 150  # characters of text from elsewhere in one log line
SHORTER: Final = 100  # the same, where one line holds several such texts
REASON: Final = 360  # characters of a reason
LINE: Final = 300  # characters of the last line, without the path of the records, if `SHORT` of its reason fit
STACK: Final = "; stack: "
HANGS_UNDETECTED: Final = (
    "a hang would not be detected: the command has sent no heartbeat, and no timeout that works without heartbeats "
    "is set (--start-timeout, --idle-timeout)"
)
DEADLOCKS_DETECTED: Final = f"a deadlock is found without a timeout; any other {HANGS_UNDETECTED[2:]}"
UNREPORTED: Final = tuple(verdict.name for verdict in exit_codes.TABLE if not verdict.logged)
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
OFTEN: Final = {1: "once", 2: "twice"}
BECAUSE: Final = {
    "hang": "because of a hang",
    "fault": "because of a device fault",
    "failure": "because of a failure",
    "manual": "by an operator",
    "peer": "because of another member",
    "returned": "to use a device again",
}


def printable(text: str) -> str:
    """The text on one line, with every character that a terminal would act upon written as an escape sequence."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(text: str, most: int = SHORT) -> str:
    """The text in at most `most` characters; of a longer one the beginning and the end.  A pair of brackets is kept or
    left out as a whole, unless it is longer than half of `most`."""
    if len(text) <= most:
        return text
    start = len(text) - (most - 3) // 3
    for opened, closed in _brackets(text):
        if opened < start <= closed:  # the kept end begins before this bracket, or after it
            start = opened if len(text) - opened <= most // 2 else min(closed + 1, len(text))
            break
    room = max(0, most - 3 - (len(text) - start))
    opened = next((opened for opened, closed in _brackets(text) if opened < room <= closed), room)
    return f"{text[: opened if 2 * opened >= room else room].rstrip()}...{text[start:].lstrip()}"


def begun(text: str, most: int) -> str:
    """The text in at most `most` characters; of a longer one the beginning, up to the end of a word if one ends in its
    second half."""
    if len(text) <= most:
        return text
    kept = text[: most - 3]
    words = kept if text[most - 3] == " " else kept.rpartition(" ")[0]
    return f"{(words if 2 * len(words) >= most else kept).rstrip(' ,;:')}..."


def reason(text: str) -> str:
    """A reason in at most `REASON` characters: a longer one is first without its stack, which is in the report."""
    if len(text) > REASON:
        before, _, stack = text.partition(STACK)
        _, more, after = stack.partition("; ")
        text = before + more + after
    return short(text, REASON)


def _brackets(text: str) -> list[tuple[int, int]]:
    """The positions of the outermost pairs of brackets."""
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
    """The parts that are not empty (what happened, why, what follows), joined by semicolons."""
    return "; ".join(part for part in parts if part)


def devices(names: Sequence[str]) -> str:
    """`device a`, `devices a, b`."""
    return f"device{'s' if len(names) > 1 else ''} {', '.join(names)}"


def several(number: int, noun: str) -> str:
    """`1 process`, `9 processes`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def restarted(counts: Mapping[str, int]) -> str:
    """`restarted once because of a hang`, `restarted 3 times: twice by an operator, once because of another
    member`."""
    parts = [f"{_times(number)} {BECAUSE.get(reason, f'because of {reason}')}" for reason, number in counts.items()]
    if len(parts) == 1:
        return f"restarted {parts[0]}"
    return f"restarted {_times(sum(counts.values()))}: {', '.join(parts)}"


def _times(number: int) -> str:
    return OFTEN.get(number, f"{number} times")


def signal(number: int) -> str:
    """`signal 15 (SIGTERM)`."""
    try:
        return f"signal {number} ({Signals(number).name})"
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def ordinal(number: int) -> str:
    last = number % 10 if number % 100 not in (11, 12, 13) else 0
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def ordinal_word(number: int) -> str:
    """`third`; from the tenth on `10th`."""
    return ORDINALS[number - 1] if number <= len(ORDINALS) else ordinal(number)


def rank(number: int | None) -> str:
    if number is None:
        return "the command"
    if number < TOUCH:
        return f"process {TOUCH - number} (no RANK)"
    return "the touch file" if number == TOUCH else f"rank {number}"


def member(number: int, pid: int, inside: str = "") -> str:
    """A rank together with its process, where the text for the rank does not name it; `inside`: where the rank is."""
    return rank(number) + inside + ("" if number < TOUCH else f", process {pid}")


def mechanism(seen: Mapping[str, object]) -> str:
    """Why the suspect stands still, according to the evidence, or at least where; empty where both are unknown."""
    if seen.get("evidence"):
        return f"evidence: {seen['evidence']}"
    if seen.get("mechanism"):
        return begun(str(seen["mechanism"]), SHORT)
    return f"{STACK[2:]}{short(str(seen['why']))}" if seen.get("why") else ""


def killing(seen: Mapping[str, object]) -> str:
    number = seen.get("processes")
    return f"killing {several(number, 'process')}" if isinstance(number, int) and number else "killing the command"


def report(seen: Mapping[str, object]) -> str:
    """Where the report of a hang is."""
    if "report" not in seen:
        return ""
    return f"report: {seen['report']}" if seen["report"] else "no report could be written"


def straggler(
    number: int,
    step_time: float,
    usual: float,
    lasting: float,
    of_member: int | None = None,
    node: str = "",
    device: str = "",
    work: float | None = None,
) -> str:
    """A rank that has been slow against the others for so many seconds."""
    where = placed(f" of member {of_member} ({node})" if of_member is not None else f" on {node}" * bool(node), device)
    times = slower("step_time", step_time, usual) if work is None else slower("work", work, usual)
    return f"{rank(number)}{where} is slow: {times}, for {seconds(lasting)}; nothing is ended for it"


def placed(where: str, device: str | None) -> str:
    """The place of a rank, with its accelerator if that is known."""
    return f"{where}, device {device}," if device else where


def slower(what: str, own: float, usual: float, others: str = "the others") -> str:
    """Why a rank is a straggler, by the name of the figure that differs (`Slowness` in core/rules/stragglers.py)."""
    if what == "work":
        return f"it works for {step_duration(own)} in each step, {others} for {step_duration(usual)} and then wait"
    if what == "silence":
        return f"no step for {seconds(own)}, {others} step every {step_duration(usual)}"
    return f"{step_duration(own)} per step, {others} {step_duration(usual)}"


def frozen(lasting: float) -> str:
    """ftrun did not run: it cannot know whether its command did."""
    why = "suspended, perhaps with its whole container, or blocked by the disk of its run dir"
    return f"ftrun itself did not run for {seconds(lasting)}: {why}; that counts as no silence of the job"


def sections(opened: tuple[Section, ...]) -> str:
    return " > ".join(s.name for s in opened)


def record(event: str, fields: Iterable[tuple[str, object]]) -> str:
    """A record as `-v` shows it: `hang rank=3 age=41.2 why="a text"`; fields without a value are left out."""
    text = event
    for name, value in fields:
        if value is not None:
            text += f" {name}={_value(value)}"
    return text


def _value(value: object) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, int):
        return str(value)
    elif isinstance(value, float):
        return f"{value:.6g}"
    else:
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f'"{text}"' if not text or " " in text else text


# --- the last line ----------------------------------------------------------------------------------------------------


def last_lines(
    end: Exit,
    ledger: Ledger,
    run_dir: str,
    lasted: float,
    restarts: Mapping[str, int],
    lost: str = "",
    phase: str = "",
    printed: bool = False,
) -> str | None:
    """The last line of a run: how it ended, what it reached, what it cost, and what the scheduler should do.

    `restarts`: all restarts in this run dir, by reason; `lost`: the text of `totals.summary`; `lasted`: in seconds.
    The result is None where there is nothing to report: the command reported nothing, ftrun did nothing to it and
    printed nothing about it (`printed`).
    """
    verdict = next(
        (known for known in exit_codes.TABLE if known.name == end.verdict and end.verdict not in UNREPORTED), None
    )
    done = {why: number for why, number in restarts.items() if number}
    step = max((step for step in (ledger.best_step, ledger.last_step) if step is not None), default=None)
    reported = done or step is not None or ledger.last_checkpoint is not None
    if verdict is None and not reported and (not printed or end.verdict in UNREPORTED):
        return None
    starts = several(ledger.start_cnt, "start")
    if ledger.start_cnt > 1 + sum(done.values()):  # MA_PROC_START_CNT, which the platform or an earlier ftrun began
        starts += " in this pod, with those before this ftrun"
    starts += f" ({restarted(done)})" if done else ""
    reached = "" if step is None else f", step {step}"
    if ledger.last_checkpoint is not None:
        reached += f", checkpoint {short(ledger.last_checkpoint.rstrip('/').rpartition('/')[2], SHORTER)}"
    how = (f"phase {phase} " if phase else "") + f"ended with {end.code} ({end.verdict}) after {seconds(lasted)}: "
    outer = f"the scheduler should {verdict.outer}" if verdict is not None else ""
    rest = sentence(starts + reached, lost, outer)
    if end.verdict != exit_codes.SUCCEEDED and end.message:
        room = max(SHORT, LINE - len(how) - len("; ") - len(rest))
        cut = short if end.verdict == exit_codes.FAILED else begun  # a failure has no line before that has its end
        rest = sentence(cut(end.message.partition(STACK)[0], room), rest)
    return sentence(how + rest, f"records: {run_dir}")
