"""Completion by the TAB key in a real bash and zsh, and by `complete` in a real fish."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from ftrun.cli.options import command_line
from ftrun.config import option_table
from support.containers import Terminal

HOUSE = Path(__file__).resolve().parents[2]
DEADLINE = 60.0  # s
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")


def environment(home: Path) -> dict[str, str]:
    path = f"{HOUSE / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "vt100", "LANG": "C.UTF-8", "TMPDIR": str(home)}


class Shell:
    """A shell in a terminal, with the completion loaded."""

    def __init__(self, home: Path, words: list[str], setup: list[str]) -> None:
        self._terminal = Terminal()
        slave = self._terminal.slave
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *words], stdin=slave, stdout=slave, stderr=slave, env=environment(home), cwd=home
        )
        self._number = 0
        for line in [*setup, "PS1='$ '"]:
            self.run(line)

    def run(self, line: str, before: str = "") -> str:
        """What the terminal shows until the line has been executed.  `before` is typed first, and then comes TAB."""
        self._number += 1
        begin = f"{before}\t\x01" if before else ""
        before_it = len(self._terminal.look())
        self._terminal.type(f"{begin}{line}\x05; echo @$(({self._number}+0))@\r".encode())
        self._terminal.wait(f"@{self._number}@".encode())
        return self._terminal.look()[before_it:].decode(errors="replace")

    def completed(self, line: str) -> list[str]:
        """The words of the line, after TAB was pressed at its end."""
        return re.findall("\1(.*?)\2", self.run(r"printf '\001%s\002' ", before=line))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._terminal.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run dir and some files."""
    folder = tmp_path_factory.mktemp("home")
    for attempt in ("attempt-2", "attempt-11"):
        (folder / "rundir" / "reports" / attempt).mkdir(parents=True)
        (folder / "rundir" / "reports" / attempt / "report.md").write_text("# It hung\n")
    (folder / "rundir" / "events.jsonl").write_text("")
    (folder / "runfile").write_text("")
    (folder / "train_it.py").write_text("")
    (folder / "conf.toml").write_text("")
    return folder


LOAD = "source <(ftctl completion {})"


def bash(home: Path, *more: str) -> Shell:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    return Shell(home, ["bash", "--norc", "--noprofile", "-i"], [*more, LOAD.format("bash")])


def bash_with_its_library(home: Path) -> Shell:
    if not BASH_COMPLETION.exists():
        pytest.skip("bash-completion is not installed here")
    return bash(home, f"source {BASH_COMPLETION}")


def zsh(home: Path) -> Shell:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    setup = ["bindkey -e; unsetopt beep auto_remove_slash", f"autoload -Uz compinit; compinit -u -d {home}/dump"]
    return Shell(home, ["zsh", "-f", "-i"], [*setup, LOAD.format("zsh")])


@pytest.fixture(scope="module", params=[bash, bash_with_its_library, zsh])
def shell(request: pytest.FixtureRequest, home: Path) -> Iterator[Shell]:
    make: Callable[[Path], Shell] = request.param
    opened = make(home)
    yield opened
    opened.close()


LINES = [
    ("ftrun --hang-t", ["ftrun", "--hang-timeout"]),
    ("ftrun --restart-on hang,fai", ["ftrun", "--restart-on", "hang,failure"]),
    ("ftrun --config con", ["ftrun", "--config", "conf.toml"]),
    ("ftrun --run-dir run", ["ftrun", "--run-dir", "rundir/"]),
    ("ftrun -v cat train_", ["ftrun", "-v", "cat", "train_it.py"]),
    ("ftctl stat", ["ftctl", "status"]),
    ("ftctl report --run-dir rundir 1", ["ftctl", "report", "--run-dir", "rundir", "11"]),
    ("fthang dead", ["fthang", "deadlock"]),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line for line, _ in LINES])
def test_tab_completes_the_line(shell: Shell, line: str, words: list[str]) -> None:
    assert shell.completed(line) == words


def test_fish(home: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")
    lines = [(line, words) for line, words in LINES if "," not in line]  # click's script cuts an answer at a comma
    script = "; ".join(["ftctl completion fish | source", *(f"complete -C '{line}'; echo @" for line, _ in lines)])
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=environment(home), cwd=home, capture_output=True, timeout=DEADLINE
    )
    assert done.stderr == b""
    offered = [[one.split("\t")[0] for one in part.split("\n") if one] for part in done.stdout.decode().split("@\n")]
    assert offered[:-1] == [words[-1:] for _, words in lines]


# --- the offered words -----------------------------------------------------------------------------------------------


def items(args: list[str], text: str) -> list["CompletionItem[str]"]:
    return ShellComplete(command_line(), {}, "ftrun", "_FTRUN_COMPLETE").get_completions(args, text)


def test_every_option_is_offered_until_it_is_used() -> None:
    names = {item.value for item in items([], "-")}
    assert {f"--{option.name}" for option in option_table.OPTIONS} < names
    assert "--probe" not in {item.value for item in items(["--probe", "auto"], "--")}
    assert "--progress" in {item.value for item in items(["--progress", "x"], "--")}


def test_every_offered_value_is_valid() -> None:
    for option in option_table.OPTIONS:
        for text in ("", "3", "a", "h"):
            if option.flag:
                continue
            for item in items([f"--{option.name}"], text):
                if item.type == "plain":
                    option.read(item.value)


def test_an_unknown_completion_request_does_not_keep_ftrun_from_running(home: Path) -> None:
    words = [str(HOUSE / "bin" / "ftrun"), "--run-dir", str(home / "another"), "sh", "-c", "exit 7"]
    asked = environment(home) | {"_FTRUN_COMPLETE": "tcsh_complete"}
    assert subprocess.run(words, env=asked, timeout=DEADLINE, check=False).returncode == 7
