"""What the extras are for, with the oldest packages that pyproject.toml admits for them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.otlp_receiver import receiving
from support.runs import HOUSE, Runs, patched, wait_for

EXTRAS = ("metrics", "page", "otel")
PAGES = ("tests/ftctl/test_page.py", "tests/ftctl/test_page_served.py", "tests/helpers/test_metrics_server.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # it downloads


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    extras = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    folder = tmp_path_factory.mktemp("oldest")
    oldest = [word.replace(">=", "==") for extra in EXTRAS for word in extras[extra]]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, *oldest], check=True, timeout=1200)
    return folder


def test_metrics_and_spans_of_a_run(packages: Path, runs: Runs) -> None:
    first = f"import sys; sys.path.insert(0, {str(packages)!r})\n"
    program = patched(f"import ftrun.host.helpers as h\nh.CODE = {first!r} + h.CODE")
    file = runs.folder / "ftrun.prom"
    with receiving() as collector:
        run = runs.ends(3, "--otlp", collector.url, "--metrics-file", str(file), "sh", "-c", "exit 3", program=program)
        wait_for(lambda: collector.named("run"), "the last span")
        wait_for(lambda: any(log["attributes"]["ftrun.event"] == "ended" for log in collector.logs), "the last log")
    assert "ftrun_" in file.read_text()
    assert run.named("problem") == []


def test_the_page_and_the_server_of_the_metrics(packages: Path, tmp_path: Path) -> None:
    """By their own tests, of which some run a program that finds the newest packages."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base"), *PAGES],
        cwd=HOUSE,
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-3000:]
