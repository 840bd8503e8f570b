"""Several processes without RANK that all step, as `multiprocessing` starts them."""

from support.runs import Runs, python

# The parent has stepped once and joins; forked, so that each child is this text again.
HOGWILD = """
import multiprocessing, time
def work(number):
    for step in range(20 * (number + 1) if {uneven} else 10_000):
        ft.beat(step)
        if {hangs} and number == 1 and step == 5:
            time.sleep(600)
        time.sleep(0.05)
ft.beat(0)
children = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(3)]
for child in children:
    child.start()
if {hangs}:
    print("hangs", children[1].pid, flush=True)
for child in children:
    child.join()
ft.beat(1)
"""


def test_hung_process_among_others_is_named(runs: Runs) -> None:
    code = HOGWILD.format(uneven=False, hangs=True)
    run = runs.ends(195, "--hang-timeout", "2s", "--max-restarts", "0", *python(code))
    (hang,) = run.named("hang")
    assert (hang["rank"], hang["step"], hang["rule"]) == (-1 - hang["pid"], 5, "step")
    assert f"process {hang['pid']} (no RANK) stopped at step 5" in run.log()
    assert run.named("problem") == []


def test_uneven_work_and_a_joining_parent_are_no_hang(runs: Runs) -> None:
    """The last child works for longer than the limit after the first has ended."""
    run = runs.ends(0, "--hang-timeout", "2s", "--max-restarts", "0", *python(HOGWILD.format(uneven=True, hangs=False)))
    assert run.named("suspect") + run.named("hang") + run.named("problem") == []
