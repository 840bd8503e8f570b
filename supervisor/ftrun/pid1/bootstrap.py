"""Everything that has to stand before the command starts, and the environment that it gets."""

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ftrun.config.derived import job_name, node_name, state_dir
from ftrun.config.option_table import Settings
from ftrun.core.accounting.totals import figures, summary
from ftrun.core.machine import effects as do
from ftrun.core.machine.values import Ledger
from ftrun.core.rules import exit_codes
from ftrun.core.text import sentences
from ftrun.host import (
    beat_folders,
    beats,
    devices,
    leftovers,
    procfs,
    reaper,
    signals,
    spawn,
    start_count,
    tree,
    work_dir,
)
from ftrun.host.console import Console, of
from ftrun.host.journal import Journal, RunDirError, write_message
from ftrun.messages import records
from ftrun.platforms.modelarts import END_GRACE
from ftrun.platforms.table import SCHEDULES
from ftrun_hooks import layout

if TYPE_CHECKING:
    from ftrun.messages import exit_hooks, state_store

TERMINATION_LOG = "/dev/termination-log"
SWEEP_TIMEOUT = 60.0  # s


class SetupError(Exception):
    """One line, and the exit code that goes with it; nothing was started."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Setup(NamedTuple):
    place: work_dir.WorkDir
    journal: Journal
    beats: beats.Beats
    console: Console
    tree: tree.Tree
    signals: signals.Signals
    ledger: Ledger
    termination_log: str | None
    auto_beat: bool
    settings: Settings
    starts: start_count.Starts

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
            "FTRUN_EPOCH": ledger.epoch or None,
        }
        if ledger.visible:
            told[ledger.visible[0]] = ",".join(ledger.visible[1:])
        environment = {name: value for name, value in os.environ.items() if name not in told}
        if self.auto_beat and self.beats.is_own:
            ours, given = f"{self.beats.path}/{layout.PYTHON}", environment.get("PYTHONPATH")
            # An empty entry would be the working directory.
            environment["PYTHONPATH"] = f"{ours}:{given}" if given else ours
        return environment | {name: str(value) for name, value in told.items() if value is not None}

    def command(self, words: Sequence[str], ledger: Ledger) -> list[str]:
        """With `{devices}` as the number of those that it has, where it may have to do with fewer."""
        if self.settings["min-devices"].value is None:
            return list(words)
        number = str(len(ledger.visible[1:]) or devices.count())
        return [word.replace("{devices}", number) for word in words]

    def verdict(self, end: do.Exit, ledger: Ledger) -> "state_store.Verdict | None":
        """What other ftruns of this job have to know, if this end is of ftrun's own."""
        if state_dir(self.settings) is None or end.verdict not in {known.name for known in exit_codes.TABLE}:
            return None
        from ftrun.messages import state_store  # the client of the state store has loaded it

        return state_store.Verdict(
            schema=records.SCHEMA,
            verdict=end.verdict,
            exit_code=end.code,
            node=end.node or node_name(self.settings),
            device=end.device,
            why=end.message,
            schedule_cnt=ledger.schedule_cnt,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )

    @property
    def parting_grace(self) -> float | None:
        """Seconds that the work at the end of the container is waited for; None: as long as it takes (ModelArts)."""
        text = os.environ.get(END_GRACE, "")
        return (float(text) or None) if text.isascii() and text.isdecimal() and len(text) < 10 else None

    @property
    def parting_work(self) -> "exit_hooks.Work | None":
        commands, unmount = self.settings["on-exit"].value, self.settings["unmount"].value
        if not commands and not unmount:
            return None
        from ftrun.messages import exit_hooks  # only at the end

        return exit_hooks.Work(tuple(commands or ()), tuple(unmount or ()), self.parting_grace)

    def last_words(self, end: do.Exit, ledger: Ledger) -> None:
        """The termination message, where the platform reads one."""
        if self.termination_log is None:
            return
        said = {
            "schema": records.SCHEMA,
            "verdict": end.verdict,
            "exit_code": end.code,
            "start_cnt": ledger.start_cnt,
            "schedule_cnt": ledger.schedule_cnt,
            "node": end.node or node_name(self.settings),
            "isolate": end.code == exit_codes.NODE_FAULT.code and end.node in (None, node_name(self.settings)),
            "last_step": ledger.last_step,
            "last_checkpoint": ledger.last_checkpoint,
            "run_dir": self.place.given,
            "message": end.message,
        }
        write_message(self.termination_log, records.message(said))

    def sum_up(self, end: do.Exit, ledger: Ledger, phase: str, spoke: bool) -> None:
        """The last line of a run, where there is anything to tell."""
        spent = figures(ledger.account, time.monotonic())
        told = spent.wall, spent.restarts, summary(spent), phase, spoke
        line = sentences.last_lines(end, ledger, self.place.given, *told)
        if line is not None:
            self.journal.log(sentences.printable(line))
            self.console.say(line, severity="error" if self.verdict(end, ledger) else "info")


def prepare(settings: Settings, caught: signals.Signals, starts: start_count.Starts | None = None) -> Setup:
    """SetupError with one line for whatever is missing.  What an earlier, killed ftrun left running on this run dir is
    ended first.  `starts`: of an earlier phase."""
    console = of(settings)
    given = settings["run-dir"].value or settings["log-dir"].value
    try:
        where, journal, copied = work_dir.open_run_dir(*_run_dir(settings), caught)
    except (RunDirError, OSError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise SetupError(exit_codes.USAGE.code if given else exit_codes.INTERNAL.code, why) from None
    if copied is not None:
        journal.log(copied)
        console.say(copied, severity="info")
    if (denied := reaper.waitid_problem()) is not None:
        raise SetupError(exit_codes.INTERNAL.code, denied)
    if os.getpid() != 1 and not spawn.become_subreaper():
        console.say(
            "the kernel refuses ftrun the orphans of its command (PR_SET_CHILD_SUBREAPER): its daemons may outlive a "
            "restart; make ftrun PID 1 of the container"
        )
    before = journal.load()
    if before is not None:
        _sweep(before[1])
    try:
        beat_files = beats.create()
    except beats.BeatsError as error:
        raise SetupError(exit_codes.INTERNAL.code, str(error)) from None
    procfs.reserve_descriptor()
    marker = f"FTRUN_BEAT_DIR={beat_files.path}".encode()
    log = settings["termination-log"].value or (TERMINATION_LOG if os.path.exists(TERMINATION_LOG) else None)
    ledger = _resumed(before, schedule_cnt(settings), job_name(settings))
    if starts is None:
        starts = start_count.Starts(ledger.schedule_cnt, job_name(settings))
    starts.share_markers(journal.path)
    ledger = ledger._replace(start_cnt=max(ledger.start_cnt, starts.count))
    marked, auto = tree.Tree(marker), settings["auto-beat"].value
    beat_files.access.members = marked.members
    return Setup(where, journal, beat_files, console, marked, caught, ledger, log, auto, settings, starts)


def _run_dir(settings: Settings) -> tuple[str, bool]:
    """And whether it is yet to be made, on a network disk, where that is a helper's work."""
    if settings["run-dir"].value:
        return os.path.abspath(settings["run-dir"].text), False
    if settings["log-dir"].value:
        folder = os.path.abspath(settings["log-dir"].text)
        return (named(folder), True) if work_dir.network_kind(folder) else (fresh(folder), False)
    return work_dir.default_run_dir(), False


def named(folder: str, at: float | None = None) -> str:
    """A run dir in `folder`, called by the time as Cerebras does it."""
    return f"{folder}/{time.strftime('%Y%m%d_%H%M%S', time.localtime(at))}_restartable"


def fresh(folder: str) -> str:
    """A new one; two in one second get different names."""
    os.makedirs(folder, 0o755, exist_ok=True)
    now = time.time()
    while True:
        path = named(folder, now)
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            now += 1


def schedule_cnt(settings: Settings) -> int:
    """How often this pod was scheduled: as the platform says it, else from the outer scheduler's count of restarts,
    else 1."""
    for variable, offset in SCHEDULES:
        text = os.environ.get(variable, "")
        if text.isascii() and text.isdecimal() and len(text) < 10:
            return max(1, int(text) + offset)
    attempts: int | None = settings["annotations"].value.attempts
    return 1 if attempts is None else attempts + 1


def _resumed(before: tuple[Ledger, dict[str, object]] | None, schedule_cnt: int, job: str) -> Ledger:
    """The ledger to go on with.  A new schedule is a new pod: its starts and restarts count from the beginning, while
    what training has reached stays.

    `job` is what the platform calls the training job.  Where it does not say, a run dir belongs to one job, and a fresh
    one in a first schedule begins another job, with a name that nothing else has.
    """
    if before is None:
        return Ledger(schedule_cnt=schedule_cnt, job=job or f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}")
    ledger, state = before
    if job and ledger.job != job:
        ledger = ledger._replace(job=job, occurrences=() if ledger.job else ledger.occurrences)
    if ledger.schedule_cnt != schedule_cnt:
        ledger = ledger._replace(schedule_cnt=schedule_cnt, start_cnt=0, hang=0, fault=0, failure=0)
        ledger = ledger._replace(reached=False, faulted=False, removed=(), visible=())
    # An attempt that was cut off by the end of ftrun or of the container failed, whoever's fault that was.
    return ledger._replace(reason="first" if ledger.start_cnt == 0 or state.get("succeeded") is True else "failure")


def _sweep(state: dict[str, object]) -> None:
    """End what a killed ftrun left running, and remove its beat folder.  Only its own descendants carry its beat
    folder, which is never used again, in their environment; those that cleared theirs are in the command's group."""
    beat_dir, pid, start = (state.get(name) for name in ("beat_dir", "pid", "pid_start"))
    command = (pid, start) if isinstance(pid, int) and isinstance(start, int) else (0, 0)
    if not isinstance(beat_dir, str) or not os.path.basename(beat_dir).startswith(beat_folders.PREFIX):
        return
    group = leftovers.load_group(state)
    marker, deadline = f"FTRUN_BEAT_DIR={beat_dir}".encode(), time.monotonic() + SWEEP_TIMEOUT
    empty = 0
    while empty < 2:  # they are not our children, so no list of the kernel's says that a look missed none
        left, refused = tree.kill(lambda: leftovers.find_processes(marker, command, group))
        empty = 0 if left else empty + 1
        if refused and len(refused) == len(left):
            names = "; ".join(procfs.describe_with_user(s) for s in left[:20])
            raise SetupError(exit_codes.INTERNAL.code, f"not permitted to end what an earlier ftrun left: {names}")
        if not left:
            continue
        if time.monotonic() > deadline:
            names = "; ".join(procfs.describe(s) for s in left[:20])
            raise SetupError(exit_codes.NODE_FAULT.code, f"SIGKILL did not end what an earlier ftrun left: {names}")
        time.sleep(0.01)
    beat_folders.remove(beat_dir)
