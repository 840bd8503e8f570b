"""Unmodified programs of several frameworks under ftrun: they are seen to move, a lock in a step is found, and what
they save is progress.

A framework that is not installed beside ftrun may be in a virtual environment of its own, whose Python is named by
FTRUN_TEST_<NAME>: `FTRUN_TEST_MINDSPORE=/tmp/ms/bin/python python -m pytest -m slow tests/cli/test_frameworks.py`.
"""

import functools
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from support.evidence_job import needs_spy
from support.runs import HOUSE, Run, Runs

pytestmark = [pytest.mark.slow, needs_spy]
PROGRAMS = HOUSE / "tests" / "support" / "framework_programs"
TIMES = 5  # how often a program fails, each time after it has saved


class Program(NamedTuple):
    """`package`: has to be installed.  `mode`: its second argument.  `steps`: whether ftrun knows the number of each
    step.  `proved`: whether a lock is found without a time that the user gave.  It is not, where return addresses on
    the stack cannot be told from those of calls that have ended, or a handler of SIGTERM might release it before the
    first step that is known.  `options`: of ftrun."""

    name: str
    package: str
    mode: str = ""
    steps: bool = True
    proved: bool = True
    options: tuple[str, ...] = ()


TABLE = (
    Program("torch_without_optimizer", "torch", steps=False),
    Program("torch_alone", "torch"),
    Program("mindspore_model", "mindspore", "PYNATIVE"),
    Program("mindspore_model", "mindspore", "GRAPH"),
    Program("mindspore_functional", "mindspore", "PYNATIVE"),
    Program("mindspore_functional", "mindspore", "GRAPH", proved=False),
    Program("mindspore_functional", "mindspore", "JIT", steps=False, proved=False),
    Program("keras_fit", "keras", "JAX"),
    Program("jax_loop", "jax", "OPTAX"),
    Program("jax_loop", "jax", "FLAX"),
    Program("paddle_loop", "paddle"),
    Program("paddle_loop", "paddle", "HAPI"),
    Program("paddle_loop", "paddle", "STATIC", steps=False, proved=False),
    Program("deepspeed_loop", "deepspeed", "0", options=("--nproc-per-node", "1")),
    Program("deepspeed_loop", "deepspeed", "1"),
)


@functools.cache
def python_with(package: str) -> str:
    """A Python that has this package, or nothing."""
    python = os.environ.get(f"FTRUN_TEST_{package.upper()}", sys.executable)
    code = f"import importlib.util; raise SystemExit(importlib.util.find_spec({package!r}) is None)"
    return python if subprocess.run([python, "-c", code]).returncode == 0 else ""


def start(runs: Runs, program: Program, how: str, *options: str) -> Run:
    python = python_with(program.package)
    if not python:
        pytest.skip(f"{program.package} is not installed: see FTRUN_TEST_{program.package.upper()} in this file")
    return runs.start(*options, *program.options, python, str(PROGRAMS / f"{program.name}.py"), how, program.mode)


@pytest.fixture(params=TABLE, ids=lambda program: f"{program.name} {program.mode}".strip())
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.param
    return found


def test_a_lock_in_a_step_is_found_and_the_next_start_trains_to_the_end(runs: Runs, program: Program) -> None:
    options = () if program.proved else ("--hang-timeout", "15s")
    run = start(runs, program, "hang", "--grace", "off", *options)
    run.until("first_beat")
    assert run.wait(280) == 0, run.log()
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["rank"]) == ("deadlock" if program.proved else "step", 0)
    assert "plan.py:19" in str(hang["mechanism"])
    assert (hang.get("step") is not None) == program.steps


def test_saves_are_progress_and_a_failure_has_its_cause(runs: Runs, program: Program) -> None:
    """Two restarts in a row without progress are the limit, and the program fails more often than that."""
    run = start(runs, program, "crash", "--restart-on", "failure", "--max-restarts", "2", "--backoff", "1ms")
    assert run.wait(240) == 0, run.log()
    assert len(run.named("restart")) == TIMES
