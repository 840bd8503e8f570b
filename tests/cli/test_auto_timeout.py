"""`--hang-timeout auto`, end to end: learned from a hundred steps, remembered, and no proof against what works."""

import sys

from runs import HOUSE, Runs, python

FAST = """
import sys
sys.path[:0] = [{paths}]
import ftrun.core.learning as learning
learning.FLOOR = 1.0
from ftrun.cli.run import main
main()
"""
# The same program, with half a minute made a second so that a test need not wait for it.
SOON = (sys.executable, "-c", FAST.format(paths=", ".join(repr(str(HOUSE / p)) for p in ("supervisor", "hooks"))))
STEPS = """
import os, sys, time
first = ft.attempt().start_cnt == 1
for step in range(110): ft.beat((ft.attempt().last_step or 0) + step)
"""


def test_a_limit_is_learned_and_remembered(runs: Runs) -> None:
    hang = "print('stopped', flush=True)\nif first: time.sleep(3600)\nos._exit(0)"
    run = runs.run("--grace", "off", *python(STEPS + hang), program=SOON)
    assert run.wait() == 0, run.told()
    (learned,) = run.named("learned")
    assert (learned["limit"], learned["steps"], learned["attempt"]) == (1.0, 100, 1)
    assert "99 of 100 silences are within" in learned["why"]
    (found,) = run.named("hang")
    assert (found["rule"], found["limit"], found["learned"]) == ("step", 1.0, True)
    assert found["cpu"] < 0.1
    assert "<string>" in found["why"], "where it hangs"
    assert "(limit 1s, learned)" in run.stderr
    assert run.state["learned"]["limit"] == 1.0, "the second attempt was judged by it from its beginning"
    assert run.stdout.count("stopped") == 2


def test_what_works_is_not_ended_by_a_learned_limit(runs: Runs) -> None:
    """Evaluation without a word about it looks like a hang, but for the processor that it burns."""
    busy = "until = time.monotonic() + 3.5\nwhile time.monotonic() < until: pass\nos._exit(0)"
    run = runs.run(*python(STEPS + busy), program=SOON)
    assert run.wait() == 0, run.told()
    assert run.named("hang", "restart") == []
    whys = [record["why"] for record in run.named("cleared")]
    assert whys
    assert all("it works" in why or why == "it moved" for why in whys)


def test_what_works_no_longer_is_found_at_the_next_look(runs: Runs) -> None:
    code = "until = time.monotonic() + 1.2 * first\nwhile time.monotonic() < until: pass\n"
    code += "if first: time.sleep(3600)\nos._exit(0)"
    run = runs.run("--grace", "off", *python(STEPS + code), program=SOON)
    assert run.wait() == 0, run.told()
    (found,) = run.named("hang")
    assert found["limit"] > 1.0 or not run.named("cleared")


def test_a_given_limit_is_not_learned(runs: Runs) -> None:
    run = runs.run("--hang-timeout", "30s", *python(STEPS + "os._exit(0)"))
    assert run.wait() == 0, run.told()
    assert run.named("learned") == []
    assert run.state["learned"] is None
