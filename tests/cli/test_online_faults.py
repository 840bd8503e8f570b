"""Device faults that ranks survive: a retry ends no process, and a link is left to the communication library first."""

import json
from typing import Any

from support.device.npu_smi import FakeNpuSmi
from support.device.rig import QUICK, SOON, rank
from support.runs import Run, Runs, python, wait_for

MEMORY = ("80E01801", "node type=HBM, event state=Multi Bit Error")
LINK = ("81078603", "node type=Network, event state=Link Down")

# Steps of both ranks together, until the file `end` is there.  While `still` is there, rank 1 stands still in round 1.
TRAINS = """
import os, time
@ft.recoverable
def train(run):
    step = run.restore()
    with open("rounds", "a") as file:
        print(run.round, run.rank, os.getpid(), os.environ["MA_PROC_START_CNT"], run.reason, file=file)
    while not os.path.exists("end"):
        while run.round == 1 and run.rank == 1 and step > 5 and os.path.exists("still"):
            time.sleep(0.02)
        step += 1
        run.keep(step)
        ft.beat(step)
        time.sleep(0.02)
train()
"""


def start(runs: Runs, *options: str, **more: Any) -> Run:
    ranks = "--nproc-per-node", "2", "--hang-timeout", "60s", "--max-restarts", "1"
    run = runs.start(*QUICK, *ranks, *options, *python(TRAINS), program=SOON, **more)
    run.until("first_beat")
    # A rank that has not begun cannot execute a step again: then all are started again.
    wait_for(lambda: sum(map(len, rounds(runs).values())) == 2, "that both ranks have begun")
    return run


def with_chips(runs: Runs, *options: str) -> tuple[Run, FakeNpuSmi]:
    chips = FakeNpuSmi(runs.folder / "smi", cards=2)
    runs.environment |= chips.environment()
    runs.environment.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    run = start(runs, "--probe", "ascend", *options)
    wait_for(lambda: chips.calls.count("info -t usages -i 1") > 1, "two looks at the last card")
    return run, chips


def two_looks(chips: FakeNpuSmi) -> None:
    """Wait until the health of the second chip was read as it is now."""

    def looks() -> int:
        return sum(call.startswith("info -t health -i 1") for call in chips.calls)

    before = looks()
    wait_for(lambda: looks() > before + 2, "that it is looked at")


def rounds(runs: Runs) -> dict[int, list[list[str]]]:
    """What each round has begun with, by its number: rank, pid, number of starts, reason."""
    found: dict[int, list[list[str]]] = {}
    path = runs.folder / "rounds"
    for line in path.read_text().splitlines() if path.exists() else ():
        number, *words = line.split()
        found.setdefault(int(number), []).append(words)
    return {number: sorted(words) for number, words in found.items()}


def put(runs: Runs, name: str, text: str = "") -> None:
    beside = runs.folder / f".{name}"
    beside.write_text(text)
    beside.replace(runs.folder / name)


def reset(runs: Runs, *ranks: dict[str, Any], **fields: Any) -> None:
    put(runs, "reset.json", json.dumps({"RankList": ranks, "UpdateTime": 7, "RetryTime": 0} | fields))


def ends(runs: Runs, run: Run) -> None:
    put(runs, "end")
    assert run.wait() == 0, run.log()
    assert not run.named("restart"), run.log()


def stayed(runs: Runs, number: int) -> None:
    """All processes of the first round are those of this one, and count no start more."""
    found = rounds(runs)
    assert [words[:3] for words in found[number]] == [words[:3] for words in found[1]]
    assert {words[3] for words in found[number]} == {"retry"}


def test_a_memory_fault_of_a_chip_ends_no_process(runs: Runs) -> None:
    run, chips = with_chips(runs)
    for number in (1, 2):
        chips.set(1, codes=[MEMORY], health="Alarm")
        recovered = run.until("recovered", number)
        assert (recovered["rung"], recovered["round"], recovered["ranks"]) == ("retry", number + 1, [])
        stayed(runs, number + 1)
        chips.set(1, codes=[], health="OK")
        two_looks(chips)
    assert run.named("fault")[0]["retry"] == "memory"
    ends(runs, run)


def test_a_link_is_left_to_the_library_and_then_the_step_is_retried(runs: Runs) -> None:
    put(runs, "still")
    run, chips = with_chips(runs, "--link-timeout", "1s")
    chips.set(0, codes=[LINK], health="Warning")
    fault, recovering = run.until("link_fault"), run.until("recovering")
    assert recovering["mono"] - fault["mono"] >= 1
    assert "has not cured it" in recovering["why"]
    assert run.until("recovered")["rung"] == "retry"
    stayed(runs, 2)
    ends(runs, run)


def test_a_link_that_the_library_cures_ends_no_round(runs: Runs) -> None:
    run, chips = with_chips(runs, "--link-timeout", "1s")
    chips.set(0, codes=[LINK], health="Warning")
    assert run.until("link_recovered")["seconds"] > 1
    ends(runs, run)
    assert not run.named("recovering")


def test_the_platform_asks_for_a_retry_then_for_one_process_then_for_all(runs: Runs) -> None:
    run = start(runs, "--probe", "off", "--reset-file", str(runs.folder / "reset.json"))
    wait_for(lambda: run.helper("reset_file"), "the platform's helper")
    reset(runs, rank(1, codes="80CB8009") | {"Policy": "restart_request"})
    assert run.until("recovered")["rung"] == "retry"
    stayed(runs, 2)
    reset(runs, rank(1, "recovered"))
    reset(runs, rank(1, "fault"), RestartFaultProcess=True)
    assert run.until("recovered", 2)["ranks"] == [1]
    found = rounds(runs)
    assert found[3][0][:3] == found[1][0][:3], "rank 0 keeps its process and its number of starts"
    assert (found[3][1][1] != found[1][1][1], found[3][1][2]) == (True, "2")
    reset(runs, rank(1, codes="80CB8009") | {"Policy": "reset"})
    run.until("healing")
    reset(runs, rank(1, "recovered"))
    run.until("restart")
    put(runs, "end")
    assert run.wait() == 0, run.log()


def test_without_ranks_that_recover_the_same_fault_restarts_all(runs: Runs) -> None:
    run, chips = with_chips(runs, "--recover", "none")
    chips.set(1, codes=[MEMORY], health="Alarm")
    run.until("healing")
    chips.set(1, codes=[], health="OK")
    run.until("restart")
    put(runs, "end")
    assert run.wait() == 0, run.log()
    assert not run.named("recovering")


def test_the_library_is_told_to_execute_its_operators_again(runs: Runs) -> None:
    show = 'import os; print(os.environ.get("HCCL_OP_RETRY_ENABLE"))'
    assert runs.run("--recover", "operator,retry", *python(show)).stdout == "L0:0, L1:1, L2:1\n"
    given = runs.run("--recover", "operator,retry", *python(show), HCCL_OP_RETRY_ENABLE="L1:0")
    assert given.stdout == "L1:0\n"
    assert runs.run(*python(show)).stdout == "None\n"
