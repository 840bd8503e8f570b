"""Everything that has to stand before the command starts, and the environment that it gets."""

import os
import time
from typing import NamedTuple

from ftrun.config import Settings
from ftrun.core import exitcode
from ftrun.core.values import Ledger
from ftrun.host import beats, procfs, signals, spawn, tree
from ftrun.host.journal import Journal, RunDirError, write_message
from ftrun.host.voice import Voice
from ftrun.wire import records
from ftrun_hooks import layout

TERMINATION_LOG = "/dev/termination-log"
SWEEP_TIMEOUT = 60.0  # s


class SetupError(Exception):
    """One line, and the exit code that goes with it; nothing was started."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Setup(NamedTuple):
    journal: Journal
    beats: beats.Beats
    voice: Voice
    tree: tree.Tree
    signals: signals.Signals
    ledger: Ledger
    termination_log: str | None
    auto_beat: bool

    def environment(self, ledger: Ledger) -> dict[str, str]:
        """Ours plus DESIGN 2.3; what has no value is absent."""
        told: dict[str, object] = {
            "MA_PROC_START_CNT": ledger.start_cnt,
            "MA_SCHEDULE_CNT": os.environ.get("MA_SCHEDULE_CNT") or ledger.schedule_cnt,
            "FTRUN_RUN_DIR": self.journal.path,
            "FTRUN_BEAT_DIR": self.beats.path,
            "FTRUN_RESTART_REASON": ledger.reason,
            "FTRUN_LAST_STEP": ledger.last_step,
            "FTRUN_LAST_CHECKPOINT": ledger.last_checkpoint,
            "FTRUN_LAST_SECTION": ledger.last_section,
        }
        environment = {name: value for name, value in os.environ.items() if name not in told}
        if self.auto_beat:
            ours, given = f"{self.beats.path}/{layout.PYTHON}", environment.get("PYTHONPATH")
            # An empty entry would be the working directory.
            environment["PYTHONPATH"] = f"{ours}:{given}" if given else ours
        return environment | {name: str(value) for name, value in told.items() if value is not None}

    def last_words(self, fields: dict[str, object]) -> None:
        if self.termination_log is not None:
            write_message(self.termination_log, records.message(fields))


def prepare(settings: Settings) -> Setup:
    """SetupError with one line for whatever is missing.  What an earlier, killed ftrun left running on this run dir is
    ended first."""
    caught = signals.Signals()
    quiet, verbose = settings["quiet"].value, settings["verbose"].value
    voice = Voice(0 if quiet else 2 if verbose else 1, settings["log-format"].value == "json")
    given = settings["run-dir"].value or settings["log-dir"].value
    try:
        journal = Journal(_run_dir(settings))
    except (RunDirError, OSError) as error:
        raise SetupError(exitcode.USAGE.code if given else exitcode.INTERNAL.code, str(error)) from None
    if os.getpid() != 1 and not spawn.become_subreaper():
        voice.say("cannot become a subreaper: daemons of the command may outlive a restart")
    before = journal.load()
    if before is not None:
        _sweep(before[1])
    try:
        beat_files = beats.create()
    except beats.BeatsError as error:
        raise SetupError(exitcode.INTERNAL.code, str(error)) from None
    marker = f"FTRUN_BEAT_DIR={beat_files.path}".encode()
    log = settings["termination-log"].value or (TERMINATION_LOG if os.path.exists(TERMINATION_LOG) else None)
    ledger = _resumed(before, _schedule_cnt())
    return Setup(journal, beat_files, voice, tree.Tree(marker), caught, ledger, log, settings["auto-beat"].value)


def _run_dir(settings: Settings) -> str:
    if settings["run-dir"].value:
        return os.path.abspath(settings["run-dir"].text)
    if settings["log-dir"].value:
        folder = settings["log-dir"].text
        return os.path.abspath(f"{folder}/{time.strftime('%Y%m%d_%H%M%S')}_restartable")
    temporary = os.environ.get("TMPDIR") or "/tmp"
    return os.path.abspath(f"{temporary}/ftrun-{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}")


def _schedule_cnt() -> int:
    """How often this pod was scheduled: as the platform says it, else from Slurm's count of requeues, else 1."""
    for variable, offset in (("MA_SCHEDULE_CNT", 0), ("SLURM_RESTART_COUNT", 1)):
        text = os.environ.get(variable, "")
        if text.isascii() and text.isdecimal() and len(text) < 10:
            return max(1, int(text) + offset)
    return 1


def _resumed(before: tuple[Ledger, dict[str, object]] | None, schedule_cnt: int) -> Ledger:
    """The ledger to go on with.  A new schedule is a new pod: its starts and restarts count from the beginning, while
    what training has reached stays."""
    if before is None:
        return Ledger(schedule_cnt=schedule_cnt)
    ledger, _ = before
    if ledger.schedule_cnt != schedule_cnt:
        ledger = ledger._replace(schedule_cnt=schedule_cnt, start_cnt=0, hang=0, fault=0, failure=0)
    # An attempt that was cut off by the end of ftrun or of the container failed, whoever's fault that was.
    return ledger._replace(reason="first" if ledger.start_cnt == 0 else "failure")


def _sweep(state: dict[str, object]) -> None:
    """End what a killed ftrun left running, and remove its beat folder.  Only its own descendants carry its beat
    folder, which is never used again, in their environment."""
    beat_dir, pid, start = (state.get(name) for name in ("beat_dir", "pid", "pid_start"))
    command = (pid, start) if isinstance(pid, int) and isinstance(start, int) else (0, 0)
    if not isinstance(beat_dir, str) or not os.path.basename(beat_dir).startswith(beats.PREFIX):
        return
    marker, deadline = f"FTRUN_BEAT_DIR={beat_dir}".encode(), time.monotonic() + SWEEP_TIMEOUT
    empty = 0
    while empty < 2:  # they are not our children, so no list of the kernel's says that a look missed none
        left = tree.kill(lambda: tree.left_behind(marker, command))
        empty = 0 if left else empty + 1
        if not left:
            continue
        if time.monotonic() > deadline:
            names = "; ".join(procfs.describe(s) for s in left[:20])
            raise SetupError(exitcode.NODE_FAULT.code, f"SIGKILL did not end what an earlier ftrun left: {names}")
        time.sleep(0.01)
    beats.remove(beat_dir)
