"""The meaning of the records and of their fields, for the page of the records."""

from typing import Final

from ftrun.core.rules.fault_codes import SEVERITIES
from ftrun.core.rules.hang_rules import RULES

NAMES: Final = [f"`{rule}`" for rule in RULES]
FINDING: Final = {
    "rule": f"{', '.join(NAMES[:-1])} or {NAMES[-1]}",
    "rank": "-1: the touch file; -1 - pid: a process without RANK; `null`: the whole command",
    "age": "how long it has been silent",
    "limit": "the timeout that has passed; `deadlock`: when it is looked at",
    "step": "its step",
    "section": "the section that is overdue",
    "pid": "its process id",
    "mechanism": "`deadlock`: what waits for what; `spin`: where the rank computes; a sentence",
}
FAULT: Final = {
    "device": "the id of the device",
    "code": "the vendor's code",
    "severity": f"by the table: {', '.join(SEVERITIES[:-1])} or {SEVERITIES[-1]}",
    "why": "the meaning of the code",
    "retry": "what may cure it: memory, network, request or process",
    "rank": "its rank, where the platform names it",
    "preexisting": "true: the device had it before the first start, and it ends nothing",
}
END: Final = {"verdict": "its name", "exit_code": "of ftrun", "why": "one sentence"}
# In the order in which one meets them: when it is written, and the fields of its own.
MEANING: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "started": (
        "this ftrun is about to start the command for the first time",
        {
            "reason": "`first`; `failure` if this run dir has starts of an earlier ftrun in this schedule",
            "start_cnt": "`MA_PROC_START_CNT`",
            "epoch": "of the group, if ftrun is a member of one",
            "version": "of ftrun",
            "command": "the command and its arguments",
            "pid": "of ftrun",
            "phase": "name of the `[[phase]]`, if there are phases",
            "annotations": "of the platform",
        },
    ),
    "spawned": (
        "the command has been executed",
        {"pid": "of the command, or of its first rank", "pids": "with `--nproc-per-node`: of all ranks of this node"},
    ),
    "rank_exited": (
        "a rank that ftrun started (`--nproc-per-node`) ended",
        {
            "rank": "its number",
            "local_rank": "its number on this node",
            "code": "its exit code",
            "signal": "the signal that ended it",
            "exception": "the last exception of one of its processes, and where it was raised",
        },
    ),
    "link_fault": (
        "a link is faulty; the communication library's own retries come first",
        {
            "device": "the device that reports it",
            "code": "its code",
            "limit": "for how long a rank may stand still meanwhile (`--link-timeout`)",
            "library": "the library, and its variables",
        },
    ),
    "link_recovered": (
        "all ranks have moved since",
        {"device": "the device that reports it", "code": "its code", "seconds": "since the fault"},
    ),
    "rank_leftovers": (
        "a rank has ended with 0 and left processes, which get SIGTERM and after the grace SIGKILL",
        {
            "rank": "its number",
            "local_rank": "its number on this node",
            "processes": "pid, name, state of each, and what it waits for in the kernel",
            "grace": "`--grace`",
        },
    ),
    "rank_killed": (
        "SIGKILL was needed for what a rank had left",
        {
            "rank": "its number",
            "local_rank": "its number on this node",
            "processes": "the number of processes that it ended",
        },
    ),
    "rank_spawned": (
        "a rank was started again, while the others go on",
        {"rank": "its number", "local_rank": "its number on this node", "pid": "of the new process"},
    ),
    "recovering": (
        "the ranks leave their round, or the attempt ends because they cannot recover (`tree`)",
        {
            "rung": "`retry`: each rank calls its function again; `rank`: some are replaced; `tree`: all are restarted",
            "round": "the number of the next round",
            "ranks": "the numbers of the ranks that are replaced",
            "why": "the fault in a sentence; `tree`: why no other rung is left",
        },
    ),
    "recovered": (
        "each rank has moved, or has finished, in the new round",
        {
            "rung": "`retry` or `rank`",
            "round": "its number",
            "ranks": "the numbers of the ranks that are replaced",
            "step": "the step of the snapshots with which it began; `null`: the checkpoint",
            "seconds": "from the fault to the first movement of the last rank",
        },
    ),
    "unexpected": (
        "an event came in a phase in which it has no meaning: a mistake of ftrun, without an effect on the job",
        {
            "what": "the event and the phase",
            "count": "how often by now: it is written for the first, the tenth, the hundredth",
        },
    ),
    "first_beat": (
        "the first rank has moved",
        {
            "rank": "its number",
            "step": "its step, if it reports steps",
            "source": "the framework that gave the heartbeat, if it was not the program itself",
        },
    ),
    "progress": (
        "the restart budget is restored: a newer checkpoint, or the first step beyond all earlier ones",
        {
            "by": "`checkpoint`, `step`, `save` (it resumed from its newest file and saved a newer one) or "
            "`stable` (`--stable-after`)",
            "step": "of the checkpoint, otherwise the highest",
            "checkpoint": "path of the newest",
            "seen": "with `--progress`: when the file was seen complete, as `mono`",
        },
    ),
    "learned": (
        "`--hang-timeout auto`: which pauses between two movements are usual, for the record `stalled`",
        {
            "usual": "the 99th percentile of the last thousand silences",
            "longest": "of all but the first ten",
            "steps": "how many silences are known",
            "notice": "after how long a pause is unusual",
        },
    ),
    "look": (
        "a job that has stood still for a minute or longer waits for something else than at the record before",
        {
            "age": "for how long it has stood still",
            "open": "true: something may still end the wait; false: nothing can",
            "why": "what it waits for, a sentence",
        },
    ),
    "suspect": ("a timeout has passed, or a deadlock was proved; evidence is being collected", FINDING),
    "cleared": ("the suspicion was refuted", {"why": "the reason"}),
    "hang": (
        "the verdict that the suspect hangs",
        FINDING
        | {
            "mechanism": "why the suspect stands still, a sentence; the headline of the report",
            "why": "the place in the code, if it is known",
            "cpu": "cores that the suspect and its children used",
            "io": "bytes a second that they read and wrote",
            "report": "path of the report",
            "processes": "the number of processes in the tree",
            "evidence": "`none in time`: the evidence did not come in time",
            "waits": "whether its stack shows that it waits for other ranks",
            "culprits": "with `--nproc-per-node`: the ranks that cause the hang, if that is certain",
        },
    ),
    "fault": (
        "a device reports a fault",
        FAULT | {"follows": "the code of the memory error whose consequence it is"},
    ),
    "healing": ("a fault is being cured, or the platform permits no start", FAULT),
    "removed": (
        "the command continues without a device",
        {"device": "the id of the device", "left": "the number of devices that are left"},
    ),
    "platform": (
        "the platform wants the command to end or to start again",
        {"what": "`end` or `restart`", "why": "the field of reset.json that says so"},
    ),
    "regaining": (
        "a checkpoint restarts the command to use devices again (`--scale-out checkpoint`)",
        {"devices": "their ids", "why": "why now"},
    ),
    "returned": (
        "the next start has a device again that was taken out",
        {
            "device": "the id of the device",
            "devices": "the number of devices of the command",
            "why": "why the device counts as well",
        },
    ),
    "stopping": (
        "the tree is being ended",
        {
            "by": "`SIGTERM` or `SIGKILL`: ftrun; `outside`: a signal was forwarded",
            "grace": "seconds until SIGKILL",
            "signal": "its number, if from outside",
        },
    ),
    "exited": (
        "the command ended",
        {
            "code": "its exit code, or",
            "signal": "the signal that killed it",
            "why": "the first cause, if it failed",
            "rule": "the rule of `core/rules/crash_causes.py` that gave the cause",
            "rank": "with `--nproc-per-node`: the rank whose end this is",
            "oom_kills": "the number of processes that the kernel killed for lack of memory",
            "stack": "of a Python process that an exception or a signal ended, the innermost call first",
            "output": "the files into which its output goes, outside the run dir, and their sizes",
        },
    ),
    "killed": ("SIGKILL was needed", {"processes": "the number of processes that it ended"}),
    "restart": (
        "ftrun is about to start the command again",
        {
            "reason": "hang, fault, failure, manual or peer",
            "start_cnt": "`MA_PROC_START_CNT` of the new start",
            "consecutive": "restarts in a row without progress, for this cause",
            "epoch": "of the group, if ftrun is a member of one",
        },
    ),
    "escalated": (
        "ftrun makes no further restart in place",
        {"cause": "hang, fault, failure, or another cause", **END},
    ),
    "paused": (
        "an operator suspends verdicts",
        {"for": "seconds; `null`: until it is resumed", "by": "who; empty: another member"},
    ),
    "resumed": (
        "verdicts are active again",
        {"stood": "seconds of the pause in which no rank has moved"},
    ),
    "frozen": (
        "ftrun itself did not run for 10 s or more: it was suspended, or blocked by the disk of its run dir; while the "
        "command ran, that time is lost (`paused`)",
        {"seconds": "for how long"},
    ),
    "standby": (
        "what has become of the processes that wait for the next start",
        {
            "what": "`ready`: they wait; `cold`: the next start is cold; `failed`: one ended, and is replaced; `off`: "
            "there are none any more; `alone`: each rank has a standby that imports by itself; `start`: the outcome of "
            "a start; `saved`: the time that a warm start has saved",
            "why": "the reason of a cold start, or of the end of a standby",
            "ready": "how many wait",
            "forked": "how many of these were forked from one process",
            "of": "the number of processes of the command",
            "warm": "how many of these were standbys",
            "local_rank": "the rank whose standby it was",
            "seconds": "`ready`: the longest import; `saved`: up to the first heartbeat, against the last cold start",
            "memory": "bytes (PSS) of all that wait",
        },
    ),
    "order": (
        "a request of an operator (`ftctl`), and the answer to it",
        {
            "what": "restart, stop, pause or resume",
            "id": "of the request",
            "by": "who made the request",
            "ok": "whether it is carried out",
            "why": "the answer, a sentence",
        },
    ),
    "group": (
        "an order of the coordinator to the group; at rank 0 also what it has observed",
        {
            "what": "`wait`; `run`: start the command of this epoch; `stop`: end the command; `end`: end the job; "
            "`unheard`: rank 0 is silent; `cut`: rank 0 was not reachable in time; `noted`: what rank 0 observed",
            "epoch": "the number of the start of the whole group",
            "why": "a sentence",
            "world_size": "with `run`: how many ranks start on all members",
            "cause": "of the next start: hang, fault, failure, manual or peer",
            "node": "the node of the first failure",
            "member": "its member",
            "rank": "the rank that stopped first",
            "step": "its step",
            "verdict": "with `end`: its name",
            "exit_code": "with `end`: the exit code of all members",
        },
    ),
    "lost": (
        "a member of the group is lost, or has left before the end: member 0 writes it, and about member 0 each of the "
        "others",
        {
            "member": "its number",
            "node": "its host",
            "why": "a sentence",
            "wait": "for how long it is waited for, in seconds; absent: it is not. With a lease in a shared folder "
            "longer than a short `--wait-peer` (howto/several-nodes.md)",
            "then": "what follows: `go on` without it, `replace` it by a spare, or `end`",
            "working": "with `go on`: how many members that are",
            "exit_code": "with `end`: the exit code of the job",
        },
    ),
    "waiting": (
        "no command has run for five minutes; once for each wait",
        {"seconds": "for how long", "why": "what is waited for"},
    ),
    "problem": (
        "something does not work as it should, and the job continues",
        {
            "what": "a sentence",
            "helper": "the helper that reported it",
            "annotations": "the file with a value that is not valid",
            "traceback": "of ftrun itself, which ends with 125",
        },
    ),
    "stalled": (
        "`--hang-timeout auto`: a rank has not moved for unusually long; nothing is ended for it. Once for each stall",
        {
            "rank": "its number",
            "step": "its step",
            "age": "how long it has not moved",
            "wait": "what it waits for, according to the last look, a sentence",
            "advice": "what a person can do",
        },
    ),
    "straggler": (
        "a rank has been slow against the others for a minute; in a group rank 0 writes it",
        {
            "rank": "its number in the job",
            "step_time": "seconds per step of this rank",
            "usual": "the median of the others; of `work`, where that is given",
            "seconds": "for how long it has been slow",
            "member": "in a group: its member",
            "node": "its host",
            "device": "its accelerator, where each rank has one",
            "work": "seconds of a step in which it does not wait, where all ranks take the same time for a step",
        },
    ),
    "listening": (
        "a helper listens for clients: `--metrics`",
        {"helper": "its name", "address": "`HOST:PORT`, with the real port"},
    ),
    "ended": ("the run is over", END),
}
