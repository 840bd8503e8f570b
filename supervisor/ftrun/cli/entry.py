"""The entry points of `ftrun` and `ftctl`: early signals are held, and Python's environment variables have no effect.

The environment belongs to the command.  `PYTHONPATH`, `PYTHONINSPECT` and the like would affect these programs too, so
an interpreter that they may have affected is replaced by an isolated one (`-I`): the same process, the same
environment.  `PYTHONHOME`, `PYTHONPLATLIBDIR` and `PYTHONEXECUTABLE` may stop Python before any code of ftrun runs;
`python -I -m ftrun` is safe from those as well.
"""

import os
import sys
from _frozen_importlib_external import PathFinder  # importlib.machinery takes longer to load
from types import ModuleType
from typing import NoReturn

from ftrun.host import early_signals

early_signals.block_all()  # before anything else is imported

from ftrun.host.lc_ctype import restore_lc_ctype  # noqa: E402

# Variables of python(1) that change what is imported, what happens at the end, or what is printed.
AFFECTING = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE", "PYTHONUSERBASE", "PYTHONCASEOK"),
    *("PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONVERBOSE", "PYTHONDEBUG", "PYTHONIOENCODING"),
    *("PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC", "PYTHONMALLOC", "PYTHONMALLOCSTATS", "PYTHONDUMPREFS"),
)


def ftrun() -> NoReturn:
    _isolate("ftrun")
    _leave_out_functions_for_training()
    from ftrun.cli.run import main

    main()


def ftctl() -> None:
    _isolate("ftctl")
    from ftrun.cli.ctl import main

    main()


def _isolate(program: str) -> None:
    """Continue in an isolated interpreter if the environment may have affected this one.  If that cannot be executed,
    this one continues."""
    if sys.flags.isolated or not any(os.environ.get(name) for name in AFFECTING):
        return
    options = ["-I", *(["-B"] if sys.flags.dont_write_bytecode else []), *early_signals.interpreter_options()]
    restore_lc_ctype()
    python, script = _python(), f"{os.path.dirname(os.path.abspath(__file__))}/isolated.py"
    try:
        os.execv(python, [python, *options, script, program, *sys.argv[1:]])
    except OSError:
        pass


def _leave_out_functions_for_training() -> None:
    """Make `ftrun_hooks` a package without the content of its `__init__`.  PID 1 needs nothing of it but `layout`; the
    rest would delay the command by 3 ms and occupy 0.3 MB."""
    found = PathFinder.find_spec("ftrun_hooks")
    if found is not None and found.submodule_search_locations is not None:
        package = sys.modules["ftrun_hooks"] = ModuleType("ftrun_hooks")
        package.__path__ = found.submodule_search_locations


def _python() -> str:
    """The interpreter as it was called, since PYTHONEXECUTABLE overrides `sys.executable`."""
    called = sys.orig_argv[0]
    if not os.environ.get("PYTHONEXECUTABLE"):
        return sys.executable
    if "/" in called:
        return os.path.abspath(called)
    paths = (os.path.join(folder, called) for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), sys.executable)
