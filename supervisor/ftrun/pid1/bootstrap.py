"""Preparation before the first start of the command, and the environment of the command."""

import os
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ftrun import __version__
from ftrun.config.derived import job_name, node_name, relayed, state_dir
from ftrun.config.option_table import Settings
from ftrun.core.accounting.totals import figures, summary
from ftrun.core.group.messages import EpochRun
from ftrun.core.machine import effects as do
from ftrun.core.machine.values import Ledger, NodePlace
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.core.rules.policy import Policy
from ftrun.core.text import redaction, sentences
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
from ftrun.host.console import Console, create
from ftrun.host.journal import Journal, RunDirError, write_message
from ftrun.host.output_pipes import RankOutput
from ftrun.messages import records, run_state
from ftrun.messages.codec import Malformed
from ftrun.platforms import END_GRACE, SCHEDULES, number
from ftrun_hooks import layout

if TYPE_CHECKING:
    from ftrun.config.group_config import Group
    from ftrun.config.local_world import LocalWorld
    from ftrun.messages import exit_hooks, state_store

TERMINATION_LOG = "/dev/termination-log"
SWEEP_TIMEOUT = 60.0  # s


class PhaseContext(NamedTuple):
    """The place of a command in a sequence of phases.  `starts`: the count that all phases share."""

    name: str = ""
    last: bool = True
    group: "Group | None" = None
    starts: start_count.Starts | None = None


class SetupError(Exception):
    """One line for the user, and the exit code.  Nothing was started."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Setup(NamedTuple):
    run_dir: work_dir.WorkDir
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
    imports: object = None  # of an earlier ftrun in this run dir (`preload.Imports`, as JSON)
    life: str = ""  # identifies this ftrun in its group
    buried: EpochRun | None = None  # of an earlier ftrun in this run dir, which is dead
    since: float = 0.0  # CLOCK_MONOTONIC

    def environment(self, ledger: Ledger) -> dict[str, str]:
        """The environment of ftrun plus the variables in docs/reference.md; a variable without a value is absent."""
        variables: dict[str, object] = {
            "MA_PROC_START_CNT": ledger.starts,
            "MA_SCHEDULE_CNT": os.environ.get("MA_SCHEDULE_CNT") or ledger.schedule_cnt,
            "FTRUN_RUN_DIR": self.journal.path,
            "FTRUN_BEAT_DIR": self.beats.path,
            "FTRUN_RESTART_REASON": ledger.reason,
            "FTRUN_LAST_STEP": ledger.last_step,
            "FTRUN_LAST_CHECKPOINT": ledger.last_checkpoint,
            "FTRUN_LAST_SECTION": ledger.last_section,
            "FTRUN_EPOCH": ledger.epoch or None,
        }
        if self.settings.quiet:  # also for the lines of ranks that recover, and of an ftrun inside
            variables |= {"FTRUN_QUIET": 1, "FTRUN_VERBOSE": None}
        elif self.settings.verbose:
            variables["FTRUN_QUIET"] = None
        if ledger.visible:
            variables[ledger.visible.variable] = ",".join(ledger.visible.names)
        environment = {name: value for name, value in os.environ.items() if name not in variables}
        environment |= relayed(self.settings)
        if self.auto_beat and self.beats.is_own:
            hooks, given = f"{self.beats.path}/{layout.PYTHON}", environment.get("PYTHONPATH")
            # An empty entry would mean the working directory.
            environment["PYTHONPATH"] = f"{hooks}:{given}" if given else hooks
        return environment | {name: str(value) for name, value in variables.items() if value is not None}

    def describe_run(self, command: Sequence[str], phase: str) -> do.Fields:
        """The fields of the record `started` that do not depend on the attempt."""
        fields: do.Fields = (("version", __version__), ("command", redaction.redact_command(command)))
        fields += (("pid", os.getpid()), *((("phase", phase),) if phase else ()))
        relayed = self.settings.annotated.relayed
        return (*fields, ("annotations", dict(relayed))) if relayed else fields

    def local_world(self, ledger: Ledger) -> "LocalWorld | None":
        """The ranks that ftrun starts on this node, without a port; None: the command is one process."""
        asked = self.settings.nproc_per_node
        if asked is None:
            return None
        from ftrun.config.local_world import LocalWorld  # only where ftrun starts the ranks

        size = local_ranks(asked, len(ledger.visible.names) if ledger.visible else None)
        return LocalWorld(
            local_size=size,
            size=size,
            run_id=ledger.job or "none",
            restarts=ledger.starts - 1,
            max_restarts=self.settings.max_restarts or 0,
        )

    @property
    def rank_output(self) -> RankOutput:
        """What happens to the output of the command, or of its ranks."""
        world = self.local_world(self.ledger)
        return RankOutput(
            ranks=world and world.local_size,
            shown=self.settings.local_ranks_filter if world else None,
            kept=bool(self.settings.log_dir),
            prefixed=bool(world and self.settings.prefix_ranks),
        )

    def command(self, arguments: Sequence[str], ledger: Ledger, node: NodePlace | None, listed: int) -> list[str]:
        """The command line.  With --min-devices, `{devices}` becomes the number of devices that the command has; in a
        group whose size may change, `{nodes}` and `{node_rank}` become those of this epoch.  `listed`: by the probe,
        which may know devices that have no file in /dev."""
        if self.settings.nproc_per_node is not None:
            from ftrun.config.local_world import command_line

            arguments = command_line(arguments)
        values = dict[str, object]()
        if self.settings.min_devices is not None:
            values["devices"] = len(ledger.visible.names) if ledger.visible else listed or devices.count()
        if node is not None:
            values |= {"nodes": node.nodes, "node_rank": node.number, "master_addr": node.master}
        for name, value in values.items():
            arguments = [argument.replace(f"{{{name}}}", str(value)) for argument in arguments]
        return list(arguments)

    def verdict(self, end: do.Exit, ledger: Ledger) -> "state_store.SharedVerdict | None":
        """The verdict for the other ftruns of this job, or None if the command ended by itself."""
        if state_dir(self.settings) is None or end.verdict not in {known.name for known in exit_codes.TABLE}:
            return None
        from ftrun.messages import state_store  # the client of the state store has loaded it

        return state_store.SharedVerdict(
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
    def exit_grace(self) -> float | None:
        """Seconds to wait for the work at the end of the container; None waits without a limit (ModelArts)."""
        return number(os.environ, END_GRACE) or None

    def exit_work(self, end: do.Exit, ledger: Ledger) -> "exit_hooks.Work | None":
        """What `--on-exit` and `--unmount` ask for; the commands learn how the job ended."""
        commands, unmount = self.settings.on_exit, self.settings.unmount
        if not commands and not unmount:
            return None
        from ftrun.messages import exit_hooks  # needed at the end only

        variables = (
            ("FTRUN_VERDICT", end.verdict),
            ("FTRUN_EXIT_CODE", str(end.code)),
            ("FTRUN_RUN_DIR", self.run_dir.given),
            ("FTRUN_ATTEMPT", str(ledger.start_cnt)),
        )
        return exit_hooks.Work(tuple(commands or ()), tuple(unmount or ()), self.exit_grace, variables)

    def write_termination_message(self, end: do.Exit, ledger: Ledger) -> None:
        """Write the termination message, if the platform reads one."""
        if self.termination_log is None:
            return
        fields = {
            "schema": records.SCHEMA,
            "verdict": end.verdict,
            "exit_code": end.code,
            "start_cnt": ledger.starts,
            "schedule_cnt": ledger.schedule_cnt,
            "node": end.node or node_name(self.settings),
            "isolate": end.code == exit_codes.NODE_FAULT.code and end.node in (None, node_name(self.settings)),
            "last_step": ledger.last_step,
            "last_checkpoint": ledger.last_checkpoint,
            "run_dir": self.run_dir.given,
            "message": end.message,
        }
        why = write_message(self.termination_log, records.message(fields))
        if why is not None and self.settings.termination_log:  # the records contain the verdict as well
            self.console.print(f"--termination-log {self.termination_log} cannot be written ({why})")

    def print_summary(self, end: do.Exit, ledger: Ledger, phase: str, logged: bool) -> None:
        """Log and print the last line of a run, if there is anything to report."""
        spent = figures(ledger.account, time.monotonic())
        never_began = ledger.starts == self.ledger.starts  # as a group that did not form: all of it waited
        lasted = self.ledger.account.wall + time.monotonic() - self.since if never_began else spent.wall
        outcome = lasted, spent.restarts, summary(spent), phase, logged
        deleted = self.run_dir.given == self.run_dir.path and self.journal.is_deleted
        records_in = f"{self.run_dir.given}, which was deleted" if deleted else self.run_dir.given
        line = sentences.last_lines(end, ledger, records_in, *outcome)
        if line is not None:
            self.journal.log(sentences.printable(line))
            self.console.print(line, severity="error" if self.verdict(end, ledger) else "info")


def prepare(command: Sequence[str], settings: Settings, caught: signals.Signals, phase: PhaseContext) -> Setup:
    """Raises SetupError if a requirement is not met.  Processes that an earlier, killed ftrun left running on this run
    dir are ended first."""
    if (unusable := procfs.problem()) is not None:
        raise SetupError(exit_codes.INTERNAL.code, unusable)
    console = create(settings, queued=True)
    given = settings.run_dir or settings.log_dir
    try:
        where, journal, copied = _open_run_dir(command, settings, caught, phase.group)
    except (RunDirError, OSError) as error:
        why = str(error)
        if isinstance(error, OSError):
            why = f"{error.filename or 'the working directory'}: {error.strerror}"
        raise SetupError(exit_codes.USAGE.code if given else exit_codes.INTERNAL.code, why) from None
    if copied is not None:
        journal.log(copied)
        console.print(copied, severity="info")
    if (denied := reaper.waitid_problem()) is not None:
        raise SetupError(exit_codes.INTERNAL.code, denied)
    if os.getpid() != 1 and not spawn.become_subreaper():
        console.print(
            "the kernel does not let ftrun adopt the orphans of its command (PR_SET_CHILD_SUBREAPER), so daemons may "
            "survive a restart; make ftrun PID 1 of the container"
        )
    before = journal.load()
    if before is not None:
        _sweep(before[1])
    try:
        beat_files = beats.create()
    except beats.BeatsError as error:
        raise SetupError(exit_codes.INTERNAL.code, str(error)) from None
    if beat_files.note is not None:
        journal.log(beat_files.note)
        console.print(beat_files.note, severity="info")
    procfs.pin()
    procfs.reserve_descriptor()
    marker = f"FTRUN_BEAT_DIR={beat_files.path}".encode()
    log = settings.termination_log or (TERMINATION_LOG if os.path.exists(TERMINATION_LOG) else None)
    ledger = _resumed(before, schedule_cnt(settings), job_name(settings))
    starts = phase.starts
    if starts is None:
        starts = start_count.Starts(ledger.schedule_cnt, job_name(settings))
    starts.share_markers(journal.path)
    ledger = ledger._replace(start_cnt=max(ledger.start_cnt, starts.count - ledger.replacements))
    marked, auto = tree.Tree(marker), settings.auto_beat
    beat_files.access.members = marked.members
    imports = None if before is None else before[1].get("imports")
    setup = Setup(where, journal, beat_files, console, marked, caught, ledger, log, auto, settings, starts, imports)
    buried = None if where.copied else _buried(before)
    return setup._replace(life=os.urandom(8).hex(), buried=buried, since=time.monotonic())


def with_group(policy: Policy, settings: Settings, group: "Group | None") -> Policy:
    """The policy of a member of this group, and what it starts there."""
    if group is None:
        return policy
    asked = settings.nproc_per_node
    ranks = None if asked is None else local_ranks(asked)
    by_device = asked in ("auto", "gpu") and devices.count() > 0
    membership = policy.membership._replace(
        group=True, member=group.rank, elastic=group.is_elastic, ends_alone=group.replaces or group.is_elastic
    )
    limits = policy.limits._replace(idle_together=True)
    return policy._replace(membership=membership, limits=limits, ranks=ranks, rank_per_device=by_device)


def local_ranks(asked: int | str, devices_left: int | None = None) -> int:
    """How many ranks `--nproc-per-node` means on this node: a number, `gpu` (the devices that the command may use),
    `cpu`, or `auto` (`gpu`, or `cpu` without a device).  0: `gpu` without a device."""
    if isinstance(asked, int):
        return asked
    found = devices_left if devices_left is not None else devices.count()
    return found if asked == "gpu" or (asked == "auto" and found) else os.cpu_count() or 1


def _open_run_dir(
    command: Sequence[str], settings: Settings, caught: signals.Signals, group: "Group | None"
) -> tuple[work_dir.WorkDir, Journal, str | None]:
    """As `work_dir.open_run_dir`: the run dir that the options name, or with a log dir the run there that a killed
    ftrun left, if it is this one's to continue."""
    folder = os.path.abspath(settings["log-dir"].text) if settings.log_dir and not settings.run_dir else ""
    if folder and work_dir.network_kind(folder) is None:
        from ftrun.host import cut_off_run  # only with a log dir

        shown, member = redaction.redact_command(command), start_count.member(group and group.rank)
        schedule, job = schedule_cnt(settings), job_name(settings)
        mine = cut_off_run.RunIdentity(shown, node_name(settings), member, schedule, job)
        if (path := cut_off_run.find(folder, mine)) is not None:
            try:
                opened = work_dir.open_run_dir(path, False, caught)
            except RunDirError:
                pass  # another ftrun works in it
            else:
                if cut_off_run.was_cut_off(opened[1].load(), mine):  # now that it is locked
                    return opened
                opened[1].close()
    if settings.run_dir:
        return work_dir.open_run_dir(os.path.abspath(settings["run-dir"].text), False, caught)
    if folder:
        is_remote = work_dir.network_kind(folder) is not None
        return work_dir.open_run_dir(named(folder) if is_remote else fresh(folder), is_remote, caught)
    return work_dir.open_default_run_dir(caught)


def named(folder: str, at: float | None = None) -> str:
    """The path of a run dir in `folder`, named by the time, as in Cerebras' configurations."""
    return f"{folder}/{time.strftime('%Y%m%d_%H%M%S', time.localtime(at))}_restartable"


def fresh(folder: str) -> str:
    """Create a run dir in `folder`; two in the same second get different names."""
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
    """How often this pod was scheduled: the number from the platform, or else the outer scheduler's count of restarts
    plus one, or else 1."""
    for variable, offset in SCHEDULES:
        if (count := number(os.environ, variable)) is not None:
            return max(1, count + offset)
    attempts: int | None = settings.annotated.attempts
    return 1 if attempts is None else attempts + 1


def _resumed(before: tuple[Ledger, dict[str, object]] | None, schedule_cnt: int, job: str) -> Ledger:
    """The ledger to continue with.  A new schedule is a new pod: starts and restarts are counted from zero, while the
    progress of the training is kept.

    `job`: the platform's name of the training job.  Without it a run dir belongs to one job, and a new run dir in a
    first schedule begins another job with a unique name.
    """
    if before is None:
        return Ledger(schedule_cnt=schedule_cnt, job=job or f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}")
    ledger, state = before
    if job and ledger.job != job:
        ledger = ledger._replace(job=job, occurrences=() if ledger.job else ledger.occurrences)
    if ledger.schedule_cnt != schedule_cnt:
        ledger = ledger._replace(schedule_cnt=schedule_cnt, start_cnt=0, replacements=0, hang=0, fault=0, failure=0)
        ledger = ledger._replace(reached=False, faulted=False, removed=(), visible=None, regained=())
    # An attempt that was cut off by the end of ftrun or of the container counts as failed, whatever the cause.
    return ledger._replace(reason="first" if ledger.start_cnt == 0 or state.get("succeeded") is True else "failure")


def _buried(before: tuple[Ledger, dict[str, object]] | None) -> EpochRun | None:
    """In which epoch of its group the ftrun that wrote this state took part last.  It is dead, since the lock of the
    run dir is ours, unless it wrote the state on another machine, where the lock may not count."""
    if before is None or not before[1].get("ran"):
        return None
    try:
        state = run_state.read(before[1])
    except Malformed:
        return None
    return state.ran if state.run.boot == procfs.boot_id() else None


def _sweep(state: dict[str, object]) -> None:
    """End the processes that a killed ftrun left running, and remove its beat folder.  The name of that folder is never
    reused, so only its descendants have it in their environment; those that cleared it are in the command's group."""
    beat_dir, pid, start = (state.get(name) for name in ("beat_dir", "pid", "pid_start"))
    command = (pid, start) if isinstance(pid, int) and isinstance(start, int) else (0, 0)
    if not isinstance(beat_dir, str) or not os.path.basename(beat_dir).startswith(beat_folders.PREFIX):
        return
    group = leftovers.load_group(state)
    marker, deadline = f"FTRUN_BEAT_DIR={beat_dir}".encode(), time.monotonic() + SWEEP_TIMEOUT
    empty = 0
    while empty < 2:  # they are not our children, so no kernel list shows that a scan has missed none
        left, refused, _ = tree.kill(partial(leftovers.find_processes, marker, command, group))
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
