"""Whatever the bytes: each target raises what it declares, and nothing else.  `bin/prove fuzz` does this for longer."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proof.fuzz.findings import tried
from proof.fuzz.seeds import seeds
from proof.fuzz.targets import TARGETS, clean

PIECES = [
    *(b"", b"\0", b"\n", b"\f", b"[", b"{", b'"', b"\\", b"=", b" : "),
    *(b"-1", b"1e999", b"9" * 400, b"null", b"\xff"),
]
NUMBERS = st.sampled_from([0, -1, 1 << 63, 1 << 70, 10**400, 1.5, 1e300, float("inf"), float("nan")])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module", autouse=True)
def _cleaned() -> Iterator[None]:
    yield
    clean()


@st.composite
def broken(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """A sample with a few pieces cut out or put in; where it is JSON, with other values."""
    content = draw(st.sampled_from(samples))
    places = _places(content)
    whole = draw(st.integers(0, 3)) == 0
    if places and not whole:
        start, end, found = draw(st.sampled_from(places))
        return content[:start] + json.dumps(_changed(draw, found)).encode() + content[end:]
    for _ in range(draw(st.integers(0, 4))):
        at, to = sorted(draw(st.integers(0, len(content))) for _ in range(2))
        content = content[:at] + draw(st.sampled_from([*PIECES, content[at:to] * 2])) + content[to:]
    return content


@cache
def _places(content: bytes) -> list[tuple[int, int, Any]]:
    """Where a sample has JSON, and what: all of it, without the first byte, or between zero bytes."""
    parts, start = [(0, len(content)), (1, len(content))], 0
    for piece in content.split(b"\0"):
        parts.append((start, start + len(piece)))
        start += len(piece) + 1
    return [(at, to, found) for at, to in parts if at < to and (found := _json(content[at:to])) is not None]


def _json(content: bytes) -> Any:
    """An object; None for any other."""
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict | list) else None


def _changed(draw: st.DrawFn, found: Any) -> Any:
    """With another value somewhere in it."""
    if isinstance(found, dict) and found:
        name = draw(st.sampled_from(sorted(found)))
        return found | {name: _changed(draw, found[name])}
    if isinstance(found, list) and found:
        at = draw(st.integers(0, len(found) - 1))
        return [*found[:at], _changed(draw, found[at]), *found[at + 1 :]]
    return draw(VALUES)


def ends_well(name: str, examples: int) -> None:
    samples = seeds(name)
    for content in samples:
        assert tried(TARGETS[name], content) is None

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(broken(samples) | st.binary(max_size=500))
    def each(content: bytes) -> None:
        found = tried(TARGETS[name], content)
        assert found is None, str(found)

    each()


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_the_bytes_a_target_ends_as_it_declares(name: str) -> None:
    ends_well(name, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_it_ends_well_for_long(name: str) -> None:
    ends_well(name, 2000)
