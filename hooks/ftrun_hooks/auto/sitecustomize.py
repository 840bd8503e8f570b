"""Automatic heartbeats: ftrun puts this folder first on PYTHONPATH, so every Python below it runs this when it starts.

It leaves sys.path and sys.modules as they would be without it, then runs the program's own sitecustomize, if any.
Outside ftrun and before Python 3.8 it does nothing else, but must still parse: its syntax is that of Python 2.7.
"""

import os
import sys


class FtrunFinder(object):
    """Finds `ftrun_hooks`, whether or not it is installed, and passes modules of these packages to `_auto`."""

    watched = (
        "torch.",
        "torch_npu.",
        "safetensors.torch",
        "transformers.modeling_utils",
        "lightning.fabric.utilities.cloud_io",
        "lightning_fabric.utilities.cloud_io",
        "mindspore.",
        "paddle.",
        "keras.",
        "orbax.",
        "jax.",
        "tensorflow.",
        "hydra._internal.utils",
    )  # type: tuple[str, ...]
    # Their native libraries read variables when they are loaded.  They also set some, but later.
    native = ("numpy", "torch", "torch_npu", "mindspore", "paddle", "jax", "tensorflow", "cupy", "triton")
    imported = None  # type: dict[str, str] | None  # the environment when the first of them was imported
    changed = None  # in a standby: what the program changes before its imports (`_report.py`)
    kept = None  # in a standby that was started: what its imports have printed (`_kept_lines.py`)

    def __init__(self, crash_recorder):  # type: (CrashRecorder) -> None
        self.crash_recorder = crash_recorder
        self.known_path = sys.path[:]  # without what the program's start adds
        self.begun = dict(os.environ)

    def find_spec(self, name, path=None, target=None):  # type: (str, object, object) -> object
        if self.kept is not None and name in self.kept.hidden:
            kept, self.kept = self.kept, None
            return UnseenModule(kept.show(name)).found_as(name)
        if self.imported is None and self.changed is None and name in self.native:
            self.imported = dict(os.environ)
        try:
            if name == "ftrun_hooks":
                from importlib.machinery import PathFinder

                # Through a link: ftrun may have put one where the compiled form of this file can be kept.
                return PathFinder.find_spec(name, [os.path.realpath(__file__).rsplit(os.sep, 3)[0]])
            if name.startswith(self.watched):
                from ftrun_hooks import _auto

                return _auto.find(self, name, path, target)
            if name in self.crash_recorder.unseen:
                return self.crash_recorder.unseen[name].found_as(name)
            if name in ("multiprocessing.popen_fork", "multiprocessing.spawn"):
                self.crash_recorder.watch_children()
        except Exception:
            self.watched = ("\0",)  # matches no module: a second try would fail too
        return None


class UnseenModule(object):
    """Loads a module that was removed from sys.modules: up to Python 3.9 a second `atexit` would disable the first,
    `faulthandler` has functions in place of its own (`_crash.py`), and in a standby an import may have printed."""

    def __init__(self, module):  # type: (object) -> None
        self.module = module
        self.spec = getattr(module, "__spec__", None)

    def found_as(self, name):  # type: (str) -> object
        return type(sys.__spec__)(name, self)  # type: ignore[arg-type]

    def create_module(self, spec):  # type: (object) -> object
        return self.module

    def exec_module(self, module):  # type: (object) -> None
        module.__spec__ = self.spec  # type: ignore[attr-defined]


class CrashRecorder(object):
    """Has `_last` write the exception that ends this Python process, and `_crash` the stack where a signal ends it.

    Python calls the hook with it, unless the program has set a hook that does not call this one; then the exception is
    found at exit, if the program gets that far.
    """

    def __init__(self, folder):  # type: (str) -> None
        self.folder = folder
        self.left = 0
        self.crash = ("", 0)  # the file for the stack, and the process that has made it
        self.children = False
        self.shown_by = sys.__excepthook__
        # Under both names, so that a check whether the program has set a hook of its own stays correct.
        sys.excepthook = sys.__excepthook__ = self.hook
        known = "atexit" in sys.modules
        import atexit

        atexit.register(self.at_exit)
        self.unseen = {} if known else {"atexit": UnseenModule(sys.modules.pop("atexit"))}

    def call(self, function, *arguments):  # type: (str, object) -> None
        try:
            load("_last")[function](self.folder, *arguments)  # type: ignore[operator]
        except Exception:
            pass

    def watch_signals(self):  # type: () -> None
        try:
            path, unseen = load_and_forget("_crash")["enable"](self.folder)  # type: ignore[operator]
            self.crash = (path, os.getpid())
            if unseen is not None:
                self.unseen["faulthandler"] = UnseenModule(unseen)
        except Exception:
            pass

    def hook(self, kind, error, trace):  # type: (type, object, object) -> None
        if error is not None:
            self.left = id(error)  # not the exception itself, whose frames hold memory
            self.call("leave_shown", error)
        self.shown_by(kind, error, trace)  # type: ignore[arg-type]

    def at_exit(self):  # type: () -> None
        error = getattr(sys, "last_value", None)
        if id(error) != self.left:
            self.call("leave", error)
        path, pid = self.crash
        if path and pid == os.getpid():
            try:
                load_and_forget("_crash")["remove"](path)  # type: ignore[operator]
            except Exception:
                pass

    def watch_children(self):  # type: () -> None
        if not self.children:
            self.children = True
            self.call("in_children")


def load(name):  # type: (str) -> dict[str, object]
    """The names of this file of the hooks, which does not become a module."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(name, [os.path.realpath(__file__).rsplit(os.sep, 2)[0]])
    names = {"__name__": "ftrun_hooks." + name}  # type: dict[str, object]
    exec(spec.loader.get_code(spec.name), names)  # type: ignore[union-attr]
    return names


def load_and_forget(name):  # type: (str) -> dict[str, object]
    """The names of this file, as `load`; the modules that it has imported for itself are not left in sys.modules."""
    before = set(sys.modules)
    found = load(name)
    for loaded in set(sys.modules) - before:
        del sys.modules[loaded]
    return found


def chain():  # type: () -> None
    """Run the program's own sitecustomize, if any."""
    __import__("sitecustomize")


def ask(folder):  # type: (str) -> None
    """Request access for a process of another user, in time for its first heartbeat (`_beat.py` requests it again)."""
    try:
        if not os.access(os.path.join(folder, "beats"), os.W_OK):
            os.close(os.open(os.path.join(folder, "request"), os.O_RDONLY | os.O_NONBLOCK))
    except Exception:
        pass


def keep_compiled():  # type: () -> None
    """Write the bytecode of this file, in a folder of ftrun, even if Python is configured to write none: this saves
    1.5 ms at each start."""
    try:
        sys.dont_write_bytecode = False
        __loader__.get_code(__name__)  # type: ignore[name-defined]
    except Exception:
        pass
    finally:
        sys.dont_write_bytecode = True


folder = os.path.dirname(__file__)
if __name__ == "sitecustomize" and folder in sys.path:  # otherwise the import below would find this file again
    sys.path.remove(folder)
    # Keep a reference: Python 2 clears the globals of a module that has none.
    module = sys.modules.pop(__name__)
    # If ftrun runs inside ftrun, the inner one comes first here, and it is the one that expects heartbeats.
    begun = any(type(finder).__name__ == "FtrunFinder" for finder in sys.meta_path)
    beats = os.environ.get("FTRUN_BEAT_DIR")
    parked = bool(beats) and "FTRUN_PARKED" in os.environ
    recorder = None
    if beats and sys.version_info >= (3, 8) and not begun:
        ask(beats)
        recorder = CrashRecorder(beats)
        sys.meta_path.insert(0, FtrunFinder(recorder))  # type: ignore[arg-type]
        if sys.dont_write_bytecode and folder.startswith(beats) and not os.path.exists(str(__spec__.cached)):
            keep_compiled()
    # `site` handles its exceptions, and that it does not exist, as it would without this file.
    if recorder is not None and not parked:
        recorder.watch_signals()
    if parked:
        failed = load_and_forget("_parked")["main"](chain, load_and_forget)  # type: ignore[operator]
        if recorder is not None:
            recorder.watch_signals()  # as its own process, which may be a fork of the template
        if failed is not None:
            raise failed
    else:
        __import__(__name__)
