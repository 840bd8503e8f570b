"""What must hold after a job, whatever was done to it: `check(seen)` gives what does not, a sentence each."""

from collections.abc import Iterator, Sequence
from signal import Signals

from ftrun.core.rules.exit_codes import INTERNAL
from ftrun.messages.records import SCHEMA
from proof.chaos.plan import Injected, Outcome, Record, Run
from proof.chaos.replay import BESIDE, replay

SPOILING = ("disk full", "run dir read-only")  # records are lost, and ftrun says so
STARVING = ("no more processes", "no more descriptors", "/dev/shm full")  # may keep ftrun from a start: 125
FALLING = ("raises", "exits", "segfaults", "fails")
ENDS = ("hang", "exited", "stopping", "escalated")
PARTING = ("order", "paused", "resumed", *BESIDE)  # may follow the end: replies, and requests that were not executed
SLACK = 0.2  # s between what we did and what ftrun saw of it, or the other way round
LATE = 0.5  # s; where we were not awake for that long, neither may the training have been
GATHERING = 30.0  # s that evidence may take, if it is struck
MOMENT = 0.02  # s
SOON = 20.0  # s that a crowded machine may add


def check(outcome: Outcome) -> list[str]:
    found = [*_ended(outcome), *_nothing_left(outcome), *_records(outcome), *_counts(outcome), *_resumed(outcome)]
    if not spoiled(outcome):
        found += [*_lost(outcome), *_unexplained(outcome), *_replayed(outcome)]
    return found


def spoiled(outcome: Outcome) -> bool:
    """Whether records may be missing."""
    return any(s.fault.kind in SPOILING for s in outcome.injected)


def injected(outcome: Outcome, *kinds: str) -> list[Injected]:
    return [s for s in outcome.injected if s.fault.kind in kinds]


# --- ends -------------------------------------------------------------------------------------------------------------


def _ended(outcome: Outcome) -> Iterator[str]:
    """Exactly one exit, with the code of the verdict, and no exception of ftrun's own."""
    for number, run in enumerate(outcome.runs):
        ended = [record for record in run.records if record.get("event") == "ended"]
        if run.code is None:
            yield f"ftrun {number} did not end"
            continue
        if "/supervisor/ft" in run.stderr:
            yield f"ftrun {number} threw"
        # Without a descriptor it cannot load what it needs to explain a failure: 125, cleanly.
        if any("traceback" in record for record in run.records) and not injected(outcome, "no more descriptors"):
            yield f"ftrun {number} itself failed"
        # What an ftrun was forking when it was killed has its lock until the exec, and may stand still before that.
        if run.refused and not injected(outcome, "container stopped", *STARVING, *SPOILING):
            yield f"ftrun {number} started nothing"
        if run.killed or spoiled(outcome) or not run.records:
            continue
        own = [record for record in run.records if record["event"] not in PARTING]
        if len(ended) != 1 or own[-1] != ended[0]:
            yield f"ftrun {number} has {len(ended)} records of its end, and the last is {own[-1]['event']}"
        elif ended[0]["exit_code"] != run.code:
            yield f"ftrun {number} ended with {run.code}, its record says {ended[0]['exit_code']}"
    last = outcome.runs[-1]
    if last.code == INTERNAL.code and not injected(outcome, *STARVING):
        yield "125, and nobody kept it from a start"
    if not outcome.copied and not last.killed and "not all of this run is in" not in last.stderr:
        yield "the run dir on the slow disk is not as the local one"
    code = None if outcome.verdict is None else outcome.verdict["exit_code"]
    unwritten = code is None and bool(injected(outcome, "no more descriptors"))
    if last.code not in (None, INTERNAL.code, code) and not unwritten and not last.killed and not last.refused:
        yield f"it ended with {last.code}, the termination message says {outcome.verdict}"


def _nothing_left(outcome: Outcome) -> Iterator[str]:
    if outcome.runs[-1].killed:
        return
    # An ftrun that cannot see a process knows it only as its own child, not as that of one that was killed.
    hidden = outcome.job.place == "hidden /proc" and "unreadable process" in outcome.job.training.beside
    killed = sum(run.killed for run in outcome.runs)
    if not hidden or outcome.job.mode == "pid1" or len(outcome.left) > killed:
        yield from (f"left behind: {process}" for process in outcome.left)
    # An ftrun that was killed before its first state.json has not recorded its folder.
    unknown = sum(run.killed and not any(r["event"] == "spawned" for r in run.records) for run in outcome.runs)
    if outcome.runs[-1].code is not None and len(outcome.beats) > unknown:
        yield f"left behind: {' '.join(outcome.beats)}"


# --- records ----------------------------------------------------------------------------------------------------------


def _records(outcome: Outcome) -> Iterator[str]:
    """Each whole, in the order in which things happened."""
    torn = sum(run.killed for run in outcome.runs) + 2 * len(injected(outcome, *SPOILING))
    if outcome.unread > torn:
        yield f"{outcome.unread} lines of the records are none"
    for number, run in enumerate(outcome.runs):
        before = float("-inf")
        for record in run.records:
            if record.get("schema") != SCHEMA or not {"time", "mono", "event", "attempt"} <= record.keys():
                yield f"no record: {record}"
                return
            if record["mono"] < before:
                yield f"ftrun {number}: {record['event']} at {record['mono']} comes after {before}"
            before = record["mono"]
        if run.records and not spoiled(outcome) and not run.refused:
            if run.records[0]["event"] != "started":
                yield f"ftrun {number} begins with {run.records[0]['event']}"
            yield from _spawned_and_exited(number, run)


def _spawned_and_exited(number: int, run: Run) -> Iterator[str]:
    """Each start has an end before the next."""
    running: int | None = None
    for record in run.records:
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


def _counts(outcome: Outcome) -> Iterator[str]:
    """What the command saw, what the records say and what the budget permits."""
    starts = [record["start"] for record in outcome.attempts if "resumed" in record]
    if spoiled(outcome):
        return  # an ftrun that could not write its count, and was killed, leaves none
    if starts != sorted(set(starts)):
        yield f"the command saw the starts {starts}"
    spawned = [record["attempt"] for record in _all(outcome, "spawned")]
    if spawned != sorted(set(spawned)):
        yield f"the starts were {spawned}"
    if not set(starts) <= set(spawned) | _cut(outcome):
        yield f"the command saw the starts {starts}, the records know {spawned}"
    if spawned and not outcome.runs[-1].killed and outcome.verdict and outcome.verdict["start_cnt"] < spawned[-1]:
        yield f"the termination message counts {outcome.verdict['start_cnt']} starts of {spawned[-1]}"
    for record in _all(outcome, "restart"):
        if record["consecutive"] > outcome.job.max_restarts:
            yield f"restart {record['consecutive']} in a row of {outcome.job.max_restarts}"
        if record["start_cnt"] != record["attempt"]:
            yield f"restart {record['start_cnt']} is recorded in {record['attempt']}"


def _cut(outcome: Outcome) -> set[int]:
    """Starts whose `spawned` a killed ftrun could not write any more."""
    return {run.records[-1]["attempt"] for run in outcome.runs if run.killed and run.records}


def _all(outcome: Outcome, *events: str) -> list[Record]:
    return [record for run in outcome.runs for record in run.records if record["event"] in events]


def _resumed(outcome: Outcome) -> Iterator[str]:
    """No start goes back behind a checkpoint that was reported, and is on record.  A killed ftrun may have written the
    record and not yet the ledger, which takes it a moment."""
    if spoiled(outcome):
        return
    killed = {s.run: s.at for s in injected(outcome, "ftrun killed")}
    kept = [
        record
        for number, run in enumerate(outcome.runs)
        for record in run.records
        if record["event"] == "progress" and record["mono"] < killed.get(number, float("inf")) - MOMENT
    ]
    for record in outcome.attempts:
        if "resumed" not in record:
            continue
        known = [r for r in kept if r["attempt"] < record["start"] and r["by"] == "checkpoint" and r["checkpoint"]]
        names = [str(r["checkpoint"]).rpartition("/")[2].partition(".")[0] for r in known]
        steps = [int(name) for name in names if name.isdigit()]  # that file is as new as the one before it
        if steps and record["resumed"] < steps[-1]:
            yield f"start {record['start']} resumed at {record['resumed']}, on record is checkpoint {steps[-1]}"


# --- faults -----------------------------------------------------------------------------------------------------------


def _lost(outcome: Outcome) -> Iterator[str]:
    """Every fault was noticed where it has to be."""
    for one in outcome.injected:
        run = outcome.runs[one.run]
        of_it = [record for record in run.records if record["attempt"] == one.attempt]
        after = [record for record in of_it if record["mono"] >= one.at - SLACK]
        names = {record["event"] for record in after}
        killed_later = run.killed or run.code is None
        match one.fault.kind:
            case "command killed" if "exited" not in names and not killed_later:
                yield f"{_describe(one)}: no end of start {one.attempt}"
            case "command stopped" if not names & set(ENDS) and not killed_later:
                yield f"{_describe(one)}: start {one.attempt} was never found"
            case "command stopped":
                yield from _in_time(outcome, one, after)
            case "ftrun killed" if run.code not in (137, None):
                if not any(record["event"] == "ended" for record in after):
                    yield f"{_describe(one)}: ended with {run.code}"
            case "termination signal" if not run.killed and not any(r["event"] == "ended" for r in run.records):
                yield f"{_describe(one)}: it did not end"
            case "device fault" if "fault" not in names and not killed_later and not _deaf(outcome, one, after):
                yield f"{_describe(one)}: it was never recorded"
            case "signal forwarded":
                yield from _passed_on(outcome, one, after)


def _deaf(outcome: Outcome, one: Injected, after: Sequence[Record]) -> bool:
    """Whether the probe may have missed an Xid: the driver keeps none for a probe that is not there, and a start that
    ends leaves it no time."""
    struck = injected(outcome, "helper killed", "helper stopped", "driver blocked", "container stopped", *STARVING)
    return bool(struck) or any(record["mono"] < one.at + SOON for record in _ends(after))


def _in_time(outcome: Outcome, one: Injected, after: Sequence[Record]) -> Iterator[str]:
    found = next((record["mono"] for record in after if record["event"] in ENDS), None)
    away = sum(s.until - s.at for s in outcome.injected if s.fault.kind == "container stopped")
    if found is None or any(record["event"] == "paused" for record in after):
        return
    limit = (
        outcome.job.hang + 8.0 + SOON + away + (GATHERING if injected(outcome, "helper stopped", *STARVING) else 0.0)
    )
    if found - one.at > limit:
        yield f"{_describe(one)}: found after {found - one.at:.1f} s"


def _passed_on(outcome: Outcome, one: Injected, after: Sequence[Record]) -> Iterator[str]:
    """It came to the command, or ended it, unless that was ending or not yet up."""
    run, number = outcome.runs[one.run], one.fault.what
    ready = [r["mono"] for r in outcome.attempts if r["start"] == one.attempt and "resumed" in r]
    got = any(r.get("got") == Signals[f"SIG{number}"] for r in outcome.attempts if r["start"] == one.attempt)
    if got or run.killed or not ready or ready[0] > one.at or any(r["mono"] < one.at + SLACK for r in _ends(after)):
        return
    if any(s.fault.kind in ("command stopped", "container stopped") for s in outcome.injected) or _stuck(outcome, one):
        return
    yield f"{_describe(one)}: {number} did not come to the command"


def _stuck(outcome: Outcome, one: Injected) -> bool:
    """A training that stands does not take what comes."""
    return any(r.get("does") in ("stops", "never ends") for r in outcome.attempts if r["start"] == one.attempt) or bool(
        injected(outcome, "disk unresponsive")
    )


def _ends(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["event"] in (*ENDS, "ended")]


def _describe(one: Injected) -> str:
    return f"{one.fault.kind} {one.fault.what}".strip()


def _unexplained(outcome: Outcome) -> Iterator[str]:
    """A healthy training is left alone: whatever ended a start was done to it, or it did that itself."""
    for number, run in enumerate(outcome.runs):
        for record in run.records:
            if record["event"] == "hang" and not _stood(outcome, number, record, run):
                yield f"start {record['attempt']} was taken for hung, and nothing had been done to it"
            if record["event"] == "exited" and not _fell(outcome, number, record, run):
                yield f"start {record['attempt']} exited ({_status(record)}), and nothing had been done to it"
            if str(record.get("what")).startswith("it ended") and not _died(outcome, number, record):
                yield f"{record['helper']} ended, and nothing had been done to it"
            if record["event"] in ("stopping", "order") and not _asked(outcome, number, record):
                yield f"{record['event']} by {record.get('by')} in start {record['attempt']}, and nobody had asked"


def _status(record: Record) -> str:
    return f"signal {record['signal']}" if "signal" in record else f"code {record.get('code')}"


def _before(outcome: Outcome, run: int, record: Record, *kinds: str) -> list[Injected]:
    of_it = [s for s in injected(outcome, *kinds) if s.run == run and s.at <= record["mono"] + SLACK]
    return [s for s in of_it if s.attempt == record["attempt"] or s.fault.kind in ("disk unresponsive", *STARVING)]


def _stood(outcome: Outcome, run: int, record: Record, of: Run) -> bool:
    does = [r["does"] for r in outcome.attempts if r["start"] == record["attempt"] and "does" in r]
    if set(does) & {"sleeps", "stops", "never ends"} or of.late > LATE:
        return True
    return bool(_before(outcome, run, record, "command stopped", "disk unresponsive", *STARVING))


def _fell(outcome: Outcome, run: int, record: Record, of: Run) -> bool:
    records = [r for r in outcome.attempts if r["start"] == record["attempt"]]
    if any("finished" in r or "saved_on" in r or r.get("does") in FALLING for r in records):
        return True
    earlier = of.records[: of.records.index(record)]
    if any(r["event"] == "stopping" and r["attempt"] == record["attempt"] for r in earlier):
        return True
    kinds = (
        "command killed",
        "command stopped",
        "termination signal",
        "signal forwarded",
        "disk unresponsive",
        *STARVING,
    )
    return bool(_before(outcome, run, record, *kinds))


def _died(outcome: Outcome, run: int, record: Record) -> bool:
    """Whether a helper that ended was made to."""
    made = injected(outcome, "helper killed", "helper stopped", "driver blocked", *STARVING)
    return any(one.run == run for one in made)


def _asked(outcome: Outcome, run: int, record: Record) -> bool:
    if record["event"] == "order":
        return bool(injected(outcome, "operator request"))
    if record["by"] == "outside":
        return bool([s for s in injected(outcome, "termination signal") if s.run == run])
    return True


# --- replay -----------------------------------------------------------------------------------------------------------


def _replayed(outcome: Outcome) -> Iterator[str]:
    """The pure core comes to the same records."""
    for number, run in enumerate(outcome.runs):
        if run.decisions is not None and not any("traceback" in record for record in run.records):
            found = replay(run.decisions, run.records, run.killed)
            yield from (f"ftrun {number} against the core: {wrong}" for wrong in found)
