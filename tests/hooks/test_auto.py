"""Automatic heartbeats and `import torch`, tested with a package that is torch in name only."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from support.beat_file import HOUSE, BeatDir
from support.pythons import EXTREMES, NEW, version
from support.short import quick

HOOKS = HOUSE / "hooks" / "ftrun_hooks"
TORCH = {
    "__init__": "__version__ = '2.13.0'\nclass Tensor: pass\n"
    "from .no_package import inner\nfrom . import compiler, serialization\nfrom .serialization import save\n",
    "no_package/inner": "",
    "compiler": "compiling = False\ndef is_compiling(): return compiling\n",
    "serialization": "def save(what, path, *, how=None):\n 'Saves.'\n if how: print(how)\n what(path)\n return path\n",
    "_C": """
from types import SimpleNamespace as Names
skipped = []
_dynamo = Names(eval_frame=Names(skip_code=skipped.append))
""",
    "autograd/__init__": """
from .. import _C
from .graph import _engine_run_backward
def backward(tensor): return _engine_run_backward(tensor)
""",
    "autograd/graph": "def _engine_run_backward(tensor):\n 'Runs.'\n return tensor()\n",
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
    """Runs programs with that torch, with automatic heartbeats or without them."""

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
        return subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, timeout=600)

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

    def each(self, head: str, codes: Iterable[str]) -> list[list[str]]:
        """The words that each code prints, in a forked child of one program: the hooks begin anew in a child."""
        loop = f"for code in {list(codes)!r}:\n if os.fork() == 0: exec(code); sys.stdout.flush(); os._exit(0)\n"
        shown = self(f"{head}\nimport os\n{loop} assert os.wait()[1] == 0; print('\\0', flush=True)\n")
        return [part.split() for part in shown.split("\0")[:-1]]


@pytest.fixture
def program(beats: BeatDir, tmp_path: Path) -> Program:
    return Program(beats, tmp_path)


STEPS = "def steps(*who):\n for one in who: one.step(); print(beat_file.slot()['step'] - 1, end=' ')\n"


ROUNDS = {
    "steps(one, one, one)": "0 1 2",
    "two = optimizer.Optimizer(); steps(one, two, one, two, two)": "0 0 1 1 2",
    "steps(optimizer.Optimizer(step=41.0), one, one)": "40 40 41",
    "steps(one, one); ft.beat(7); steps(one); ft.beat(9); steps(one)": "0 1 7 9",
    "ft.beat(2); steps(one, one, one, one, one)": "2 2 2 2 2",
    "steps(one); ft.beat(0); steps(one); ft.beat(1); steps(one)": "0 1 2",
    "one.param_groups[0]['step'] = 6; steps(one, one)": "5 6",
    "steps(optimizer.Optimizer(step='x'))": "0",
    "steps(optimizer.Optimizer(step=float('nan')))": "0",
    "one.state = one.param_groups = None; steps(one, one)": "0 1",
    "steps(*(optimizer.Optimizer() for _ in range(3)))": "0 0 0",
    "import ftrun_hooks._auto as auto; auto.MAX_OPTIMIZERS = 2\n"
    "two, many = [optimizer.Optimizer() for _ in '..']; steps(one, two, many, one, two)": "0 0 1 1 2",
    "import ftrun_hooks._auto as auto; auto._restored = None; one.step(); print('stepped')": "stepped",
}


def test_steps_are_rounds_of_optimizers(program: Program) -> None:
    """The last: an error in the hooks does not reach the program."""
    assert program.each(STEPS, ROUNDS) == [steps.split() for steps in ROUNDS.values()]


@pytest.mark.parametrize("python", quick(NEW, EXTREMES, ids=version))
def test_automatic_heartbeats_work_under_every_python(program: Program, python: Path) -> None:
    code = f"{START}{LOADER}torch.save(len, ''); one.step(); list(Loader(1)); one.step(); torch.save(len, '')"
    assert program.run(code.replace("; from support import beat_file", ""), str(python)).stderr == ""
    assert (program.beats.slot()["step"], program.beats.slot()["depth"]) == (2, 1)


BACKWARD = {
    "moves(back); moves(back); moves(back)": "0 1 1",
    "moves(back); moves(one.step); moves(back); moves(one.step)": "0 1 0 1",
    "moves(back); moves(back); moves(one.step); moves(back)": "0 1 1 0",
    "back(); back(); moves(aside); moves(back)": "0 1",
    "back(); aside(); print(beat_file.slot()['pid'] == os.getpid())": "False",
    "back(); back(); list(Loader(1)); names(); back(); names(); back(); names()": "between epochs between epochs -",
    "print(torch.autograd.backward(lambda: 5), len(torch._C.skipped))": "5 1",
}


def test_a_step_that_only_makes_the_state_of_an_optimizer_is_none(program: Program) -> None:
    """As torch.distributed.checkpoint does, also before it loads that state."""
    for module in ("distributed/__init__", "distributed/checkpoint/__init__"):
        program.write(module, "")
    program.write("distributed/checkpoint/state_dict", "def _init_optim_state(optim): optim.step(); return optim\n")
    code = """
from torch.distributed.checkpoint import state_dict
print(state_dict._init_optim_state(one) is one, beat_file.slot()['moved_at'])
one.step(); print(beat_file.slot()['step'])
"""
    assert program(code) == "True 0\n1\n"


def test_a_backward_pass_is_a_movement_until_an_optimizer_steps(program: Program) -> None:
    """A loop may change the weights itself.  The first pass may be a trial."""
    head = f"""{LOADER}{SECTIONS}
import threading, torch.autograd, torch._C
def back(): torch.autograd.backward(int)
def aside(): thread = threading.Thread(target=back); thread.start(); thread.join()
def moves(call):
    before = beat_file.slot()['moved_at']; call(); print(int(beat_file.slot()['moved_at'] > before), end=' ')
"""
    assert program.each(head, BACKWARD) == [shown.split() for shown in BACKWARD.values()]


def test_every_step_is_progress_also_when_the_program_reports_steps(program: Program) -> None:
    moved = "print(beat_file.slot()['moved_at']);"
    times = list(
        map(int, program(f"one.step();{moved} one.step();{moved} ft.beat(9);{moved} one.step();{moved}").split())
    )
    assert times == sorted(set(times))


def test_each_process_has_its_own_slot_and_steps(program: Program) -> None:
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
def test_the_rank_of_the_process_group_is_used_without_rank_variables(
    program: Program, env: dict[str, str], rank: int
) -> None:
    program.write("distributed", "def is_initialized(): return True\ndef get_rank(): return 5\n")
    assert program.run(START + "import torch.distributed; one.step()", **env).stderr == ""
    assert program.beats.slot(rank)["step"] == 1


SECTIONS = "def names(*_): print(*[name for name, *_ in beat_file.sections()] or ['-'])\n"


def test_a_save_in_the_main_thread_is_a_section_after_the_first_heartbeat(program: Program) -> None:
    code = """
torch.save(names, 'early'); one.step(); print(torch.save(names, 'path')); names()
import threading; aside = threading.Thread(target=torch.save, args=(names, '')); aside.start(); aside.join()
def broken(path): names(); raise ValueError(path)
try: torch.save(broken, 'why')
except ValueError as error: print(error)
names()
"""
    assert program(SECTIONS + code).split() == ["-", "torch.save", "path", "-", "-", "torch.save", "why", "-"]


def test_replaced_functions_and_modules_look_unchanged(program: Program) -> None:
    code = """
import inspect, pickle, torch.utils.data
loader = torch.utils.data.dataloader
for what in torch.save, loader._BaseDataLoaderIter.__next__:
    print(what.__name__, what.__qualname__, what.__module__, what.__doc__, inspect.signature(what))
    print(inspect.getsource(what), what.__dict__.keys() - {'__wrapped__'}, what.__defaults__, what.__kwdefaults__)
torch.save.__kwdefaults__["how"] = 1; torch.save(lambda _: None, 2)
torch.save.__kwdefaults__ = dict(how=3); torch.save(lambda _: None, 4)
print(pickle.loads(pickle.dumps(torch.save)) is torch.save is torch.serialization.save)
for module in torch.serialization, loader, optimizer:
    spec = module.__spec__
    print(module.__loader__ is spec.loader, type(spec.loader), sorted(vars(spec.loader)), spec.name, spec.origin)
"""
    assert program(code) == program.without(START + code).stdout


def test_a_warning_names_the_line_of_the_program(program: Program) -> None:
    """A library warns on behalf of its caller: filters, and that each line is warned of once, go by that place."""
    warns = "warnings.warn('old', DeprecationWarning, stacklevel=2)"
    program.write("serialization", f"import warnings\ndef save(what, path): {warns}\n")
    loader = f"class _BaseDataLoaderIter:\n def __next__(self): {warns}\n"
    program.write("utils/data/dataloader", f"import warnings\n{loader}")
    code = f"{START}{LOADER}torch.save(1, '')\ntorch.save(1, '')\nnext(Loader())\n"
    done, without = program.run(code), program.without(code)
    assert (done.returncode, done.stderr) == (0, without.stderr)
    assert done.stderr.count("<string>:") == 3


def test_an_exception_is_shown_as_without_the_hooks(program: Program) -> None:
    code = """
def broken(path): raise KeyError(path)
def batches():
    yield 1
    torch.save(broken, 'x')
loader = Loader(); loader.batches = batches(); next(loader)
try: next(loader)
except KeyError as error: torch.save(lambda path: broken(error), 'y')
"""
    done, without = program.run(START + LOADER + code), program.without(START + LOADER + code)
    assert (done.returncode, done.stderr) == (1, without.stderr)
    assert "in save" in done.stderr


def test_a_batch_is_progress_of_a_process_with_heartbeats(program: Program) -> None:
    code = f"""{LOADER}
def look(): slot = beat_file.slot(); print(slot['step'], slot['moved_at'])
assert list(Loader(1, 2)) == [1, 2]; look(); one.step(); look()
loader = Loader(3, 4); assert next(loader) == 3; look()
import threading; aside = threading.Thread(target=next, args=(loader,)); aside.start(); aside.join(); look()
"""
    (early, _), (step, moved), (again, batch), (_, aside) = (line.split() for line in program(code).splitlines())
    assert (early, step, again) == ("0", "1", "1")
    assert int(moved) < int(batch) == int(aside)


AFTER_DATA = {
    "list(Loader(1)); names()": "-",
    "one.step(); list(Loader(1)); names()": "between epochs",
    "one.step(); list(Loader(1)); next(Loader(1)); names()": "-",
    "one.step(); list(Loader(1)); list(Loader(1)); names()": "between epochs",
    "one.step(); list(Loader(1)); one.step(); one.step(); list(Loader(1)); names()": "between epochs",
    "list(Loader(1)); one.step(); list(Loader()); names()": "between epochs",
    "one.step(); aside(list); names(); list(Loader()); names(); aside(next); names()":
        "- between epochs between epochs",
    "one.step(); end = Loader(); list(end); list(end); names(); next(Loader(1)); names()": "between epochs -",
    # A loader that prefetches one batch is at the end of its data before the last step.
    "one.step(); list(Loader(1)); one.step(); names(); one.step(); names()": "between epochs -",
    "one.step(); two.step(); list(Loader()); one.step(); two.step(); names(); one.step(); names()": "between epochs -",
    "one.step(); list(Loader())\nwith ft.section('save'): names(); next(Loader(1)); names()\nnames()":
        "between epochs save save -",
    "one.step()\nwith ft.section('test'): list(Loader(1)); names()\nnames()": "test between epochs between epochs",
    "one.step(); list(Loader()); os.fork() or os._exit(len([next(Loader(1)), list(Loader())]))\nos.wait(); names()":
        "between epochs",
}  # fmt: skip


def test_a_section_is_open_after_the_end_of_the_data(program: Program) -> None:
    head = f"""{LOADER}{SECTIONS}
import threading
def aside(call): thread = threading.Thread(target=call, args=(Loader(1),)); thread.start(); thread.join()
two = optimizer.Optimizer()
"""
    assert program.each(head, AFTER_DATA) == [shown.split() for shown in AFTER_DATA.values()]


def test_a_loader_passes_on_batches_and_errors(program: Program) -> None:
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


def test_the_hooks_do_nothing_while_dynamo_traces(program: Program) -> None:
    code = f"""{SECTIONS}{LOADER}
one.step(); torch.compiler.compiling = True
one.step(); torch.save(names, ''); list(Loader(1)); names(); print(beat_file.slot()['step'])
"""
    assert program(code) == "-\n-\n1\n"


FORGET = "[sys.modules.pop(name) for name in [*sys.modules] if 'torch' in name]"
HOOKED = "print([hook.__module__ for hook in optimizer.hooks.values()], 'exec_module' in vars(optimizer.__loader__))"
ONCE = "['ftrun_hooks._auto'] False\n"


IMPORTS = {
    "reload": "import importlib; importlib.reload(optimizer); importlib.reload(torch); importlib.reload(torch.optim)",
    "again": f"{FORGET}; from torch.optim import optimizer",
    "find_spec": f"{FORGET}; from importlib.util import find_spec; find_spec('torch.optim.optimizer')\n"
    "find_spec('torch.nothing'); from torch.optim import optimizer",
    "threads": f"{FORGET}; import threading; both = threading.Barrier(8)\n"
    "load = lambda: both.wait() and exec('import torch.optim')\n"
    "for one in [threading.Thread(target=load) for _ in range(7)]: one.start()\n"
    "load(); from torch.optim import optimizer",
    "finders": f"{FORGET}; finder = type('Finder', (), dict(find_spec=lambda *_: None))()\n"
    "sys.meta_path.insert(0, finder); sys.meta_path.append(object()); from torch.optim import optimizer",
}


def test_the_hook_is_registered_once_however_torch_is_imported(program: Program) -> None:
    shown = program.each("", [f"{code}\n{HOOKED}" for code in IMPORTS.values()])
    assert dict(zip(IMPORTS, shown, strict=True)) == dict.fromkeys(IMPORTS, ONCE.split())


UNLIKE = [
    ("_C", ""),
    ("_C", "from types import SimpleNamespace as Names\n_dynamo = Names(eval_frame=Names())"),
    ("autograd/graph", "_engine_run_backward = None"),
    ("optim/optimizer", "print('too old')"),
    ("optim/optimizer", "raise OSError('broken')"),
    ("optim/optimizer", "import sys; del sys.modules[__name__]"),
    ("optim/optimizer", "def register_optimizer_step_post_hook(hook): raise BufferError"),
    ("compiler", ""),
    ("serialization", "save = None"),
    ("utils/data/dataloader", ""),
    ("__init__", "from . import compiler, serialization\n__version__ = None"),
    ("__init__", ""),
]


def test_a_torch_with_other_content_is_imported_as_without_hooks(program: Program) -> None:
    folders = [program.folder / f"unlike-{number}" for number in range(len(UNLIKE))]
    for folder, (module, text) in zip(folders, UNLIKE, strict=True):
        shutil.copytree(program.folder / "torch", folder / "torch")
        (folder / "torch" / f"{module}.py").write_text(text)
    code = f"""
import os, sys
for folder in {list(map(str, folders))!r}:
    if os.fork() == 0:
        sys.path.insert(0, folder)
        try:
            import torch, torch.serialization, torch.autograd, torch.utils.data, torch.optim.optimizer
            print('imported')
        except Exception as error: print(repr(error))
        sys.stdout.flush(); os._exit(0)
    assert os.wait()[1] == 0
"""
    done = program.run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == program.without(code).stdout
    assert len(done.stdout.splitlines()) > len(UNLIKE)


@pytest.mark.parametrize(
    ("what", "text"),
    [("_auto.py", "print('tried'); raise OSError"), ("__init__.py", "print('tried'); raise ImportError")],
)
def test_broken_hooks_are_imported_once_at_most(program: Program, what: str, text: str) -> None:
    shutil.copytree(HOOKS, program.folder / "hooks" / "ftrun_hooks")
    (program.folder / "hooks" / "ftrun_hooks" / what).write_text(text)
    program.auto = program.folder / "hooks" / "ftrun_hooks" / "auto"
    code = START.replace("ftrun_hooks as ft, ", "") + "one.step(); print('stepped')"
    done = program.run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("tried\nstepped\n", "stepped\n")


def test_a_beat_folder_without_a_beat_file_is_ignored(program: Program) -> None:
    done = program.run(f"{START.replace('ftrun_hooks as ft, ', '')}{LOADER}one.step(); list(Loader(1)); one.step()",
                       FTRUN_BEAT_DIR="/proc")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_steps_and_saves_at_interpreter_exit_are_harmless(program: Program) -> None:
    code = """
class Late:
    def __del__(self, one=one, save=torch.save): one.step(); save(len, '')
import atexit; atexit.register(one.step); late = Late(); late.me = late; sys.late = Late(); one.step()
"""
    assert program(code) == ""
