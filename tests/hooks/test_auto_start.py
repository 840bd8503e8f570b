"""The sitecustomize that ftrun puts first on PYTHONPATH: all that a program can see of it, under every Python here."""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from support.beat_file import HOUSE, BeatDir

AUTO = HOUSE / "hooks" / "ftrun_hooks" / "auto"
SOURCE = AUTO / "sitecustomize.py"
FOUND = sorted(Path.home().glob(".pyenv/versions/*/bin/python"), key=lambda path: path.parts[-3])
OLD = [path for path in FOUND if path.parts[-3].startswith(("2.", "3.6.", "3.7."))]
NEW = [Path(sys.executable), *(path for path in FOUND if path not in OLD)]
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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def name(python: Path) -> str:
    return "this" if python == NEW[0] else python.parts[-3]


@pytest.mark.parametrize("form", ["-c", "script", "-m", "zip", "-I"])
def test_a_program_without_torch_sees_nothing_of_it(beats: BeatDir, tmp_path: Path, form: str) -> None:
    script = tmp_path / "shows.py"
    script.write_text(SHOW)
    with zipfile.ZipFile(tmp_path / "shows.zip", "w") as file:
        file.writestr("__main__.py", SHOW)
    forms: dict[str, list[object]] = {
        "-c": ["-c", SHOW],
        "script": [script],
        "-m": ["-m", "shows"],
        "zip": [tmp_path / "shows.zip"],
        "-I": ["-I", script],
    }
    without = ran(beats, forms[form], tmp_path)
    assert without[::2] == (0, "")
    assert ran(beats, forms[form], AUTO, tmp_path) == without


@pytest.mark.parametrize("python", [NEW[0], *FOUND], ids=name)
def test_nor_under_any_python(beats: BeatDir, tmp_path: Path, python: Path) -> None:
    words = ["-B", "-c", SHOW]
    assert ran(beats, words, AUTO, tmp_path, python=python) == ran(beats, words, tmp_path, python=python)
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.user = __file__")
    words = ["-B", "-c", f"{SHOW}\nprint(sys.user)"]
    without = ran(beats, words, tmp_path, python=python)
    assert without[::2] == (0, "")
    assert ran(beats, words, AUTO, tmp_path, python=python) == without


@pytest.mark.parametrize("python", OLD, ids=name)
def test_before_3_8_there_is_not_even_a_finder(beats: BeatDir, tmp_path: Path, python: Path) -> None:
    words = ["-B", "-c", f"import sys; {FINDERS}"]
    assert ran(beats, words, AUTO, tmp_path, python=python) == ran(beats, words, tmp_path, python=python)


def test_nor_outside_ftrun(beats: BeatDir, tmp_path: Path) -> None:
    code = f"{SHOW}\n{FINDERS}\ntry: import ftrun_hooks\nexcept ImportError: print('none')"
    without = ran(beats, ["-c", code], tmp_path, FTRUN_BEAT_DIR="")
    assert "FtrunFinder" not in without[1]
    assert ran(beats, ["-c", code], AUTO, tmp_path, FTRUN_BEAT_DIR="") == without


USERS = {
    "well": "import sys; sys.user = 1; print(__name__, __file__, sys.modules[__name__].__file__, __spec__.name)",
    "an error": "raise ValueError('mine')",
    "what it needs is missing": "import surely_missing",
    "says itself that it is missing": "raise ImportError('no', name='sitecustomize')",
    "no syntax": "def",
    "hard exit": "import os; os._exit(4)",
    "not there again": "import sys; del sys.modules['sitecustomize']",
    "a finder": "import sys\nclass Mine:\n def find_spec(self, n, *_):\n  if n == 'json': print('asked')\n"
    "sys.meta_path.insert(0, Mine())\nimport json",
}


@pytest.mark.parametrize("body", USERS.values(), ids=USERS.keys())
def test_the_programs_own_sitecustomize_runs_as_ever(beats: BeatDir, tmp_path: Path, body: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(body)
    words = ["-c", "import sys; print(sys.modules.get('sitecustomize'), getattr(sys, 'user', 0))"]
    without = ran(beats, words, tmp_path)
    assert ran(beats, words, AUTO, tmp_path) == without


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_what_it_ends_python_with(beats: BeatDir, tmp_path: Path, body: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(body)
    (code, _, told), (bare, _, bare_told) = (ran(beats, ["-c", ""], *path, tmp_path) for path in ([AUTO], []))
    assert code == bare == 1
    assert (told.splitlines()[0], told.splitlines()[-1]) == (bare_told.splitlines()[0], bare_told.splitlines()[-1])


def test_also_in_site_packages_and_with_a_usercustomize(beats: BeatDir, tmp_path: Path) -> None:
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
    without = ran(beats, ["-c", ""], tmp_path, python=made, PYTHONUSERBASE=str(tmp_path / "user"))
    assert [line.split()[0] for line in without[1].splitlines()] == ["sitecustomize", "usercustomize"]
    assert ran(beats, ["-c", ""], AUTO, tmp_path, python=made, PYTHONUSERBASE=str(tmp_path / "user")) == without


@pytest.mark.parametrize("python", NEW, ids=name)
def test_the_hooks_are_found_where_they_are_not_installed(beats: BeatDir, python: Path) -> None:
    code = (
        "import sys, ftrun_hooks as ft, ftrun_hooks.layout as layout\n"
        "ft.beat(1); print(layout.__file__); assert not any('ftrun' in entry for entry in sys.path[1:])"
    )
    assert ran(beats, ["-c", code], AUTO, python=python) == (0, f"{HOUSE}/hooks/ftrun_hooks/layout.py\n", "")
    assert beats.slot()["step"] == 2


@pytest.mark.parametrize("python", NEW, ids=name)
@pytest.mark.parametrize("flag", ["", "1"])
def test_through_a_link_beside_the_beats_its_compiled_form_is_kept(beats: BeatDir, python: Path, flag: str) -> None:
    link = beats.folder / "python"
    link.mkdir()
    (link / "sitecustomize.py").symlink_to(SOURCE)
    code = "import sys, ftrun_hooks; print(ftrun_hooks.__file__, sys.dont_write_bytecode, sys.path[1:])"
    for _ in range(2):
        ended, shown, errors = ran(beats, ["-c", code], link, python=python, PYTHONDONTWRITEBYTECODE=flag)
        assert (ended, errors) == (0, "")
        assert shown.startswith(f"{HOUSE}/hooks/ftrun_hooks/__init__.py {bool(flag)} ")
        assert str(link) not in shown
        assert len([*(link / "__pycache__").glob("*.pyc")]) == 1


def test_elsewhere_python_writes_what_it_is_told_to(beats: BeatDir, tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path)
    assert ran(beats, ["-B", "-c", ""], tmp_path) == (0, "", "")
    assert not (tmp_path / "__pycache__").exists()


def test_nothing_but_the_hooks_is_found_beside_them(beats: BeatDir, tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    shutil.copytree(HOUSE / "hooks" / "ftrun_hooks", packages / "ftrun_hooks")
    (packages / "other.py").touch()
    path = [packages / "ftrun_hooks" / "auto", HOUSE / "hooks"]  # an installed one does not come before that of ftrun
    code, shown, errors = ran(beats, ["-c", "import ftrun_hooks; print(ftrun_hooks.__file__); import other"], *path)
    assert code == 1
    assert shown == f"{packages}/ftrun_hooks/__init__.py\n"
    assert errors.endswith("No module named 'other'\n")


def test_an_ftrun_in_an_ftrun(beats: BeatDir, tmp_path: Path) -> None:
    shutil.copytree(HOUSE / "hooks", tmp_path / "outer")
    code = f"{SHOW}\n{FINDERS}\nimport ftrun_hooks; print(ftrun_hooks.__file__)"
    one = ran(beats, ["-c", code], AUTO, tmp_path)
    assert one[0] == 0
    assert ran(beats, ["-c", code], AUTO, tmp_path / "outer" / "ftrun_hooks" / "auto", AUTO, tmp_path) == one


def test_it_does_nothing_where_it_could_only_find_itself_again(beats: BeatDir) -> None:
    code = (
        "import sys; from importlib.util import module_from_spec, spec_from_file_location as found\n"
        f"spec = found('sitecustomize', {str(SOURCE)!r}); before = [*sys.meta_path]\n"
        "spec.loader.exec_module(module_from_spec(spec)); print(sys.meta_path == before)"
    )
    assert ran(beats, ["-c", code]) == (0, "True\n", "")
    assert ran(beats, [SOURCE]) == (0, "", "")


def test_in_a_subinterpreter(beats: BeatDir) -> None:
    code = (
        "import _xxsubinterpreters as sub; one = sub.create()\n"
        "sub.run_string(one, 'import ftrun_hooks, sys; ftrun_hooks.beat(3); print(type(sys.meta_path[0]).__name__)')\n"
        "sub.destroy(one); import ftrun_hooks; ftrun_hooks.beat(4)"
    )
    if importlib.util.find_spec("_xxsubinterpreters") is None:
        pytest.skip("no subinterpreters in this Python")
    assert ran(beats, ["-c", code], AUTO) == (0, "FtrunFinder\n", "")
    assert beats.slot()["step"] == 5


def test_in_what_multiprocessing_starts(beats: BeatDir, tmp_path: Path) -> None:
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
