"""`ftctl doctor`: what this container permits and lacks."""

import glob
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ftctl.doctor import devices, disk, system
from ftctl.doctor.finding import CheckOutcome
from ftrun.host import mounts, oom
from support.runs import FTCTL, PID1, Runs, ftctl, need_mounts, need_pid1
from waitproof import stacks


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert (done.returncode, done.stderr) == (0, "")
    return {one["name"]: one for one in json.loads(done.stdout)["findings"]}


def only(found: Any) -> CheckOutcome:
    (one,) = found
    assert isinstance(one, CheckOutcome)
    assert (one.remedy == "") == (one.state == "ok"), "a finding that is not ok has a remedy"
    return one


def test_every_check_has_a_state_and_a_meaning(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    done = ftctl("doctor", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    heads = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert all(line.split()[0] in ("ok", "warning", "missing") for line in heads[:-1])
    assert " checks are ok" in heads[-1]
    for name in ("PID 1", "py-spy", "NVML", "npu-smi", "cgroup", "open files", "inotify", "versions"):
        assert any(f" {name} " in line for line in heads), name
    assert any(f" {name} " in line for line in heads for name in ("temp folder", "run dir")), "another ftrun may run"
    assert {n for n in set(os.listdir("/dev/shm")) - before if f"-{os.getuid()}-" in n and not _is_in_use(n)} == set()


ALL_BUT_KILL = ("setpriv", "--bounding-set=-kill", "--inh-caps=-all")
NO_USER_CHANGE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.skipif(os.getuid() != 0, reason="only root has capabilities to give up")
def test_capability_to_signal_another_user(runs: Runs) -> None:
    """Only a command that can change its user needs it."""
    run = runs.ends(0, "true")

    def signals(*prefix: str) -> dict[str, Any]:
        # Of a run that is over: without a run dir the check would report another ftrun that runs on this machine.
        return findings(ftctl("doctor", "--json", "--run-dir", str(run.run_dir), prefix=prefix))["signals"]

    assert signals()["state"] == "ok"
    missing = signals(*ALL_BUT_KILL)
    assert missing["state"] == "warning"
    assert "--cap-add KILL" in missing["remedy"]
    assert signals(*NO_USER_CHANGE)["state"] == "ok"


def _is_in_use(beat_folder: str) -> bool:
    """Whether it belongs to an ftrun that runs, of another test."""
    return os.path.exists(f"/proc/{beat_folder.split('-')[3]}")


def test_running_ftrun_is_the_one_that_is_checked(runs: Runs) -> None:
    run = runs.spawned("sleep", "3600", prefix=["bash", "-c", 'ulimit -n 1000; "$@"', "bash"])
    found = findings(ftctl("doctor", "--json", "--run-dir", str(run.run_dir)))
    assert str(run.run_dir) in found["run dir"]["found"]
    assert (found["open files"]["state"], found["open files"]["found"]) == ("warning", "at most 1000")
    assert "ulimit -n" in found["open files"]["remedy"]


def test_ftrun_is_pid_1(runs: Runs) -> None:
    need_pid1()
    run = runs.ends(0, *FTCTL, "doctor", "--json", prefix=PID1)
    found = {one["name"]: one for one in json.loads(run.stdout)["findings"]}
    assert (found["PID 1"]["state"], found["PID 1"]["found"]) == ("ok", "ftrun is PID 1")
    assert "subreaper" not in found


def test_shell_as_pid_1_is_a_warning() -> None:
    need_pid1()
    script = '"$@"; true'
    found = findings(
        ftctl("doctor", "--json", prefix=(*PID1, "sh", "-c", f"sh -c '{script}' \"$@\"; true", "sh", "sh"))
    )
    assert found["PID 1"]["state"] == "warning"
    assert 'ENTRYPOINT ["ftrun", ...]' in found["PID 1"]["remedy"]


# --- each check -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0 or stacks.program() is None, reason="needs py-spy, and the right to use it")
def test_py_spy_reads_a_real_process() -> None:
    assert only(system.tracing()).found == "it can read the stack of a test process"


def test_py_spy_that_is_missing_or_not_permitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stacks, "program", lambda: None)
    assert only(system.tracing())[:3] == ("py-spy", "missing", "not installed")
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "program", lambda: str(spy))
    found = only(system.tracing())
    assert found.state == "warning"
    assert "SYS_PTRACE" in found.remedy


@pytest.mark.parametrize(("size", "state"), [("64m", "warning"), ("2g", "ok")])
def test_size_of_the_memory_file_system(size: str, state: str) -> None:
    need_mounts()
    script = f'mount -t tmpfs -o size={size} none /dev/shm; exec "$@"'
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh")
    found = findings(ftctl("doctor", "--json", prefix=prefix))["/dev/shm"]
    assert found["state"] == state
    assert ("--shm-size" in found["remedy"]) == (state != "ok")


def test_no_memory_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "memory_folders", list)
    found = only(system.shared())
    assert found.state == "warning"
    assert "no memory file system is mounted" in found.found


def test_driver_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "NVML", "import time; time.sleep(3600)")
    monkeypatch.setattr(devices, "ANSWER", 0.3)
    began = time.monotonic()
    found = only(devices.nvidia())
    assert (found.state, found.found) == ("warning", "no answer in 0s")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("output", "files", "state", "text"),
    [
        ('{"driver": "570.1", "names": ["H100", "H100"]}', [], "ok", "2 devices (H100), driver 570.1"),
        ('{"absent": "no pynvml"}', [], "missing", "nvidia-ml-py is not installed"),
        ('{"problem": "NVML Shared Library Not Found"}', [], "ok", "no NVIDIA device here"),
        ("garbage", [], "ok", "no NVIDIA device here"),
        ('{"problem": "NVML Shared Library Not Found"}', ["/dev/nvidia0"], "missing", "/dev/nvidia0 exists"),
    ],
)
def test_nvml(monkeypatch: pytest.MonkeyPatch, output: str, files: list[str], state: str, text: str) -> None:
    monkeypatch.setattr(devices, "NVML", f"print({output!r})")
    monkeypatch.setattr(glob, "glob", lambda pattern: files)
    found = only(devices.nvidia())
    assert found.state == state
    assert text in found.found


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("echo '\tTotal Count : 8'", "ok"),
        ("echo dcmi module initialize failed; exit 1", "missing"),
        ("sleep 60", "warning"),
    ],
)
def test_npu_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, state: str) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(devices, "ANSWER", 1.0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert only(devices.ascend()).state == state


def test_chip_without_npu_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **more: None)
    monkeypatch.setattr(glob, "glob", lambda pattern: ["/dev/davinci0"])
    assert only(devices.ascend()).state == "missing"
    monkeypatch.setattr(glob, "glob", lambda pattern: [])
    assert only(devices.ascend()).found == "no Ascend device here"


def test_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(disk.folder(str(tmp_path))).state == "ok"
    assert only(disk.folder(str(tmp_path / "none"))).state == "missing"
    monkeypatch.setattr(mounts, "network_kind", lambda path: "nfs")
    found = only(disk.folder(str(tmp_path)))
    assert (found.state, found.name) == ("warning", "run dir")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert only(disk.folder(str(tmp_path))).state == "missing"


def test_termination_message_of_kubernetes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "MESSAGE", str(tmp_path / "termination-log"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert only(disk.message()).state == "ok"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert only(disk.message()).state == "missing"
    (tmp_path / "termination-log").touch()
    assert only(disk.message()).state == "ok"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert only(disk.message()).state == "warning"


def test_control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = {"memory.events": "oom_kill 2", "memory.max": f"{1 << 30}", "memory.current": "5", "pids.max": "100"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(oom, "files", lambda *texts: iter([f"{tmp_path}/memory.events"]))
    monkeypatch.setattr(oom, "oom_kills", lambda: 2)
    group, pids = system.groups()
    assert group.found == "version 2, memory limit 1.0 GiB, 0 MiB used, 2 OOM kills so far"
    assert (group.state, pids.state, pids.found) == ("warning", "warning", "at most 100")
    monkeypatch.setattr(oom, "files", lambda *texts: iter(()))
    assert only(system.groups()).found == "not visible"


def test_check_that_fails_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ftctl.verbs import doctor as verb

    def fail() -> Any:
        raise RuntimeError("odd")

    monkeypatch.setattr(disk, "inotify", fail)
    verb.command(["--json"], standalone_mode=False)
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert "odd" in found["inotify"]["found"]
    assert "versions" in found
