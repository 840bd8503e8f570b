"""`--standby`: the next start of a program goes on where a process that waits has got to, and nothing else differs."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ftrun.core.rules.standby import NextStart
from ftrun.records.present.run_snapshot import read_snapshot
from support.containers import Run, Starter
from support.ports import free_port
from support.runs import HOUSE, Mode, Record, alive, children, wait_for
from support.short import quick

OBSERVER = str(HOUSE / "tests" / "support" / "observer.py")
OPTIONS = ("--restart-on", "failure", "--backoff", "10ms")
# What ftrun says to each start.
DIFFERENT = (
    "MA_PROC_START_CNT=",
    "FTRUN_RESTART_REASON=",
    "FTRUN_LAST_STEP=",
    "MASTER_PORT=",
    "TORCHELASTIC_RESTART_C",
)


def fail(run: Run, folder: Path) -> None:
    """Once all standbys are ready, let the attempt fail."""
    run.until("standby", what="ready")
    (folder / "fail").touch()


def seen(folder: Path, start: int, rank: int = 0) -> dict[str, Any]:
    path = folder / f"seen-{start}-{rank}"
    found: dict[str, Any] = json.loads(wait_for(lambda: path.read_text(), str(path)))
    return found


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    entries = [f"{name}={value}" for name, value in found["environ"]]
    other = ("loaded", "at the first heartbeat", "pid", "drawn")
    same = {name: value for name, value in found.items() if name not in other}
    same["environment block"] = [entry for entry in found["environment block"] if not entry.startswith(DIFFERENT)]
    same["environ"] = [entry for entry in entries if not entry.startswith(DIFFERENT)]
    same["of a child"] = [entry for entry in found["of a child"] if not entry.startswith(DIFFERENT)]
    names = {entry.partition("=")[0] for entry in entries if entry.startswith(DIFFERENT)}
    return same | {kind: [name for name in found[kind] if name not in names] for kind in ("bytes", "posix")}


def assert_only_time_differs(cold: dict[str, Any], warm: dict[str, Any]) -> None:
    assert_same(cold, warm)
    changes = dict(warm["environ"])
    assert (changes["MA_PROC_START_CNT"], changes["FTRUN_RESTART_REASON"]) == ("2", "failure")
    assert "email.message" in set(warm["loaded"]) - set(cold["loaded"])
    assert set(warm["loaded"]) <= set(cold["loaded"]) | set(cold["at the first heartbeat"])


def assert_same(cold: dict[str, Any], warm: dict[str, Any]) -> None:
    before, after = comparable(cold), comparable(warm)
    assert {name: (before[name], after[name]) for name in before if before[name] != after[name]} == {}
    assert len(before) >= 62
    assert set(cold["loaded"]) <= set(warm["loaded"])


def test_a_program_observes_no_difference(start: Starter, mode: Mode, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "utf8", "-W", "ignore::UserWarning", OBSERVER, str(tmp_path)]
    environment = {"WANDB_API_KEY": "not for a process that waits", "PLAIN": "x"}
    with (tmp_path / "out").open("wb") as out:
        run = start(*command, mode=mode, options=[*OPTIONS, "--standby", "1"], stdout=out, stderr=out, env=environment)
        fail(run, tmp_path)
        assert run.wait() == 0, (tmp_path / "out").read_text()
    outcome = run.named("standby")[1]
    assert (outcome["what"], outcome["warm"], outcome["of"], outcome.get("why")) == ("start", 1, 1, None)
    assert_only_time_differs(seen(tmp_path, 1), seen(tmp_path, 2))
    assert "WANDB_API_KEY" in dict(seen(tmp_path, 2)["environ"])


def test_a_program_on_a_terminal_observes_no_difference(start: Starter, tmp_path: Path) -> None:
    run = start(sys.executable, OBSERVER, str(tmp_path), options=[*OPTIONS, "--standby", "1"], tty=True)
    fail(run, tmp_path)
    assert run.wait() == 0, run.terminal.seen
    assert run.named("standby")[1].get("warm") == 1, run.named("standby")
    cold, warm = seen(tmp_path, 1), seen(tmp_path, 2)
    assert_only_time_differs(cold, warm)
    assert cold["foreground"] == warm["foreground"] == [True, True, True]


def test_ranks_observe_no_difference(start: Starter, tmp_path: Path) -> None:
    options = [*OPTIONS, "--nproc-per-node", "2", "--standby", "2"]
    run = start(sys.executable, OBSERVER, str(tmp_path), options=options)
    fail(run, tmp_path)
    assert run.finish()[0] == 0
    outcome = run.named("standby")[1]
    assert (outcome["what"], outcome["warm"], outcome["of"], outcome["forked"]) == ("start", 2, 2, 2), outcome
    for rank in range(2):
        assert_only_time_differs(seen(tmp_path, 1, rank), seen(tmp_path, 2, rank))
    assert [seen(tmp_path, 2, rank)["group"] for rank in range(2)] == ["own", "of another"]


# An installed package whose generator of random numbers is not that of `random`.
DRAWN = "import random; GENERATOR = random.Random(); FIXED = random.Random(7)"


@pytest.mark.parametrize("terminal", quick([False, True], ids=lambda terminal: "terminal" if terminal else ""))
def test_ranks_that_are_forked_before_the_first_start_observe_no_difference(
    terminal: bool, start: Starter, tmp_path: Path
) -> None:
    """The first start is forked, the second one is cold."""
    environment = package(tmp_path, DRAWN, "drawn") | {"WANDB_API_KEY": "not for a process that waits"}
    options = [*OPTIONS, "--nproc-per-node", "3", "--standby", "off", "--preload", "email.message,drawn"]
    run = start(sys.executable, OBSERVER, str(tmp_path), options=options, env=environment, tty=terminal)
    (tmp_path / "fail").touch()
    assert run.wait() == 0
    (outcome,) = run.named("standby")
    forked = 2 if terminal else 3  # a terminal is that of rank 0, whose streams are of another kind then
    assert (outcome["what"], outcome["warm"], outcome["forked"], outcome["of"]) == ("start", 3, forked, 3), outcome
    for rank in range(3):
        assert_same(seen(tmp_path, 2, rank), seen(tmp_path, 1, rank))
        assert {"email.message", "drawn"} <= set(seen(tmp_path, 1, rank)["loaded"])
        assert not {"email.message", "drawn"} & set(seen(tmp_path, 2, rank)["loaded"])
    drawn = [seen(tmp_path, 1, rank)["drawn"] for rank in range(3)]
    assert all(len(set(values)) == 3 for values in zip(*drawn, strict=True)), drawn


# It draws its seed when it is imported, as the native part of torch does.
TORCH = """
import random
class Generator:
    def seed(self): self.manual_seed(random.SystemRandom().getrandbits(64))
    def manual_seed(self, seed): self.value = seed
    def initial_seed(self): return self.value
(default_generator := Generator()).seed()
"""
# A stand-in for torch, and torch itself, with what a rank draws.
DRAW = {
    "stand-in": "torch.default_generator.initial_seed()",
    "torch": "torch.initial_seed(), torch.rand(4).tolist(), "
    "list(torch.utils.data.RandomSampler(range(50))), torch.empty((), dtype=torch.int64).random_().item()",
}
SHOW = """
import os, sys, time, json, torch
import ftrun_hooks as ft
start, rank = os.environ["MA_PROC_START_CNT"], os.environ["RANK"]
json.dump(({draw},), open(f"{{sys.argv[1]}}-{{start}}-{{rank}}", "w"))
ft.beat(1)
while start == "1" and not os.path.exists(sys.argv[1]): time.sleep(0.02)
sys.exit(start == "1")
"""


def draws(folder: Path, what: str, seeds: str = "") -> tuple[list[str], dict[str, str]]:
    """A command whose ranks note what they draw, with the environment for it; `seeds`: done by another package."""
    (folder / "train.py").write_text(SHOW.format(draw=DRAW[what]).replace("json, torch", "json, torch, later"))
    environment = package(folder, f"import torch\n{seeds}")
    if what == "stand-in":
        package(folder, TORCH, "torch/_C")
        environment = package(folder, "from torch._C import default_generator\nimport torch.rest", "torch/__init__")
        package(folder, "", "torch/rest")
    return [sys.executable, str(folder / "train.py"), str(folder / "drawn")], environment


def drawn(folder: Path, start: int) -> list[list[Any]]:
    return [json.loads((folder / f"drawn-{start}-{rank}").read_text()) for rank in range(2)]


WITH_TORCH = ["stand-in", pytest.param("torch", marks=[pytest.mark.slow, pytest.mark.torch])]


@pytest.mark.parametrize("what", WITH_TORCH)
@pytest.mark.parametrize("when", ["preload", "standby"])
def test_forked_ranks_draw_other_numbers_with_torch(what: str, when: str, start: Starter, tmp_path: Path) -> None:
    """As cold ones do: the import of torch draws a seed in each process."""
    command, environment = draws(tmp_path, what)
    options = ["--preload", "torch"] if when == "preload" else []
    options += [*OPTIONS, "--nproc-per-node", "2", "--standby", "2" if when == "standby" else "off"]
    run = start(*command, options=options, env=environment)
    if when == "standby":
        run.until("standby", what="ready")
    (tmp_path / "drawn").touch()
    assert run.finish()[0] == 0
    (outcome,) = run.named("standby", what="start")
    assert (outcome["warm"], outcome["forked"]) == (2, 2), run.named("standby")
    values = [*drawn(tmp_path, 1), *drawn(tmp_path, 2)]
    assert all(len(set(map(str, of_each))) == 4 for of_each in zip(*values, strict=True)), values


@pytest.mark.parametrize("what", WITH_TORCH)
def test_a_seed_that_an_import_sets_is_that_of_each_rank(what: str, start: Starter, tmp_path: Path) -> None:
    command, environment = draws(tmp_path, what, "torch.default_generator.manual_seed(7)")
    options = [*OPTIONS, "--nproc-per-node", "2", "--standby", "2"]
    run = start(*command, options=options, env=environment)
    run.until("standby", what="ready")
    (tmp_path / "drawn").touch()
    assert run.finish()[0] == 0
    assert run.until("standby", what="alone")["why"] == "an import has seeded torch"
    assert [values[0] for start in (1, 2) for values in drawn(tmp_path, start)] == [7, 7, 7, 7]


ALONE = {
    "import mmap; shared = mmap.mmap(-1, 4096)": "an import shares memory",
    "import os; number = os.getpid()": "later has called os.getpid",
    "import os; os.environ.get('LOCAL_RANK')": "have read the variable LOCAL_RANK",
    "import numpy; numpy.random.seed(7)": "an import has seeded numpy.random",
}


def some(cases: Mapping[str, str], *quick: str) -> list[Any]:
    """All of them, by their reasons; those that are not `quick` are slow tests."""
    slow = pytest.mark.slow
    return [
        pytest.param(text, why, id=why.replace(" ", "-"), marks=() if why in quick else slow)
        for text, why in cases.items()
    ]


@pytest.mark.parametrize(("text", "why"), some(ALONE, "an import shares memory", "have read the variable LOCAL_RANK"))
def test_what_a_fork_would_share_means_a_standby_that_imports_by_itself(
    text: str, why: str, start: Starter, tmp_path: Path
) -> None:
    command, stop = waits(tmp_path, "later")
    options = [*OPTIONS, "--nproc-per-node", "2", "--standby", "2", "--preload", "later"]
    run = start(*command, options=options, env=package(tmp_path, text))
    run.until("standby", what="ready")
    stop.touch()
    assert run.finish()[0] == 0
    alone = run.named("standby", what="alone")
    assert len(alone) == 2, "before the first start, and beside it"
    assert all(why in one["why"] for one in alone)
    starts = run.named("standby", what="start")
    assert [(one["attempt"], one["warm"], one["forked"]) for one in starts] == [(1, 0, 0), (2, 2, 0)]


NO_PRELOAD = {
    "absent": "import of absent failed",
    "loud": "an import printed much",
    "shaded": "has a module shaded of its own",
}


@pytest.mark.parametrize(("module", "why"), quick(NO_PRELOAD.items(), ids=lambda case: case[0]))
def test_what_cannot_be_imported_before_the_first_start_means_a_cold_one(
    module: str, why: str, start: Starter, tmp_path: Path
) -> None:
    environment = package(tmp_path, "print('loud' * 20_000)", "loud") | package(tmp_path, "", "shaded")
    program = tmp_path / "train.py"
    program.write_text("print('done')")
    (tmp_path / "shaded.py").write_text("")
    options = ["--nproc-per-node", "2", "--standby", "off", "--preload", module]
    run = start(sys.executable, str(program), options=options, env=environment)
    code, out, _ = run.finish()
    assert (code, out.split()) == (0, [b"done", b"done"])
    assert why in " ".join(one.get("why", "") for one in run.named("standby")), run.named("standby")
    assert [one["warm"] for one in run.named("standby", what="start")] in ([0], [])


EFFECTS = {
    "a script": ["sh", "-c", "echo begun >> $BEGUN; exec {python} {program}"],
    "no sitecustomize": ["{python}", "-S", "{program}"],
}


@pytest.mark.parametrize("words", EFFECTS.values(), ids=[name.replace(" ", "-") for name in EFFECTS])
def test_no_command_runs_in_advance_that_would_have_effects(words: list[str], start: Starter, tmp_path: Path) -> None:
    program, begun = tmp_path / "train.py", tmp_path / "begun"
    program.write_text("import os; open(os.environ['BEGUN'], 'a').write('begun\\n')")
    command = [word.format(python=sys.executable, program=program) for word in words]
    options = ["--nproc-per-node", "2", "--preload", "email.message"]
    run = start(*command, options=options, env={"BEGUN": str(begun)})
    assert run.finish()[0] == 0
    assert begun.read_text() == "begun\n" * (4 if words[0] == "sh" else 2)
    assert run.until("standby", what="cold")["why"]


HANGS = "import os, time\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.01)"


def test_a_first_start_that_waits_for_imports_ends_when_it_is_asked_to(start: Starter, tmp_path: Path) -> None:
    environment = package(tmp_path, HANGS) | {"GO": str(tmp_path / "never")}
    options = ["--nproc-per-node", "2", "--preload", "later"]
    run = start(sys.executable, "-c", "import time; time.sleep(600)", options=options, env=environment)
    wait_for(lambda: children(run.pid), "the process that imports")
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() in (143, 128 + signal.SIGTERM)
    wait_for(lambda: not start.living(), "the end of all")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_imports_before_the_first_start_may_die(
    number: signal.Signals, start: Starter, tmp_path: Path
) -> None:
    environment = package(tmp_path, HANGS) | {"GO": str(tmp_path / "never")}
    options = ["--nproc-per-node", "2", "--preload", "later"]
    run = start(sys.executable, "-c", "print('done')", options=options, env=environment)
    (pid,) = wait_for(lambda: children(run.pid), "the process that imports")
    os.kill(pid, number)
    code, out, _ = run.finish()
    assert (code, out.split()) == (0, [b"done", b"done"])
    assert run.until("standby", what="failed")["why"] == ("it was stopped" if number == signal.SIGSTOP else "it ended")


@pytest.mark.parametrize("kept", quick(["state dir", "run dir"]))
def test_ftrun_imports_what_the_last_attempt_had_imported(kept: str, start: Starter, tmp_path: Path) -> None:
    """The next ftrun in this run dir, or the next container with this state dir, forks its first ranks."""
    command, stop = waits(tmp_path, "later", ends=True)
    options = ["--nproc-per-node", "2", "--standby", "2"]
    options += ["--state-dir", str(tmp_path / "state")] if kept == "state dir" else []
    environment = package(tmp_path, "")
    run = start(*command, options=options, env=environment)
    run.until("standby", what="ready")
    stop.touch()
    assert run.finish()[0] == 0
    here = run.run_dir if kept == "run dir" else None
    again = start(*command, options=options, env=environment, run_dir=here)
    assert again.finish()[0] == 0
    outcome = again.named("standby", what="start")[-1]
    assert (outcome["warm"], outcome["forked"], outcome["of"]) == (2, 2, 2), again.named("standby")


WAIT = """
import os, sys, time, json, {imports}
import ftrun_hooks as ft
ft.beat(1)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
    ft.beat()
sys.exit(os.environ["MA_PROC_START_CNT"] == "1")
"""


def waits(folder: Path, imports: str = "os", ends: bool = False) -> tuple[list[str], Path]:
    """WAIT as a command, and the file that lets it go on; `ends`: its first start ends well, too."""
    text, stop = WAIT.format(imports=imports), folder / "stop"
    (folder / "train.py").write_text(text.replace("sys.exit(", "sys.exit(0 and ") if ends else text)
    return [sys.executable, str(folder / "train.py"), str(stop)], stop


AGAIN = """
import email.message, os, sys, time
import ftrun_hooks as ft
start = os.environ["MA_PROC_START_CNT"]
os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # as ftrun's own hooks do, in a process that can recover
ft.beat(1)
while start != "3" and not os.path.exists(sys.argv[1] + start):
    time.sleep(0.02)
sys.exit(start != "3")
"""


def test_ranks_that_were_started_warm_are_started_warm_again(start: Starter, tmp_path: Path) -> None:
    program = tmp_path / "again.py"
    program.write_text(AGAIN)
    options = [*OPTIONS, "--nproc-per-node", "2", "--standby", "2"]
    run = start(sys.executable, str(program), str(tmp_path / "end-"), options=options)
    for attempt in (1, 2):
        wait_for(
            lambda attempt=attempt: any(  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                one["what"] in ("ready", "cold") and one["attempt"] == attempt for one in run.named("standby")
            ),
            "standbys",
        )
        (tmp_path / f"end-{attempt}").touch()
    assert run.finish()[0] == 0
    starts = [(one["attempt"], one["warm"]) for one in run.named("standby", what="start")]
    assert starts == [(2, 2), (3, 2)], run.named("standby")


def package(folder: Path, text: str, name: str = "later") -> dict[str, str]:
    """An installed package of this name, for the environment of ftrun."""
    site = folder / "lib" / "site-packages"
    (site / "__pycache__").mkdir(parents=True, exist_ok=True)  # an import that created it would change the folder
    (site / f"{name}.py").parent.mkdir(exist_ok=True)
    (site / f"{name}.py").write_text(text)
    old = os.stat(site / f"{name}.py").st_mtime - 1000  # long before any standby
    os.utime(site / f"{name}.py", (old, old))
    return {"PYTHONPATH": str(site)}


COLD = {
    "import os; print('loud' * 20_000 * ('memfd' in os.readlink('/proc/self/fd/1')))": "an import printed much",
    "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": "started a thread",
    "import os; os.environ.get('MA_PROC_START_CNT')": "have read the variable MA_PROC_START_CNT",
    "import os; kept = os.open('/dev/null', 0)": "later.py has changed",
    "import os; copy = dict(os.environ)": "keeps a copy of the environment",
    "import os\nif os.environ.get('MARK') is None: raise ValueError('as in a standby')": "import of later failed",
    "import socket; kept = socket.socket(socket.AF_UNIX)": "an import opened a socket",
    "kept = open(__file__.partition('/lib/')[0] + '/log', 'a')": "/log open for writing",
    "import fcntl; kept = open(__file__); fcntl.flock(kept, fcntl.LOCK_SH)": "an import has locked /",
    # A program of which there can be only one: the standby fails, and the attempt keeps what it holds.
    "import fcntl; kept = open(__file__); fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)": "later failed: Blocking",
    "import socket; kept = socket.socket(); kept.bind(('127.0.0.1', PORT)); kept.listen()": "later failed: OSError",
    "import subprocess; kept = subprocess.Popen(['sleep', '60'])": "an import started a process",
}


@pytest.mark.parametrize(
    ("text", "why"),
    some(
        COLD,
        *("started a thread", "have read the variable MA_PROC_START_CNT", "later.py has changed"),
        "later failed: OSError",
    ),
)
def test_what_may_differ_means_a_cold_start(text: str, why: str, start: Starter, tmp_path: Path) -> None:
    command, stop = waits(tmp_path)
    set_before = "os.environ.setdefault('MARK', 'x')\nimport later" if "MARK" in text else "import later"
    program = tmp_path / "train.py"
    program.write_text(program.read_text().replace("import ftrun_hooks", f"{set_before}\nimport ftrun_hooks"))
    environment = package(tmp_path, text.replace("PORT", str(free_port())))
    run = start(*command, options=[*OPTIONS, "--standby", "1"], env=environment)
    first: Record = wait_for(lambda: run.named("standby")[:1], "a record standby")[0]
    if first["what"] == "ready" and "changed" in why and "variable" not in why:
        (tmp_path / "lib" / "site-packages" / "later.py").write_text("changed = True")
    stop.touch()
    assert run.finish()[0] == 0
    found = [one.get("why") or "" for one in run.named("standby")]
    assert why in " ".join(found), found
    assert [one.get("warm") for one in run.named("standby", what="start")] == [0]


SET = "os.environ['TORCH_CACHE'] = '/by-the-program'"
SETS = {
    "nothing": ("", "", 1),
    "what an import sets": (SET, "", 0),
    "what the import of a native library may read": (SET.replace("TORCH_CACHE", "OMP_NUM_THREADS"), "", 0),
    "what an import reads": (SET.replace("TORCH_CACHE", "READ"), "", 0),
    "what no import reads": (SET.replace("TORCH_CACHE", "PLAIN"), "", 1),
    "something when it has imported": ("import numpy", SET.replace("TORCH_CACHE", "CUDA_MODULE_LOADING"), 1),
}


@pytest.mark.parametrize(("before", "after", "warm"), SETS.values(), ids=[name.replace(" ", "-") for name in SETS])
def test_a_variable_that_a_program_sets_before_its_imports_means_a_cold_start(
    before: str, after: str, warm: int, start: Starter, tmp_path: Path
) -> None:
    command, stop = waits(tmp_path, "later")
    program = tmp_path / "train.py"
    text = program.read_text().replace("import ftrun_hooks", f"{after}\nimport ftrun_hooks")
    program.write_text(f"import os\n{before}\n{text}")
    package(tmp_path, "", "numpy")  # a stand-in
    environment = package(tmp_path, "import os; os.environ.setdefault('TORCH_CACHE', os.environ.get('READ', 'x'))")
    run = start(*command, options=[*OPTIONS, "--standby", "1"], env=environment)
    wait_for(lambda: run.named("standby"), "a record standby")
    stop.touch()
    assert run.finish()[0] == 0
    assert [one["warm"] for one in run.named("standby", what="start")] == [warm], run.named("standby")


def test_a_module_that_only_the_program_can_find_is_left_to_it(start: Starter, tmp_path: Path) -> None:
    """As setuptools finds those that it has packed: through a folder that is in the path for the time of an import."""
    command, stop = waits(tmp_path, "email.message")
    packed = tmp_path / "lib" / "site-packages" / "packed"
    packed.mkdir(parents=True)
    (packed / "inner.py").write_text("print('inner', flush=True)")
    program = tmp_path / "train.py"
    looks = f"import sys\nsys.path.append({str(packed)!r})\nimport inner\nsys.path.remove({str(packed)!r})\n"
    program.write_text(looks + program.read_text())
    run = start(*command, options=[*OPTIONS, "--standby", "1"])
    first = wait_for(lambda: run.named("standby")[:1], "a record standby")[0]
    assert first["what"] == "ready", first
    stop.touch()
    code, out, _ = run.finish()
    assert (code, out.split().count(b"inner")) == (0, 2)
    assert [one["warm"] for one in run.named("standby", what="start")] == [1]


# A package that says something while it is imported, also by a warning and by a module below it, and one after it.
LOUD = """
import os, sys, warnings
print("loud: to the output")
print("loud: to the errors", file=sys.stderr)
warnings.warn("loud: shown", FutureWarning)
warnings.warn("loud: the program does not want it", UserWarning)
import quiet
os.write(1, b"loud: by descriptor\\n")
class Kept: pass
"""
SAYS = """
import os, sys, time, warnings
import ftrun_hooks as ft
start = os.environ["MA_PROC_START_CNT"]
warnings.filterwarnings("ignore", category=UserWarning)
say = lambda text: (sys.stdout.flush(), sys.stderr.write(text + "\\n"), print(text), sys.stdout.flush())
say("before " + start)
import email.message
assert "loud" not in sys.modules
{imports}
loud = sys.modules["loud"]
assert sys.modules[loud.Kept.__module__] is loud and loud.__spec__.name == "loud" and loud.__spec__.loader is not None
assert loud.quiet is sys.modules["quiet"]
say("after " + start)
ft.beat(1)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
sys.exit(start == "1")
"""


def what_was_said(text: str, start: int) -> list[str]:
    lines = [line for line in text.splitlines() if "loud" in line or "before" in line or "after" in line]
    begins, ends = lines.index(f"before {start}"), lines.index(f"after {start}")
    return lines[begins + 1 : ends]


@pytest.mark.parametrize(
    "imports", quick(["import quiet, loud", "import loud", "from quiet import nothing; import loud"])
)
def test_what_imports_print_appears_where_the_program_imports(imports: str, start: Starter, tmp_path: Path) -> None:
    """And only what it would see: warnings are judged by its own filters."""
    environment = package(tmp_path, LOUD, "loud") | package(tmp_path, "nothing = None", "quiet")
    program, stop = tmp_path / "train.py", tmp_path / "stop"
    program.write_text(SAYS.format(imports=imports))
    options = [*OPTIONS, "--standby", "1"]
    run = start(sys.executable, "-u", str(program), str(stop), options=options, env=environment)
    run.until("standby", what="ready")
    stop.touch()
    code, out, err = run.finish()
    assert code == 0, err.decode()
    assert [one["warm"] for one in run.named("standby", what="start")] == [1], run.named("standby")
    for text, least in (out.decode(), 2), (err.decode(), 2):
        cold, warm = what_was_said(text, 1), what_was_said(text, 2)
        assert warm == cold
        assert len(cold) >= least
        assert "does not want" not in "".join(cold)


LEAVES = "import atexit; atexit.register(lambda: open(__file__.partition('/lib/')[0] + '/left', 'a').write('left '))"


def test_what_imports_leave_for_the_exit_is_done_by_those_that_have_run(start: Starter, tmp_path: Path) -> None:
    """Two attempts, and two standbys, of which the second one is not needed."""
    program, stop = tmp_path / "train.py", tmp_path / "stop"
    program.write_text(
        WAIT.format(imports="later").replace("sys.argv[1]", "sys.argv[1] + os.environ['MA_PROC_START_CNT']")
    )
    command = [sys.executable, str(program), str(stop)]
    run = start(*command, options=[*OPTIONS, "--standby", "1"], env=package(tmp_path, LEAVES))

    for number in (1, 2):
        run.until("standby", number, what="ready")
        (tmp_path / f"stop{number}").touch()
    assert run.finish()[0] == 0
    assert [one["warm"] for one in run.named("standby", what="start")] == [1]
    wait_for(lambda: not start.living(), "the end of all")
    assert (tmp_path / "left").read_text() == "left left "


def test_a_standby_waits_at_a_lower_priority_than_the_command(start: Starter, tmp_path: Path) -> None:
    """With the lowest one it would wait for minutes beside a busy trainer (ADR 18)."""
    if os.geteuid():
        pytest.skip("only root may raise the priority of a process again")
    command, stop = waits(tmp_path, ends=True)
    run = start(*command, options=["--standby", "1"], before=partial(os.nice, 3))
    run.until("standby", what="ready")
    (pid,) = parked(run)
    command_has, standby_has = (os.getpriority(os.PRIO_PROCESS, one) for one in (run.command, pid))
    assert command_has == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
    assert standby_has == min(19, command_has + 10)
    stop.touch()
    assert run.finish()[0] == 0


def parked(run: Run) -> list[int]:
    """The standbys below this ftrun: children with the command line of the command that are not the command."""
    command = run.command
    words = Path(f"/proc/{command}/cmdline").read_bytes()
    found = [pid for pid in children(run.pid) if pid != command and alive(pid)]
    return [pid for pid in found if Path(f"/proc/{pid}/cmdline").read_bytes() == words]


def ended(pid: int) -> bool:
    return not alive(pid)


def test_a_standby_is_replaced_a_few_times_and_is_gone_with_ftrun(start: Starter, tmp_path: Path) -> None:
    command, stop = waits(tmp_path)
    environment = {"AWS_SECRET_ACCESS_KEY": "x"}
    run = start(*command, options=[*OPTIONS, "--standby", "1"], env=environment)
    killed: set[int] = set()

    for number in range(3):
        run.until("standby", number + 1, what="ready")
        wait_for(lambda: read_snapshot(str(run.run_dir)).next_start == NextStart(1, 1), "the state to say so")
        (pid,) = set(parked(run)) - killed
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
        assert b"AWS_SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
        killed.add(pid)
        os.kill(pid, (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL)[number])
        wait_for(partial(ended, pid), "its end")
    assert "3 standbys failed" in run.until("standby", what="off")["why"]
    given_up = NextStart(0, 1, "too many standbys failed")
    wait_for(lambda: read_snapshot(str(run.run_dir)).next_start == given_up, "the state to say so")
    assert [one["attempt"] for one in run.named("spawned")] == [1]
    stop.touch()
    assert run.finish()[0] == 0


def slices(pid: int) -> str:
    """How long and how often a processor ran it, as the kernel's scheduler accounts it."""
    return Path(f"/proc/{pid}/schedstat").read_text()


def test_a_standby_that_waits_gets_no_processor_time(start: Starter, tmp_path: Path) -> None:
    command, stop = waits(tmp_path, "json, email.message")
    run = start(*command, options=[*OPTIONS, "--standby", "1"])
    run.until("standby", what="ready")
    (pid,) = parked(run)
    before = slices(pid)

    def is_at_rest() -> bool:
        nonlocal before
        earlier, before = before, slices(pid)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return earlier == before and state == "S"  # one that has to wait for a processor gets no time either

    wait_for(is_at_rest, "the standby to wait")
    job = slices(run.command).split()[2]
    wait_for(lambda: int(slices(run.command).split()[2]) > int(job) + 50, "the job to run fifty times")
    assert slices(pid) == before
    stop.touch()
    assert run.finish()[0] == 0


def test_standbys_end_with_a_killed_ftrun(start: Starter, mode: Mode, tmp_path: Path) -> None:
    command, _ = waits(tmp_path)
    run = start(*command, mode=mode, options=["--standby", "1"])
    (pid,) = wait_for(lambda: parked(run), "a standby")
    os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), "the end of the standby")
    wait_for(lambda: not start.living(), "the end of all")
    for folder in run.beat_dirs():  # which a killed ftrun leaves
        shutil.rmtree(folder)


# Rank 2 dies once the test has seen its standby; its new process is started beside the others.
DIES = """
import os, time
{first}
if rank == 2 and step == 5 and starts == 1:
    while not os.path.exists(FOLDER / "die"): time.sleep(0.01)
    os.kill(os.getpid(), 9)
while round == 2 and step == 6 and not os.path.exists(FOLDER / "prepared"): time.sleep(0.01)
"""


def recovering(start: Starter, folder: Path, first: str, environment: dict[str, str]) -> Run:
    """Four ranks and one standby; rank 2 has died and was replaced alone, and there is another standby."""
    (folder / "progress").mkdir()
    paths = os.pathsep.join((str(HOUSE / "hooks"), environment.get("PYTHONPATH", "")))
    environment = environment | {"PROGRESS": str(folder / "progress"), "PYTHONPATH": paths}
    command = [sys.executable, str(HOUSE / "tests/support/plain_rank.py"), "8", DIES.format(first=first)]
    run = start(*command, options=["--nproc-per-node", "4", "--standby", "1"], env=environment)
    run.until("standby", what="ready")
    (folder / "progress" / "die").touch()
    run.until("standby", 2, what="ready")
    (folder / "progress" / "prepared").touch()
    assert run.finish()[0] == 0
    (recovered,) = run.named("recovered")
    assert (recovered["rung"], recovered["ranks"]) == ("rank", [2])
    return run


def test_a_single_rank_is_started_warm_and_has_a_standby_again(start: Starter, tmp_path: Path) -> None:
    run = recovering(start, tmp_path, "", {})
    outcome = run.named("standby", what="start")[0]
    assert (outcome["local_rank"], outcome["warm"], outcome["of"], outcome.get("why")) == (2, 1, 1, None)
    lines = [line.split()[1:] for line in (tmp_path / "progress" / "log").read_text().splitlines()]
    pids = {number: {rank: pid for found, rank, _, pid in lines if found == number} for number in "12"}
    assert {rank for rank in pids["1"] if pids["1"][rank] != pids["2"][rank]} == {"2"}
    assert [record["rank"] for record in run.named("rank_spawned")] == [2], "by the same process"


def test_a_single_rank_is_executed_where_its_standby_may_differ(start: Starter, tmp_path: Path) -> None:
    environment = package(tmp_path, "import os; os.environ.get('MA_PROC_START_CNT')")
    run = recovering(start, tmp_path, "import later", environment)
    outcome = run.named("standby", what="start")[0]
    assert (outcome["local_rank"], outcome["warm"]) == (2, 0)
    assert "have read the variable MA_PROC_START_CNT" in outcome["why"]
    assert [record["rank"] for record in run.named("rank_spawned")] == [2, 2], "the standby, and then the program"
