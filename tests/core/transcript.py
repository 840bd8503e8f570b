"""Plays a scenario file: a policy, then events with their time; after each, the effects and the phase that came out.

A file is text for people, and the expected text at once.  Lines that start at the margin are written by hand (`#`
comments, `policy`, `ledger`, `at TIME EVENT ...`); indented lines are what `decide` answered.  `play` returns the whole
text with the indented lines computed anew, so a test compares two texts and `FTRUN_REWRITE=1` writes the new one.

    policy hang=60 max_restarts=3              durations in seconds, `off` switches off; `auto`, `files` switch on
    ledger hang=2 best_step=7                  what earlier runs left, if anything
    ledger removed=gpu1 visible=CUDA_VISIBLE_DEVICES,0    lists have commas
    ledger learned=0.5/4.5/900                 usual pause, longest one, steps
    at 0 started
    at 5.2 beats-read rank=0 step=7 moved=5 in=eval@2/600>io@4/30 ; rank=1 gone      sections: name@start/limit, outer
    first
    at 6 beats-read rank=0 moved=5 in=upload@4:side>save@5:auto                      flags: of a side thread, of our own
    at 7 beats-read rank=0 step=3 done                                              it has trained to its end
    at 7 beats-read rank=0 step=3 saved=/c/last.pt@v2 resumed=/c/last.pt@v1         files with their versions
    at 60 command-exited signal=9
    at 60 looked rank=1 pid=101 fingerprint=a mechanism='it waits for itself'     closed; open with open_reason=...
    at 61 pause-requested request=7 lasting=600    requests of the operator, by the number under which they are answered
    at 62 group-order-received run 2 counts=1/0/0 : why='rank 3 fell' node=b     of the group, with `policy group`
    at 62 processes-survived "7 (sleep) S -" refused command     not permitted to signal it; the command is one of them
    at 62 group-order-received run 2 world=a/4000/1x4+2x8    where the ranks are: address, port, members x ranks of each
    at 70 rank-reported hello local_rank=0 held=4+5        ranks that can recover, with what they hold (a shard: 5/all)
    at 70 rank-reported asked-retry local_rank=1 round=1 why='a link was down' collective
    at 70 rank-reported left-round local_rank=0 round=1 held=4+5 problem='CUDA is broken'
    at 70 fault-reported npu1 80E01801 minor retry=memory        rank=2: the rank that the platform names
    at 70 group-order-received end 2 : code=195 verdict=hang-limit why='it hung' node=b
"""

import shlex
from typing import Any

from ftrun.core.group.messages import EpochRanks, GroupEnd, GroupOrder
from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.group_member import GroupMember, report
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Done, Finish, Job, Pending, Restart, Running, Starting, Stopping
from ftrun.core.machine.values import (
    Fault,
    Ledger,
    LocalRank,
    Rank,
    RankPlace,
    SavedFile,
    Section,
    UsableDevice,
    UsualPauses,
    VisibleDevices,
)
from ftrun.core.ranks.table import AskedRetry, FunctionFinished, HeldSnapshot, LeftRound, RankReport, SaidHello
from ftrun.core.rules.crash_causes import CommandFailure, ExceptionRecord, Traceback
from ftrun.core.rules.fault_history import Clock, Occurrence, Schedule
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Membership, Policy

INDENT = "    "


class BadScenario(Exception):
    """The file asks for something that cannot be: an unknown word, time that runs backwards, a tick before its time."""


def play(text: str) -> str:
    """The text with every answer computed anew.  Raises BadScenario, which names the line."""
    policy, job, now = Policy(), Job(), float("-inf")
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        out.append(line)
        try:
            match shlex.split(line, comments=True):
                case []:
                    pass
                case ["policy", *words]:
                    policy = _policy(_pairs(words))
                case ["ledger", *words]:
                    job = Job(ledger=_ledger(_pairs(words)))
                case ["at", time, name, *words]:
                    if float(time) < now:
                        raise BadScenario("time runs backwards")
                    now = float(time)
                    event = _event(now, name, words)
                    deadline = job.phase.deadline
                    if isinstance(event, ev.DeadlineReached) and (deadline is None or now < deadline):
                        raise BadScenario(f"a tick before its time ({deadline})")
                    job, effects = decide(job, event, policy)
                    out += [INDENT + _effect(e) for e in effects] + [
                        INDENT + "-> " + _state(job) + _reported(job, policy, now)
                    ]
                case _:
                    raise BadScenario("unknown line")
        except (BadScenario, KeyError, TypeError, ValueError) as error:
            raise BadScenario(f"{line!r}: {error}") from error
    return "\n".join(out) + "\n"


# --- reading ----------------------------------------------------------------------------------------------------------


def _pairs(words: list[str]) -> dict[str, str]:
    split = (word.partition("=") for word in words)
    return {key: value if equals else "true" for key, equals, value in split}


def _value(text: str) -> Any:
    if text in ("off", "none"):
        return None
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _policy(pairs: dict[str, str]) -> Policy:
    policy = Policy()
    for key, text in pairs.items():
        if key == "recover":
            policy = policy._replace(recover=frozenset(text.split(",")) - {"none"})
        elif key == "restart_on":
            policy = policy._replace(restart_on=frozenset(text.split(",")) - {"none"})
        elif key in Limits._fields:
            policy = policy._replace(limits=policy.limits._replace(**{key: _value(text)}))
        elif key in Membership._fields:
            policy = policy._replace(membership=policy.membership._replace(**{key: _value(text)}))
        else:
            policy = policy._replace(**{key: _value(text)})
    return policy


def _ledger(pairs: dict[str, str]) -> Ledger:
    values = {key: _value(text) for key, text in pairs.items()}
    if "learned" in values:
        values["learned"] = UsualPauses(*map(_value, pairs["learned"].split("/")))
    if "removed" in values:
        variable, *words = pairs["visible"].split(",")
        values |= {"removed": tuple(pairs["removed"].split(",")), "visible": VisibleDevices(variable, tuple(words))}
    return Ledger(**values)


def _event(now: float, name: str, words: list[str]) -> ev.Event:
    kinds = {kind.__name__.lower(): kind for kind in ev.EVENTS}
    kind: Any = kinds[name.replace("-", "")]
    if kind is ev.GroupOrderReceived:
        return ev.GroupOrderReceived(now, _order(words))
    if kind is ev.RankReported:
        return ev.RankReported(now, _report(words))
    if kind is ev.CommandSpawned and (count := _pairs(words).get("ranks")):
        first = int(_pairs(words)["pid"])
        return ev.CommandSpawned(now, first, tuple(LocalRank(n, n, first + n) for n in range(int(count))))
    if kind is ev.BeatsRead:
        return ev.BeatsRead(now, _ranks(words))
    if kind is ev.EvidenceCollected:
        split = words.index(":") if ":" in words else len(words)
        pairs = _pairs(words[split + 1 :])
        cleared = pairs.pop("cleared", None)
        named = [("culprits", tuple(map(int, pairs.pop("culprits").split(","))))] if "culprits" in pairs else []
        found = (*((k, _value(v)) for k, v in pairs.items()), *named)
        return ev.EvidenceCollected(now, _ranks(words[:split]), found, cleared)
    if kind is ev.FaultReported:
        split = words.index(":") if ":" in words else len(words)
        pairs = _pairs(words[split + 1 :])
        fields = {key: _value(text) for key, text in _pairs([word for word in words[:split] if "=" in word]).items()}
        device, vendors, severity, *why = (word for word in words[:split] if "=" not in word)
        fault = Fault(device, vendors, severity, *why, **fields)  # type: ignore[arg-type]
        return ev.FaultReported(now, fault, _clock(now, pairs), "preexisting" in pairs)
    if kind is ev.DevicesFound:
        shown = [word for word in words if "=" not in word]
        healthy = tuple(name for name in _pairs(words[len(shown) :]).get("well", "").split(",") if name)
        devices = tuple(UsableDevice(name, "CUDA_VISIBLE_DEVICES", name[-1]) for name in shown)
        return ev.DevicesFound(now, devices, healthy, Clock(now, "boot", now))
    if kind is ev.HistoryLoaded:
        return _remembered(now, words)
    if kind is ev.CommandExited and ":" in words:
        split = words.index(":")
        pairs = _pairs(words[:split])
        code, signal = (_value(pairs[name]) if name in pairs else None for name in ("code", "signal"))
        return ev.CommandExited(now, code, signal, _ending(code, signal, _pairs(words[split + 1 :])))
    if kind is ev.LeftoversFound:
        pairs = _pairs(words)
        return ev.LeftoversFound(now, int(pairs["local_rank"]), (pairs["processes"],))
    if kind is ev.DevicesReleased:
        lists = {key: tuple(text.split(",")) for key, text in _pairs(words).items()}
        return ev.DevicesReleased(
            now, lists.get("held", ()), lists.get("silent", ()), lists.get("well", ()), _clock(now, {})
        )
    if kind is ev.DevicesChecked:
        well = _pairs(words).get("well")
        return ev.DevicesChecked(now, tuple(well.split(",")) if well else (), _clock(now, {}))
    if kind is ev.ProcessesSurvived:
        names = tuple(word for word in words if word not in ("refused", "command"))
        return ev.ProcessesSurvived(now, names, "refused" in words, "command" in words)
    given: dict[str, Any] = {"stop": False} if kind is ev.SignalReceived else {}
    given |= {"open_reason": None} if kind is ev.Looked else {}
    pairs = _pairs(words)
    if "request" in pairs:
        given["requester"] = ev.Requester(pairs.pop("request"), "root", float(pairs.pop("until", "inf")))
    event: ev.Event = kind(now, **given | {key: _value(text) for key, text in pairs.items()})
    return event


def _report(words: list[str]) -> RankReport:
    """`left-round local_rank=0 round=1 held=4+5/all`"""
    kinds = {"hello": SaidHello, "asked-retry": AskedRetry, "left-round": LeftRound, "finished": FunctionFinished}
    pairs = _pairs(words[1:])
    given: dict[str, Any] = {key: _value(text) for key, text in pairs.items()}
    if "held" in pairs:
        parts = [text.partition("/") for text in pairs["held"].split("+")]
        given["held"] = tuple(HeldSnapshot(int(step), shard) for step, _, shard in parts)
    made: RankReport = kinds[words[0]](**given)
    return made


def _order(words: list[str]) -> GroupOrder:
    what, epoch, *more = words
    split = more.index(":") if ":" in more else len(more)
    given: dict[str, Any] = {key: _value(text) for key, text in _pairs(more[:split]).items()}
    rest = {key: _value(text) for key, text in _pairs(more[split + 1 :]).items()}
    if "world" in given:  # ADDRESS/PORT/MEMBERSxRANKS+...
        address, port, counts = given["world"].split("/")
        pairs = tuple(tuple(map(int, pair.split("x"))) for pair in counts.split("+"))
        given["world"] = EpochRanks(address, int(port), pairs)  # type: ignore[arg-type]
    if "counts" in given:
        given["counts"] = tuple(map(int, given["counts"].split("/")))
    if what == "end":
        return GroupOrder(int(epoch), "end", end=GroupEnd(**rest), **given)
    return GroupOrder(int(epoch), what, **given, **rest)  # type: ignore[arg-type]


def _ending(code: Any, signal: Any, pairs: dict[str, str]) -> CommandFailure:
    """`raised=ValueError says='bad batch' beaten oom=2`: what the command itself died of."""
    thrown = ExceptionRecord((pairs["raised"], "Exception"), pairs.get("says", "")) if "raised" in pairs else None
    cause = None if thrown is None else Traceback(100, thrown)
    return CommandFailure(code, signal, "beaten" in pairs, cause, (), _value(pairs.get("oom", "none")), 100)


def _clock(now: float, pairs: dict[str, str]) -> Clock:
    """By itself the clocks run together, in one boot."""
    return Clock(float(pairs.get("wall", now)), pairs.get("boot", "b"), float(pairs.get("mono", now)))


def _remembered(now: float, words: list[str]) -> ev.HistoryLoaded:
    """`fault node gpu0 48 major wall=0 job=x ; schedule 1 failed step=7 job=x`"""
    occurrences: list[Occurrence] = []
    schedules: list[Schedule] = []
    for chunk in " ".join(words).split(" ; "):
        kind, *rest = chunk.split()
        if kind == "fault":
            pairs = _pairs(rest[4:])
            job = pairs.pop("job", "")
            occurrences.append(Occurrence(rest[0], rest[1], rest[2], rest[3], _clock(now, pairs), job))
        else:
            pairs = _pairs(rest[1:])
            best = (_value(pairs.get("step", "none")), _value(pairs.get("checkpoint", "none")))
            progressed, faulted, failed = (name in pairs for name in ("progressed", "faulted", "failed"))
            one = Schedule(f"k{len(schedules)}", int(rest[0]), "n", 0.0, *best, progressed, faulted, failed)
            schedules.append(one._replace(job=pairs.get("job", "")))
    return ev.HistoryLoaded(now, tuple(occurrences), tuple(schedules))


def _ranks(words: list[str]) -> tuple[Rank, ...]:
    """`rank=0 step=7 moved=5 ; rank=1 gone`"""
    ranks: list[Rank] = []
    chunk: list[str] = []
    for word in [*words, ";"]:
        if word != ";":
            chunk.append(word)
        elif chunk:
            ranks.append(_rank(_pairs(chunk)))
            chunk = []
    return tuple(ranks)


def _rank(pairs: dict[str, str]) -> Rank:
    names = {
        "claimed": "claimed_at",
        "alive": "alive_at",
        "moved": "moved_at",
        "checkpoint": "checkpoint_step",
        "path": "checkpoint_path",
    }
    fields: dict[str, Any] = {}
    for key, text in pairs.items():
        if key == "gone":
            fields["present"] = False
        elif key == "in":
            fields["sections"] = tuple(_section(part) for part in text.split(">"))
        elif key in ("saved", "resumed"):
            fields[key] = tuple(SavedFile(*part.split("@")) for part in text.split(","))
        elif key == "fatal":
            fields["fatal"] = text
        else:
            fields[names.get(key, key)] = _value(text)
    return Rank(**fields)


def _section(text: str) -> Section:
    text, *flags = text.split(":")
    if not set(flags) <= {"side", "auto"}:
        raise BadScenario(f"no such flag of a section: {flags}")
    name, _, times = text.partition("@")
    started, _, timeout = times.partition("/")
    return Section(name, float(started), float(timeout) if timeout else None, "side" in flags, "auto" in flags)


# --- writing ----------------------------------------------------------------------------------------------------------


def _show(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return repr(text) if " " in text or not text else text


def _effect(effect: do.Effect) -> str:
    match effect:
        case do.Persist(event, fields, durable):
            shown = "".join(f" {key}={_show(value)}" for key, value in fields if value is not None)
            return f"write {event}{shown}{'; sync' if durable else ''}"
        case do.LogLine(text):
            return f"say {text!r}"
        case do.Spawn(number, place, _, begun):
            late = f", for round {begun}" if begun > 1 else ""
            return f"spawn attempt {number}" + ("" if place is None else f": {_place(place)}") + late
        case do.PrepareStandbys(place, node):
            at = f"node {node.number} of {node.nodes}" if place is None else _place(place)
            return f"hold standbys for a start like {at}"
        case do.Forward(signal):
            return f"forward signal {signal}"
        case do.FenceRank(local_rank, number, why):
            return f"fence local rank {local_rank} out of round {number}: {why}"
        case do.EndRank(local_rank):
            return f"end local rank {local_rank}"
        case do.FindLeftovers(local_rank):
            return f"find what local rank {local_rank} has left"
        case do.EndLeftovers(local_rank, grace):
            return f"end what local rank {local_rank} has left: SIGTERM, and SIGKILL after {_show(grace)} s"
        case do.StartRank(local_rank, number, start_cnt):
            return f"start local rank {local_rank} for round {number} as start {start_cnt}"
        case do.BeginRound(local_rank, number, restore, reason, _, lends, _):
            source = f"step {restore.step} of local rank {restore.source}" if restore else "the checkpoint"
            lent = ", which it lends" if lends else ""
            return f"begin round {number} of local rank {local_rank} ({reason}) with {source}{lent}"
        case do.ReleaseSnapshot(local_rank, number):
            return f"local rank {local_rank} may overwrite the snapshot with which round {number} began"
        case do.Investigate(finding, due):
            early = "" if due is None else f", whose limit passes at {_show(due)}"
            return f"investigate rule {finding.rule} of rank {_show(finding.rank)}{early}"
        case do.Heal(fault):
            return f"heal {fault.device} {fault.code} {fault.severity}" if fault else "ask for permission to start"
        case do.AskForVerdict():
            return "ask for the verdict of another ftrun"
        case do.AnswerOperator(id, ok, why):
            return f"answer request {id}: {'' if ok else 'no, '}{why}"
        case do.Exit(code, verdict, message):
            return f"exit {code} {verdict}: {message}"
        case do.Terminate(in_turn):
            return "terminate each process after its parent" if in_turn else "terminate"
        case do.Look() | do.Kill() | do.Inspect() | do.Release():
            return type(effect).__name__.lower()


def _place(place: RankPlace) -> str:
    ranks = f"ranks {place.first} to {place.first + place.number - 1} of {place.size}"
    return f"{ranks}, member {place.member} of {place.members}, rank 0 at {place.address}:{place.port}"


def _reported(job: Job, policy: Policy, now: float) -> str:
    """What this member reports to the group."""
    if not policy.membership.group:
        return ""
    reported = report(job, GroupMember(0, "life", "a", "boot"), policy, now, False)
    failure = "" if reported.failure is None else f", {reported.failure.cause} {_show(reported.failure.age)} ago"
    end = "" if reported.end is None else f", {reported.end.code}"
    ranks = "" if reported.ranks is None else f", {reported.ranks.number} ranks"
    progress = ", progress" if reported.progressed else ""
    return f"; reports {reported.state} {reported.epoch}{failure}{end}{progress}{ranks}"


def _state(job: Job) -> str:
    phase, ledger = job.phase, job.ledger
    name = type(phase).__name__
    if isinstance(phase, Done):
        return f"{name} {phase.code}"
    if isinstance(phase, Stopping):
        name += f" ({phase.stage})"
    if not isinstance(phase, Pending) or isinstance(job.want, Restart):
        name += "" if phase.deadline is None else f" until {_show(phase.deadline)}"
    if isinstance(job.want, Restart):
        name += f", then restart ({job.want.reason})"
    if isinstance(job.want, Finish):
        name += f", then end with {'its own code or ' if job.want.own else ''}{job.want.code} {job.want.verdict}"
    if isinstance(phase, Starting | Running) and phase.attempt.stalled is not None:
        name += f", rank {phase.attempt.stalled.rank} stalled"
    if job.paused is not None:
        name += f", paused since {_show(job.paused.since)}"
    counts = [f"{cause} {n}" for cause, n in zip(ledger._fields[2:5], ledger[2:5], strict=True) if n]
    return name + (f" [{', '.join(counts)}]" if counts else "")
