"""Automatic beats: ftrun puts this folder first on PYTHONPATH, so every Python below it runs this when it starts.

Leaves sys.path and sys.modules as they are without it, then runs the program's own sitecustomize, if there is one.
Does nothing else outside ftrun and before Python 3.8, where it must still parse: no newer syntax than 2.7 has.
"""

import os
import sys


class FtrunFinder(object):
    """Finds `ftrun_hooks`, whether or not it is installed, and has `_auto` look at torch's and safetensors' modules."""

    watched = ("torch.", "safetensors.torch")

    def __init__(self, last_words):  # type: (LastWords) -> None
        self.last_words = last_words

    def find_spec(self, name, path=None, target=None):  # type: (str, object, object) -> object
        try:
            if name == "ftrun_hooks":
                from importlib.machinery import PathFinder

                # Through a link: ftrun may have put one where the compiled form of this file can be kept.
                return PathFinder.find_spec(name, [os.path.realpath(__file__).rsplit(os.sep, 3)[0]])
            if name.startswith(self.watched):
                from ftrun_hooks import _auto

                return _auto.find(self, name, path, target)
            if name in ("multiprocessing.popen_fork", "multiprocessing.spawn"):
                self.last_words.of_children()
        except Exception:
            self.watched = ("\0", "\0")  # no module's name: the next one would fare no better
        return None


class LastWords(object):
    """Has `_last` write down the exception that this Python dies of.

    Python calls the hook for it, unless the program has set one of its own that does not call ours; at exit it is found
    even then, if the program comes so far.
    """

    def __init__(self, folder):  # type: (str) -> None
        self.folder = folder
        self.left = 0
        self.children = False
        self.shown_by = sys.__excepthook__
        # Under both names: whoever asks whether a program has set a hook of its own is told the truth.
        sys.excepthook = sys.__excepthook__ = self.hook
        known = "atexit" in sys.modules
        import atexit

        atexit.register(self.at_exit)
        self.unseen = None if known else sys.modules.pop("atexit")  # up to 3.9 it has to live as long as what it calls

    def call(self, function, *words):  # type: (str, object) -> None
        try:
            from importlib.machinery import PathFinder

            spec = PathFinder.find_spec("_last", [os.path.realpath(__file__).rsplit(os.sep, 2)[0]])
            names = {"__name__": "ftrun_hooks._last"}  # type: dict[str, object]
            exec(spec.loader.get_code(spec.name), names)  # type: ignore[union-attr]
            names[function](self.folder, *words)  # type: ignore[operator]
        except Exception:
            pass

    def hook(self, kind, error, trace):  # type: (type, object, object) -> None
        if error is not None:
            self.left = id(error)  # and not the exception: its frames hold memory
            self.call("leave", error)
        self.shown_by(kind, error, trace)  # type: ignore[arg-type]

    def at_exit(self):  # type: () -> None
        error = getattr(sys, "last_value", None)
        if id(error) != self.left:
            self.call("leave", error)

    def of_children(self):  # type: () -> None
        if not self.children:
            self.children = True
            self.call("in_children")


def ask(folder):  # type: (str) -> None
    """A process of another user than ftrun: it is let in by the time of its first beat (`_slot.py` asks again)."""
    try:
        if not os.access(os.path.join(folder, "beats"), os.W_OK):
            os.close(os.open(os.path.join(folder, "request"), os.O_RDONLY | os.O_NONBLOCK))
    except Exception:
        pass


def keep_compiled():  # type: () -> None
    """Also where Python is told to write no compiled forms: in a folder of our own, it saves 1.5 ms at each start."""
    try:
        sys.dont_write_bytecode = False
        __loader__.get_code(__name__)  # type: ignore[name-defined]
    except Exception:
        pass
    finally:
        sys.dont_write_bytecode = True


folder = os.path.dirname(__file__)
if __name__ == "sitecustomize" and folder in sys.path:  # else the import below would find this file again
    sys.path.remove(folder)
    # Kept by name: Python 2 empties the globals of a module that nobody holds.
    module = sys.modules.pop(__name__)
    # Of an ftrun in an ftrun, the inner one comes first here, and is the one that waits for the beats.
    begun = any(type(finder).__name__ == "FtrunFinder" for finder in sys.meta_path)
    beats = os.environ.get("FTRUN_BEAT_DIR")
    if beats and sys.version_info >= (3, 8) and not begun:
        ask(beats)
        sys.meta_path.insert(0, FtrunFinder(LastWords(beats)))  # type: ignore[arg-type]
        if sys.dont_write_bytecode and folder.startswith(beats) and not os.path.exists(str(__spec__.cached)):
            keep_compiled()
    # What it raises, and that there is none, is for `site` to handle, as without us.
    __import__(__name__)
