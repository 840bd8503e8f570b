"""Counts how often the command was started in this pod, across all ftruns that run one after another in it.

ModelArts ("Fault Recovery Environment Variables"): MA_PROC_START_CNT is the number of times that the script was
executed in the current pod.  It is 1 after a submission or a rescheduling and grows by 1 with each start in place;
above 1 it means that the script was executed in this container before.  So an incoming count is never lowered, and the
count continues from one ftrun to the next: an entry point that calls ftrun twice, phases, a new run dir for each of
them (`--log-dir`).

The pod is taken to be the container: a PID namespace other than the machine's first one, identified by its number and
by the start time of its PID 1.  The count is stored in a private folder in the local temp folder.  Nothing is stored
- if ftrun is PID 1: the namespace ends with it;
- outside a container (a laptop, a Slurm node): consecutive runs there are not a pod.  One run dir continues its count;
- for an ftrun that `docker exec` or a debugger started (not a descendant of PID 1): it is not the pod's program;
- below another ftrun, which provides the number of this start in MA_PROC_START_CNT.
Two ftruns at the same time in one container share the count; each sees its own numbers grow.
"""

import os
from contextlib import suppress
from typing import Final

from ftrun.host import procfs, safe_files, work_dir
from ftrun.host.journal import RunDirError
from ftrun.platforms import number

FIRST_NAMESPACE: Final = 0xEFFFFFFC  # PROC_PID_INIT_INO of linux/proc_ns.h: the number of the machine's first one
VARIABLE: Final = "MA_PROC_START_CNT"
FILE: Final = "starts"
ONCE: Final = "once"  # markers of `ftrun_hooks.torch.once`
TASKS: Final = ("SLURM_PROCID", "LOCAL_RANK")  # several tasks in one container count separately


class Starts:
    """`count`: the known number of starts so far.  No method raises or waits: if the count cannot be stored, the next
    ftrun begins with the incoming count."""

    def __init__(self, *identity: object) -> None:
        """`identity`: distinguishes this pod from another pod in the same container, for example by the schedule."""
        self.once: str | None = None  # the folder for the markers, where it outlives this ftrun
        self._folder = _folder(identity)
        self.count = max((number(os.environ, VARIABLE) or 1) - 1, self._stored_count())
        if self._folder is not None:
            self.once = f"{self._folder}/{ONCE}"

    def started(self, start_cnt: int) -> None:
        """The command is about to be started as this number."""
        self.count = max(start_cnt, self.count)
        if self._folder is None or self._stored_count() >= self.count:
            return
        path = f"{self._folder}/{FILE}"
        try:
            safe_files.replace(path, b"%d\n" % self.count, fresh=f"{path}.{os.getpid()}", durable=False)
        except OSError:
            self._folder = None

    def share_markers(self, run_dir: str) -> None:
        """Let `once` find what an earlier ftrun, or phase, in this pod has done: link its folder in the run dir to that
        of the pod."""
        if self.once is None:
            self.once = f"{run_dir}/{ONCE}"
        link = f"{run_dir}/{ONCE}"
        with suppress(OSError):
            if link == self.once or (os.path.lexists(link) and not os.path.islink(link)):
                return
            os.makedirs(self.once, 0o700, exist_ok=True)
            if os.path.islink(link):  # left by an earlier container
                os.unlink(link)
            os.symlink(self.once, link)

    def _stored_count(self) -> int:
        if self._folder is None:
            return 0
        try:
            text = (safe_files.read(f"{self._folder}/{FILE}", 64) or b"").strip()
        except ValueError:  # also ForeignFile
            return 0
        return int(text) if text.isdigit() and len(text) < 10 else 0


def member(rank: int | None = None) -> str:
    """Distinguishes this ftrun from those of the other members of a group, in which it has this rank, or of the other
    tasks in the container."""
    return next((os.environ[name] for name in TASKS if os.environ.get(name)), "") if rank is None else str(rank)


def _folder(identity: tuple[object, ...]) -> str | None:
    """Return the folder of this pod, created if necessary; None if there is no pod."""
    if os.getpid() == 1 or "FTRUN_BEAT_DIR" in os.environ:
        return None
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        first = procfs.stat(1)
        if namespace == FIRST_NAMESPACE or first is None or not _descends_from_first():
            return None
        name = work_dir.digest(" ".join(map(str, (namespace, first.start, member(), *identity))))
        return safe_files.private_folder(f"{work_dir.local_temp_folder('/')}/ftrun-{os.geteuid()}-pod-{name}")
    except (OSError, RunDirError):
        return None


def _descends_from_first() -> bool:
    """Return whether this process descends from PID 1 of its namespace: a process that entered by setns(2) has a parent
    outside, shown as 0."""
    pid = os.getpid()
    while pid > 1:
        found = procfs.stat(pid)
        if found is None:
            return False
        pid = found.parent
    return pid == 1
