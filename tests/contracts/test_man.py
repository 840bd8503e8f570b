"""The man pages: made from the code, fit for mandoc, and in the wheel."""

import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "man"
NAMES = ("ftctl.1", "fthang.1", "ftrun.1", "waitproof.1")


def test_pages_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "man.py"))["pages"]()
    assert sorted(made) == sorted(path.name for path in FOLDER.iterdir()) == sorted(NAMES)
    for name, page in made.items():
        assert (FOLDER / name).read_text(encoding="ascii") == page, "run: python docs/man.py"


@pytest.mark.parametrize("name", NAMES)
def test_mandoc_reports_nothing(name: str) -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("no mandoc here")
    found = subprocess.run(
        ["mandoc", "-Tlint", "-Wwarning", str(FOLDER / name)], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_text_is_escaped() -> None:
    text = runpy.run_path(str(ROOT / "docs" / "man.py"))["_text"]
    assert text(".so /etc/passwd\n'x\n\\fB-a") == "\\&.so /etc/passwd\n\\(aqx\n\\efB\\-a"
    assert text("the [records](records.md), `state.json`") == "the records, state.json"


def test_wheel_installs_the_pages() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["shared-data"] == {"docs/man": "share/man/man1"}
