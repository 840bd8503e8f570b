#!/usr/bin/env python3
"""A small outer scheduler for one machine: it does around ftrun what ModelArts does around a training container.

    local.py --job-retry-num 3 --nodes node-a,node-b -- --hang-timeout 60s python train.py; local.py --demo

Nodes are folders, a container is a PID namespace whose first process is ftrun, and what follows `--` is ftrun's command
line.  It reads nothing but exit codes, and after a 197 the node that `verdict.json` names:

    0                             the pod has succeeded
    195, 196                      job-level rescheduling: every container ends, new ones begin, MA_SCHEDULE_CNT + 1
    197                           the node is isolated before that; with --pod-retry-num only its pod moves elsewhere
    93, 94, 95, 125, 126, 127, 2  the job has failed
    any other                     the job has failed; with --unconditional: job-level rescheduling

What ftrun does in the container uses up none of the reschedules.  Pods are independent: no ftrun is told of others.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HOUSE = Path(__file__).resolve().parents[2]
FTRUN = [sys.executable, str(HOUSE / "bin" / "ftrun")]
FTHANG = [sys.executable, str(HOUSE / "bin" / "fthang")]
# Whatever ends us, even a SIGKILL, ends the container.
CONTAINER = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
STOP_GRACE = 10.0  # s; from SIGTERM to the kill of a container
# By exit code: its verdict, and what then: "reschedule", "isolate" (and reschedule) or "fail".
RULES = {
    195: ("hang-limit", "reschedule"),
    196: ("user-fault-limit", "reschedule"),
    197: ("node-fault", "isolate"),
    93: ("failure-limit", "fail"),
    94: ("non-recoverable", "fail"),
    95: ("shutdown-hang", "fail"),
    125: ("internal", "fail"),
    126: ("not-executable", "fail"),
    127: ("not-found", "fail"),
    2: ("usage", "fail"),
}


class Wish(NamedTuple):
    """A job.  The retry numbers are those of ModelArts' annotations; 0: not asked for."""

    command: list[str]  # ftrun's words
    root: Path  # node folders, and `shared`, which outlives every container
    nodes: list[str]
    pods: int
    job_retry_num: int
    pod_retry_num: int
    unconditional: bool
    hang_retry: bool
    fault: list[tuple[str, str]]  # (node, one of FAULTS)

    def annotations(self) -> str:
        """As Kubernetes' downward API writes them into a file."""
        wanted = {"job-retry-num": self.job_retry_num, "pod-retry-num": self.pod_retry_num}
        wanted |= {"job-unconditional-retry": self.unconditional, "hang-retry": self.hang_retry}
        return "".join(f'fault-tolerance/{name}="{str(value).lower()}"\n' for name, value in wanted.items() if value)


def plan(then: str, wish: Wish, job_retries: int, pod_retries: int, healthy: int) -> tuple[str, str]:
    """The level, "pod", "job" or "fail", and the words for it; a level that is not to be had falls to the next."""
    if then == "fail":
        return "fail", "the job fails"
    degraded = ""
    if then == "isolate" and wish.pod_retry_num:
        if pod_retries < wish.pod_retry_num and healthy >= wish.pods:
            return "pod", f"pod-level rescheduling {pod_retries + 1} of {wish.pod_retry_num}"
        degraded = "no pod-level rescheduling any more, "
    if healthy < wish.pods:
        return "fail", degraded + "the job fails: too few healthy nodes are left"
    if job_retries == wish.job_retry_num:
        used = f"all {job_retries} reschedules are used up" if job_retries else "no --job-retry-num"
        return "fail", degraded + f"the job fails: {used}"
    return "job", f"{degraded}job-level rescheduling {job_retries + 1} of {wish.job_retry_num}"


FAULTS = {  # Ascend's codes
    "critical": "80E18402",  # stays: nothing heals it
    "lasting": "80E01801",  # may heal, and does not
    "passing": "80E01801",  # heals, and does not come again in this container
    "recurring": "80E01801",  # heals, and comes again and again
    "user": "80C98002",  # of an operator or the input, again and again
}


def report(code: str | None, file: Path) -> None:
    """What MindCluster's device plugin tells a container in `reset.json`: a chip with this fault, or a healthy one."""
    status = {"Status": "unrecovered" if code else "recovered", "Policy": "hotReset"}
    rank = {"RankId": 0, "LogicId": 0, **status, "ErrorCode": [], "ErrorCodeHex": code or ""}
    flags = {"FaultFlushing": False, "GracefulExit": 0, "RestartFaultProcess": False}
    content = {"RankList": [rank], "UpdateTime": int(time.time()), "RetryTime": 0, **flags}
    file.with_suffix(".new").write_text(json.dumps(content), encoding="utf-8")
    file.with_suffix(".new").rename(file)


def break_device(kind: str, folder: Path, over: threading.Event) -> None:
    """Report faults of a device while the command of its container runs, each until ftrun has recorded it."""
    records, heals = folder / "run" / "events.jsonl", kind not in ("critical", "lasting")
    for number in (1,) if kind == "passing" else itertools.count(1):
        for event, code in (("spawned", FAULTS[kind]), ("fault", None))[: 1 + heals]:
            while not records.exists() or records.read_text().count(f'"event": "{event}"') < number:
                if over.wait(0.1):
                    return
            if over.wait(1):
                return
            report(code, folder / "reset.json")


# --- containers -------------------------------------------------------------------------------------------------------


def container() -> tuple[list[str], str]:
    """What to put before a command to run it as a container here, and in words what that is."""
    refusal = ""
    for user, what in (([], "a PID namespace"), (["--user", "--map-root-user"], "a PID and a user namespace")):
        words = [*CONTAINER, *user, "sh", "-c", 'mount -t tmpfs shm /dev/shm; exec "$@"', "sh"]  # memory of its own
        try:
            subprocess.run([*words, "true"], capture_output=True, text=True, timeout=30, check=True)
            return words, what
        except (OSError, subprocess.SubprocessError) as error:
            refusal = str(getattr(error, "stderr", None) or error).strip()
    return [], f"a plain child, as no PID namespace can be made here ({refusal})"


class Pod:
    """One container at a time, each on a node."""

    def __init__(self, wish: Wish, number: int, prefix: list[str]) -> None:
        self.wish, self.number, self._prefix = wish, number, prefix
        self.schedule = 0
        self.node = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()

    @property
    def name(self) -> str:
        return (f"pod-{self.number} " if self.wish.pods > 1 else "") + f"schedule {self.schedule}"

    @property
    def folder(self) -> Path:
        """Of this container, on its node."""
        return self.wish.root / self.node / self.name.replace(" ", "-")

    @property
    def shared(self) -> Path:
        return self.wish.root / "shared" / f"pod-{self.number}"

    def start(self, node: str) -> None:
        self.schedule, self.node, self._over = self.schedule + 1, node, threading.Event()
        self.folder.mkdir(parents=True)
        self.shared.mkdir(parents=True, exist_ok=True)
        (self.folder / "annotations").write_text(self.wish.annotations(), encoding="utf-8")
        report(None, self.folder / "reset.json")
        told = {
            "MA_SCHEDULE_CNT": str(self.schedule),
            "VC_TASK_INDEX": str(self.number),
            "NODE_NAME": node,
            "FTRUN_STOP_GRACE": f"{STOP_GRACE / 2:g}s",
            "FTRUN_RUN_DIR": str(self.folder / "run"),
            "FTRUN_STATE_DIR": str(self.shared),
            "FTRUN_TERMINATION_LOG": str(self.folder / "message.json"),
            "FTRUN_ANNOTATIONS": str(self.folder / "annotations"),
            "FTRUN_RESET_FILE": str(self.folder / "reset.json"),
        }
        outer = {name: text for name, text in os.environ.items() if name != "FTRUN_BEAT_DIR"}
        with (self.folder / "output.log").open("wb") as output:
            self._process = subprocess.Popen(
                [*self._prefix, *FTRUN, *self.wish.command],
                env=outer | told,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is for the scheduler
            )
        for broken, kind in self.wish.fault:
            if broken == node:
                threading.Thread(target=break_device, args=(kind, self.folder, self._over), daemon=True).start()

    @property
    def running(self) -> bool:
        """Until `ended` or `stop` has said otherwise."""
        return self._process is not None

    def ended(self) -> int | None:
        """The exit code, as a shell has it, or None while it runs."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        self._over.set()
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """SIGTERM to ftrun, and the kill of the whole container where that is not enough."""
        if self._process is not None:
            with contextlib.suppress(OSError, IndexError):
                os.kill(self._ftrun(self._process.pid), signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_GRACE)
            self._process.kill()
            self._process.wait()
            self.ended()

    def _ftrun(self, pid: int) -> int:
        """Its pid as seen from here."""
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]) if self._prefix else pid

    def root_cause(self) -> str:
        """The node to isolate: the one that the verdict of this very schedule names, else our own."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            verdict = json.loads((self.shared / "verdict.json").read_bytes())
            if verdict.get("schedule_cnt") == self.schedule and verdict.get("node") in self.wish.nodes:
                return str(verdict["node"])
        return self.node

    def story(self) -> str:
        """The container, and what ftrun did in it, by its records."""
        records = self.folder / "run" / "events.jsonl"
        text = records.read_text() if records.exists() else ""
        reasons = re.findall(r'"event": "restart",.*"reason": "(\w+)"', text)
        restarts = ", ".join(f"{times} x {reason}" for reason, times in Counter(reasons).items()) or "none"
        rungs = re.findall(r'"event": "recovered",.*"rung": "(\w+)"', text)
        finer = "".join(f", {times} x {rung} below a restart" for rung, times in Counter(rungs).items())
        where = f"{self.name} on {self.node}: MA_SCHEDULE_CNT={self.schedule}"
        return f"{where}, restarts in place: {restarts}{finer}; ended"


# --- the job ----------------------------------------------------------------------------------------------------------


class Job:
    """From the first container to the last.  `told` is its transcript."""

    def __init__(self, wish: Wish) -> None:
        prefix, self.what = container()
        self.wish = wish
        self.pods = [Pod(wish, number, prefix) for number in range(wish.pods)]
        self.isolated: list[str] = []
        self.job_retries = self.pod_retries = 0
        self.told = ""

    def run(self) -> int:
        """Its exit code: 0, or that of the container that it failed with."""
        self._tell(f"nodes: {', '.join(self.wish.nodes)}; a container is {self.what}")
        try:
            self._place(self.pods)
            code = self._watch()
        finally:
            self._end(self.pods)
        used = f"{self.job_retries} of {self.wish.job_retry_num} reschedules"
        if self.wish.pod_retry_num:
            used += f", {self.pod_retries} of {self.wish.pod_retry_num} of pods"
        isolated = f"; isolated: {', '.join(self.isolated)}" if self.isolated else ""
        self._tell(f"the job has {'failed' if code else 'succeeded'} after {used}{isolated}; exit code {code}")
        return code

    def transcript(self) -> str:
        """Run it, and return what it has printed."""
        self.run()
        return self.told

    def _tell(self, line: str) -> None:
        self.told += line + "\n"
        print(line, flush=True)

    def _watch(self) -> int:
        while running := [pod for pod in self.pods if pod.running]:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            pod, code = next(((pod, code) for pod in running if (code := pod.ended()) is not None), (None, 0))
            if pod is not None and not self._goes_on(pod, code):
                return code
        return 0

    def _goes_on(self, pod: Pod, code: int) -> bool:
        """Do what has to be done after this end of a pod; False: the job has failed."""
        if code == 0:
            self._tell(f"{pod.story()} with 0")
            return True
        verdict, then = RULES.get(code, ("of the command", "reschedule" if self.wish.unconditional else "fail"))
        lost, isolating = [pod], ""
        if then == "isolate":
            node = pod.root_cause()
            self.isolated += [node] if node not in self.isolated else []
            lost += [other for other in self.pods if other.running and other.node == node]
            isolating = f"isolating {node}, "
        healthy = sum(node not in self.isolated for node in self.wish.nodes)
        level, words = plan(then, self.wish, self.job_retries, self.pod_retries, healthy)
        self._tell(f"{pod.story()} with {code} {verdict}: {isolating}{words}")
        self.job_retries += level == "job"
        self.pod_retries += level == "pod"
        if level != "fail":
            self._place(lost if level == "pod" else self.pods)
        return level != "fail"

    def _place(self, pods: list[Pod]) -> None:
        """Create each of these pods again, on a healthy node of its own, the foremost first."""
        self._end(pods)
        taken = {pod.node for pod in self.pods if pod.running}
        free = [node for node in self.wish.nodes if node not in taken and node not in self.isolated]
        for pod, node in zip(pods, free, strict=False):
            pod.start(node)

    def _end(self, pods: list[Pod]) -> None:
        for pod in pods:
            if pod.running:
                pod.stop()
                self._tell(f"{pod.story()} by the scheduler")


def asked(words: Sequence[str]) -> Wish:
    """Exits with 2 for bad usage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, kinds = parser.add_argument, ", ".join(FAULTS)
    add("--root", type=Path, help="the nodes' folders and `shared` [default: a fresh folder]")
    add("--nodes", default="node-a,node-b,node-c", help="[default: %(default)s]")
    add("--pods", type=int, default=1, metavar="N", help="containers, each on a node of its own")
    add("--job-retry-num", type=int, default=0, metavar="N", help="auto restart: 1 to 128 reschedules at most")
    add("--pod-retry-num", type=int, default=0, metavar="N", help="of single pods: 1 to 128 reschedules at most")
    add("--unconditional", action="store_true", help="unconditional auto restart: whatever the exit code")
    add("--hang-retry", action="store_true", help="restart upon suspension")
    add("--fault", nargs=2, action="append", default=[], metavar=("NODE", "KIND"), help=f"break its device: {kinds}")
    add("command", nargs="+", metavar="-- WORDS", help="ftrun's options, and the command")
    given = parser.parse_args(words)
    given.nodes = given.nodes.split(",")
    wish = Wish(**vars(given))
    needy = wish.pod_retry_num or wish.unconditional or wish.hang_retry
    for wrong, why in (
        (len(set(wish.nodes)) < len(wish.nodes) or "" in wish.nodes, "--nodes: each needs a name of its own"),
        (not 1 <= wish.pods <= len(wish.nodes), f"--pods: 1 to {len(wish.nodes)}, as there are so many nodes"),
        (not (0 <= wish.job_retry_num <= 128 and 0 <= wish.pod_retry_num <= 128), "a retry number is from 1 to 128"),
        (needy and not wish.job_retry_num, "any retry needs --job-retry-num"),
        (not {kind for _, kind in wish.fault} <= set(FAULTS), f"--fault: a KIND is one of {kinds}"),
        (wish.root and wish.root.exists() and any(wish.root.iterdir()), "--root: it is not empty"),
    ):
        if wrong:
            parser.error(why)
    return wish


def main(words: Sequence[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # the containers end on the way out
    if list(words) == ["--demo"]:
        from ladder import demo  # beside this file

        return demo(shlex.join(FTHANG), lambda words, root: Job(asked(words)._replace(root=root)).transcript())
    wish = asked(words)
    root = (wish.root or Path(tempfile.mkdtemp(prefix="scheduler-"))).absolute()
    try:
        return Job(wish._replace(root=root)).run()
    except OSError as error:  # a root that cannot be
        sys.exit(f"local.py: {error.filename}: {error.strerror}")
    finally:
        print(f"logs and records: {root}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
