"""What a person can do now about a run, as one sentence: the `do` line of `ftctl status`, `ftctl top` and the page."""

import os
import shlex
from typing import Final

from ftrun.core.rules import exit_codes
from ftrun.core.rules.hang_rules import RULES
from ftrun.core.text import sentences, states
from ftrun.core.text.durations import seconds
from ftrun.records.files.recent_events import Incident
from ftrun.records.present.snapshot import RankNow, Snapshot

QUIET: Final = 15.0  # s: from then on a job that stands still is looked at
BY_SIGSTOP: Final = "is stopped by SIGSTOP"  # what a look says of a process
QUIET_STEPS: Final = 10  # step times
QUIET_PACE: Final = 60.0  # s; the same for a rank that has no timeout, and whose step time is not known
# After a verdict; `{report}` is the command that prints the report of the last incident.
AFTER: Final = {
    exit_codes.HANG_LIMIT.name: "mend what {report} shows: each start has hung, so the next is likely to hang, too",
    exit_codes.USER_FAULT_LIMIT.name: "check what the program does to its devices: {report}; the nodes need no repair",
    exit_codes.NODE_FAULT.name: "take node {node} out of service and have it repaired; start the job on another node",
    exit_codes.FAILURE_LIMIT.name: "mend the failure that {report} shows, and start the job again",
    exit_codes.NON_RECOVERABLE.name: "mend the error that {report} shows, and start the job again",
    exit_codes.SHUTDOWN_HANG.name: "see whether the training is complete (no exit status); {report} shows what hung",
    exit_codes.INTERNAL.name: "send the error in {run_dir}/run.log to the authors of ftrun, and start the job again",
    exit_codes.NOT_EXECUTABLE.name: "make the command executable, or name its interpreter",
    exit_codes.NOT_FOUND.name: "check the name of the command, and PATH",
    exit_codes.FAILED: "read how it failed: {report}",
}


def what_to_do(shown: Snapshot) -> str:
    """The sentence; empty where nothing is wrong."""
    if shown.full_disk:
        return f"free space on the disk of {shown.run_dir}: what follows may be out of date"
    if not shown.alive:
        return _after_the_end(shown)
    if shown.stopped is not None:
        return f"continue ftrun: `kill -CONT {shown.stopped}`; until then it finds no hang and passes no signal on"
    if shown.paused is not None:
        return f"when you are ready, `{ftctl('resume', shown)}`: until then ftrun acts on no hang and no fault"
    return _about_its_state(shown) or _about_its_devices(shown) or _about_its_past(shown)


def ftctl(verb: str, shown: Snapshot) -> str:
    return f"ftctl {verb} --run-dir {_shell_word(shown.run_dir)}"


def _shell_word(path: str) -> str:
    """The path as a person can paste it: with bytes that no text shows, as `$'...'` of bash and zsh."""
    if path.isprintable():
        return shlex.quote(path)
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(path))
    return f"$'{''.join(plain)}'"


def quiet(rank: RankNow) -> bool:
    """Whether it has not moved for longer than half its limit, or than many of its own step times, or for long, and has
    not said why."""
    rule = None if rank.rule is None else RULES[rank.rule]
    if rule is not None and rule.announced is not None:
        return False
    age = (rank.moved or 0.0) if rank.age is None else rank.age
    if rank.limit is not None and age > rank.limit / 2:
        return True
    if rank.limit is None and rank.step_time is None:
        return rank.state == "moving" and age > QUIET_PACE
    by_steps = (rule is None or rule.by_steps) and rank.step_time is not None
    return by_steps and age > max(QUIET, QUIET_STEPS * (rank.step_time or 0.0))


def no_step(shown: Snapshot) -> str:
    """`none of rank 3 for 31s`, where a rank has made no step for longer than usual; empty elsewhere."""
    if not shown.alive or shown.phase not in states.LIVE:
        return ""
    rank = shown.stalest
    if rank is None or not quiet(rank):
        if shown.phase != "suspect":
            return ""
        rank = max(shown.ranks, key=lambda one: one.moved or 0.0, default=None)
    age = None if rank is None else rank.moved if rank.age is None else rank.age
    return "" if rank is None or not age else f"none of {sentences.rank(rank.rank)} for {seconds(age)}"


def _after_the_end(shown: Snapshot) -> str:
    if shown.phase == "cut off":
        return "start the same command in the same run dir again; `dmesg` or the scheduler shows what killed ftrun"
    if shown.verdict == exit_codes.HANG_LIMIT.name and hung_nowhere(shown):
        lost = shown.trouble
        who = "the members that were missing" if lost is None or lost.member is None else _named(lost)
        return f"look after {who}, and start the job again"
    text = "" if shown.exit_code == 0 else AFTER.get(shown.verdict or "", "")
    report, node = f"`{ftctl('report', shown)}`", shown.node or "(the one it ran on)"
    return text.format(report=report, node=node, run_dir=shown.run_dir)


def hung_nowhere(shown: Snapshot) -> bool:
    """Whether the limit of hangs was reached without a hang: a member of the group was missing for too long."""
    return shown.attempt == 0 if shown.trouble is None else shown.trouble.cause == "loss"


def _named(lost: Incident) -> str:
    return f"member {lost.member} ({lost.node})" if lost.node else f"member {lost.member}"


def _about_its_state(shown: Snapshot) -> str:
    if shown.phase == "suspect":
        return f"nothing yet, the verdict follows; `{ftctl('pause', shown)}` keeps the processes for a debugger"
    if shown.phase == "waiting" and shown.group is not None:
        return f"`{ftctl('status --all', shown)}` names the members that are missing"
    if shown.job is not None and shown.job.lost:
        return f"see to its host and the network; `{ftctl('status --all', shown)}` shows the group"
    if shown.phase not in states.LIVE:
        return "nothing, ftrun acts by itself" if shown.phase in ("stopping", "healing", "waiting") else ""
    if shown.wait is not None and shown.wait.endswith(BY_SIGSTOP):
        return f"continue it with SIGCONT, unless somebody holds it on purpose; `{ftctl('stacks', shown)}` shows it"
    if shown.wait is not None:
        return f"see to what it waits for; `{ftctl('stacks', shown)}` shows where each rank is"
    stalest = shown.stalest
    if stalest is not None and quiet(stalest):
        return (
            f"`{ftctl('stacks', shown)}` shows where each rank is; `{ftctl('pause', shown)}` keeps it from being ended"
        )
    return ""


def _about_its_devices(shown: Snapshot) -> str:
    if any(device.fault for device in shown.devices):
        return f"have the devices of {shown.node or 'this node'} checked; ftrun acts on faults that end training"
    slow = next((rank for rank in shown.ranks if rank.straggler is not None), None)
    if slow is None:
        return ""
    return (
        f"compare {sentences.rank(slow.rank)} with the others (clocks, temperature, other programs on its node): "
        f"`{ftctl('stacks', shown)}`"
    )


def _about_its_past(shown: Snapshot) -> str:
    if shown.trouble is None:
        return ""
    if shown.trouble.cause == "loss":
        return "nothing now, the group was started again"
    if shown.trouble.cause == "fault":  # it has no report
        return "nothing now, it was restarted; if it comes again, have the device checked"
    report = f"`{ftctl('report', shown)}`"
    if shown.trouble.again:
        return f"mend what {report} shows: it comes again at the same place"
    if shown.trouble.cause == "hang" and shown.trouble.report is None and shown.trouble.member is None:
        return "nothing now, it was restarted; no report could be written"
    return f"nothing now, it was restarted; {report} shows what happened"
