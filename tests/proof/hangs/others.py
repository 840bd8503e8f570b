"""What torchrun alone does about each hang, and what py-spy shows to somebody who looks."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from ftrun.workload.kinds import KINDS
from proof.hangs.hanging import HANGS, MOMENTS, ONLY, RANKS, TORCHRUN
from support.measured import Measured
from support.runs import FTHANG, alive, carrying, end_process, wait_for

LOOK = 20.0  # s that a person waits for py-spy
INNERMOST = re.compile(r'^Thread .*"MainThread"\n +(?P<frame>.*)', re.MULTILINE)


class Seen(NamedTuple):
    """`ended`: seconds after which torchrun ended, None if it did not for `watched` seconds; `shown`: the innermost
    frames of the hung rank's main thread by py-spy, or what else became of it."""

    kind: str
    watched: float
    ended: float | None
    shown: str
    wrong: str = ""


KIND_NAMES = tuple(kind for kind in HANGS if RANKS in ONLY.get(kind, (RANKS,)))


def see(kind: str, patience: float, folder: Path) -> Seen:
    """One run without ftrun."""
    folder.mkdir(parents=True)
    mark = uuid.uuid4().hex
    words = [*TORCHRUN, *FTHANG[1:], kind, "--torch", *MOMENTS["in the first ten steps"]]
    output = folder / "output"
    environment = os.environ | {"FT_OTHERS": mark, "MA_PROC_START_CNT": "1"}
    with output.open("wb") as out:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        line = KINDS[kind].text(0)
        wait_for(lambda: line in output.read_text() or process.poll() is not None, f"{kind} begins", 300)
        begun = time.monotonic()
        time.sleep(5)
        shown = _shown(mark)
        while process.poll() is None and time.monotonic() < begun + patience:
            time.sleep(0.5)
        watched = round(time.monotonic() - begun, 1)
        return Seen(kind, watched, None if process.poll() is None else watched, shown)
    except AssertionError as error:
        return Seen(kind, 0, None, "", str(error))
    finally:
        process.kill()
        while left := [pid for pid in carrying(f"FT_OTHERS={mark}") if alive(pid)]:
            for pid in left:
                end_process(pid)
            time.sleep(0.1)
        process.wait()


def _shown(mark: str) -> str:
    """Of rank 1, by `py-spy dump`."""
    ranks = []
    for pid in carrying(f"FT_OTHERS={mark}"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes():
                ranks.append(pid)
    if not ranks:
        return "its process has no Python"
    profiler = str(Path(sys.executable).with_name("py-spy"))
    process = subprocess.Popen(
        [profiler, "dump", "--pid", str(min(ranks))], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        text, _ = process.communicate(timeout=LOOK)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"nothing within {LOOK:g} s"
    if (found := INNERMOST.search(text)) is not None:
        return f"`{found['frame']}`"
    return "an error: " + text.strip().splitlines()[0][:100]


def section(runs: list[dict[str, Any]]) -> Measured:
    rows = []
    for kind in KIND_NAMES:
        own = [run for run in runs if run["kind"] == kind and not run["wrong"]]
        if own:
            ended = [run["ended"] for run in own if run["ended"] is not None]
            outcome = f"ended after {max(ended):.0f} s" if ended else f"no reaction in {own[-1]['watched']:.0f} s"
            rows.append((f"`{kind}`", outcome, own[-1]["shown"]))
    return Measured(
        "40-others",
        "What others find",
        "bin/prove hangs others --publish",
        (
            "The same hangs without ftrun, in rank 1 of two ranks that `torchrun` has started. The last column is the "
            "innermost frame that `py-spy dump` shows of its main thread to a person who asks for the right process.",
        ),
        ("kind", "torchrun alone", "py-spy, by hand"),
        tuple(rows),
        AFTER,
    )


AFTER = (
    "- **torchrun** sees the end of a process, not that it stands still. A rank that waits in a collective of gloo for "
    "one that hangs ends with an exception when the timeout of the process group has passed, by default after 30 "
    "minutes; then torchrun ends the others, or restarts them with `--max-restarts`. Where no rank waits in a "
    "collective, nothing ends.\n"
    "- **The watchdog of NCCL** in PyTorch "
    "[ends the process](https://pytorch.org/docs/stable/torch_nccl_environment_variables.html) whose collective on a "
    "GPU has not finished within the timeout of its process group, "
    "[10 minutes by default](https://github.com/pytorch/pytorch/pull/110947). It sees no hang before the first "
    "collective and none of a single process; another one it sees only by the ranks that wait for the hung one in a "
    "collective, and it names that collective, not the cause. There is no GPU here, so this is from its "
    "documentation.\n"
    "- **NVIDIA's ft_launcher** (nvidia-resiliency-ext) finds a rank that has sent no heartbeat, by default for "
    "[45 minutes, or 60 before the first]"
    "(https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/integration/heartbeats.html). The program or its "
    "callback for Lightning has to send them; a program that does not is not watched. It could not be installed for "
    "this measurement; [Benchmarks](benchmarks.md#what-it-saves-after-a-hang) has its delay after "
    "a timeout of 2 s. It compares clocks, so it ends a healthy wait that is longer than the timeout.\n"
    "- **py-spy** shows where a process waits, in 10 to 20 ms, if somebody suspects it, may inspect it and "
    "knows which of the processes to ask. It does not tell whether the wait can end. Without `--nonblocking` it waits "
    "for ever for a process in state D, and fails for a stopped one.",
)
