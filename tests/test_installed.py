"""What a user has who installs the wheel: the programs and the hooks, in a virtual environment that has nothing
else.  No file of the checkout is used."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ports import free_port
from support.runs import HOUSE, Run, Runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # it downloads what ftrun needs

# In the place of PyTorch, which is large: the import of this module is what has ftrun_hooks loaded.
TORCH = {
    "torch/__init__.py": "",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": "class Optimizer:\n    pass\n\n\ndef register_optimizer_step_post_hook(hook): pass\n",
}
RANK = """
import os, sys, time
before = "torch.optim.optimizer" in sys.modules
import torch.optim.optimizer
import ftrun_hooks as ft
start, rank = ft.attempt().start_cnt, os.environ.get("RANK", "-")
print(f"start {start} rank {rank} {'warm' if before else 'cold'} {ft.__file__}\\n", end="", flush=True)
ft.beat(1)
while not os.path.exists(f"{sys.argv[1]}/end-{start}"):
    time.sleep(0.02)
    ft.beat()
sys.exit(start == 1)
"""


class Installation:
    def __init__(self, folder: Path) -> None:
        self.programs = folder / "venv" / "bin"
        self.python = str(self.programs / "python")
        pip = ("-m", "pip", "--disable-pip-version-check")
        called(sys.executable, *pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(HOUSE))
        called(sys.executable, "-m", "venv", str(folder / "venv"))
        (wheel,) = folder.glob("ftrun-*.whl")
        called(self.python, *pip, "install", "--quiet", str(wheel))
        (self.packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        for name, text in TORCH.items():
            path = self.packages / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        called(self.python, "-c", "import torch.optim.optimizer")  # which makes folders for the compiled form

    def program(self, name: str) -> str:
        return str(self.programs / name)


def called(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed() -> Iterator[Installation]:
    """In a folder that all users may read, as /usr is: ftrun copies hooks that are not readable for all."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-installed-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield Installation(folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    try:
        yield made
    finally:
        made.end()


def start(runs: Runs, installed: Installation, *words: str, **more: str) -> Run:
    run = runs.run_dir.with_name(f"run-{len(runs.started)}")
    return runs.start(*words, program=(installed.program("ftrun"),), run_dir=run, **more)


def train(runs: Runs, installed: Installation, *options: str) -> Run:
    (runs.folder / "train.py").write_text(RANK)
    command = [installed.python, str(runs.folder / "train.py"), str(runs.folder)]
    return start(runs, installed, *options, *command)


def said(run: Run, what: str) -> list[str]:
    return sorted(line for line in run.stdout.splitlines() if line.startswith(what))


def test_the_demo(runs: Runs, installed: Installation) -> None:
    """What `bin/demo` shows from a checkout: a restart after a hang, and a hang that comes again."""
    hang = (installed.program("fthang"), "sleep", "--steps", "20", "--after", "8")
    run = start(runs, installed, "--hang-timeout", "2s", *hang)
    assert run.wait() == 0, run.log()
    assert "start 2 (restart after hang): resumed at step 5" in run.stdout
    report = run.run_dir / "reports" / "attempt-1" / "report.md"
    assert "sleep" in report.read_text()
    shown = called(installed.program("ftctl"), "events", "--run-dir", str(run.run_dir))
    assert "restart" in shown
    assert "succeeded" in called(installed.program("ftctl"), "status", "--run-dir", str(run.run_dir))
    again = start(runs, installed, "--hang-timeout", "1s", "--max-restarts", "1", *hang, "--times", "99")
    assert again.wait() == 195, again.log()


def test_ranks_are_forked_from_a_template_at_each_start(runs: Runs, installed: Installation) -> None:
    """Before the first one by `--preload`, at the second one as standbys; the hooks are those that are installed."""
    preload = ("--preload", "torch.optim.optimizer", "--standby", "2")
    run = train(runs, installed, "--nproc-per-node", "2", "--restart-on", "failure", "--backoff", "10ms", *preload)
    run.until("standby", what="ready")
    (runs.folder / "end-1").touch()
    (runs.folder / "end-2").touch()
    assert run.wait() == 0, run.log()
    records = run.named("standby")
    starts = [(one["attempt"], one["warm"], one["forked"]) for one in records if one["what"] == "start"]
    assert starts == [(1, 2, 2), (2, 2, 2)], records
    hooks = installed.packages / "ftrun_hooks" / "__init__.py"
    assert said(run, "start") == [f"start {number} rank {rank} warm {hooks}" for number in (1, 2) for rank in (0, 1)]


def test_a_single_process_goes_on_in_a_standby(runs: Runs, installed: Installation) -> None:
    run = train(runs, installed, "--restart-on", "failure", "--backoff", "10ms", "--standby", "1")
    run.until("standby", what="ready")
    (runs.folder / "end-1").touch()
    (runs.folder / "end-2").touch()
    assert run.wait() == 0, run.log()
    assert [line.split()[4] for line in said(run, "start")] == ["cold", "warm"]


def test_a_group_restarts_together(runs: Runs, installed: Installation) -> None:
    (runs.folder / "secret").write_text("a secret of thirty-two characters")
    (runs.folder / "secret").chmod(0o600)
    endpoint = f"127.0.0.1:{free_port()}"
    members = [
        train(
            runs,
            installed,
            *("--group-size", "2", "--group-rank", str(rank), "--group-endpoint", endpoint),
            *("--group-secret-file", str(runs.folder / "secret"), "--restart-on", "failure", "--backoff", "10ms"),
        )
        for rank in (0, 1)
    ]
    for member in members:
        member.until("first_beat")
    (runs.folder / "end-1").touch()
    (runs.folder / "end-2").touch()
    assert [member.wait() for member in members] == [0, 0], [member.log() for member in members]
    assert [len(said(member, "start")) for member in members] == [2, 2]
