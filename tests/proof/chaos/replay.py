"""What PID 1 of an ftrun decided on, fed to the pure core again: it must come to the same records, field by field."""

import io
import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from ftrun.core.machine import effects as do
from ftrun.core.machine.job import decide
from ftrun.messages import records as lines
from proof.chaos.plan import Record

OWN = ("schema", "time", "mono")  # what every record has beside the fields of the core
BESIDE = ("problem", "standby", "learned", "listening", "group", "lost")  # also recorded by what is around the core


def replay(decisions: bytes, records: Sequence[Record], killed: bool, incomplete: bool = False) -> Iterator[str]:
    """What is not as the core would have it, the first of it only.  What an ftrun that was killed had decided in its
    last moment need not be on record, and where they may be `incomplete`, any may be missing."""
    expected = list(core_records(decisions))
    at = 0
    for number, record in enumerate(records):
        if incomplete and record["event"] not in BESIDE:
            at = next((later for later in range(at, len(expected)) if _same(expected[later], record)), len(expected))
        if at < len(expected) and _same(expected[at], record):
            at += 1
        elif record["event"] not in BESIDE:
            core = expected[at] if at < len(expected) else "nothing"
            yield f"record {number} is {_short(record)}, the core says {core}"
            return
    if at < len(expected) and not killed and not incomplete:
        yield f"after the last record the core would have written {expected[at]}"


def core_records(decisions: bytes) -> Iterator[Record]:
    """Those that the core makes of these events, from the first state on."""
    job: Any = None
    policy: Any = None
    for event, changed, given in _entries(decisions):
        if given is not None:
            assert job is None, "the state of the job was changed by something else than a decision"
            job = given
        policy = policy if changed is None else changed
        before, (job, effects) = job.ledger.start_cnt, decide(job, event, policy)
        for effect, start in do.by_start(effects, before, job.ledger.start_cnt):
            if isinstance(effect, do.Persist):
                yield json.loads(lines.line("", event.now, effect.event, start, effect.fields))


def _entries(decisions: bytes) -> Iterator[tuple[Any, Any, Any]]:
    """One that an ftrun was writing when it was killed is left out."""
    stream = io.BytesIO(decisions)
    while stream.tell() < len(decisions):
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return


def _same(ours: Record, record: Record) -> bool:
    """The first record of an ftrun also describes the run."""
    names = ours.keys() if ours["event"] == "started" else ours.keys() | record.keys()
    return all(name in OWN or (name in record and name in ours and ours[name] == record[name]) for name in names)


def _short(record: Record) -> str:
    return str({name: value for name, value in record.items() if name not in OWN})[:300]
