"""What must hold after a job, whatever was done to it: `check(seen)` gives what does not, a sentence each."""

from collections.abc import Iterator, Sequence
from signal import Signals

from ftrun.config import derived, option_table
from ftrun.core.machine.values import Ledger
from ftrun.core.rules.exit_codes import INTERNAL
from ftrun.core.rules.policy import Policy
from ftrun.messages.codec import Malformed
from ftrun.messages.records import SCHEMA
from ftrun.messages.state import load_state
from proof.chaos.replay import UNDECIDED, Beside, replay
from proof.chaos.seen import Life, Record, Seen, Struck

SPOILING = ("disk full", "run dir read-only")  # records are lost, and ftrun says so
STARVING = ("no more processes", "no more descriptors", "/dev/shm full")  # may keep ftrun from a start: 125
FALLING = ("raises", "exits", "segfaults", "fails")
ENDS = ("hang", "exited", "stopping", "escalated")
PARTING = ("order", "paused", "resumed", *UNDECIDED)  # may come after the end: it answers, and says what is not done
SLACK = 0.2  # s between what we did and what ftrun saw of it, or the other way round
LATE = 0.5  # s; where we were not awake for that long, neither may the training have been
GATHERING = 30.0  # s that evidence may take, if it is struck
MOMENT = 0.02  # s
SOON = 20.0  # s that a crowded machine may add


def check(seen: Seen) -> list[str]:
    found = [*_ended(seen), *_nothing_left(seen), *_records(seen), *_counts(seen), *_resumed(seen)]
    if not spoiled(seen):
        found += [*_lost(seen), *_unexplained(seen), *_replayed(seen)]
    return found


def spoiled(seen: Seen) -> bool:
    """Whether records may be missing."""
    return any(s.fault.kind in SPOILING for s in seen.struck)


def struck(seen: Seen, *kinds: str) -> list[Struck]:
    return [s for s in seen.struck if s.fault.kind in kinds]


# --- ends -------------------------------------------------------------------------------------------------------------


def _ended(seen: Seen) -> Iterator[str]:
    """Exactly one exit, with the code of the verdict, and no exception of ftrun's own."""
    for number, life in enumerate(seen.lives):
        ended = [record for record in life.records if record.get("event") == "ended"]
        if life.code is None:
            yield f"ftrun {number} did not end"
            continue
        if "/supervisor/ftrun/" in life.stderr:
            yield f"ftrun {number} threw"
        # Without a descriptor it cannot load what it needs to explain a failure: 125, cleanly.
        if any("traceback" in record for record in life.records) and not struck(seen, "no more descriptors"):
            yield f"ftrun {number} itself failed"
        # What an ftrun was forking when it was killed has its lock until the exec, and may stand still before that.
        if life.refused and not struck(seen, "container stopped", *STARVING, *SPOILING):
            yield f"ftrun {number} started nothing"
        if life.killed or spoiled(seen) or not life.records:
            continue
        said = [record for record in life.records if record["event"] not in PARTING]
        if len(ended) != 1 or said[-1] != ended[0]:
            yield f"ftrun {number} has {len(ended)} records of its end, and the last is {said[-1]['event']}"
        elif ended[0]["exit_code"] != life.code:
            yield f"ftrun {number} ended with {life.code}, its record says {ended[0]['exit_code']}"
    last = seen.lives[-1]
    if last.code == INTERNAL.code and not struck(seen, *STARVING):
        yield "125, and nobody kept it from a start"
    if not seen.copied and not last.killed and "not all of this run is in" not in last.stderr:
        yield "the run dir on the slow disk is not as the local one"
    told = None if seen.verdict is None else seen.verdict["exit_code"]
    unwritten = told is None and bool(struck(seen, "no more descriptors"))
    if last.code not in (None, INTERNAL.code, told) and not unwritten and not last.killed and not last.refused:
        yield f"it ended with {last.code}, the termination message says {seen.verdict}"


def _nothing_left(seen: Seen) -> Iterator[str]:
    if seen.lives[-1].killed:
        return
    yield from (f"left behind: {process}" for process in seen.left)
    # An ftrun that was killed before its first state.json has told nobody of its folder.
    unknown = sum(life.killed and not any(r["event"] == "spawned" for r in life.records) for life in seen.lives)
    if seen.lives[-1].code is not None and len(seen.beats) > unknown:
        yield f"left behind: {' '.join(seen.beats)}"


# --- records ----------------------------------------------------------------------------------------------------------


def _records(seen: Seen) -> Iterator[str]:
    """Each whole, in the order in which things happened."""
    torn = sum(life.killed for life in seen.lives) + 2 * len(struck(seen, *SPOILING))
    if seen.unread > torn:
        yield f"{seen.unread} lines of the records are none"
    for number, life in enumerate(seen.lives):
        before = float("-inf")
        for record in life.records:
            if record.get("schema") != SCHEMA or not {"time", "mono", "event", "attempt"} <= record.keys():
                yield f"no record: {record}"
                return
            if record["mono"] < before:
                yield f"ftrun {number}: {record['event']} at {record['mono']} comes after {before}"
            before = record["mono"]
        if life.records and not spoiled(seen) and not life.refused:
            if life.records[0]["event"] != "started":
                yield f"ftrun {number} begins with {life.records[0]['event']}"
            yield from _spawned_and_exited(number, life)


def _spawned_and_exited(number: int, life: Life) -> Iterator[str]:
    """Each start has an end before the next."""
    running: int | None = None
    for record in life.records:
        if record["event"] == "spawned":
            running = record["attempt"]
        if record["event"] == "exited":
            if record["attempt"] != running:
                yield f"ftrun {number}: start {record['attempt']} exited and did not run"
            running = None
        if record["event"] in ("restart", "ended") and running is not None and not _internal(record):
            yield f"ftrun {number}: {record['event']} while start {running} runs"


def _internal(record: Record) -> bool:
    return bool(record.get("verdict") == INTERNAL.name)


def _counts(seen: Seen) -> Iterator[str]:
    """What the command saw, what the records say and what the budget permits."""
    starts = [record["start"] for record in seen.attempts if "resumed" in record]
    if spoiled(seen):
        return  # an ftrun that could not write its count, and was killed, leaves none
    if starts != sorted(set(starts)):
        yield f"the command saw the starts {starts}"
    spawned = [record["attempt"] for record in _all(seen, "spawned")]
    if spawned != sorted(set(spawned)):
        yield f"the starts were {spawned}"
    if not set(starts) <= set(spawned) | _cut(seen):
        yield f"the command saw the starts {starts}, the records know {spawned}"
    if spawned and not seen.lives[-1].killed and seen.verdict and seen.verdict["start_cnt"] < spawned[-1]:
        yield f"the termination message counts {seen.verdict['start_cnt']} starts of {spawned[-1]}"
    for record in _all(seen, "restart"):
        if record["consecutive"] > seen.job.max_restarts:
            yield f"restart {record['consecutive']} in a row of {seen.job.max_restarts}"
        if record["start_cnt"] != record["attempt"]:
            yield f"restart {record['start_cnt']} is recorded in {record['attempt']}"


def _cut(seen: Seen) -> set[int]:
    """Starts whose `spawned` a killed ftrun could not write any more."""
    return {life.records[-1]["attempt"] for life in seen.lives if life.killed and life.records}


def _all(seen: Seen, *events: str) -> list[Record]:
    return [record for life in seen.lives for record in life.records if record["event"] in events]


def _resumed(seen: Seen) -> Iterator[str]:
    """No start goes back behind a checkpoint that was reported, and is on record.  A killed ftrun may have written the
    record and not yet the ledger, which takes it a moment."""
    if spoiled(seen):
        return
    killed = {s.life: s.at for s in struck(seen, "ftrun killed")}
    kept = [
        record
        for number, life in enumerate(seen.lives)
        for record in life.records
        if record["event"] == "progress" and record["mono"] < killed.get(number, float("inf")) - MOMENT
    ]
    for record in seen.attempts:
        if "resumed" not in record:
            continue
        told = [r for r in kept if r["attempt"] < record["start"] and r["by"] == "checkpoint" and r["checkpoint"]]
        steps = [int(str(r["checkpoint"]).rpartition("/")[2].partition(".")[0]) for r in told]
        if steps and record["resumed"] < steps[-1]:
            yield f"start {record['start']} resumed at {record['resumed']}, on record is checkpoint {steps[-1]}"


# --- faults -----------------------------------------------------------------------------------------------------------


def _lost(seen: Seen) -> Iterator[str]:
    """Every fault was noticed where it has to be."""
    for one in seen.struck:
        life = seen.lives[one.life]
        of_it = [record for record in life.records if record["attempt"] == one.attempt]
        after = [record for record in of_it if record["mono"] >= one.at - SLACK]
        names = {record["event"] for record in after}
        killed_later = life.killed or life.code is None
        match one.fault.kind:
            case "command killed" if "exited" not in names and not killed_later:
                yield f"{_told(one)}: no end of start {one.attempt}"
            case "command stopped" if not names & set(ENDS) and not killed_later:
                yield f"{_told(one)}: start {one.attempt} was never found"
            case "command stopped":
                yield from _in_time(seen, one, after)
            case "ftrun killed" if life.code not in (137, None):
                if not any(record["event"] == "ended" for record in after):
                    yield f"{_told(one)}: ended with {life.code}"
            case "ended from outside" if not life.killed and not any(r["event"] == "ended" for r in life.records):
                yield f"{_told(one)}: it did not end"
            case "signal passed on":
                yield from _passed_on(seen, one, after)


def _in_time(seen: Seen, one: Struck, after: Sequence[Record]) -> Iterator[str]:
    found = next((record["mono"] for record in after if record["event"] in ENDS), None)
    away = sum(s.until - s.at for s in seen.struck if s.fault.kind == "container stopped")
    if found is None or any(record["event"] == "paused" for record in after):
        return
    limit = seen.job.hang + 8.0 + SOON + away + (GATHERING if struck(seen, "helper stopped", *STARVING) else 0.0)
    if found - one.at > limit:
        yield f"{_told(one)}: found after {found - one.at:.1f} s"


def _passed_on(seen: Seen, one: Struck, after: Sequence[Record]) -> Iterator[str]:
    """It came to the command, or ended it, unless that was ending or not yet up."""
    life, number = seen.lives[one.life], one.fault.what
    ready = [r["mono"] for r in seen.attempts if r["start"] == one.attempt and "resumed" in r]
    got = any(r.get("got") == Signals[f"SIG{number}"] for r in seen.attempts if r["start"] == one.attempt)
    if got or life.killed or not ready or ready[0] > one.at or any(r["mono"] < one.at + SLACK for r in _ends(after)):
        return
    if any(s.fault.kind in ("command stopped", "container stopped") for s in seen.struck) or _stuck(seen, one):
        return
    yield f"{_told(one)}: {number} did not come to the command"


def _stuck(seen: Seen, one: Struck) -> bool:
    """A training that stands does not take what comes."""
    return any(r.get("does") == "stops" for r in seen.attempts if r["start"] == one.attempt) or bool(
        struck(seen, "disk dead")
    )


def _ends(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["event"] in (*ENDS, "ended")]


def _told(one: Struck) -> str:
    return f"{one.fault.kind} {one.fault.what}".strip()


def _unexplained(seen: Seen) -> Iterator[str]:
    """A healthy training is left alone: whatever ended a start was done to it, or it did that itself."""
    for number, life in enumerate(seen.lives):
        for record in life.records:
            if record["event"] == "hang" and not _stood(seen, number, record, life):
                yield f"start {record['attempt']} was taken for hung, and nothing had been done to it"
            if record["event"] == "exited" and not _fell(seen, number, record, life):
                yield f"start {record['attempt']} exited ({_status(record)}), and nothing had been done to it"
            if str(record.get("what")).startswith("it ended") and not _died(seen, number, record):
                yield f"{record['helper']} ended, and nothing had been done to it"
            if record["event"] in ("stopping", "order") and not _asked(seen, number, record):
                yield f"{record['event']} by {record.get('by')} in start {record['attempt']}, and nobody had asked"


def _status(record: Record) -> str:
    return f"signal {record['signal']}" if "signal" in record else f"code {record.get('code')}"


def _before(seen: Seen, life: int, record: Record, *kinds: str) -> list[Struck]:
    of_it = [s for s in struck(seen, *kinds) if s.life == life and s.at <= record["mono"] + SLACK]
    return [s for s in of_it if s.attempt == record["attempt"] or s.fault.kind in ("disk dead", *STARVING)]


def _stood(seen: Seen, life: int, record: Record, of: Life) -> bool:
    does = [r["does"] for r in seen.attempts if r["start"] == record["attempt"] and "does" in r]
    if set(does) & {"sleeps", "stops"} or of.late > LATE:
        return True
    return bool(_before(seen, life, record, "command stopped", "disk dead", *STARVING))


def _fell(seen: Seen, life: int, record: Record, of: Life) -> bool:
    said = [r for r in seen.attempts if r["start"] == record["attempt"]]
    if any(
        "finished" in r or "saved_on" in r or r.get("does") in ("raises", "exits", "segfaults", "fails") for r in said
    ):
        return True
    earlier = of.records[: of.records.index(record)]
    if any(r["event"] == "stopping" and r["attempt"] == record["attempt"] for r in earlier):
        return True
    kinds = ("command killed", "command stopped", "ended from outside", "signal passed on", "disk dead", *STARVING)
    return bool(_before(seen, life, record, *kinds))


def _died(seen: Seen, life: int, record: Record) -> bool:
    """Whether a helper that ended was made to."""
    return bool([s for s in struck(seen, "helper killed", "helper stopped", *STARVING) if s.life == life])


def _asked(seen: Seen, life: int, record: Record) -> bool:
    if record["event"] == "order":
        return bool(struck(seen, "order"))
    if record["by"] == "outside":
        return bool([s for s in struck(seen, "ended from outside") if s.life == life])
    return True


# --- replay -----------------------------------------------------------------------------------------------------------


def policy(seen: Seen) -> Policy:
    """As the options of the job make it."""
    given = {name: text.format(folder="/job") for name, text in seen.job.options}
    return derived.policy(option_table.settings(given, {}))


def _replayed(seen: Seen) -> Iterator[str]:
    """The pure core comes to the same records and the same end."""
    by = policy(seen)
    fatal = frozenset(record["start"] for record in seen.attempts if record.get("does") == "fails")
    for number, life in enumerate(seen.lives):
        if not life.records or any("traceback" in record for record in life.records):
            continue
        sent = [s for s in struck(seen, "ended from outside", "signal passed on") if s.life == number]
        signals = [(s.at, int(Signals[f"SIG{s.fault.what}"])) for s in sent]
        again = replay(life.records, by, _resumed_with(life), Beside(signals, fatal))
        if again.wrong is not None:
            if not life.killed or not again.wrong.startswith("after the last"):
                yield f"ftrun {number} against the core: {again.wrong}"
        elif life.code is not None and not life.killed and again.code != life.code:
            yield f"ftrun {number} ended with {life.code}, the core with {again.code}"


def _resumed_with(life: Life) -> Ledger:
    """As ftrun takes over what one before it has left."""
    if life.state is None:
        return Ledger()
    try:
        ledger, state = load_state(life.state)
    except Malformed:
        return Ledger()
    return ledger._replace(reason="first" if ledger.start_cnt == 0 or state.get("succeeded") is True else "failure")
