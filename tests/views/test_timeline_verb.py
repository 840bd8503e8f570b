"""`ftctl timeline` as it is called."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ftrun.cli.common import UserError
from ftrun.cli.verbs import timeline
from ftrun.views.history import read
from support.scripted import Script

FTCTL = (sys.executable, str(Path(__file__).resolve().parents[2] / "bin" / "ftctl"))


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    script = Script().starts().after(20).saves(20).after(5).hangs(25).starts("hang", step=20).after(9).ends()
    return script.written(tmp_path / "run")


def ftctl(*words: str, folder: Path, most: int | None = None) -> subprocess.CompletedProcess[bytes]:
    """`most`: bytes that a file may have."""

    def limited() -> None:
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [*FTCTL, "timeline", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=60, preexec_fn=limited)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "run")


def test_it_is_written_here_and_says_so(run_dir: str, tmp_path: Path) -> None:
    done = ftctl("--run-dir", run_dir, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"written: ftrun-timeline.html\n", b"")
    assert left(tmp_path) == ["ftrun-timeline.html"]
    assert (tmp_path / "ftrun-timeline.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("name", "head"), [("a.png", b"\x89PNG"), ("a.SVG", b"<svg "), ("a b.html", b"<!doctype"), ("-x.svg", b"<svg")]
)
def test_the_name_says_what_it_is(run_dir: str, tmp_path: Path, name: str, head: bytes) -> None:
    if name.endswith("png"):
        pytest.importorskip("PIL")
    done = ftctl("--run-dir", run_dir, f"--output={name}", folder=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / name).read_bytes().startswith(head)


def test_to_standard_output(run_dir: str, tmp_path: Path) -> None:
    page = ftctl("--run-dir", run_dir, "-o", "-", folder=tmp_path).stdout
    assert page.startswith(b"<!doctype html>")
    assert page.rstrip().endswith(b"</html>")
    assert left(tmp_path) == []


def test_json_has_all_of_it(run_dir: str, tmp_path: Path) -> None:
    found = json.loads(ftctl("--run-dir", run_dir, "--json", folder=tmp_path).stdout)
    assert found["schema"] == 1
    assert [attempt["cause"] for attempt in found["attempts"]] == ["hang", None]
    assert found["totals"]["hang"] == pytest.approx(11)
    assert {stretch["why"] for stretch in found["lost"]} == set(found["totals"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["-o", "a.txt"], 2, "the name must end in one of .html, .svg, .png"),
        (["-o", ""], 2, "the name must end in one of"),
        (["-o", "a.html", "--json"], 2, "exclude each other"),
        (["-o", "no/such/a.html"], 1, "no/such/a.html: No such file or directory"),
        (["-o", "folder.html"], 1, "folder.html: Is a directory"),
        (["-o", "full.html"], 1, "full.html: No space left on device"),
        (["--run-dir", "nowhere"], 1, "nowhere"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    run_dir: str, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "full.html").symlink_to("/dev/full")
    before = left(tmp_path)
    done = ftctl("--run-dir", run_dir, *words, folder=tmp_path)
    assert done.returncode == code
    assert says in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert left(tmp_path) == before


def test_a_disk_that_is_full_leaves_what_was_there(run_dir: str, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("before")
    done = ftctl("--run-dir", run_dir, "-o", "a.svg", folder=tmp_path, most=1000)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert left(tmp_path) == ["a.svg"]
    assert (tmp_path / "a.svg").read_text() == "before"


def test_a_link_stays_one_and_rights_stay(run_dir: str, tmp_path: Path) -> None:
    real = tmp_path / "run" / "real.svg"
    real.touch(0o600)
    (tmp_path / "a.svg").symlink_to(real)
    assert ftctl("--run-dir", run_dir, "-o", "a.svg", folder=tmp_path).returncode == 0
    assert (tmp_path / "a.svg").is_symlink()
    assert real.read_text().startswith("<svg")
    assert real.stat().st_mode & 0o777 == 0o600


def test_a_new_file_has_the_usual_rights(run_dir: str, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        ftctl("--run-dir", run_dir, "-o", "a.svg", folder=tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / "a.svg").stat().st_mode & 0o777 == 0o640


def test_without_pillow_only_png_cannot_be(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ftrun.views.png", raising=False)
    monkeypatch.setattr(sys.modules["ftrun.views"], "png", None, raising=False)
    monkeypatch.delattr(sys.modules["ftrun.views"], "png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    history = read(run_dir)
    with pytest.raises(UserError, match=r"needs Pillow .*pip install 'ftrun\[page\]'"):
        timeline.rendered(history, ".png")
    assert timeline.rendered(history, ".html").startswith(b"<!doctype")
    assert isinstance(timeline.command, click.Command)
