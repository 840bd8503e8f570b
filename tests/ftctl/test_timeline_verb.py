"""`ftctl timeline` as a program."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from support.scripted import Script

FTCTL = (sys.executable, str(Path(__file__).resolve().parents[2] / "bin" / "ftctl"))


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    script = Script().starts().after(20).saves(20).after(5).hangs(25).starts("hang", step=20).after(9).ends()
    return script.written(tmp_path / "run")


def ftctl(run_dir: str, *words: str, folder: Path, most: int | None = None) -> subprocess.CompletedProcess[bytes]:
    """`most`: the bytes that a file may have."""

    def limited() -> None:
        os.umask(0o027)
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [*FTCTL, "timeline", "--run-dir", run_dir, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=60, preexec_fn=limited)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "run")


def test_a_page_is_written_to_the_working_folder(run_dir: str, tmp_path: Path) -> None:
    done = ftctl(run_dir, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"written: ftrun-timeline.html\n", b"")
    assert files(tmp_path) == ["ftrun-timeline.html"]
    assert (tmp_path / "ftrun-timeline.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "ftrun-timeline.html").stat().st_mode & 0o777 == 0o640, "as the umask says"


def test_a_dash_is_standard_output(run_dir: str, tmp_path: Path) -> None:
    page = ftctl(run_dir, "-o", "-", folder=tmp_path).stdout
    assert page.startswith(b"<!doctype html>")
    assert page.rstrip().endswith(b"</html>")
    assert files(tmp_path) == []


def test_json_has_the_history(run_dir: str, tmp_path: Path) -> None:
    found = json.loads(ftctl(run_dir, "--json", folder=tmp_path).stdout)
    assert found["schema"] == 1
    assert [attempt["cause"] for attempt in found["attempts"]] == ["hang", None]
    assert found["totals"]["hang"] == pytest.approx(11)
    assert {interval["why"] for interval in found["lost"]} == set(found["totals"])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-o", "a.png"], 2, "a.png: the name must end in .html or .svg"),
        (["-o", "a.html", "--json"], 2, "exclude each other"),
        (["-o", "no/such/a.html"], 1, "no/such/a.html: No such file or directory"),
        (["-o", "full.html"], 1, "full.html: No space left on device"),
        (["--run-dir", "nowhere"], 1, "nowhere"),
    ],
)
def test_errors_are_one_line(run_dir: str, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    (tmp_path / "full.html").symlink_to("/dev/full")
    before = files(tmp_path)
    done = ftctl(run_dir, *words, folder=tmp_path)
    assert done.returncode == code
    shown = done.stdout if "--json" in words else done.stderr
    assert message in shown.decode()
    assert shown.count(b"\n") == 1
    assert files(tmp_path) == before


def test_a_full_disk_leaves_the_old_file(run_dir: str, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("before")
    done = ftctl(run_dir, "-o", "a.svg", folder=tmp_path, most=1000)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert files(tmp_path) == ["a.svg"]
    assert (tmp_path / "a.svg").read_text() == "before"


def test_a_symbolic_link_and_permissions_are_kept(run_dir: str, tmp_path: Path) -> None:
    real = tmp_path / "run" / "real.svg"
    real.touch(0o600)
    (tmp_path / "a.svg").symlink_to(real)
    assert ftctl(run_dir, "-o", "a.svg", folder=tmp_path).returncode == 0
    assert (tmp_path / "a.svg").is_symlink()
    assert real.read_text().startswith("<svg")
    assert real.stat().st_mode & 0o777 == 0o600
