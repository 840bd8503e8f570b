"""At a terminal the command behaves as if ftrun were not there."""

import os
import shlex
import signal
import subprocess
import termios
from pathlib import Path

import pytest

from support.containers import PYTHON, Recorder, Starter, Terminal, afresh, either
from support.runs import FTRUN, Mode, alive, children, state_of, wait_for

INTERRUPT, QUIT, SUSPEND = b"\x03", b"\x1c", b"\x1a"


def program(folder: Path, text: str) -> list[str]:
    """A small program; its `say` writes a line to the terminal."""
    file = folder / "program.py"
    head = "import os, sys, signal, termios, time\ndef say(text): os.write(1, (text + '\\n').encode())\n"
    file.write_text(head + text)
    return [*PYTHON, str(file)]


# --- ftrun leads the session, as in `docker run -it` ------------------------------------------------------------------


@either
def test_the_command_has_the_foreground_and_reads_what_is_typed(start: Starter, mode: Mode, tmp_path: Path) -> None:
    code = "say('foreground %s' % (os.tcgetpgrp(0) == os.getpgrp() == os.getpid()))\nsay('<%s>' % input())\nsys.exit(3)"
    run = start(*program(tmp_path, code), mode=mode, tty=True)
    run.terminal.wait(b"foreground True")
    run.terminal.type(b"word\n")
    assert run.wait() == 3
    assert b"<word>" in run.terminal.look()


def test_keys_reach_the_whole_group_and_other_signals_the_command_alone(
    start: Starter, mode: Mode, recorder: Recorder
) -> None:
    run = start(*recorder.with_child, mode=mode, tty=True)
    recorder.ready()
    recorder.got(0, of_child=True)
    run.terminal.type(INTERRUPT)
    assert recorder.got(1) == recorder.got(1, of_child=True) == [signal.SIGINT]
    run.kill(signal.SIGUSR1)
    assert recorder.got(2) == [signal.SIGINT, signal.SIGUSR1]
    run.terminal.resize(31, 99)
    assert recorder.got(3)[2:] == recorder.got(2, of_child=True)[1:] == [signal.SIGWINCH]
    run.kill(signal.SIGTERM)  # ends the recorder, and then ftrun ends the child with a SIGTERM of its own
    assert run.wait() == 0
    assert recorder.got(3, of_child=True)[2:] in ([signal.SIGTERM], [signal.SIGTERM, signal.SIGCONT])


@pytest.mark.parametrize(("key", "code"), [(INTERRUPT, 130), (QUIT, 131)], ids=["ctrl-c", "ctrl-backslash"])
@either
def test_an_interrupt_ends_the_job(start: Starter, mode: Mode, key: bytes, code: int) -> None:
    script = "ulimit -c 0; echo up; exec sleep 600"
    options = ["--restart-on", "hang,failure"]
    run = start("sh", "-c", script, mode=mode, tty=True, options=options)
    run.terminal.wait(b"up")
    run.terminal.type(key)
    assert run.wait() == code
    assert len(run.named("spawned")) == 1


RAW = """
import tty
echo = bool(termios.tcgetattr(0)[3] & termios.ECHO)
say('start %s echo %s foreground %s' % (os.environ['MA_PROC_START_CNT'], echo, os.tcgetpgrp(0) == os.getpgrp()))
tty.setraw(0)
os.utime(os.environ['FTRUN_BEAT_DIR'] + '/touch')
while True:
    time.sleep(600)
"""


@either
def test_terminal_modes_are_restored_after_a_hang(start: Starter, mode: Mode, tmp_path: Path) -> None:
    """For the next attempt and for the user."""
    options = ["--hang-timeout", "300ms", "--max-restarts", "2"]
    terminal = start.new_terminal()
    before = terminal.modes()
    run = start(*program(tmp_path, RAW), mode=mode, tty=terminal, options=options)
    assert run.wait() == 195
    for number in (b"1", b"2", b"3"):
        assert b"start " + number + b" echo True foreground True" in terminal.look()
    assert before[3] & termios.ECHO
    assert terminal.modes() == before


def test_the_command_can_be_a_shell_with_job_control(start: Starter, mode: Mode) -> None:
    run = start("bash", "--norc", "--noprofile", "--noediting", "-i", mode=mode, tty=True, env={"PS1": "prompt> "})
    terminal = run.terminal
    terminal.wait(b"prompt> ")
    terminal.type(b"sh -c 'echo u''p; exec sleep 600'\n")
    terminal.wait(b"up\r\n")
    terminal.type(SUSPEND)
    terminal.wait(b"Stopped")
    terminal.wait(b"prompt> ", 2)
    terminal.type(b"fg\n")
    terminal.wait(b"sleep 600", 2)
    job = children(run.command)
    wait_for(lambda: all(state_of(pid) == "S" for pid in job), "the job")
    terminal.type(INTERRUPT)
    terminal.wait(b"prompt> ", 3)
    terminal.type(b"echo code=$?\n")
    terminal.wait(b"code=130")
    terminal.type(b"exit 12\n")
    assert run.wait() == 12
    assert b"no job control" not in terminal.look()
    assert not run.named("hang")


def test_a_hang_up_of_the_terminal_ends_the_command(start: Starter, mode: Mode) -> None:
    run = start("sh", "-c", "echo up; exec sleep 600", mode=mode, tty=True)
    run.terminal.wait(b"up")
    run.terminal.hang_up()
    assert run.process.wait(30) == 128 + signal.SIGHUP
    assert run.named("ended")


# --- no shell above: what the terminal stops would be an orphaned process group without ftrun -------------------------

# Prints every line that it reads, with the number of the start.
STUBBORN_READER = """
start = os.environ['MA_PROC_START_CNT']
say('u' + 'p' + start)
for line in iter(lambda: os.read(0, 100), b''):
    say('<' + start + line.decode().strip() + '>')
    if line == b'fail' + b'\\n' and start == '1':
        sys.exit(3)
    if line == b'end' + b'\\n':
        sys.exit(0)
"""
# A script that starts ftrun and waits for it, and so is in its process group.
SCRIPT = ("sh", "-c", '"$@"; code=$?; echo; exit $code', "sh")


def assert_suspend_has_no_effect(terminal: Terminal, number: int) -> None:
    for times in (1, 2):
        terminal.type(SUSPEND)
        terminal.type(b"word%d\n" % times)
        terminal.wait(b"<%dword%d>" % (number, times))


@pytest.mark.parametrize("above", [(), SCRIPT], ids=["alone", "script"])
@either
def test_suspend_without_a_shell_has_no_effect(
    start: Starter, mode: Mode, tmp_path: Path, above: tuple[str, ...]
) -> None:
    """As without ftrun; also after a restart."""
    options = ["--restart-on", "failure", "--backoff", "1ms"]
    run = start(*program(tmp_path, STUBBORN_READER), mode=mode, tty=True, options=options, above=above)
    run.terminal.wait(b"up1")
    assert_suspend_has_no_effect(run.terminal, 1)
    run.terminal.type(b"fail\n")
    run.terminal.wait(b"up2")
    assert_suspend_has_no_effect(run.terminal, 2)
    run.terminal.type(b"end\n")
    assert run.wait() == 0


@either
def test_a_group_that_stops_itself_for_the_terminal_is_continued(start: Starter, mode: Mode, tmp_path: Path) -> None:
    """As a full-screen program does after it has restored the screen."""
    seen = "signal.signal(signal.SIGTSTP, signal.SIG_DFL)\nsay('u' + 'p')\n"
    seen += "os.kill(0, signal.SIGTSTP)\nsay('further')\nos.kill(os.getpid(), signal.SIGTTIN)\nsys.exit(4)"
    run = start(*program(tmp_path, seen), mode=mode, tty=True)
    assert run.wait() == 4
    assert b"further" in run.terminal.look()
    assert not run.named("hang")


@either
def test_interrupt_during_the_backoff_ends_the_job(start: Starter, mode: Mode) -> None:
    """The foreground is not left to the process group that has ended."""
    options = ["--restart-on", "failure", "--backoff", "60s"]
    run = start("sh", "-c", "exit 3", mode=mode, tty=True, options=options)
    run.until("exited")
    wait_for(lambda: not children(run.pid), "the wait")
    run.terminal.type(INTERRUPT)
    assert run.wait() == 130


# --- a shell leads the session ----------------------------------------------------------------------------------------


class Shell:
    """An interactive bash, with ftrun as a job of it."""

    def __init__(self, start: Starter, folder: Path) -> None:
        self.terminal: Terminal = start.new_terminal()
        self.run = start.adopt(
            subprocess.Popen(
                ["setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"],
                stdin=self.terminal.slave,
                stdout=self.terminal.slave,
                stderr=self.terminal.slave,
                env=start.environment({"PS1": "READY ", "HISTFILE": ""}),
                preexec_fn=afresh(),
            ),
            folder / "run",
            self.terminal,
        )
        self.bash = self.run.process.pid
        self._prompts = 0
        self.prompt()

    def prompt(self) -> None:
        """Wait for the next prompt."""
        self._prompts += 1
        self.terminal.wait(b"READY ", self._prompts)

    def line(self, *words: str, after: str = "") -> str:
        return f"{shlex.join([*FTRUN, '--run-dir', str(self.run.run_dir), '--', *words])} {after}"

    def type(self, text: str) -> None:
        self.terminal.type(text.encode() + b"\n")

    def start(self, command: list[str], before: str = "", after: str = "") -> int:
        """Start a job whose command prints `up`; return the pid of the command."""
        self.type(before + self.line(*command, after=after))
        self.terminal.wait(b"up\r\n")
        return self.run.command

    def answer(self, text: str, expected: str) -> None:
        self.type(text)
        self.terminal.wait(expected.encode())
        self.prompt()

    @property
    def ftrun(self) -> int:
        return int(self.run.until("started")["pid"])

    def shows(self, pid: int, letters: str) -> None:
        wait_for(lambda: state_of(pid) in tuple(letters), f"{pid} in {letters}, is in {state_of(pid)}")

    def foreground(self, *groups: int) -> None:
        """One of them is in the foreground."""
        wait_for(lambda: self.terminal.foreground() in groups, f"one of {groups} in the foreground")

    def resume_and_interrupt(self, command: int, text: str) -> None:
        """`fg` gives the command the foreground; it reads a line there, and Ctrl-C ends it."""
        self.type("fg")
        self.foreground(command)
        self.type(text)
        self.terminal.wait(f"<{text}>".encode())
        self.terminal.type(INTERRUPT)
        self.prompt()

    def leave(self, code: int | None = None) -> None:
        """Leave the shell; the exit code of the job was `code`."""
        assert code in (None, self.run.until("ended")["exit_code"])
        self.type("exit 0")
        assert self.run.wait() == 0
        assert not alive(self.ftrun)


@pytest.fixture
def shell(start: Starter, tmp_path: Path) -> Shell:
    return Shell(start, tmp_path)


# Prints every line that it reads.
READER = """
say('u' + 'p')
for line in iter(lambda: os.read(0, 100), b''):
    say('<' + line.decode().strip() + '>')
"""


def test_suspend_and_fg_stop_and_continue_the_job(shell: Shell, tmp_path: Path) -> None:
    command = shell.start(program(tmp_path, READER), after="; echo code=$?")
    shell.foreground(command)
    for times in (1, 2):
        shell.terminal.type(SUSPEND)
        shell.terminal.wait(b"Stopped", times)
        shell.prompt()
        shell.shows(shell.ftrun, "T")
        shell.shows(command, "T")
        shell.foreground(shell.bash)
        shell.type("fg")
        shell.foreground(command)
        shell.shows(command, "S")
        shell.shows(shell.ftrun, "S")
        shell.type(f"word{times}")
        shell.terminal.wait(f"<word{times}>".encode())
    shell.terminal.type(INTERRUPT)
    shell.prompt()
    shell.foreground(shell.bash)
    shell.leave(130)


@pytest.mark.parametrize("how", ["&", ""], ids=["started there", "sent there"])
def test_a_background_job_stops_when_it_reads(shell: Shell, tmp_path: Path, how: str) -> None:
    """And ftrun with it; the shell keeps the terminal."""
    command = shell.start(program(tmp_path, READER), after=how)
    if not how:
        shell.terminal.type(SUSPEND)
        shell.prompt()
        shell.type("bg")
    shell.prompt()
    shell.shows(shell.ftrun, "T")
    shell.shows(command, "T")
    shell.foreground(shell.bash)
    shell.answer("echo sh''ell", "shell\r\n")
    shell.resume_and_interrupt(command, "word")
    shell.leave()


SLEEPER = "say('u' + 'p')\nwhile True:\n    time.sleep(600)\n"


LATE_READER = """
say('u' + 'p')
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
say('<' + os.read(0, 100).decode().strip() + '>')
"""


@pytest.mark.parametrize("how", ["&", ""], ids=["started there", "sent there"])
def test_fg_gives_a_background_job_the_terminal(shell: Shell, tmp_path: Path, how: str) -> None:
    """bash sends a running job no signal: the command has the terminal as soon as it uses it."""
    go = tmp_path / "go"
    shell.type(shell.line(*program(tmp_path, LATE_READER), str(go), after=how))
    shell.terminal.wait(b"up\r\n")
    if not how:
        shell.terminal.type(SUSPEND)
        shell.prompt()
        shell.type("bg")
    shell.prompt()
    command = shell.run.command
    shell.shows(command, "SR")
    shell.foreground(shell.bash)
    shell.type("fg")
    # ftrun may get the SIGCONT of `bg` only now, and pass the foreground on at once.
    shell.foreground(shell.ftrun, command)
    go.touch()
    shell.foreground(command)
    shell.type("word")
    shell.terminal.wait(b"<word>")
    shell.prompt()
    shell.leave(0)


def test_the_end_in_the_background_leaves_the_terminal_unchanged(shell: Shell, tmp_path: Path) -> None:
    """Neither the foreground nor the modes."""
    go = tmp_path / "go"
    waiting = f"say('u' + 'p')\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.02)\n"
    shell.type(shell.line(*program(tmp_path, waiting)))
    shell.terminal.wait(b"up\r\n")
    shell.terminal.type(SUSPEND)
    shell.prompt()
    shell.type("bg")
    shell.prompt()
    shell.answer("stty -echoctl", "")
    go.touch()
    shell.run.until("ended")
    wait_for(lambda: not alive(shell.ftrun), "the end")
    assert shell.terminal.foreground() == shell.bash
    shell.type("stty -a | tr ' ' _")
    shell.terminal.wait(b"-echoctl_")
    shell.prompt()
    shell.leave()


# Prints every line that it reads from the terminal, whatever its stdin is.
TERMINAL_READER = """
terminal = os.open('/dev/tty', os.O_RDONLY)
say('u' + 'p')
for line in iter(lambda: os.read(terminal, 100), b''):
    say('<' + line.decode().strip() + '>')
"""


@pytest.mark.parametrize(
    ("before", "after"), [("", "< /dev/null"), ("sleep 600 | ", "| cat")], ids=["no stdin", "amid pipes"]
)
def test_a_job_that_shares_the_foreground_stops_and_continues(
    shell: Shell, tmp_path: Path, before: str, after: str
) -> None:
    command = shell.start(program(tmp_path, SLEEPER), after=after, before=before)
    assert shell.terminal.foreground() == os.getpgid(shell.ftrun) != os.getpgid(command) == command
    for times in (1, 2):
        shell.terminal.type(SUSPEND)
        shell.terminal.wait(b"Stopped", times)
        shell.prompt()
        shell.shows(shell.ftrun, "T")
        shell.shows(command, "T")
        shell.type("fg")
        shell.shows(command, "S")
        shell.shows(shell.ftrun, "S")
        wait_for(lambda: shell.terminal.foreground() != shell.bash, "the foreground")
    shell.terminal.type(INTERRUPT)
    shell.prompt()
    shell.leave(130)


def test_keys_reach_the_processes_of_a_command_in_a_pipeline_and_a_kill_does_not(
    shell: Shell, recorder: Recorder
) -> None:
    shell.type(shell.line(*recorder.with_child, after="| cat"))
    recorder.ready()
    recorder.got(0, of_child=True)
    shell.terminal.type(INTERRUPT)
    assert recorder.got(1) == recorder.got(1, of_child=True) == [signal.SIGINT]
    os.kill(shell.ftrun, signal.SIGUSR1)
    assert recorder.got(2) == [signal.SIGINT, signal.SIGUSR1]
    os.kill(shell.ftrun, signal.SIGTERM)
    shell.prompt()
    assert signal.SIGUSR1 not in recorder.got(2, of_child=True)
    shell.leave()


@pytest.mark.parametrize("before", ["", "echo | "], ids=["no stdin", "after a pipe"])
def test_a_command_reads_from_the_terminal_beside_its_stdin(shell: Shell, tmp_path: Path, before: str) -> None:
    """In the foreground, also after a stop, and not in the background."""
    command = shell.start(program(tmp_path, TERMINAL_READER), after="" if before else "< /dev/null", before=before)
    shell.type("one")
    shell.terminal.wait(b"<one>")
    shell.terminal.type(SUSPEND)
    shell.terminal.wait(b"Stopped")
    shell.prompt()
    shell.type("bg")
    shell.prompt()
    wait_for(lambda: state_of(shell.ftrun) == "T", "the stop")
    shell.shows(command, "T")
    shell.foreground(shell.bash)
    shell.resume_and_interrupt(command, "two")
    shell.foreground(shell.bash)
    shell.leave(130)


def test_suspend_stops_the_complete_pipeline(shell: Shell, tmp_path: Path) -> None:
    """Also if the command has used the terminal, so that the key reached it alone."""
    shell.type(shell.line(*program(tmp_path, TERMINAL_READER), after="| cat"))
    shell.terminal.wait(b"up\r\n")
    command, group = shell.run.command, os.getpgid(shell.ftrun)
    others = [pid for pid in children(shell.bash) if os.getpgid(pid) == group and pid != shell.ftrun]
    assert len(others) == 1
    shell.type("one")
    shell.terminal.wait(b"<one>")
    shell.foreground(command)
    shell.terminal.type(SUSPEND)
    shell.terminal.wait(b"Stopped")
    shell.prompt()
    for pid in (shell.ftrun, command, *others):
        shell.shows(pid, "T")
    shell.type("fg")
    shell.type("two")
    shell.terminal.wait(b"<two>")
    shell.terminal.type(INTERRUPT)
    shell.prompt()
    shell.leave()


def test_suspend_during_the_backoff_stops_ftrun(shell: Shell) -> None:
    words = ["--restart-on", "failure", "--backoff", "60s", "--run-dir", str(shell.run.run_dir), "sh", "-c", "exit 3"]
    shell.type(shlex.join([*FTRUN, *words]))
    shell.run.until("exited")
    wait_for(lambda: not children(shell.ftrun), "the wait")
    shell.terminal.type(SUSPEND)
    shell.prompt()
    shell.shows(shell.ftrun, "T")
    shell.type("fg")
    shell.shows(shell.ftrun, "S")
    shell.terminal.type(INTERRUPT)
    shell.prompt()
    shell.leave(130)


# --- a parent that watches ftrun stop, without a terminal -------------------------------------------------------------


# Starts a job as a shell does.
PARENT = """
import os, sys, time
if os.fork():
    time.sleep(600)
os.setpgid(0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_the_parent_sees_the_stop_of_the_command(start: Starter) -> None:
    run = start("sleep", "600", above=[*PYTHON, "-c", PARENT])
    run.until("spawned")
    ftrun, command = int(run.until("started")["pid"]), run.command
    for _ in range(2):
        os.kill(ftrun, signal.SIGTSTP)
        wait_for(lambda: state_of(ftrun) == state_of(command) == "T", "the stop")
        os.kill(ftrun, signal.SIGCONT)
        wait_for(lambda: {state_of(ftrun), state_of(command)} <= {"R", "S"}, "that both continue")
    os.kill(ftrun, signal.SIGTERM)
    assert run.until("ended")["exit_code"] == 143
    wait_for(lambda: not alive(ftrun), "the end")
    run.process.kill()
    run.process.wait()
