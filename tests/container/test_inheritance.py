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

from support.containers import NAMESPACE, PYTHON, Starter, afresh, either
from support.runs import DEADLINE, FTRUN, Mode, alive, wait_for

BYTES = bytes(range(256)) * 4096

# Prints how it was started.
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
    """What the probe reports without ftrun, and with it."""
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
    """The entries that ftrun does not set; PYTHONPATH without the folder of the automatic heartbeats."""
    kept = [bytes.fromhex(entry) for entry in environ if not bytes.fromhex(entry).startswith(OURS)]
    paths = [AUTO_BEAT.sub(b"=", entry) for entry in kept]
    return [entry.hex() for entry in paths if entry != b"PYTHONPATH="]


@pytest.mark.parametrize("given", [None, "/a:/b", ":/a:"])
def test_automatic_heartbeats_come_first_on_pythonpath_or_not_at_all(start: Starter, given: str | None) -> None:
    environment = start.environment() | ({} if given is None else {"PYTHONPATH": given})
    show = "import os; print(os.environ.get('PYTHONPATH', '').replace(os.environ['FTRUN_BEAT_DIR'], 'BEATS'))"
    for options, expected in (
        ((), f"BEATS/python:{given}" if given else "BEATS/python"),
        (("--no-auto-beat",), given or ""),
    ):
        code, out, _ = start(*PYTHON, "-c", show, options=options, environment=environment).finish()
        assert (code, out.decode().strip()) == (0, expected)


@either
def test_input_and_output_are_unchanged(start: Starter, mode: Mode) -> None:
    run = start("sh", "-c", "tee /proc/self/fd/2", mode=mode, options=("--quiet",), stdin=subprocess.PIPE)
    code, out, err = run.finish(BYTES)
    assert code == 0
    assert out == BYTES
    assert err == BYTES


@either
def test_files_are_inherited_and_share_their_offsets(start: Starter, mode: Mode, tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as given, (tmp_path / "out").open("wb") as out:
        given.write(b"one\ntwo\nthree\n")
        given.seek(4)
        command = ("sh", "-c", "read word; echo $word; echo $word >&2")
        run = start(*command, mode=mode, options=("--quiet",), stdin=given, stdout=out, stderr=out)
        assert run.wait() == 0
        assert out.tell() == 8
    assert (tmp_path / "out").read_bytes() == b"two\ntwo\n"


def test_the_process_is_the_same_as_without_ftrun(start: Starter, mode: Mode, tmp_path: Path) -> None:
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

    odd = {b"EMPTY": b"", b"BYTES": bytes(range(1, 256)), b"LINES": b"a\nb\n", b"EQUALS": b"=a=b=", b"a b": b"x"}
    odd |= {b"\xff\xfe": b"\xfd", b"PYTHONPATH": b"/nowhere", b"PYTHONDONTWRITEBYTECODE": b"1"}
    environment = {os.fsencode(k): os.fsencode(v) for k, v in start.environment().items()} | odd
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
    words += [b"x" * 100_000] * 10
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        plain, found = probe(start, mode, *words, before=before, environment=environment, pass_fds=(reader,))
    finally:
        os.close(reader)
        os.close(writer)
    plain["session leader"] = found["session leader"]
    assert without_ours(found.pop("environ")) == plain.pop("environ")
    assert found == plain
    assert found["argv"] == [word.hex() for word in words]
    assert found["cwd"] == str(tmp_path)
    assert found["fds"] == [0, 1, 2, reader]


@either
def test_descriptors_after_a_restart_are_those_given(start: Starter, mode: Mode) -> None:
    script = "ls /proc/self/fd | wc -l; exit 1"
    options = ["--restart-on", "failure", "--backoff", "1ms"]
    code, out, _ = start("sh", "-c", script, mode=mode, options=options).finish()
    assert code == 93
    assert out.split() == [b"4"] * 4


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C"}, {"LANG": "C"}])
def test_the_lc_ctype_of_python_does_not_reach_the_command(start: Starter, locale: dict[str, str]) -> None:
    """Python sets it for itself in the C locale (PEP 538)."""
    plain = {k: v for k, v in start.environment().items() if not k.startswith(("LC_", "LANG"))} | locale
    code, out, _ = start("env", "-0", environment=plain).finish()
    assert code == 0
    found = without_ours([entry.hex() for entry in out.split(b"\0") if entry])
    assert sorted(found) == sorted(f"{k}={v}".encode().hex() for k, v in plain.items())


def test_the_command_dies_with_ftrun(start: Starter, mode: Mode) -> None:
    run = start("sleep", "600", mode=mode)
    command = run.command
    run.kill(signal.SIGKILL)
    wait_for(lambda: not alive(command), "the end of the command")
    run.wait()
    for folder in run.beat_dirs():  # the next start on that run dir removes it
        shutil.rmtree(folder)


@pytest.mark.parametrize("trap", ["", "trap '' PIPE;"])
def test_sigpipe_that_a_shell_ignores_stays_ignored_for_the_command(tmp_path: Path, trap: str) -> None:
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
