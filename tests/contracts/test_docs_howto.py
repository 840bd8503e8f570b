"""The programs and sessions in the how-tos do what the pages say."""

import importlib.util
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from support.console import says
from support.ports import free_port
from support.runs import FTHANG, HOUSE, Run, Runs, wait_for

DOCS = HOUSE / "docs"
LONG = 240.0  # s; importing PyTorch several times over, on a machine that is busy
WIDE = ("--hang-timeout", "60s", "--start-timeout", "120s")  # importing takes its time on a busy machine


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / "howto" / page).read_text("utf-8"), re.DOTALL | re.M)


def block(page: str, language: str) -> str:
    (found,) = blocks(page, language)
    return found


def test_each_python_that_the_package_names_is_tried_before_a_release() -> None:
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text("utf-8"))["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if line.startswith("Programming Language")]
    (tried,) = re.findall(r"for version in (.*); do", (DOCS / "howto" / "release.md").read_text("utf-8"))
    assert named == tried.split()
    assert project["requires-python"] == f">={named[0]}"
    readme = (HOUSE / "README.md").read_text("utf-8")
    assert f"Python {named[0]} or later ({named[0]} to {named[-1]} were tried)" in readme


def need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def kept(run: Run) -> list[str]:
    """The checkpoints that were progress, as they are called."""
    return [Path(r["checkpoint"]).name for r in run.named("progress") if r["by"] == "checkpoint"]


@pytest.mark.slow
@pytest.mark.torch
def test_torchrun(runs: Runs) -> None:
    shutil.copy(DOCS / "examples" / "ddp.py", runs.folder)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--hang-timeout", "5s", "--progress", "checkpoint.pt"]
    run = runs.start(*options, *torchrun, "ddp.py", "--hang-at", "30", OMP_NUM_THREADS="1")
    assert run.wait(LONG) == 0, run.log()
    shown = block("torchrun.md", "text")
    said = [line for line in shown.splitlines() if line.startswith("[ftrun]")]
    assert says("\n".join(line for line in shown.splitlines() if line not in said), run.stdout), run.log()
    (told,) = (line for line in run.stderr.splitlines() if line.startswith("[ftrun]") and "stopped at" in line)
    assert says("\n".join(said), told)
    report = json.loads((run.run_dir / "reports" / "attempt-1" / "report.json").read_bytes())
    assert "ddp.py" in json.dumps(report)


@pytest.mark.slow
@pytest.mark.torch
def test_transformers_trainer(runs: Runs) -> None:
    need("transformers", "accelerate")
    (runs.folder / "train.py").write_text(block("transformers.md", "python"), encoding="utf-8")
    (runs.folder / "out" / "checkpoint-5").mkdir(parents=True)  # as a kill in the middle of a save leaves it
    run = runs.start(*WIDE, sys.executable, "train.py", CUDA_VISIBLE_DEVICES="")
    assert run.wait(LONG) == 0, run.log()
    assert kept(run) in (["checkpoint-10", "checkpoint-20"], ["checkpoint-20"])  # on a busy machine one look sees both


@pytest.mark.slow
@pytest.mark.torch
def test_lightning_trainer(runs: Runs) -> None:
    need("lightning")
    (runs.folder / "train.py").write_text(block("lightning.md", "python"), encoding="utf-8")
    run = runs.start(*WIDE, sys.executable, "train.py")
    assert run.wait(LONG) == 0, run.log()
    # Two files a step, a moment apart: either may be the one that is seen; on a busy machine one look sees both steps.
    *first, second = kept(run)
    assert first in ([], ["epoch=0-step=8.ckpt"], ["last.ckpt"])
    assert second in ("epoch=1-step=16.ckpt", "last.ckpt")
    assert (runs.folder / "out" / "last.ckpt").exists()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.slow
def test_cpp_program(runs: Runs) -> None:
    (runs.folder / "train.cpp").write_text(block("cpp.md", "cpp"), encoding="utf-8")
    build = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", "train", "train.cpp"]
    subprocess.run(build, cwd=runs.folder, check=True)
    run = runs.ends(0, "--hang-timeout", "2s", "--start-timeout", "60s", "--progress", "checkpoint", "./train")
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["rank"]) == ("step", -1)
    assert (runs.folder / "checkpoint").read_text() == "20\n"
    (runs.folder / "checkpoint").unlink()
    done = subprocess.run([runs.folder / "train"], cwd=runs.folder, check=False)
    assert done.returncode == 0, "outside ftrun it does nothing"


def test_two_terminals(runs: Runs) -> None:
    """The commands are the page's, but for the port."""
    secret, first, second = blocks("several-nodes.md", "sh")
    subprocess.run(["bash", "-ec", secret], cwd=runs.folder, check=True, capture_output=True)
    export, *_ = first.splitlines()
    settings = dict(word.split("=", 1) for word in shlex.split(export)[1:])
    settings["FTRUN_GROUP_ENDPOINT"] = f"127.0.0.1:{free_port()}"
    members: list[Run] = []
    for line in (first.splitlines()[1], second.strip()):
        name, *words = shlex.split(line)
        at = words.index("fthang")
        assert (name, words[:2]) == ("ftrun", ["--run-dir", f"node-{len(members)}"])
        members.append(runs.start(*words[2:at], *FTHANG, *words[at + 1 :], run_dir=runs.folder / words[1], **settings))
    assert [member.wait() for member in members] == [0, 0], "\n".join(member.log() for member in members)
    for member, shown in zip(members, blocks("several-nodes.md", "text"), strict=True):
        # On a terminal stderr and stdout are one; what rank 0 says of the group is left out on the page.
        ours = [line for line in shown.splitlines() if line.startswith("[ftrun] ")]
        theirs = [line for line in shown.splitlines() if line not in ours]
        assert says("\n…\n".join(["…", *ours]), member.stderr), member.log()
        assert says("\n".join(theirs), member.stdout), member.log()


def test_ranks(runs: Runs) -> None:
    (runs.folder / "show.py").write_text(block("ranks.md", "python"), encoding="utf-8")
    (command,) = re.findall(r"^ftrun (.* show\.py)$", (DOCS / "howto" / "ranks.md").read_text(encoding="utf-8"), re.M)
    run = runs.ends(0, *shlex.split(command))
    assert sorted(run.stdout.splitlines()) == block("ranks.md", "text").splitlines(), run.log()


def test_warm_standby(runs: Runs) -> None:
    (runs.folder / "train.py").write_text(block("warm-standby.md", "python"), encoding="utf-8")
    page = (DOCS / "howto" / "warm-standby.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ftrun (.*) --run-dir run python train\.py$", page, re.M)
    run = runs.start(*shlex.split(command), sys.executable, "train.py")
    run.until("standby", what="ready")
    (runs.folder / "fail").touch()
    wait_for(lambda: not (runs.folder / "fail").exists(), "the failure")
    (runs.folder / "finish").touch()
    assert run.wait() == 0, run.log()
    assert run.stdout == block("warm-standby.md", "text"), run.log()
    (outcome,) = run.named("standby", what="start")
    assert (outcome["warm"], outcome["of"]) == (1, 1), run.log()


def test_entrypoint_of_the_image_is_a_list() -> None:
    """The one that `docker.md` asks for; a shell in between would swallow the signals."""
    dockerfile = (DOCS / "schedulers" / "kubernetes" / "Dockerfile").read_text(encoding="utf-8")
    shown = block("docker.md", "dockerfile")
    for text in (dockerfile, shown):
        (words,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.M)
        assert json.loads(words)[0].endswith("ftrun")


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_named_options_exist(page: Path) -> None:
    from ftrun.config import option_table

    known = set(option_table.BY_NAME) | {f"no-{name}" for name in option_table.BY_NAME} | {"help", "version"}
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("ftrun ")]
    options = {
        option for line in lines for option in re.findall(r"--([a-z-]+)", re.split(" torchrun | fthang ", line)[0])
    }
    assert options - known == set()
    variables = set(re.findall(r"\bFTRUN_[A-Z_]+\b", page.read_text(encoding="utf-8")))
    told = "LAST_CHECKPOINT LAST_STEP BEAT_DIR FAULT_DEVICE FAULT_INDEX EVENT ATTEMPT MESSAGE RECORD"
    known_variables = {f"FTRUN_{name}" for name in told.split()} | {option.variable for option in option_table.OPTIONS}
    assert variables - known_variables == set()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_shown_ftctl_commands_are_valid(page: Path) -> None:
    from ftctl.main import cli

    blocks = re.findall(r"^ *```(?:console|sh|text)?\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.DOTALL | re.M)
    shown = [
        line for block in blocks for line in block.splitlines() if re.match(r"(\$ |docker exec .*|)ftctl [a-z]", line)
    ]
    for line in shown:
        words = shlex.split(line[line.index("ftctl ") :], comments=True)
        words = list(itertools.takewhile(lambda word: word not in ("|", ">"), words))
        with click.Context(cli) as context:
            command = cli.get_command(context, words[1])
            assert command is not None, line
            if words[2:] != ["[OPTIONS]"] and "[OPTIONS]" not in words:
                command.make_context(words[1], words[2:], parent=context)
