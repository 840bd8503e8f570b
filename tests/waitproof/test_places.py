"""Where a stack is, for people, and what is left out of what they read."""

from types import SimpleNamespace

import pytest

from ftrun.helpers.evidence.report import clean, headline
from waitproof.describe import Describer
from waitproof.stacks import Frame, Stack, Thread
from waitproof.wakers import Wakers


def test_no_secret_and_nothing_that_a_terminal_acts_upon_is_shown() -> None:
    for show in (clean, headline):
        shown = show("waits for a reply from https://me:hunter22@host/ \x1b[31m")
        assert "hunter22" not in shown
        assert shown.isprintable()
        assert len(show("x" * 900)) <= 240


PACKAGES = "/usr/lib/python3.11/site-packages"
SLEEP = Frame("sleep", f"{PACKAGES}/trainer/failures.py", 33)
CLICK = Frame("Context.invoke", f"{PACKAGES}/click/core.py", 911)
MAIN = Frame("main", f"{PACKAGES}/trainer/main.py", 10)
LIBRARY = Frame("wait", "/usr/lib/python3.11/threading.py", 359)
BEGINS = Frame("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002)
PROXY = Frame("BaseProxy._callmethod", "/usr/lib/python3.11/multiprocessing/managers.py", 822)
SCRIPT = Frame("<module>", "/venv/bin/trainer", 8)
RUNPY = Frame("_run_module_as_main", "<frozen runpy>", 198)
SINGLE = Frame("work", f"{PACKAGES}/single.py", 5)
PLACES = {
    "an installed program": ((SLEEP, CLICK, MAIN, SCRIPT), "failures.py:33 sleep"),
    "one that waits in a library": (
        (LIBRARY, SLEEP, CLICK, MAIN, SCRIPT),
        "failures.py:33 sleep, in threading.py:359 wait",
    ),
    "python -m": ((LIBRARY, CLICK, MAIN, RUNPY), "main.py:10 main, in threading.py:359 wait"),
    "an installed module": ((SINGLE, SCRIPT), "single.py:5 work"),
    "a script of the user": (
        (CLICK, Frame("<module>", "/job/train.py", 3)),
        "train.py:3 <module>, in core.py:911 Context.invoke",
    ),
    "one without a suffix": (
        (CLICK, Frame("<module>", "/job/train", 3)),
        "train:3 <module>, in core.py:911 Context.invoke",
    ),
    "one that is called bin/train": ((Frame("<module>", "/job/bin/train", 3),), "train:3 <module>"),
    "a function that a library has generated": (
        (LIBRARY, PROXY, Frame("get", "<string>", 2), Frame("<module>", "/job/train.py", 6)),
        "train.py:6 <module>, in threading.py:359 wait",
    ),
    "python -c": ((LIBRARY, Frame("<module>", "<string>", 2)), "<string>:2 <module>, in threading.py:359 wait"),
    "a thread of a library": (
        (LIBRARY, Frame("_feed", "/usr/lib/python3.11/multiprocessing/queues.py", 231), BEGINS),
        "queues.py:231 _feed, in threading.py:359 wait",
    ),
    "a library alone": ((LIBRARY,), "threading.py:359 wait"),
    "nothing": ((), "no Python frame"),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_place_is_in_the_code_of_the_program_itself(case: str) -> None:
    frames, expected = PLACES[case]
    assert Thread(1, "MainThread", False, False, frames).location == expected


def test_a_wait_of_an_unknown_kind_names_its_place_and_no_place_is_where_every_thread_begins() -> None:
    """A side thread of a library, without a line of the program in its stack."""
    begins = tuple(Frame(name, "/usr/lib/python3.11/threading.py", 1002) for name in ("_bootstrap_inner", "_bootstrap"))
    monitor = Frame("run", f"{PACKAGES}/tqdm/_monitor.py", 69)
    for frames, said in (((monitor, *begins), "waits at _monitor.py:69"), (begins, "waits for something unknown")):
        stack = Stack((Thread(5, "monitor", False, False, frames),), None)
        world = SimpleNamespace(processes={}, sockets={})
        describer = Describer(world, {4: stack}, {}, {(4, 5): Wakers(None)})  # type: ignore[arg-type]
        assert describer.waits(4, 5) == said
