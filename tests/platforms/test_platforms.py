"""A platform is one record, of which every field is required, and one entry of a table."""

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from ftrun import platforms
from ftrun.platforms import Platform, Surroundings
from support.runs import HOUSE


def test_no_field_of_a_record_has_a_default() -> None:
    assert Platform._field_defaults == {}


@pytest.mark.parametrize("one", platforms.PLATFORMS, ids=lambda one: str(one.name))
def test_a_record_is_complete(one: Platform) -> None:
    assert one.name
    assert one.variables
    assert one.membership(Surroundings({}, "h", "", "auto")) is None, "an empty environment is no platform"
    assert one.task is None or not one.task.startswith("FTRUN_")


@pytest.mark.parametrize("one", platforms.PLATFORMS, ids=lambda one: str(one.name))
def test_the_variables_that_are_read_are_those_that_are_listed(one: Platform) -> None:
    assert _read(one.membership, set()) == {name for name in one.variables if "<" not in name}


def _read(function: Callable[..., Any], known: set[object]) -> set[str]:
    """The variables that this function, and those of the platforms that it calls, take from the environment."""
    known.add(function)
    read: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(node, ast.Call | ast.Compare | ast.Subscript) and "environment" in ast.unparse(node):
            strings = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            read |= {text for text in strings if isinstance(text, str) and re.fullmatch("[A-Z][A-Z0-9_]+", text)}
    called = (inspect.getmodule(function).__dict__.get(name) for name in function.__code__.co_names)
    for one in called:
        if inspect.isfunction(one) and one.__module__ == "ftrun.platforms" and one not in known:
            read |= _read(one, known)
    return read


def test_what_else_is_read_is_in_the_reference() -> None:
    page = (HOUSE / "docs" / "reference.md").read_text()
    others = [(one.schedules or (None,))[0] for one in platforms.PLATFORMS]
    others += [name for one in platforms.PLATFORMS for name in (one.job, one.task, one.node)]
    assert [name for name in others if name and f"`{name}`" not in page] == []


def test_each_record_is_in_the_table_and_on_the_page_about_several_nodes() -> None:
    records = [one for one in vars(platforms).values() if isinstance(one, Platform)]
    assert sorted(one.name for one in records) == sorted(one.name for one in platforms.PLATFORMS)
    page = (HOUSE / "docs" / "howto" / "several-nodes.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for one in platforms.PLATFORMS:
        known = [name for name in one.variables if any(f"`{name}`" in row for row in rows)]
        assert known, f"no row of the page says how the group is found {one.name}"
