"""The heal helper: one command, its result, and no process of it left."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.helper_process import HelperProcess
from support.runs import carrying, end_process


@pytest.fixture
def mark() -> Iterator[str]:
    """A variable of all processes of a test; those that a failed test left are ended."""
    name = f"HEAL_{os.urandom(6).hex()}"
    yield name
    for pid in carrying(f"{name}=1"):
        end_process(pid)


def heal(command: str, timeout: float = 60, **more: Any) -> HelperProcess:
    environment = more.pop("environment", {})
    until = time.monotonic() + timeout
    remedy = {"command": command, "timeout": timeout, "until": until, "environment": environment}
    return HelperProcess("heal", json.dumps(remedy), **more)


def healed(healer: HelperProcess) -> tuple[bool, str | None]:
    line = healer.event("healed")
    assert set(line) == {"event", "ok", "why"}
    return line["ok"], line["why"]


def test_success_is_reported_and_the_output_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    with heal("echo out; echo err >&2; echo $DEVICE; cat", environment={"DEVICE": "npu-3"}, log=log) as healer:
        assert healed(healer) == (True, None)
        assert healer.ended() == 0
        assert healer.lines == [{"event": "healed", "ok": True, "why": None}]
    assert log.read_text().split() == ["out", "err", "npu-3"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 3", "it ended with 3"),
        ("kill -9 $$", "it was ended by signal 9 (SIGKILL)"),
        ("no-such-program", "it ended with 127"),
        ("trap '' TERM INT HUP; while :; do sleep 600; done", "the heal command did not end within 0.3s"),
        ("kill -STOP $$", "the heal command did not end within 0.3s"),
        ("a\0b", "it cannot be started"),
    ],
)
def test_the_reason_of_a_failure_is_reported(command: str, why: str) -> None:
    with heal(command, timeout=0.3 if "within" in why else 60) as healer:
        ok, reason = healed(healer)
        assert not ok
        assert reason is not None
        assert reason.startswith(why)
        assert healer.ended() == 0


def test_daemons_are_ended_before_the_result_is_sent(tmp_path: Path, mark: str) -> None:
    ready = tmp_path / "ready"
    daemon = f"setsid sh -c 'sleep 600 & touch {ready}; wait' >/dev/null 2>&1 &"
    with heal(f"({daemon}); while ! test -e {ready}; do sleep 0.01; done", environment={mark: "1"}) as healer:
        assert healed(healer) == (True, None)
        assert carrying(f"{mark}=1") == []


def test_a_command_that_keeps_forking_is_ended(mark: str) -> None:
    fork = "g() { while :; do (sleep 0.01 &) ; done; }; g & g & sleep 600"
    with heal(fork, timeout=0.5, environment={mark: "1"}) as healer:
        assert healed(healer) == (False, "the heal command did not end within 0.5s")
        assert carrying(f"{mark}=1") == []


def test_signals_are_as_a_command_expects_them() -> None:
    with heal("grep SigIgn /proc/self/status; kill -INT $$; exit 5") as healer:
        assert healed(healer) == (False, "it was ended by signal 2 (SIGINT)")
