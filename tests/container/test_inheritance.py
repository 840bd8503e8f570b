"""The command inherits what ftrun was started with: files, environment, limits, arguments."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.containers import NAMESPACE, PYTHON, Starter, afresh
from support.runs import DEADLINE, FTRUN, Mode, alive, wait_for

BYTES = bytes(range(256)) * 4096

# What a program can see of how it was started.
PROBE = """
import json, os, resource, sys
from pathlib import Path
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
fds = set(os.listdir("/proc/self/fd"))
json.dump({
    "argv": [os.fsencode(word).hex() for word in sys.argv[1:]],
    "environ": sorted(e.hex() for e in Path("/proc/self/environ").read_bytes().split(b"\\0") if e),
    "cwd": os.getcwd(),
    "umask": os.umask(0),
    "nice": os.nice(0),
    "limits": Path("/proc/self/limits").read_text(),
    "scheduling": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
    "oom": Path("/proc/self/oom_score_adj").read_text(),
    "ids": [os.getresuid(), os.getresgid(), sorted(os.getgroups())],
    "status": {n: status[n] for n in status if n.startswith(("Cap", "Seccomp", "NoNewPrivs", "Sig"))
               and n not in ("SigQ", "SigCgt")},
    "fds": sorted(int(fd) for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")),
    "session leader": os.getsid(0) == os.getpid(),
}, sys.stdout)
"""
OURS = (b"MA_PROC_START_CNT=", b"MA_SCHEDULE_CNT=", b"FTRUN_RUN_DIR=", b"FTRUN_BEAT_DIR=", b"FTRUN_RESTART_REASON=")
AUTO_BEAT = re.compile(rb"=/[a-z/]*/ftrun-beats-[0-9a-f-]*/python:?")


def probe(start: Starter, mode: Mode, *words: str | bytes, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the probe sees bare, and under ftrun."""
    command = (*PYTHON, "-c", PROBE, *words)
    environment = how.setdefault("environment", start.environment())
    plain = subprocess.run(
        [*(NAMESPACE if mode == "pid1" else ()), *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=afresh(how.get("before")),
        pass_fds=how.get("pass_fds", ()),
        check=True,
    )
    code, out, err = start(*command, mode=mode, **how).finish()
    assert code == 0, err
    assert err == b""
    return json.loads(plain.stdout), json.loads(out)


def without_ours(environ: list[str]) -> list[str]:
    """The rest; PYTHONPATH without the folder of the automatic beats, which comes first in it."""
    kept = [bytes.fromhex(entry) for entry in environ if not bytes.fromhex(entry).startswith(OURS)]
    paths = [AUTO_BEAT.sub(b"=", entry) for entry in kept]
    return [entry.hex() for entry in paths if entry != b"PYTHONPATH="]


@pytest.mark.parametrize("given", [None, "/a:/b", ":/a:", ""])
def test_the_automatic_beats_come_first_on_pythonpath_or_not_at_all(
    start: Starter, mode: Mode, given: str | None
) -> None:
    environment = start.environment() | ({} if given is None else {"PYTHONPATH": given})
    show = "import os; print(os.environ.get('PYTHONPATH', '').replace(os.environ['FTRUN_BEAT_DIR'], 'BEATS'))"
    for options, expected in (
        ((), f"BEATS/python:{given}" if given else "BEATS/python"),
        (("--no-auto-beat",), given or ""),
    ):
        code, out, _ = start(*PYTHON, "-c", show, mode=mode, options=options, environment=environment).finish()
        assert (code, out.decode().strip()) == (0, expected)


def test_input_and_output_byte_for_byte(start: Starter, mode: Mode) -> None:
    run = start("sh", "-c", "tee /proc/self/fd/2", mode=mode, options=("--quiet",), stdin=subprocess.PIPE)
    code, out, err = run.finish(BYTES)
    assert code == 0
    assert out == BYTES
    assert err == BYTES


def test_files_are_the_very_same(start: Starter, mode: Mode, tmp_path: Path) -> None:
    """Inherited, not copied through a pipe: offsets are shared."""
    with tempfile.TemporaryFile() as given, (tmp_path / "out").open("wb") as out:
        given.write(b"one\ntwo\nthree\n")
        given.seek(4)
        command = ("sh", "-c", "read word; echo $word; echo $word >&2")
        run = start(*command, mode=mode, options=("--quiet",), stdin=given, stdout=out, stderr=out)
        assert run.wait() == 0
        assert out.tell() == 8
    assert (tmp_path / "out").read_bytes() == b"two\ntwo\n"


def test_everything_else_is_the_same(start: Starter, mode: Mode, tmp_path: Path) -> None:
    def before() -> None:
        os.umask(0o037)
        os.nice(3)
        os.chdir(tmp_path)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 1 << 20))
        resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 8 << 20))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        Path("/proc/self/oom_score_adj").write_text("77")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    plain, found = probe(start, mode, before=before)
    plain["session leader"] = found["session leader"]
    assert without_ours(found.pop("environ")) == plain.pop("environ")
    assert found == plain
    assert found["cwd"] == str(tmp_path)
    assert found["fds"] == [0, 1, 2]


def test_descriptors_inherited_on_purpose(start: Starter, mode: Mode) -> None:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        plain, found = probe(start, mode, pass_fds=(reader,))
    finally:
        os.close(reader)
        os.close(writer)
    assert found["fds"] == plain["fds"] == [0, 1, 2, reader]


def test_descriptors_after_a_restart(start: Starter, mode: Mode) -> None:
    """Nothing accumulates, and what was inherited is still there."""
    script = "ls /proc/self/fd | wc -l; exit 1"
    options = ["--restart-on", "failure", "--backoff", "1ms"]
    code, out, _ = start("sh", "-c", script, mode=mode, options=options).finish()
    assert code == 93
    assert out.split() == [b"4"] * 4


def test_environment(start: Starter, mode: Mode) -> None:
    odd = {
        b"EMPTY": b"",
        b"BYTES": bytes(range(1, 256)),
        b"LINES": b"a\nb\n",
        b"EQUALS": b"=a=b=",
        b"with space": b"x",
        b"\xff\xfe": b"\xfd",
        b"PYTHONPATH": b"/nowhere",
        b"PYTHONDONTWRITEBYTECODE": b"1",
    }
    given = {os.fsencode(k): os.fsencode(v) for k, v in start.environment().items()} | odd
    plain, found = probe(start, mode, environment=given)
    assert without_ours(found["environ"]) == plain["environ"]


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C"}, {"LC_CTYPE": "C"}, {"LANG": "C"}, {"LC_ALL": "en_US.UTF-8"}])
def test_environment_under_a_plain_locale(start: Starter, mode: Mode, locale: dict[str, str]) -> None:
    """Python sets LC_CTYPE for itself in the C locale (PEP 538): that must not reach the command."""
    plain = {k: v for k, v in start.environment().items() if not k.startswith(("LC_", "LANG"))} | locale
    code, out, _ = start("env", "-0", mode=mode, environment=plain).finish()
    assert code == 0
    found = without_ours([entry.hex() for entry in out.split(b"\0") if entry])
    assert sorted(found) == sorted(f"{k}={v}".encode().hex() for k, v in plain.items())


def test_the_variables_that_ftrun_sets(start: Starter, mode: Mode) -> None:
    run = start("env", "-0", mode=mode)
    _, out, _ = run.finish()
    told = dict(entry.split(b"=", 1) for entry in out.split(b"\0") if entry)
    assert told[b"MA_PROC_START_CNT"] == told[b"MA_SCHEDULE_CNT"] == b"1"
    assert told[b"FTRUN_RESTART_REASON"] == b"first"
    assert told[b"FTRUN_RUN_DIR"] == os.fsencode(run.run_dir)


def test_unusual_arguments(start: Starter, mode: Mode) -> None:
    words = [
        b"",
        b" ",
        b"a b",
        b"\xff\xfe\x80",
        "héé".encode(),
        b"\n",
        b"--",
        b"-v",
        b"--help",
        b"*",
        b"'\"$x`",
        b"\x01",
    ]
    plain, found = probe(start, mode, *words)
    assert found["argv"] == plain["argv"] == [word.hex() for word in words]


def test_a_long_command_line(start: Starter, mode: Mode) -> None:
    words = [b"x" * 100_000] * 10
    plain, found = probe(start, mode, *words)
    assert found["argv"] == plain["argv"]


def test_the_command_dies_with_ftrun(start: Starter, mode: Mode) -> None:
    run = start("sleep", "600", mode=mode)
    command = run.command
    run.kill(signal.SIGKILL)
    wait_for(lambda: not alive(command), "the end of the command")
    run.wait()
    for folder in run.beat_dirs():  # the next start on that run dir removes it
        shutil.rmtree(folder)


@pytest.mark.parametrize("trap", ["", "trap '' PIPE;"])
def test_sigpipe_that_a_shell_ignores_stays_ignored(tmp_path: Path, trap: str) -> None:
    """For the command; a helper or ftrun itself would have it either way."""
    found = subprocess.run(
        ["sh", "-c", f"{trap} {' '.join(FTRUN)} --run-dir {tmp_path}/run -- grep SigIgn /proc/self/status; exit $?"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
        preexec_fn=afresh(),
    )
    ignored = int(found.stdout.split()[1], 16)
    assert ignored == (1 << (signal.SIGPIPE - 1) if trap else 0)
