"""What the processes of a run use at this moment, for people, as psutil reads it.

Nothing that ftrun decides depends on it (ADR 13), and nothing else imports psutil.  Without it, no figures are shown.
"""

from typing import TYPE_CHECKING, Final

from ftctl.common import size
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text import durations
from ftrun.core.text.sentences import several
from ftrun.messages.run_state import RunFacts
from ftrun.records.files import liveness, state
from ftrun.records.present.own_ranks import ENDED
from ftrun.records.present.snapshot import RankNow, Snapshot

if TYPE_CHECKING:
    import psutil

MOST: Final = 64  # ranks that are measured: one takes up to 0.2 ms


class ProcessUse(NamedTuple):
    """`status`: a word of psutil, such as `running`, `sleeping` or `disk-sleep`.  `cpu`: seconds of processor time so
    far.  `memory`: resident bytes."""

    status: str
    threads: int
    cpu: float
    memory: int

    @property
    def text(self) -> str:
        time, threads = durations.seconds(self.cpu), several(self.threads, "thread")
        return f"{self.status}, {threads}, {time} of processor time, {size(self.memory)} of memory"


def used(pid: int) -> ProcessUse | None:
    """What this process has used so far; None if it has ended, or is hidden."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            time, memory = process.cpu_times(), process.memory_info().rss
            return ProcessUse(process.status(), process.num_threads(), round(time.user + time.system, 2), memory)
    except (psutil.Error, OSError):
        return None


class Meter:
    """Measures the ranks of one run again and again: processor time is measured between two calls."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def measured(self, shown: Snapshot) -> Snapshot:
        """The snapshot with the figures of the ranks that run here; ranks of another PID namespace have none."""
        run = state.load(shown.run_dir).rest.run if shown.ranks else RunFacts()
        if not shown.alive or run.pid is None or not liveness.is_local(run):
            return shown
        try:
            import psutil  # here, since it takes longer to load than all else that `top --once` needs
        except ImportError:
            return shown
        before, self._known = self._known, {}
        found = []
        for rank in shown.ranks[:MOST]:
            try:
                found.append(rank if rank.state in ENDED else self._rank(rank, before, run.pid))
            except (psutil.Error, OSError):  # it has ended, or is hidden
                found.append(rank)
        return shown._replace(ranks=(*found, *shown.ranks[MOST:]))

    def _rank(self, rank: RankNow, before: dict[int, "psutil.Process"], ftrun: int) -> RankNow:
        import psutil

        process, cpu = before.get(rank.pid), None
        if process is not None and process.is_running():
            cpu = process.cpu_percent()
        else:
            process = psutil.Process(rank.pid)
            if ftrun not in (one.pid for one in process.parents()):
                return rank  # a number of another PID namespace
            process.cpu_percent()  # from which the next call counts
        self._known[rank.pid] = process
        return rank._replace(cpu=cpu, memory=process.memory_info().rss)
