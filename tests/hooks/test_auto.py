"""What automatic beats do to an `import torch`, seen on packages that are torch in name only."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.beat_file import HOUSE, BeatDir

HOOKS = HOUSE / "hooks" / "ftrun_hooks"
PYTHONS = [
    path
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    if int(path.parts[-3].split(".")[1]) >= 8
]
TORCH = {
    "__init__": "__version__ = '2.13.0'\nclass Tensor: pass\n"
    "from .no_package import inner\nfrom . import compiler, serialization\nfrom .serialization import save\n",
    "no_package/inner": "",
    "compiler": "compiling = False\ndef is_compiling(): return compiling\n",
    "serialization": "def save(what, path):\n 'Saves.'\n what(path)\n return path\n",
    "optim/__init__": "from . import optimizer\n",
    "optim/optimizer": """
hooks = {}
def register_optimizer_step_post_hook(hook): hooks[len(hooks)] = hook
class Optimizer:
    def __init__(self, **state): self.state, self.param_groups = {0: state}, [{}]
    def step(self):
        for hook in hooks.values(): hook(self, (), {})
""",
    "utils/__init__": "",
    "utils/data/__init__": "from . import dataloader\n",
    "utils/data/dataloader": """
class _BaseDataLoaderIter:
    def __init__(self, *batches): self.batches = iter(batches)
    def __iter__(self): return self
    def __next__(self): return next(self.batches)
""",
}
START = (
    "import sys, ftrun_hooks as ft, torch; from support import beat_file\n"
    "from torch.optim import optimizer\none = optimizer.Optimizer()\n"
)
LOADER = "from torch.utils.data.dataloader import _BaseDataLoaderIter as Loader\n"


class Program:
    """Runs programs beside a torch in name, below the automatic beats or without them."""

    def __init__(self, beats: BeatDir, folder: Path) -> None:
        self.beats, self.folder, self.auto = beats, folder, HOOKS / "auto"
        for module, text in TORCH.items():
            self.write(module, text)

    def write(self, module: str, text: str) -> None:
        path = self.folder / "torch" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, code: str, python: str = sys.executable, **env: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, [self.auto, self.folder, HOUSE / "tests"]))
        environment = self.beats.environment(PYTHONPATH=path, **env)
        return subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, timeout=60)

    def without(self, code: str) -> subprocess.CompletedProcess[str]:
        """What it would do outside ftrun, where the hooks are installed."""
        self.auto, auto = HOUSE / "hooks", self.auto
        try:
            return self.run(code)
        finally:
            self.auto = auto

    def __call__(self, code: str) -> str:
        done = self.run(START + code)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def program(beats: BeatDir, tmp_path: Path) -> Program:
    return Program(beats, tmp_path)


STEPS = "def steps(*who):\n for one in who: one.step(); print(beat_file.slot()['step'] - 1, end=' ')\n"


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("steps(one, one, one)", "0 1 2"),
        ("two = optimizer.Optimizer(); steps(one, two, one, two, two)", "0 0 1 1 2"),
        ("steps(optimizer.Optimizer(step=41.0), one, one)", "40 40 41"),
        ("steps(one, one); ft.beat(7); steps(one); ft.beat(9); steps(one)", "0 1 7 9"),
        ("ft.beat(2); steps(one, one, one, one, one)", "2 2 2 2 2"),
        ("steps(one); ft.beat(0); steps(one); ft.beat(1); steps(one)", "0 1 2"),
        ("one.param_groups[0]['step'] = 6; steps(one, one)", "5 6"),
        ("steps(optimizer.Optimizer(step='x'))", "0"),
        ("steps(optimizer.Optimizer(step=float('nan')))", "0"),
        ("one.state = one.param_groups = None; steps(one, one)", "0 1"),
        ("steps(*(optimizer.Optimizer() for _ in range(3)))", "0 0 0"),
        ("import ftrun_hooks._auto as auto; auto.MAX_OPTIMIZERS = 2\n"
         "two, many = [optimizer.Optimizer() for _ in '..']; steps(one, two, many, one, two)", "0 0 1 1 2"),
    ],
)  # fmt: skip
def test_steps_are_rounds_of_optimizers(program: Program, code: str, steps: str) -> None:
    assert program(STEPS + code).split() == steps.split()


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python.parts[-3])
def test_under_every_python(program: Program, python: Path) -> None:
    code = f"{START}{LOADER}torch.save(len, ''); one.step(); list(Loader(1)); one.step(); torch.save(len, '')"
    assert program.run(code.replace("; from support import beat_file", ""), str(python)).stderr == ""
    assert (program.beats.slot()["step"], program.beats.slot()["depth"]) == (2, 1)


def test_every_step_moves_the_rank_also_when_the_program_counts(program: Program) -> None:
    moved = "print(beat_file.slot()['moved_at']);"
    times = list(
        map(int, program(f"one.step();{moved} one.step();{moved} ft.beat(9);{moved} one.step();{moved}").split())
    )
    assert times == sorted(set(times))


def test_each_process_of_its_own(program: Program) -> None:
    code = f"""{STEPS}
import os
def aside(work):
    child = os.fork()
    if not child:
        try: work()
        finally: os._exit(0)
    os.waitpid(child, 0)
steps(one, one)
aside(lambda: [one.step() for _ in range(9)])
steps(one)
def other():
    os.environ['RANK'] = '1'; steps(one, one); print(beat_file.slot(1)['step'] - 1, end=' ', flush=True)
import threading; thread = threading.Thread(target=aside, args=(other,)); thread.start(); thread.join()
print(beat_file.slot()['pid'] == os.getpid())
"""
    assert program(code.replace("end=' ')", "end=' ', flush=True)")).split() == [*"012221", "True"]


@pytest.mark.parametrize(("env", "rank"), [({}, 5), ({"RANK": "2"}, 2), ({"LOCAL_RANK": "1"}, 1)])
def test_the_rank_of_the_group_where_the_environment_names_none(
    program: Program, env: dict[str, str], rank: int
) -> None:
    program.write("distributed", "def is_initialized(): return True\ndef get_rank(): return 5\n")
    assert program.run(START + "import torch.distributed; one.step()", **env).stderr == ""
    assert program.beats.slot(rank)["step"] == 1


SECTIONS = "def names(*_): print(*[name for name, *_ in beat_file.sections()] or ['-'])\n"


def test_a_save_is_a_section_of_a_main_thread_that_beats(program: Program) -> None:
    code = """
torch.save(names, 'early'); one.step(); print(torch.save(names, 'path')); names()
import threading; aside = threading.Thread(target=torch.save, args=(names, '')); aside.start(); aside.join()
def broken(path): names(); raise ValueError(path)
try: torch.save(broken, 'why')
except ValueError as error: print(error)
names()
"""
    assert program(SECTIONS + code).split() == ["-", "torch.save", "path", "-", "-", "torch.save", "why", "-"]


def test_what_is_replaced_looks_as_it_did(program: Program) -> None:
    code = """
import inspect, pickle, torch.utils.data
loader = torch.utils.data.dataloader
for what in torch.save, loader._BaseDataLoaderIter.__next__:
    print(what.__name__, what.__qualname__, what.__module__, what.__doc__, inspect.signature(what))
    print(inspect.getsource(what), what.__dict__.keys() - {'__wrapped__'})
print(pickle.loads(pickle.dumps(torch.save)) is torch.save is torch.serialization.save)
for module in torch.serialization, loader, optimizer:
    spec = module.__spec__
    print(module.__loader__ is spec.loader, type(spec.loader), sorted(vars(spec.loader)), spec.name, spec.origin)
"""
    assert program(code) == program.without(START + code).stdout


def test_a_batch_moves_a_process_that_beats(program: Program) -> None:
    code = f"""{LOADER}
def look(): slot = beat_file.slot(); print(slot['step'], slot['moved_at'])
assert list(Loader(1, 2)) == [1, 2]; look(); one.step(); look()
loader = Loader(3, 4); assert next(loader) == 3; look()
import threading; aside = threading.Thread(target=next, args=(loader,)); aside.start(); aside.join(); look()
"""
    (early, _), (step, moved), (again, batch), (_, aside) = (line.split() for line in program(code).splitlines())
    assert (early, step, again) == ("0", "1", "1")
    assert int(moved) < int(batch) == int(aside)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("list(Loader(1)); names()", "-"),
        ("one.step(); list(Loader(1)); names()", "between epochs"),
        ("one.step(); list(Loader(1)); next(Loader(1)); names()", "-"),
        ("one.step(); list(Loader(1)); list(Loader(1)); names()", "between epochs"),
        ("one.step(); list(Loader(1)); one.step(); one.step(); list(Loader(1)); names()", "between epochs"),
        ("list(Loader(1)); one.step(); list(Loader()); names()", "between epochs"),
        ("one.step(); aside(list); names(); list(Loader()); names(); aside(next); names()",
         "- between epochs between epochs"),
        ("one.step(); end = Loader(); list(end); list(end); names(); next(Loader(1)); names()", "between epochs -"),
        # What looks one batch ahead is at the end of its data before its last step.
        ("one.step(); list(Loader(1)); one.step(); names(); one.step(); names()", "between epochs -"),
        ("one.step(); two.step(); list(Loader()); one.step(); two.step(); names(); one.step(); names()",
         "between epochs -"),
        ("one.step(); list(Loader())\nwith ft.section('save'): names(); next(Loader(1)); names()\nnames()",
         "between epochs save save -"),
        ("one.step()\nwith ft.section('test'): list(Loader(1)); names()\nnames()",
         "test between epochs between epochs"),
        ("import os; one.step(); list(Loader()); os.fork() or os._exit(len([next(Loader(1)), list(Loader())]))\n"
         "os.wait(); names()", "between epochs"),
    ],
)  # fmt: skip
def test_after_the_data_there_is_a_section(program: Program, code: str, shown: str) -> None:
    head = f"""{LOADER}{SECTIONS}
import threading
def aside(call): thread = threading.Thread(target=call, args=(Loader(1),)); thread.start(); thread.join()
two = optimizer.Optimizer()
"""
    assert program(head + code).split() == shown.split()


def test_a_loader_passes_on_what_it_is_given(program: Program) -> None:
    code = f"""{LOADER}
one.step()
class Odd(Loader):
    def __next__(self): return super().__next__() * 2
print([list(Odd(1, 2)), [[inner for inner in Loader(outer)] for outer in Loader(5, 6)], type(iter(Loader())) is Loader])
def breaks(): yield 1; raise KeyError('mine')
loader = Loader(); loader.batches = breaks()
try: list(loader)
except KeyError as error: print(error, beat_file.sections())
"""
    assert program(code) == "[[2, 4], [[5], [6]], True]\n'mine' []\n"


def test_while_dynamo_traces_nothing_is_done(program: Program) -> None:
    code = f"""{SECTIONS}{LOADER}
one.step(); torch.compiler.compiling = True
one.step(); torch.save(names, ''); list(Loader(1)); names(); print(beat_file.slot()['step'])
"""
    assert program(code) == "-\n-\n1\n"


FORGET = "[sys.modules.pop(name) for name in [*sys.modules] if 'torch' in name]"
HOOKED = "print([hook.__module__ for hook in optimizer.hooks.values()], 'exec_module' in vars(optimizer.__loader__))"
ONCE = "['ftrun_hooks._auto'] False\n"


@pytest.mark.parametrize(
    "code",
    [
        "import importlib; importlib.reload(optimizer); importlib.reload(torch); importlib.reload(torch.optim)",
        f"{FORGET}; from torch.optim import optimizer",
        f"{FORGET}; from importlib.util import find_spec; find_spec('torch.optim.optimizer')\n"
        "find_spec('torch.nothing'); from torch.optim import optimizer",
        f"{FORGET}; import threading; both = threading.Barrier(8)\n"
        "load = lambda: both.wait() and exec('import torch.optim')\n"
        "for one in [threading.Thread(target=load) for _ in range(7)]: one.start()\n"
        "load(); from torch.optim import optimizer",
        f"{FORGET}; finder = type('Finder', (), dict(find_spec=lambda *_: None))()\n"
        "sys.meta_path.insert(0, finder); sys.meta_path.append(object()); from torch.optim import optimizer",
    ],
    ids=["reload", "again", "find_spec", "threads", "finders"],
)
def test_the_hook_is_there_once_however_it_is_imported(program: Program, code: str) -> None:
    assert program(f"{code}\n{HOOKED}") == ONCE


def test_from_a_zip(program: Program) -> None:
    with zipfile.ZipFile(program.folder / "torch.zip", "w") as file:
        file.writestr("torch/no_package/", "")
        for module, text in TORCH.items():
            file.writestr(f"torch/{module}.py", text)
    shutil.rmtree(program.folder / "torch")
    code = f"""
import sys; sys.path.insert(0, {str(program.folder / "torch.zip")!r})
{START}
one.step(); {HOOKED}; {FORGET}
from importlib.util import find_spec
import torch.optim; del sys.modules['torch.optim.optimizer']
find_spec('torch.optim.optimizer'); find_spec('torch.optim.optimizer'); import torch.optim.optimizer as optimizer
{HOOKED}
"""
    done = program.run(code)
    assert done.stderr == ""
    assert done.stdout == ONCE * 2
    assert program.beats.slot()["step"] == 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("optim/optimizer", "print('too old')"),
        ("optim/optimizer", "raise OSError('broken')"),
        ("optim/optimizer", "import sys; del sys.modules[__name__]"),
        ("optim/optimizer", "def register_optimizer_step_post_hook(hook): raise BufferError"),
        ("compiler", ""),
        ("serialization", "save = None"),
        ("utils/data/dataloader", ""),
        ("__init__", "from . import compiler, serialization\n__version__ = None"),
        ("__init__", ""),
    ],
)
def test_a_torch_that_is_not_what_we_think(program: Program, module: str, text: str) -> None:
    program.write(module, text)
    code = "import torch, torch.serialization, torch.utils.data, torch.optim.optimizer\nprint('imported')"
    without, done = program.without(code), program.run(code)
    assert (done.returncode, done.stdout) == (without.returncode, without.stdout)
    assert done.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("_auto.py", "print('tried'); raise OSError"),
        ("_auto.py", "print('tried'); def"),
        ("_auto.py", "print('tried'); find = None"),
        ("__init__.py", "print('tried'); raise ImportError"),
    ],
)
def test_hooks_that_are_broken_are_tried_once(program: Program, what: str, text: str) -> None:
    shutil.copytree(HOOKS, program.folder / "hooks" / "ftrun_hooks")
    (program.folder / "hooks" / "ftrun_hooks" / what).write_text(text)
    program.auto = program.folder / "hooks" / "ftrun_hooks" / "auto"
    code = START.replace("ftrun_hooks as ft, ", "") + "one.step(); print('stepped')"
    done = program.run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("tried\nstepped\n", "stepped\n")


def test_an_error_of_ours_is_nobodys(program: Program) -> None:
    assert (
        program("import ftrun_hooks._auto as auto; auto._restored = None; one.step(); print('stepped')") == "stepped\n"
    )


@pytest.mark.parametrize("folder", ["", "/nowhere/at/all", "/proc", "/dev/null"])
def test_a_beat_folder_that_is_none(program: Program, folder: str) -> None:
    done = program.run(f"{START.replace('ftrun_hooks as ft, ', '')}{LOADER}one.step(); list(Loader(1)); one.step()",
                       FTRUN_BEAT_DIR=folder)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_at_the_end_of_the_interpreter(program: Program) -> None:
    code = """
class Late:
    def __del__(self, one=one, save=torch.save): one.step(); save(len, '')
import atexit; atexit.register(one.step); late = Late(); late.me = late; sys.late = Late(); one.step()
"""
    assert program(code) == ""


def test_pytest_runs_as_ever(program: Program) -> None:
    (program.folder / "test_it.py").write_text(f"{START}def test_it(): one.step(); assert ft.__file__ and one")
    code = f"import pytest; raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(program.folder)!r}]))"
    done = program.run(code)
    assert done.returncode == 0, done.stdout
    assert program.beats.slot()["step"] == 1
