"""What each target is begun with: real samples, and what was found in earlier runs."""

import json
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from ftrun.config.option_table import OPTIONS
from ftrun.core.group.messages import GroupOrder, MemberReport, NodeFailure, Pulse
from ftrun.core.group.waits import BlockedProcess, OutsideLink, Waits
from ftrun.core.machine.values import Ledger, UsualPauses
from ftrun.core.ranks import table
from ftrun.core.rules.fault_history import Clock, Occurrence
from ftrun.messages import group_waits, operator, peers, ranks, state
from ftrun.messages.codec import Protocol
from ftrun.pid1.clients.registry import TABLE as HELPERS
from ftrun_hooks import layout as at
from support.device.npu_smi import FakeNpuSmi
from support.made_run import MadeRun
from support.runs import HOUSE

SHARED: Final = HOUSE.parent / "shared" / "npu-smi"
NS: Final = 1_000_000_000
REPORT: Final = MemberReport(1, "life", 7, "node", "boot", 2, "running")
FAULT: Final = {
    "node": "n",
    "device": "npu0",
    "code": "80C98002",
    "severity": "minor",
    "at": {"boot": "b", "wall": 1, "mono": 2},
}
SCHEDULE: Final = {
    "key": "k",
    "node": "n",
    "number": 1,
    "wall": 1.5,
    "best_step": 7,
    "best_checkpoint": None,
    "progressed": True,
    "faulted": False,
    "failed": True,
    "phase": "p",
}
VERDICT: Final = {
    "schema": 1,
    "verdict": "hang-limit",
    "exit_code": 195,
    "node": "n",
    "why": "w",
    "schedule_cnt": 1,
    "device": None,
    "time": "2026-01-02T03:04:05.678Z",
}
RESET: Final = {
    "FaultFlushing": False,
    "GracefulExit": 0,
    "UpdateTime": 1700000000,
    "RetryTime": 1,
    "RestartFaultProcess": True,
    "RankList": [
        {
            "RankId": 0,
            "LogicId": 0,
            "Status": "unrecovered",
            "Policy": "reset",
            "ErrorCode": None,
            "ErrorCodeHex": "80C9,8C2",
        },
        {"RankId": 1, "LogicId": 1, "Status": "fault", "ErrorCode": [2160], "ErrorCodeHex": ["[0x80C98002]"]},
    ],
}
TOML: Final = """restart-on = ["hang", "fault"]
max_restarts = 3
hang-timeout = "10m"
metrics = ":9400"
group-endpoint = "[fd00::1]:29470"
[[phase]]
name = "train"
command = "python 'train.py' --x"
progress = ["/a/*", "/b"]
[[phase]]
name = "evaluate"
command = ["python", "e.py"]
max-restarts = "off"
"""
PLATFORM: Final = """fault-tolerance/job-retry-num="8"
fault-tolerance/hang-retry="true"
fault-tolerance/job-unconditional-retry="false"
recover-strategy="recover-in-place, retry"
fault-retry-times="3"
jobset.sigs.k8s.io/restart-attempt="2"
other="a\\"b\\n\\u00e9"
# a comment
"""
VARIABLES: Final = (
    "SLURM_JOB_ID=5\nSLURM_STEP_ID=0\nSLURM_STEP_NUM_TASKS=4\nSLURM_PROCID=1\nSLURM_JOB_NODELIST=gpu[003-005,9],b1",
    "MA_NUM_HOSTS=2\nVC_WORKER_HOSTS=a.b,c.d\nVC_TASK_INDEX=1",
    "JOB_COMPLETION_INDEX=1\nJOBSET_JOB_INDEX=0\nJOBSET_REPLICAS=2\0train-0-1\00010.0.0.1 train-0-1.train train-0-1",
    "VC_MASTER_HOSTS=a\nVC_WORKER_HOSTS=b,c\nVK_TASK_INDEX=1\0b.x",
    "NNODES=2\nNODE_RANK=1\nMASTER_ADDR=h\nRANK=3\nLOCAL_RANK=0,1\nLOCAL_WORLD_SIZE=8\nFTRUN_HANG_TIMEOUT=5m",
)
TABLE: Final = "# ours\n0x80C98002 major  HBM\n79 critical fell off\n[80E01801] ignore\n"
RAISED: Final = """pid 17
at 999000000000
started 990000000000
parents 1 2 3
rank 4
program train.py
kinds RuntimeError Exception BaseException
message CUDA error: out of memory
more second line
where train.py:12 step
own train.py:12 step
chain cause
root-kinds torch.cuda.OutOfMemoryError RuntimeError Exception
root-message NCCL watchdog timeout
end
"""
PRINTED: Final = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    f()\nValueError: x\n'
MOUNTS: Final = """22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:20 / /dev/shm rw,nosuid shared:2 - tmpfs tmpfs rw,size=65536k
24 22 0:21 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
25 22 0:22 / /mnt/a\\040b rw - tmpfs none rw
"""
CGROUP: Final = "12:memory:/docker/abc\n0::/user.slice\n"
SPY: Final = [
    {
        "pid": 1,
        "thread_id": 5,
        "thread_name": "MainThread",
        "os_thread_id": 1,
        "active": True,
        "owns_gil": True,
        "frames": [
            {"name": "f", "filename": "a.py", "module": None, "short_filename": "a.py", "line": 7, "locals": None}
        ],
    }
]
SIMPLE: Final[dict[object, Any]] = {int: 1, float: 999.0, bool: True, str: "w", object: 1}


def value_of(kind: Any, whole: bool) -> Any:
    """A value of this type; `whole`: with what it need not have."""
    if kind in SIMPLE:
        return SIMPLE[kind]
    if hasattr(kind, "_fields"):
        return kind(*(value_of(hint, whole) for hint in get_type_hints(kind).values()))
    inner, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return inner[-1] if whole else inner[0]
    if origin is tuple:
        return tuple(value_of(one, whole) for one in inner if one is not Ellipsis)
    if origin in (dict, Mapping):
        return {"w": value_of(inner[1], whole)}
    (some,) = (one for one in inner if one is not type(None))
    return value_of(some, whole) if whole else None


def _samples(protocol: Protocol[Any]) -> tuple[tuple[Any, ...], ...]:
    """Two of each type of message, or one of those that have no choice."""
    both = [(value_of(kind, True), value_of(kind, False)) for kind in protocol.kinds.values()]
    return tuple(one for full, least in both for one in ((full, least) if full != least else (full,)))


PROTOCOLS: Final[dict[str, Protocol[Any]]] = {entry.helper: entry.load().events for entry in HELPERS}
SAMPLES: Final = {name: (protocol, _samples(protocol)) for name, protocol in PROTOCOLS.items()}
HELD: Final = (table.HeldSnapshot(4, "all"), table.HeldSnapshot(5))
RANK_PACKETS: Final[tuple[tuple[table.RankReport, ...], ...]] = (
    (table.AskedRetry(0, 1, "a link was down"), table.LeftRound(0, 1, HELD)),
    (table.AskedRetry(0, 1, "connection reset", True), table.LeftRound(0, 1, (), "CUDA is broken")),
    (table.SaidHello(0, HELD), table.FunctionFinished(0, 1)),
)
LINES: Final = {name: [*map(protocol.dump, samples)] for name, (protocol, samples) in SAMPLES.items()}


def seeds(name: str) -> list[bytes]:
    """Of a target."""
    return [content if isinstance(content, bytes) else content.encode() for content in MADE[name]()]


def _line(helper: str, line: bytes) -> bytes:
    """As the target `helpers` takes it."""
    return bytes([[*PROTOCOLS].index(helper)]) + line


def _npu() -> list[bytes | str]:
    found: list[bytes | str] = [path.read_bytes() for path in sorted(SHARED.glob("*.txt"))] if SHARED.is_dir() else []
    for kind in ("910A", "910B", "A3", "950"):
        with tempfile.TemporaryDirectory() as folder:
            fake = FakeNpuSmi(Path(folder), kind)
            fake.set(processes=[(1, "a b", 3), (2, "", 4)], codes=[("80E01801", "one"), ("8C084E00", "two")])
            found += [text for text, _ in fake.answers().values()]
    return found


def _state() -> bytes:
    kept = (Occurrence("n", "npu0", "80C98002", "minor", Clock(1.5, "boot", 2.5)),)
    ledger = Ledger(3, best_step=7, last_checkpoint="/c/7", learned=UsualPauses(1, 2, 3), occurrences=kept)
    return state.dump_state(ledger, {"beat_dir": "/dev/shm/x", "ended": False})


def _run_dir() -> list[bytes | str]:
    """The files of one that was made up, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        made = MadeRun(Path(folder))
        try:
            events = ("started", "spawned", "first_beat", "progress", "suspect", "hang", "stopping", "restart", "ended")
            for event in events:
                made.record(event, reason="hang", rule="step", rank=0, age=5.0, limit=4.0, step=7, verdict="hang-limit")
            made.samples([(5.0, 1, 2), (1.0, 3, 4)])
            made.write()
            device = {"vendor": "", "index": 0, "id": "0", "name": "n", "util": 5, "memory_used": 1, "power": 3}
            (made.folder / "devices.json").write_text(json.dumps({"mono": time.monotonic(), "devices": [device]}))
            names = ("events.jsonl", "state.json", "steps.jsonl", "devices.json")
            return [b"\0".join((made.folder / name).read_bytes() for name in names), b"\0\0\0"]
        finally:
            made.close()


def _slot(rank: int = 0, **words: int) -> bytes:
    """Of a rank that moved at 995 s and is in two sections."""
    moved = {"CLAIMED_AT": 990, "ALIVE_AT": 994, "MOVED_AT": 995, "CHECKPOINT_AT": 993}
    known = {"MAGIC_WORD": at.MAGIC, "PID": 1, "START_TICKS": 2, "RANK": rank, "STEP": 8, "DEPTH": 2, "INTERVALS": 200}
    known |= {"CHECKPOINT_STEP": 6, "USUAL": NS, "LONGEST": 2 * NS, **{name: at_ * NS for name, at_ in moved.items()}}
    content = bytearray(at.SLOT_WORDS * at.WORD)
    for name, value in (known | words).items():
        struct.pack_into("=Q", content, getattr(at, name) * at.WORD, value)
    for level, section in enumerate((b"train", b"checkpoint")):
        where = (at.SECTION_TABLE + level * at.SECTION_WORDS) * at.WORD
        struct.pack_into("=QQ48s", content, where, 994 * NS, 60 * NS | at.SIDE, section)
    return bytes(content)


def _beat_file() -> bytes:
    head = struct.pack("=QQ", at.MAGIC, at.NO_LOOK).ljust(at.HEADER_WORDS * at.WORD, b"\0")
    return (head + _slot() + _slot(1)).ljust(at.FILE_BYTES, b"\0")


def _waits() -> list[Waits]:
    """Of two members, whose ranks wait for each other."""
    zero = BlockedProcess(10, 0, "waits in all_reduce at train.py:9", "all_reduce", links=(0,), listens=True)
    one = BlockedProcess(20, 1, "waits for a lock at train.py:5", needs=(), links=(0,))
    links = (
        OutsideLink("10.0.0.1:5", "10.0.0.2:6", (0,), 7, True),
        OutsideLink("10.0.0.2:6", "10.0.0.1:5", (0,), 7, True),
    )
    return [Waits(n, 3, "x:1", f"print-{n}", (process,), (links[n],), 2) for n, process in enumerate((zero, one))]


def _messages() -> list[bytes | str]:
    kinds = (MemberReport, GroupOrder, Pulse, peers.MemberHello)
    values = [value_of(kind, whole) for kind in kinds for whole in (True, False)]
    return [*map(peers.dump, values), peers.dump_time(12.5), b"12", b'{"rank": 1e999, "node": 1}']


# --- /proc and sock_diag ----------------------------------------------------------------------------------------------

SYSCALLS: Final = (
    "202 0x7f00 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f11",  # futex
    "7 0x7f00 0x2 0xffffffff 0x0 0x0 0x0 0x7ffd 0x7f11",  # poll
    "270 0x5 0x7f00 0x0 0x0 0x7f00 0x7f00 0x7ffd 0x7f11",  # pselect6
    "232 0x7 0x7f00 0x10 0x1388 0x0 0x0 0x7ffd 0x7f11",  # epoll_wait
    "230 0x1 0x1 0x7f00 0x0 0x0 0x0 0x7ffd 0x7f11",  # clock_nanosleep
    "72 0x5 0x7 0x7f00 0x0 0x0 0x0 0x7ffd 0x7f11",  # fcntl
    "61 0xffffffff 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f11",  # wait4
    "0 0x5 0x7f00 0x1 0x0 0x0 0x0 0x7ffd 0x7f11",  # read
    "-1 0x7ffd 0x7f11",
    "running",
)
MAPS: Final = """00001000-00002000 rw-p 00000000 00:00 0
00002000-00003000 rw-s 00000000 00:01 77                                 /dev/shm/sem.a b (deleted)
7f0000000000-7f0000001000 rw-p 00010000 08:01 99                         /usr/lib/libpython3.11.so.1.0
7f0000001000-7f0000002000 rw-p 00000000 00:00 0
7f0000002000-7f0000003000 rw-s 00000000 00:05 5                          /memfd:x (deleted)
"""
LOCKS: Final = """1: FLOCK  ADVISORY  WRITE 12 08:01:77 0 EOF
1: -> FLOCK  ADVISORY  WRITE 13 08:01:77 0 EOF
2: OFDLCK ADVISORY  READ -1 08:01:78 0 9
"""
FILES: Final = (
    "pipe:[77]\0",
    "socket:[8]\0",
    "/home/a b\0pos:\t0\n",
    "anon_inode:[eventfd]\0eventfd-count: 0\neventfd-id: 3\n",
    "anon_inode:[eventpoll]\0tfd:        5 events:       19 data: 5  pos:0 ino:4d sdev:d\n",
    "anon_inode:[pidfd]\0Pid:\t12\n",
    "/dev/nvidia0\0",
)
TCP: Final = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 0100007F:C350 01 00000000:00000005 00:00000000 00000000     0        0 4711 1
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 0 1
"""
TCP6: Final = TCP.replace("0100007F", "0000000000000000FFFF00000100007F").replace("00000000:0016", "0" * 32 + ":0016")
ADDRESS: Final = b"\x7f\0\0\1" + b"\0" * 12
DIAG: Final = (
    struct.pack("=BBBB", 2, 1, 0, 0)
    + struct.pack("!HH", 8080, 50000)
    + ADDRESS * 2
    + b"\0" * 16
    + struct.pack("=IIII", 5, 0, 0, 4711)
    + struct.pack("=HH", 236, 2)
    + b"\1" * 232,
    struct.pack("=BBBBI", 1, 1, 1, 0, 4711)
    + b"\0" * 8
    + struct.pack("=HHI", 8, 2, 4712)
    + struct.pack("=HHII", 12, 4, 0, 0)
    + struct.pack("=HH", 8, 0)
    + b"\0abc",
)


def _process(syscall: str, *more: str) -> str:
    """All that /proc has about a thread."""
    stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 4711 1 1 " + "0 " * 28
    status = "Name:\ta\nUid:\t0\t0\t0\t0\nTracerPid:\t0\nSigCgt:\t0000000000000002\nvoluntary_ctxt_switches:\t7\n"
    found = [stat, "1000 200 7", syscall, "futex_wait_queue", "rchar: 5\nwchar: 6\nsyscr: 1\nsyscw: 1\n", status, MAPS]
    return "\0".join([*found, "RANK=1", *more, "\5\0\0\0\1\0\0\0" if not more else ""][: 9 + len(more)])


HELLO: Final = peers.MemberHello("0.1.0", "", 4, 1, "life", "node")
MADE: Final[dict[str, Callable[[], list[bytes | str]]]] = {
    "config": lambda: [TOML, "[phase]\n", "hang-timeout = 5\n"],
    "options": lambda: [
        *(o.default for o in OPTIONS),
        "500ms",
        "[::1]:9400",
        "a.b-c:1",
        "a/b.prom",
        "hang, fault",
        "é:1",
    ],
    "environment": lambda: [*VARIABLES],
    "annotations": lambda: [PLATFORM],
    "fault-table": lambda: [TABLE],
    "phases": lambda: [
        json.dumps(
            {
                "schema": 1,
                "phases": [{"name": n, "run_dir": "20260102_030405_restartable", "succeeded": True} for n in "ab"],
            }
        )
    ],
    "npu-smi": _npu,
    "reset": lambda: [json.dumps(RESET), '{"status": "initializing"}'],
    "py-spy": lambda: [json.dumps(SPY)],
    "slots": lambda: [b"\0" + _slot(), b"\3" + _slot(STEP=0, FLAGS=7), b"\1" + _slot(SEQUENCE=3) + _slot(1, DEPTH=99)],
    "checkpoint": lambda: ["/c/7", "é\n", b"\xff\xfe"],
    "last-output": lambda: [f"{RAISED}\0{RAISED.replace('17', '18')}\0{PRINTED}", f"\0\0[rank0]: {PRINTED}"],
    "comm": lambda: ["python", "a) R 1", ") ) (", b"\xff\n"],
    "mounts": lambda: [f"{MOUNTS}\0{CGROUP}"],
    "state": lambda: [_state()],
    "run-dir": _run_dir,
    "beat-file": lambda: [_beat_file(), _beat_file()[:5000], b""],
    "history": lambda: [json.dumps({"schema": 1, "faults": [FAULT], "schedules": [SCHEDULE], "more": [1]})],
    "verdict": lambda: [json.dumps(VERDICT)],
    "control": lambda: [
        operator.dump_request(operator.ControlRequest("7", "pause", "root", 60.0, 5.0)),
        operator.dump_reply(operator.ControlReply("7", True, "it does"), version="1"),
    ],
    "channel": lambda: [
        b"\0" + operator.dump_request(operator.ControlRequest("7", verb, "root")) for verb in ("ping", "stop")
    ],
    "peers": _messages,
    "waits": lambda: [b"\0".join(group_waits.dump(found) for found in _waits())],
    "hub": lambda: [
        b"\0".join([peers.dump(HELLO), peers.dump(report), peers.dump_pulse(Pulse(1, 7, 2.5)), b"5"])
        for report in (
            REPORT,
            REPORT._replace(state="ready"),
            REPORT._replace(failure=NodeFailure("hang", "w", 1.0, 1, 7)),
        )
    ],
    "member": lambda: [
        b"\0".join([peers.ORDER, peers.dump(GroupOrder(3, "run", "why")), b"1", b"5"]),
        b"\0".join([peers.REFUSED, b"why"]),
    ],
    "ranks": lambda: [b"\0".join(map(ranks.FROM_RANK.dump, packets)) for packets in RANK_PACKETS],
    "thread": lambda: [_process(syscall) for syscall in SYSCALLS],
    "process": lambda: [_process(SYSCALLS[0])],
    "maps": lambda: [b"\x10\x10\0" + MAPS.encode(), b"\0" + MAPS.encode()],
    "locks": lambda: [LOCKS + "\0pos:\t0\nino:\t77\nlock:\t1: FLOCK  ADVISORY  WRITE 12 08:01:77 0 EOF\n"],
    "open-files": lambda: [*FILES],
    "net": lambda: [f"{TCP}\0{TCP6}\0{TCP}\0"],
    "sock-diag": lambda: [b"".join(DIAG), *DIAG],
    "observation": lambda: [
        _process(syscall, LOCKS, link) for syscall in SYSCALLS for link in ("pipe:[5]", "socket:[9]")
    ],
    "helpers": lambda: [_line(name, line) for name in LINES for line in LINES[name]],
}
# Target and bytes, as a fuzzer found them.
FOUND: Final[list[tuple[str, bytes]]] = [
    ("mounts", b"22 1 0:5 / /a\x0cb rw,relatime - tmpfs none rw\n"),
    ("peers", b'{"rank": 1e999, "node": 1}'),
    ("peers", b'{"rank": 1, "step": 7, "age": 1' + b"0" * 400 + b"}"),
    (
        "history",
        b'{"schema": 1, "schedules": [], "faults": [{"node": "", "device": "", "code": "", "severity": "", '
        b'"at": {"boot": "", "mono": 1, "wall": 1' + b"0" * 400 + b"}}]}",
    ),
    ("annotations", b"jobset.sigs.k8s.io/restart-attempt=000000000000999999999999"),
]
FOUND.append(("slots", b"\0" + _slot(STEP=(1 << 64) - 1, CHECKPOINT_STEP=(1 << 63) + 2)))
FOUND.append(("state", _state().replace(b'"last_step": null,\n', b"")))
FOUND.append(("helpers", _line("output", b'{"event": "broken", "stream": Infinity}')))
LATE: Final = b'{"event": "saved", "path": "/c", "renamed": true, "mono": 1' + b"0" * 400 + b"}"
FOUND.append(("helpers", _line("checkpoint_watcher", LATE)))
_LONG: Final = {"RankId": 10**300, "LogicId": 10**300, "Status": "fault"}
FOUND.append(("reset", json.dumps({"RankList": [_LONG] * 300}).encode()))
