"""What a start costs whose imports are done before: of one command and of eight ranks, after a failure and before the
first start; of a rank that is replaced; and what the standbys cost the running job."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from proof.bench.compare import peers
from proof.bench.compare.kit import Launched, made_by
from support.measured import Measured, short, spread
from support.runs import children, objects

NAME = "55-warm-starts"
SCRIPT: Final = Path(__file__).with_name("warm_trainee.py")
DEADLINE: Final = 400.0  # s; eight ranks import PyTorch at once, on a machine that may be busy
COLD, WARM = "ftrun, `--standby off`", "ftrun, `--standby N`"
RANKS: Final = 8
JOBS: Final = (("nothing", 1), ("nothing", RANKS), ("torch", 1), ("lightning", 1), ("torch", RANKS))
ROUNDS: Final = {"nothing": 5, "torch": 3, "lightning": 2}
PROMPT: Final = ("nothing", "recoverable")  # they take milliseconds, of which other work on the machine would make many
AHEAD: Final = -15  # nice value of the others
STEPS: Final = 40  # hundreds of steps in a window
PRELOAD: Final = ("--standby=off", "--preload=torch")
TITLES: Final = {"nothing": "no imports", "torch": "PyTorch", "lightning": "PyTorch, transformers and Lightning"}
BEFORE: Final = (
    "The time in seconds from the failure of one process until the last new process has done its first step, with all "
    "that it imports. The failure is the moment at which the process raises an exception; each of these programs ends "
    "and starts all processes. For ftrun two times follow that begin with its decision, the record `stopping` or "
    "`exited`: to the first line of the last new process, and to its first step. The programs run in turn, round by "
    "round. ftrun waits for its standbys before the failure. The record comes after the end of the process that has "
    "failed, which takes seconds where it has PyTorch to unload. ftrun waits 10 ms (`--backoff`) between that and the "
    "restart.",
    "The machine was shared with other work. So that this delays all programs alike and little, those without imports "
    "and the replaced rank ran in the real-time class (`chrt -r 10`), with their launcher, and all others with nice "
    f"{AHEAD}; standbys got the same while they imported.",
)


NOTES: Final = (
    "**A standby does not shorten the end of a process**: most of the first time of a warm start is the failing "
    "process, which unloads PyTorch. Without imports a standby saves only the start of Python.",
    "**From the decision to the first line** ftrun needs the most to prove that nothing of the attempt is left: it "
    "lists the processes that it can see, which in a container are those of the job, and here all of the machine.",
)


class Job(Launched):
    """One launcher and its processes."""

    def __init__(self, folder: Path, peer: peers.Peer, program: str, ranks: int, options: Sequence[str]) -> None:
        super().__init__(folder)
        self.ranks, self._program = ranks, program
        command = [sys.executable, str(SCRIPT), str(self.fifo), program]
        if peer is peers.OURS:
            some = [f"--nproc-per-node={ranks}"] if ranks > 1 else []
            options = ["--restart-on=failure", "--backoff=10ms", *some, *options]
        arguments = peer.command(folder, *command, ranks=ranks, options=options)
        # What prints starts cold.
        self.start(arguments, {"PYTHONWARNINGS": "ignore"}, preexec_fn=lambda: hurry(0, program))

    def lines(self, what: str, start: int = 0) -> list[float]:
        found = [line.split() for line in self.content.decode().splitlines()]
        return [float(line[3]) for line in found if line[0] == what and int(line[2]) in (start, start or int(line[2]))]

    def until(self, condition: Callable[[], Any]) -> Any:
        until = time.monotonic() + DEADLINE
        while not (found := condition()):
            self.read(0.02)
            assert time.monotonic() < until, f"in vain: {self.content.decode()[-300:]} {self.records()[-5:]}"
        return found

    def last(self, what: str, start: int) -> float:
        """When the last process of this start has reported it."""
        self.until(lambda: len(self.lines(what, start)) >= self.ranks)
        return max(self.lines(what, start))

    def records(self) -> list[dict[str, Any]]:
        return objects(self.folder / "run" / "events.jsonl")

    def standby(self, what: str, count: int = 1) -> dict[str, Any]:
        """The record `standby` of this kind."""

        def look() -> list[dict[str, Any]]:
            found = [one for one in self.records() if one["event"] == "standby"]
            assert not [one for one in found if one["what"] in ("cold", "off")], found
            for pid in _standbys(self):
                hurry(pid, self._program)
            return [one for one in found if one["what"] == what][count - 1 :]

        return dict(self.until(look)[0])


def hurry(pid: int, program: str) -> None:
    """Give a process, and what it starts, precedence over other work on the machine, where that is permitted."""
    with suppress(OSError):
        if program in PROMPT:
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(10))
        else:
            os.setpriority(os.PRIO_PROCESS, pid, AHEAD)


@contextmanager
def job(peer: peers.Peer, program: str, ranks: int, *options: str) -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="ftrun-bench-") as name:
        found = Job(Path(name), peer, program, ranks, options)
        try:
            yield found
        finally:
            found.end()


class Failure:
    """What one failure has cost."""

    def __init__(self, peer: peers.Peer, program: str, ranks: int, warm: bool) -> None:
        options = [f"--standby={ranks if warm else 'off'}"] if peer is peers.OURS else ["--max-restarts=3"]
        with job(peer, program, ranks, *options) as run:
            self.started = run.last("step", 1) - run.began
            self.memory = run.standby("ready").get("memory", 0) if warm else 0
            time.sleep(0.5)
            (run.fifo.parent / f"{run.fifo.name}.fail").touch()
            first, step = run.last("first", 2), run.last("step", 2)
            failed = max(run.lines("failing"))
            decided = [one["mono"] for one in run.records() if one["event"] in ("stopping", "exited")]
            self.first, self.step = first - failed, step - failed
            self.from_decision = first - min(decided) if decided else None
            if warm:
                outcome = run.standby("start")
                assert outcome["warm"] == ranks, outcome


def first_start(peer: peers.Peer, *options: str) -> float:
    with job(peer, "torch", RANKS, *options) as run:
        return run.last("step", 1) - run.began


def replaced() -> tuple[float, float]:
    """kill -9 of rank 2 of four to the next step of all, and to their first line: warm."""
    return _replaced("--standby=4"), _replaced("--standby=off")


def _replaced(option: str) -> float:
    with job(peers.OURS, "recoverable", 4, option, "--restart-on=none", "--hang-timeout=off") as run:
        run.until(lambda: len(run.lines("round-1")) >= 4 * run.ranks)
        if option != "--standby=off":
            run.standby("ready")
        time.sleep(0.5)
        pids = next(one["pids"] for one in run.records() if one["event"] == "spawned")
        killed = time.monotonic()
        os.kill(pids[2], signal.SIGKILL)
        run.until(lambda: len(run.lines("round-2")) >= run.ranks)
        return sorted(run.lines("round-2"))[run.ranks - 1] - killed


Windows = dict[str, tuple[float, float]]  # wall clock and processor time of a hundred steps, both in s


def pace() -> Windows:
    """A hundred steps while a standby waits, while one imports, and without any; in the same process."""
    with job(peers.OURS, "pace", 1, "--standby=1") as run:

        def window(until: Callable[[], Any]) -> tuple[float, float]:
            first = len(run.lines("pace")) + 1
            run.until(until)
            walls, used = run.lines("pace")[first:], run.lines("used")[first:]
            return statistics.median(walls), statistics.median(used)

        def some() -> Callable[[], bool]:
            count = len(run.lines("pace"))
            return lambda: len(run.lines("pace")) > count + STEPS

        def prepared(number: int) -> None:
            run.until(lambda: _standbys(run))
            run.standby("ready", number)

        run.until(lambda: _standbys(run))
        imports = window(some())
        prepared(1)
        found = {"imports": imports, "waits": window(some())}
        for number in range(3):  # the third that fails is the last one
            os.kill(_standbys(run)[0], signal.SIGKILL)
            if number < 2:
                prepared(number + 2)
        run.until(lambda: [one for one in run.records() if one["event"] == "standby" and one["what"] == "off"])
        return found | {"without": window(some())}


def _standbys(run: Job) -> list[int]:
    return [pid for pid in children(run.process.pid) if _waits(pid)]


def _waits(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
    return False


def measure(short_form: bool) -> Measured:
    load = os.getloadavg()[0]
    launchers = [] if short_form else peers.installed(peers.TORCHRUN, peers.FT_LAUNCHER)
    programs: list[tuple[str, peers.Peer, bool]] = [(COLD, peers.OURS, False), (WARM, peers.OURS, True)]
    programs += [(peer.titled, peer, False) for peer in launchers]
    jobs = JOBS[:1] if short_form else JOBS
    found: dict[tuple[str, str, int], list[Failure]] = {}
    for program, ranks in jobs:
        rounds = 1 if short_form else ROUNDS[program] if ranks == 1 or program == "nothing" else 1
        for _ in range(rounds):
            for name, peer, warm in programs:
                found.setdefault((name, program, ranks), []).append(Failure(peer, program, ranks, warm))
                print(name, program, ranks, vars(found[name, program, ranks][-1]), flush=True)
    rows = [(name, *(_cells(found[name, *one]) for one in jobs)) for name, _, _ in programs]
    head = [f"{'8 ranks' if ranks > 1 else 'one command'}, {TITLES[program]}" for program, ranks in jobs]
    after = () if short_form else (*_first_starts(launchers), _memory(found), _replacements(), _cost())
    after = (
        *after,
        *NOTES,
        f"Load of the machine, which has {os.cpu_count()} cores: {load:.0f} before, {os.getloadavg()[0]:.0f} after.",
    )
    title, columns = "Starts with imports done before", ("program", *head)
    return Measured(NAME, title, made_by(NAME), BEFORE, columns, tuple(rows), after)


def _cells(failures: list[Failure]) -> str:
    steps = spread([one.step for one in failures])
    decided = [(one.from_decision, one.from_decision + one.step - one.first) for one in failures if one.from_decision]
    return "; ".join([steps, *(spread(part) for part in zip(*decided, strict=True))])


def _first_starts(launchers: Sequence[peers.Peer]) -> Iterator[str]:
    ways = [("ftrun", peers.OURS, ("--standby=off",)), ("ftrun with `--preload torch`", peers.OURS, PRELOAD)]
    ways += [(peer.titled, peer, ()) for peer in launchers]
    taken: dict[str, float] = {}
    for name, peer, options in ways:
        taken[name] = first_start(peer, *options)
        print(name, taken[name], flush=True)
    cold, warm = (taken[name] for name, _, _ in ways[:2])
    text = "; ".join(f"{name} {spread([seconds])} s" for name, seconds in taken.items())
    yield (
        f"**First start of {RANKS} ranks that import PyTorch**, to the first step of the last: {text}. With "
        f"`--preload` that is {short(cold / warm)} times sooner."
    )


def _memory(found: dict[tuple[str, str, int], list[Failure]]) -> str:
    sizes = [
        f"{TITLES[program]}, {ranks}: {short(statistics.median(one.memory for one in failures) / 2**20)} MiB"
        for (name, program, ranks), failures in found.items()
        if name == WARM
    ]
    listed = "; ".join(sizes)
    return f"**Memory of all standbys together** (PSS), by what they have imported and their number: {listed}."


def _replacements() -> str:
    pairs = [replaced() for _ in range(3)]
    print("replaced", pairs, flush=True)
    warm, cold = ([pair[number] for pair in pairs] for number in range(2))
    return (
        "**kill -9 of one of four ranks** with `@ft.recoverable` and gloo, to the first step of all in the next round: "
        f"{spread(warm)} s from a standby, {spread(cold)} s without."
    )


def _cost() -> str:
    windows = [pace() for _ in range(2)]
    print("pace", windows, flush=True)
    parts = []
    for name, text in (("waits", "while a standby waits"), ("imports", "while one imports at the lowest priority")):
        wall, used = ([one[name][number] / one["without"][number] for one in windows] for number in range(2))
        parts.append(
            f"{text}, it takes {spread(wall)} times as long as without, {spread(used)} times the processor time"
        )
    return f"**Cost to a step of the running job**, one process that multiplies matrices: {'; '.join(parts)}."
