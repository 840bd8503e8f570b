"""Matching one folder at a time finds what `glob.glob` finds."""

import glob
import os
import re
import tempfile
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.helpers.checkpoint_watcher.globs import Globs, Matching, parse

NAMES = st.sampled_from(["a", "b", "ab", ".h", "a.pt", "[x]", "*", "ü"])
PARTS = st.sampled_from(["a", "b", ".h", "*", "**", "a*", "*.pt", "[ab]", "[!a]", "?", ".*", "[[]x]", "ü", "**a"])
PATTERNS = st.builds(
    lambda parts, slash: "/".join(parts) + slash, st.lists(PARTS, min_size=1, max_size=4), st.sampled_from(["", "/"])
)
TREES = st.recursive(st.none(), lambda below: st.dictionaries(NAMES, below, max_size=4), max_leaves=12)


def plant(folder: str, tree: dict[str, object]) -> None:
    for name, below in tree.items():
        if isinstance(below, dict):
            os.mkdir(f"{folder}/{name}")
            plant(f"{folder}/{name}", below)
        else:
            open(f"{folder}/{name}", "w").close()


def walk(globs: Globs, state: Matching, path: str) -> Iterator[str]:
    names = None if globs.open(state) else globs.literals(state)
    for name in os.listdir(path or "/"):
        if names is not None and name not in names:
            continue
        step, below = globs.step(state, name), f"{path}/{name}"
        if step.match or (step.match_folder and os.path.isdir(below)):
            yield below
        if step.below and os.path.isdir(below):
            yield from walk(globs, step.below, below)


@settings(max_examples=settings().max_examples // 2)
@given(tree=st.dictionaries(NAMES, TREES, max_size=4), patterns=st.lists(PATTERNS, min_size=1, max_size=3))
def test_it_finds_what_glob_finds(tree: dict[str, object], patterns: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="[c]*") as folder:
        plant(folder, tree)
        globs = Globs([parse(pattern, folder) for pattern in patterns])
        found = list(walk(globs, globs.root(), ""))
        expected = every(folder, patterns)
        # `**` at the end also stands for its own folder in glob; here it does not.
        without = every(folder, [re.sub(r"(^|/)(\*\*/?)+$", "", pattern) for pattern in patterns])
        assert set(found) <= expected
        assert expected - set(found) <= without
        assert len(found) == len(set(found))


def every(folder: str, patterns: list[str]) -> set[str]:
    found = [glob.glob(f"{glob.escape(folder)}/{pattern}", recursive=True) for pattern in patterns]
    return {os.path.normpath(path) for paths in found for path in paths}


def test_a_cwd_is_not_a_pattern() -> None:
    globs = Globs([parse("x", "/a*")])
    (state,) = {globs.step(globs.root(), "a*").below}
    assert globs.step(state, "x").match
    assert not globs.step(globs.root(), "ab").below


def test_only_what_can_fit_is_asked_for() -> None:
    globs = Globs([parse("/data/out/*.pt", ""), parse("/tmp/x", ""), parse("/", ""), parse("", "/cwd")])
    assert globs.literals(globs.root()) == {"data", "tmp"}
    state = globs.step(globs.step(globs.root(), "data").below, "out").below
    assert globs.open(state)
    assert globs.final(state)
    assert not globs.final(globs.root())
