"""Python's environment variables have no effect on `ftrun` and `ftctl`.

The environment belongs to the command.  `PYTHONPATH`, `PYTHONINSPECT` and the like would affect these programs too, so
an interpreter that they may have affected is replaced by an isolated one (`-I`): the same process, the same
environment.  `PYTHONHOME`, `PYTHONPLATLIBDIR` and `PYTHONEXECUTABLE` may stop Python before any code of ftrun runs;
`python -I -m ftrun` is safe from those as well.
"""

import os
import sys

from ftrun.host import early_signals

# Variables of python(1) that change what is imported, what happens at the end, or what is printed.
AFFECTING = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE", "PYTHONUSERBASE", "PYTHONCASEOK"),
    *("PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONVERBOSE", "PYTHONDEBUG", "PYTHONIOENCODING"),
    *("PYTHONPROFILEIMPORTTIME", "PYTHONTRACEMALLOC", "PYTHONMALLOC", "PYTHONMALLOCSTATS", "PYTHONDUMPREFS"),
)


def isolate(program: str) -> None:
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


def restore_lc_ctype() -> None:
    """Give LC_CTYPE the value with which this process was started, or remove it.  In the C locale, which most
    containers have, Python sets it (PEP 538), and the command would inherit that."""
    if os.environ.get("LC_CTYPE") not in ("C.UTF-8", "C.utf8", "UTF-8"):
        return
    try:
        with open("/proc/self/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return
    given = [entry.partition(b"=")[2] for entry in entries if entry.startswith(b"LC_CTYPE=")]
    if given:
        os.environb[b"LC_CTYPE"] = given[0]
    else:
        del os.environ["LC_CTYPE"]


def _python() -> str:
    """The interpreter as it was called, since PYTHONEXECUTABLE overrides `sys.executable`."""
    called = sys.orig_argv[0]
    if not os.environ.get("PYTHONEXECUTABLE"):
        return sys.executable
    if "/" in called:
        return os.path.abspath(called)
    paths = (os.path.join(folder, called) for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), sys.executable)
