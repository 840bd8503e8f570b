"""The sitecustomize that ftrun puts first on PYTHONPATH: what a program can see of it, under every Python here."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.beat_file import HOUSE, BeatDir
from support.pythons import EXTREMES, FOUND, NEW, OLD, version
from support.short import quick

AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
SOURCE = AUTO / "sitecustomize.py"
SHOW = (
    "import sys, os\n"
    "print(sys.path[1:], sys.argv, __name__)\n"
    "print(sorted(sys.modules), sys.modules.get('sitecustomize'))\n"
)
FINDERS = "print([f if isinstance(f, type) else type(f).__name__ for f in sys.meta_path])"
Ran = tuple[int, str, str]


def ran(beats: BeatDir, words: Iterable[object], *path: object, python: Path = NEW[0], **env: str) -> Ran:
    environment = beats.environment(**env) | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [str(python), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def ran_both(beats: BeatDir, words: Iterable[object], *path: object, **more: Any) -> tuple[Ran, Ran]:
    """With the hooks' folder first on PYTHONPATH, and without it."""
    return ran(beats, words, AUTO, *path, **more), ran(beats, words, *path, **more)


def test_a_program_without_torch_runs_unchanged_in_every_form(beats: BeatDir, tmp_path: Path) -> None:
    script = tmp_path / "shows.py"
    script.write_text(SHOW)
    with zipfile.ZipFile(tmp_path / "shows.zip", "w") as file:
        file.writestr("__main__.py", SHOW)
    forms: list[list[object]] = [["-c", SHOW], [script], ["-m", "shows"], [tmp_path / "shows.zip"], ["-I", script]]
    for form in forms:
        shown, without = ran_both(beats, form, tmp_path)
        assert without[::2] == (0, "")
        assert shown == without


@pytest.mark.parametrize("python", quick([NEW[0], *FOUND], [*EXTREMES, *OLD], ids=version))
def test_a_program_runs_unchanged_under_every_python(beats: BeatDir, tmp_path: Path, python: Path) -> None:
    """Before 3.8 there is not even a finder."""
    code = SHOW + (FINDERS if python in OLD else "")
    shown, without = ran_both(beats, ["-B", "-c", code], tmp_path, python=python)
    assert shown == without
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.user = __file__")
    shown, without = ran_both(beats, ["-B", "-c", f"{code}\nprint(sys.user)"], tmp_path, python=python)
    assert without[::2] == (0, "")
    assert shown == without


def test_a_program_outside_ftrun_runs_unchanged(beats: BeatDir, tmp_path: Path) -> None:
    code = f"{SHOW}\n{FINDERS}\ntry: import ftrun_hooks\nexcept ImportError: print('none')"
    shown, without = ran_both(beats, ["-c", code], tmp_path, FTRUN_BEAT_DIR="")
    assert "FtrunFinder" not in without[1]
    assert shown == without


USERS = {
    "well": "import sys; sys.user = 1; print(__name__, __file__, sys.modules[__name__].__file__, __spec__.name)",
    "an error": "raise ValueError('mine')",
    "what it needs is missing": "import surely_missing",
    "raises that it is missing": "raise ImportError('no', name='sitecustomize')",
    "no syntax": "def",
    "hard exit": "import os; os._exit(4)",
    "not there again": "import sys; del sys.modules['sitecustomize']",
    "a finder": "import sys\nclass Mine:\n def find_spec(self, n, *_):\n  if n == 'json': print('asked')\n"
    "sys.meta_path.insert(0, Mine())\nimport json",
}


@pytest.mark.parametrize("body", USERS.values(), ids=USERS.keys())
def test_the_sitecustomize_of_the_program_runs_unchanged(beats: BeatDir, tmp_path: Path, body: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(body)
    words = ["-c", "import sys; print(sys.modules.get('sitecustomize'), getattr(sys, 'user', 0))"]
    shown, without = ran_both(beats, words, tmp_path)
    assert shown == without


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_the_sitecustomize_of_the_program_may_end_python(beats: BeatDir, tmp_path: Path, body: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(body)
    both = ran_both(beats, ["-c", ""], tmp_path)
    assert [code for code, *_ in both] == [1, 1]
    shown, without = (errors.splitlines() for *_, errors in both)
    assert (shown[0], shown[-1]) == (without[0], without[-1])


def test_sitecustomize_in_site_packages_and_usercustomize_run_unchanged(beats: BeatDir, tmp_path: Path) -> None:
    made = tmp_path / "made" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    (tmp_path / "made" / "pyvenv.cfg").write_text(
        f"home = {Path(sys.base_prefix) / 'bin'}\ninclude-system-site-packages = true\n"
    )
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for place, file in (("made", "sitecustomize.py"), ("user", "usercustomize.py")):
        packages = tmp_path / place / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        (packages / file).write_text("print(__name__, __file__)")
    shown, without = ran_both(beats, ["-c", ""], tmp_path, python=made, PYTHONUSERBASE=str(tmp_path / "user"))
    assert [line.split()[0] for line in without[1].splitlines()] == ["sitecustomize", "usercustomize"]
    assert shown == without


@pytest.mark.parametrize("python", quick(NEW, EXTREMES, ids=version))
def test_the_hooks_are_found_through_a_link_where_the_bytecode_is_kept(beats: BeatDir, python: Path) -> None:
    """They are not installed.  The link is beside the beat file, and the bytecode is kept even without permission."""
    link = beats.folder / "python"
    link.mkdir()
    (link / "sitecustomize.py").symlink_to(SOURCE)
    code = "import sys, ftrun_hooks as ft; ft.beat(1); print(ft.__file__, sys.dont_write_bytecode, sys.path[1:])"
    for flag in ("1", ""):
        ended, shown, errors = ran(beats, ["-c", code], link, python=python, PYTHONDONTWRITEBYTECODE=flag)
        assert (ended, errors) == (0, "")
        assert shown.startswith(f"{HOUSE}/hooks/ftrun_hooks/__init__.py {bool(flag)} ")
        path = shown[shown.index("[") :]
        assert "ftrun" not in path.replace(str(HOUSE), ""), "neither the link nor a folder of the hooks stays"
        assert len([*(link / "__pycache__").glob("*.pyc")]) == 1
    assert beats.slot()["step"] == 2


def test_no_bytecode_is_written_outside_the_folder_of_ftrun(beats: BeatDir, tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path)
    assert ran(beats, ["-B", "-c", ""], tmp_path) == (0, "", "")
    assert not (tmp_path / "__pycache__").exists()


def test_only_the_hooks_are_found_beside_them(beats: BeatDir, tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    shutil.copytree(HOUSE / "hooks" / "ftrun_hooks", packages / "ftrun_hooks")
    (packages / "other.py").touch()
    path = [packages / "ftrun_hooks" / "auto", HOUSE / "hooks"]  # an installed one does not come before that of ftrun
    code, shown, errors = ran(beats, ["-c", "import ftrun_hooks; print(ftrun_hooks.__file__); import other"], *path)
    assert code == 1
    assert shown == f"{packages}/ftrun_hooks/__init__.py\n"
    assert errors.endswith("No module named 'other'\n")


def test_the_hooks_of_the_inner_ftrun_are_used(beats: BeatDir, tmp_path: Path) -> None:
    shutil.copytree(HOUSE / "hooks", tmp_path / "outer")
    code = f"{SHOW}\n{FINDERS}\nimport ftrun_hooks; print(ftrun_hooks.__file__)"
    one = ran(beats, ["-c", code], AUTO, tmp_path)
    assert one[0] == 0
    assert ran(beats, ["-c", code], AUTO, tmp_path / "outer" / "ftrun_hooks" / "auto", AUTO, tmp_path) == one


def test_the_hooks_work_in_a_subinterpreter(beats: BeatDir) -> None:
    code = (
        "import _xxsubinterpreters as sub; one = sub.create()\n"
        "sub.run_string(one, 'import ftrun_hooks, sys; ftrun_hooks.beat(3); print(type(sys.meta_path[0]).__name__)')\n"
        "sub.destroy(one); import ftrun_hooks; ftrun_hooks.beat(4)"
    )
    if importlib.util.find_spec("_xxsubinterpreters") is None:
        pytest.skip("no subinterpreters in this Python")
    assert ran(beats, ["-c", code], AUTO) == (0, "FtrunFinder\n", "")
    assert beats.slot()["step"] == 5


def test_the_hooks_work_in_children_of_multiprocessing(beats: BeatDir, tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(
        "import multiprocessing as mp, sys\n"
        "def child(queue):\n import ftrun_hooks as ft; ft.beat(5); queue.put((sys.path, 'torch' in sys.modules))\n"
        "if __name__ == '__main__':\n"
        " for method in ('spawn', 'forkserver', 'fork'):\n"
        "  mp.set_start_method(method, force=True); queue = mp.Queue(); one = mp.Process(target=child, args=(queue,))\n"
        "  one.start(); print(queue.get() == (sys.path, False)); one.join()\n"
    )
    assert ran(beats, [script], AUTO) == (0, "True\nTrue\nTrue\n", "")
    assert beats.slot()["step"] == 6
