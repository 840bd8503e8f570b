"""All code that reads input of others, in one table: each target is a function of bytes, with the errors it declares.

A target raises only those errors, whatever the bytes, and its assertions hold; an AssertionError is a finding like any
other error.  A target that needs files has a folder of its own, which is created at the first call.
"""

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from ftctl.timeline import html
from ftrun import platforms
from ftrun.config import annotations, option_table, option_values
from ftrun.core.machine import events as ev
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job, Running, Starting
from ftrun.core.machine.values import Attempt, Ledger
from ftrun.core.rules import crash_causes, fault_codes
from ftrun.helpers.messenger.steps import read_pulse
from ftrun.helpers.output.tail import Tail
from ftrun.helpers.probe import ascend, npu_smi
from ftrun.helpers.reset_file import contents as reset_contents
from ftrun.helpers.shared_folder import ForeignContent
from ftrun.helpers.state_store import contents
from ftrun.host import mounts as mount_table
from ftrun.host import oom, procfs, tracebacks
from ftrun.host.console import Console
from ftrun.messages import healing, helpers, state, state_store
from ftrun.messages.codec import Malformed
from ftrun.pid1 import phases
from ftrun.platforms import Surroundings
from ftrun.records.files import beatfile
from ftrun.records.past import history as past
from ftrun.records.present import run_snapshot, summary
from ftrun_hooks import layout as at
from proof.fuzz import kernel, kit, messages
from proof.fuzz.kit import NOW, PAGE, Quiet, beat_folder, folder, one_line, pieces, policy, text
from waitproof import stacks


class Target(NamedTuple):
    """`what`: a short description of its input; `declared`: the errors that it may raise."""

    run: Callable[[bytes], object]
    what: str
    declared: tuple[type[Exception], ...] = ()


def clean() -> None:
    """Remove the folders of all targets."""
    messages.clean()
    kit.clean()


# --- options and files of the operator --------------------------------------------------------------------------------


def toml(content: bytes) -> None:
    """The config file, and then each value of it as its option reads it.  It is the operator's own, and Python's reader
    takes long for a key of thousands of parts."""
    fd = os.memfd_create("config")
    try:
        os.write(fd, content[:PAGE])
        texts, found = option_values.read_file(f"/proc/self/fd/{fd}")
    except option_table.ConfigError as error:
        one_line(error)
        return
    finally:
        os.close(fd)
    for name, value in (*texts.items(), *(pair for phase in found for pair in phase.texts.items())):
        with contextlib.suppress(ValueError):
            option_table.BY_NAME[name].read(value)


def options(content: bytes) -> None:
    for option in option_table.OPTIONS:
        try:
            option.read(text(content))
        except ValueError as error:
            one_line(error)


def environment(content: bytes) -> None:
    """The variables of platforms about a group, and about the ranks."""
    variables, host, hosts = pieces(content, 3)
    pairs = (line.partition(b"=") for line in variables.split(b"\n"))
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}
    platforms.discover(Surroundings(found, text(host), text(hosts), "auto"))
    reset_contents.local_ranks(found)
    with contextlib.suppress(option_table.ConfigError):
        option_values._environment(found)


def annotation_file(content: bytes) -> None:
    found = annotations.read("file", text(content))
    for name, value in found.texts:
        option_table.BY_NAME[name].read(value)
    assert all(problem.isprintable() and len(problem) < 1000 for problem in found.problems)
    assert found.attempts is None or found.attempts < 1 << 31


def fault_table(content: bytes) -> None:
    try:
        fault_codes.parse(text(content))
    except ValueError as error:
        one_line(error)


def phase_note(content: bytes) -> None:
    where = folder("phases")
    (where / "phases.json").write_bytes(content)
    nobody: Any = None
    stages = phases.ProgressFile(str(where), ["a", "b"], Console(0), nobody).stages
    assert [stage.name for stage in stages] == ["a", "b"]
    for path in where.iterdir():
        path.unlink()


# --- devices and the platform -----------------------------------------------------------------------------------------


def npu(content: bytes) -> None:
    output = text(content)
    assert all(min(chip[:3]) >= 0 for chip in npu_smi.mapping(output))
    npu_smi.refused(output)
    assert len(ascend.ids(output)) <= ascend.MOST_IDS * (output.count(",") + 1)
    for chip, lines in npu_smi.blocks(output).items():
        assert chip is None or chip >= 0
        reading, health = npu_smi.reading(lines), npu_smi.health(lines)
        assert all(value is None or value >= 0 for value in reading)
        assert all(value is None or value <= 100 for value in reading[:2])
        assert reading.memory_used is None or reading.memory_used <= (reading.memory_total or 0)
        assert all(process.pid >= 0 for process in npu_smi.processes(lines) or ())
        assert all(int(code, 16) >= 0 for code in (*(health.codes or ()), *(npu_smi.events(lines) or ())))


def reset_json(content: bytes) -> None:
    """The event for PID 1 is shorter than the limit of a line."""
    found, dropped = reset_contents.parse(content, None, lambda code: fault_codes.look_up({}, code))
    assert len(healing.RESET_EVENTS.dump(found)) < helpers.LINE_LIMIT, "the line is too long"
    Quiet(healing.RESET_EVENTS).report_dropped("reset.json", dropped)


def py_spy(content: bytes) -> None:
    stacks.parse(1, content)


# --- files and output of the command ----------------------------------------------------------------------------------


def slots(content: bytes) -> None:
    """The beat file; then the decision, the next look and the state that follow from it.

    The first byte says how many slots are filled with the rest, one after the other.
    """
    found, many = beat_folder(), 1 + content[0] % 8 if content else 1
    found.reset()
    size = at.SLOT_WORDS * at.WORD
    row = content[1 : 1 + size].ljust(size, b"\0")
    if not content[1 + size :]:  # as a rule it is a slot of this version
        row = at.MAGIC.to_bytes(at.WORD, "little") + row[at.WORD :]
    where = at.HEADER_WORDS * at.WORD
    os.pwrite(found._beats.fd, row * many, where)
    os.pwrite(found._beats.fd, content[1 + size :][: at.FILE_BYTES - where - size], where + size)
    job = Job(Starting(Attempt(1, 1, NOW - 5), deadline=NOW + 5), ledger=Ledger(start_cnt=1))
    for now in (NOW, NOW + 10, NOW + 1e4):
        job, _ = decide(job, ev.BeatsRead(now, found.read(now)), policy())
        if isinstance(job.phase, Starting | Running):
            found.publish_next_read(job.phase.deadline)
        state.load_state(state.dump_state(job.ledger, {}))
        assert not any("\0" in (text or "") for text in (job.ledger.last_section, job.ledger.last_checkpoint))
    read_pulse(found.path, NOW)
    found.problems.clear()


def checkpoint(content: bytes) -> None:
    """The text beside a checkpoint: it becomes a variable of the next start."""
    found = beat_folder()
    found.reset()
    start = at.slot_of(0)
    for word, value in ((at.MAGIC_WORD, at.MAGIC), (at.PID, 1), (at.MOVED_AT, 5), (at.CHECKPOINT_STEP, 8)):
        os.pwrite(found._beats.fd, value.to_bytes(at.WORD, "little"), (start + word) * at.WORD)
    Path(found.path, f"{at.CHECKPOINT}0").write_bytes(content)
    Path(found.path, f"{at.FAIL}0").write_bytes(content)
    job = Job(Running(Attempt(1, 1, NOW - 5), deadline=NOW + 5), ledger=Ledger(start_cnt=1))
    job, _ = decide(job, ev.BeatsRead(NOW, found.read(NOW)), policy())
    state.load_state(state.dump_state(job.ledger, {}))
    os.fsencode(job.ledger.last_checkpoint or "")
    assert "\0" not in (job.ledger.last_checkpoint or "")


def last_output(content: bytes) -> None:
    """Tracebacks and the last lines of output, and the diagnosis from them."""
    first, second, output = pieces(content, 3)
    thrown = [one for one in map(tracebacks._parse, (first, second)) if one is not None]
    tail = Tail()
    tail.add(NOW, 1, output)
    lines = tail.lines()
    assert len(json.dumps(lines)) < helpers.LINE_LIMIT
    cause = crash_causes.first_cause(thrown, NOW)
    for code in (1, 2, 127, 134, 137):
        crash_causes.diagnose(crash_causes.CommandFailure(code, None, False, cause, tuple(lines), None, 1, NOW))


def process_name(content: bytes) -> None:
    """/proc/<pid>/stat of a process with that name: this one."""
    Path("/proc/self/comm").write_bytes(content[:15].replace(b"\0", b"") or b"x")
    found = procfs.stat(os.getpid())
    assert found is not None
    assert (found.parent, found.session, found.state) == (os.getppid(), os.getsid(0), "R")
    procfs.describe(found)


def mounts(content: bytes) -> None:
    """/proc/self/mountinfo and /proc/self/cgroup: names of folders are in them."""
    one, other = pieces(content, 2)
    list(oom.files(text(other), mount_table.parse(os.fsdecode(one))))


# --- files of ftrun that others may have changed ---------------------------------------------------------------------


def state_json(content: bytes) -> None:
    ledger, rest = state.load_state(content)
    state.load_state(state.dump_state(ledger, rest))


def run_dir(content: bytes) -> None:
    """All files of a run dir, and every view of it."""
    where = folder("views")
    for name, piece in zip(
        ("events.jsonl", "state.json", "steps.jsonl", "devices.json"), pieces(content, 4), strict=True
    ):
        (where / name).write_bytes(piece)
    shown = run_snapshot.read_snapshot(str(where))
    json.dumps(summary.document(shown))
    assert all(line.isprintable() for line in (*summary.title(shown), *summary.lines(shown)))
    html.render(past.read(str(where)))


def beat_file(content: bytes) -> None:
    """The beat file with any size, as the views read it."""
    where = folder("views")
    (where / at.BEATS).write_bytes(content)
    beatfile.read(str(where), NOW, NOW - 50, True)
    read_pulse(str(where), NOW)


def history_json(content: bytes) -> None:
    found, dropped = contents.parse(content)
    joined = contents.merge(found, found.faults[:1], found.schedules[:1])
    contents.parse(contents.dump(joined))
    reply = contents.reply(joined, time.time(), "boot")
    assert len(state_store.EVENTS.dump(reply)) < helpers.LINE_LIMIT
    Quiet(healing.RESET_EVENTS).report_dropped("history.json", dropped)


def verdict_json(content: bytes) -> None:
    found = contents.parse_verdict(content)
    contents.holds(found, 1, 0.0)


TARGETS: Final = {
    "config": Target(toml, "the config file"),
    "options": Target(options, "values of options"),
    "environment": Target(environment, "environment variables of platforms"),
    "annotations": Target(annotation_file, "the file of the downward API"),
    "fault-table": Target(fault_table, "the fault table of a site"),
    "phases": Target(phase_note, "phases.json"),
    "npu-smi": Target(npu, "the output of npu-smi"),
    "reset": Target(reset_json, "reset.json", (ValueError, RecursionError)),
    "py-spy": Target(py_spy, "the output of py-spy", (ValueError, KeyError, TypeError, RecursionError)),
    "slots": Target(slots, "the beat file, in PID 1"),
    "checkpoint": Target(checkpoint, "the description of a checkpoint"),
    "last-output": Target(last_output, "tracebacks and the last lines of output"),
    "comm": Target(process_name, "/proc/<pid>/stat"),
    "mounts": Target(mounts, "mountinfo and cgroup files"),
    "state": Target(state_json, "state.json", (Malformed,)),
    "run-dir": Target(run_dir, "a run dir, in every view"),
    "beat-file": Target(beat_file, "the beat file, in the views"),
    "history": Target(history_json, "history.json", (ForeignContent, RecursionError)),
    "verdict": Target(verdict_json, "verdict.json", (ForeignContent,)),
    "control": Target(messages.control_message, "requests and their replies"),
    "channel": Target(messages.channel, "frames of the control channel"),
    "peers": Target(messages.peer_message, "messages of other nodes"),
    "waits": Target(messages.waits_of_members, "what the ranks of other nodes wait for"),
    "hub": Target(messages.rank_0, "messages of a member, at rank 0", (Malformed,)),
    "member": Target(messages.member, "messages of rank 0, at a member", (Malformed,)),
    "ranks": Target(messages.rank_packets, "packets of a rank, in PID 1"),
    "thread": Target(kernel.waiting_thread, "a thread in /proc, its call and its memory", (ValueError,)),
    "process": Target(kernel.one_process, "a process in /proc", (ValueError, IndexError)),
    "maps": Target(kernel.mappings, "/proc/<pid>/maps", (ValueError,)),
    "locks": Target(kernel.file_locks, "/proc/locks and fdinfo", (ValueError,)),
    "open-files": Target(kernel.open_files, "the descriptors of a process"),
    "net": Target(kernel.socket_tables, "/proc/<pid>/net", (ValueError, struct.error)),
    "sock-diag": Target(kernel.sock_diag, "answers of sock_diag"),
    "observation": Target(kernel.whole_job, "all of /proc about a process that waits", (ValueError, IndexError)),
    "helpers": Target(messages.line_of_a_helper, "messages of helpers, in PID 1"),
}
