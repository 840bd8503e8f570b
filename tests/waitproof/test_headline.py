"""The headline of a report: one sentence for each mechanism."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.helpers.evidence.wait_text import clean
from waitproof.headline import LENGTH, Link, headline
from waitproof.mechanism import Describer
from waitproof.stacks import Frame, Stack, Thread
from waitproof.wakers import Wakers

REDUCE = Link("rank 1", "waits in all_reduce for the other ranks", "train.py:9 step", "waits in all_reduce for")
COMPUTES = Link("rank 0", "computes", "eval.py:20 evaluate")
STOPPED = Link("rank 0", "is stopped by SIGSTOP", "data.py:3 read", fails=True)
CASES = {
    "nothing known": ([], None, ""),
    "sleep": ([Link("rank 0", "sleeps", "f.py:3 nap")], None, "rank 0 sleeps at f.py:3 nap"),
    "stopped": ([STOPPED], None, "rank 0 is stopped by SIGSTOP at data.py:3 read"),
    "another is stopped": (
        [REDUCE, STOPPED],
        None,
        "rank 0 is stopped by SIGSTOP at data.py:3 read, and rank 1 waits for it",
    ),
    "outside": (
        [Link("rank 3", "waits for a reply from 10.0.0.7:443, which is outside the job", "f.py:3 get")],
        None,
        "rank 3 waits for a reply from 10.0.0.7:443, which is outside the job, at f.py:3 get",
    ),
    "collective": (
        [REDUCE, COMPUTES],
        None,
        "rank 1 waits in all_reduce for rank 0, which computes at eval.py:20 evaluate",
    ),
    "child": (
        [
            Link("process 812 (make)", "waits for its child 815", awaits="waits for its child"),
            Link("process 815 (cc1)", "computes"),
        ],
        None,
        "process 812 (make) waits for its child process 815 (cc1), which computes",
    ),
    "three": (
        [REDUCE, Link("rank 0", "waits for a child", awaits="waits for its child"), Link("process 9 (cp)", "sleeps")],
        None,
        "rank 1 waits in all_reduce for rank 0, which waits for its child process 9 (cp), which sleeps",
    ),
    "a long chain": (
        [*[Link(f"process {n}", "waits for a child") for n in range(6)], COMPUTES],
        None,
        "process 0 waits for process 1, at the end of a chain of 7 of which the last, rank 0, computes at eval.py:20 "
        "evaluate",
    ),
    "threads": (
        [
            Link("the main thread", "waits for a lock", "f.py:12 save"),
            Link("thread B of rank 0", "waits for a lock", "f.py:30 load"),
        ],
        0,
        "deadlock between the main thread and thread B of rank 0: the main thread waits for a lock at f.py:12 save, "
        "thread B of rank 0 waits for a lock at f.py:30 load",
    ),
    "three threads": (
        [Link(f"thread {name}", "waits for a lock") for name in "ABC"],
        0,
        "deadlock between thread A, thread B and thread C",
    ),
    "a deadlock elsewhere": (
        [REDUCE, *[Link(f"thread {name}", "waits for a lock") for name in "ABC"]],
        1,
        "deadlock between thread A, thread B and thread C, for which rank 1 waits",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_headline_names_the_mechanism(case: str) -> None:
    chain, back, expected = CASES[case]
    assert headline(chain, back) == expected


names = st.text(max_size=80)


@given(st.lists(st.builds(Link, names, names, names, names, st.booleans(), names), max_size=40), st.integers(0, 40))
def test_it_is_one_short_printable_line_whatever_the_names(chain: list[Link], back: int) -> None:
    for sentence in (headline(chain), headline(chain, back)):
        assert sentence.isprintable()
        assert len(sentence) <= LENGTH


def test_no_secret_is_in_it() -> None:
    assert "hunter22" not in clean("waits for a reply from https://me:hunter22@host/")


PACKAGES = "/usr/lib/python3.11/site-packages"
SLEEP = Frame("sleep", f"{PACKAGES}/trainer/failures.py", 33)
CLICK = Frame("Context.invoke", f"{PACKAGES}/click/core.py", 911)
MAIN = Frame("main", f"{PACKAGES}/trainer/main.py", 10)
LIBRARY = Frame("wait", "/usr/lib/python3.11/threading.py", 359)
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
        world = SimpleNamespace(processes={})
        describer = Describer(world, {4: stack}, {}, {(4, 5): Wakers(None)})  # type: ignore[arg-type]
        assert describer.waits(4, 5) == said
