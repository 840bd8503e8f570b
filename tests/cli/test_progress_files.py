"""`--progress GLOB`: checkpoint files as progress, for a program that calls no hook."""

import os
import signal
from functools import partial
from pathlib import Path

from ftrun.config import option_values
from support.runs import Run, Runs, python, state_of, wait_for

SAVE = "import os, time\ndef save(name): open('.new', 'w').write('x'); os.rename('.new', name)\n"


def renamed_in(path: Path) -> bool:
    new = path.with_suffix(".new")
    new.touch()
    new.rename(path)
    return True


def saved(run: Run, name: str) -> bool:
    return any(Path(record["checkpoint"]).name == name for record in run.named("progress"))


def test_checkpoint_file_is_progress_and_passed_to_the_next_start(runs: Runs) -> None:
    code = (
        "n = ft.attempt().start_cnt\n"
        "open(f'last-{n}', 'w').write(str(ft.attempt().last_checkpoint))\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "save(f'step-{n}.ckpt')\n"
        "while not os.path.exists(f'next-{n}'): time.sleep(0.02)\n"
        "os._exit(1 if n < 3 else 0)\n"
    )
    options = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "10ms", "--grace", "off")
    run = runs.spawned(*options, "--progress", "*.ckpt", *python(SAVE + code))
    wait_for(lambda: run.helper("checkpoint_watcher"), "the helper")
    wait_for(lambda: renamed_in(runs.folder / "early.ckpt") and run.named("progress"), "that it watches")
    renamed_in(runs.folder / "last.ckpt")
    wait_for(lambda: saved(run, "last.ckpt"), "the last of them")
    (runs.folder / "go").touch()
    for number in range(1, 4):
        wait_for(partial(saved, run, f"step-{number}.ckpt"), f"step {number}")
        (runs.folder / f"next-{number}").touch()
    assert run.wait() == 0, run.log()
    assert [r["consecutive"] for r in run.named("restart")] == [1] * 2, "each made progress"
    assert (runs.folder / "last-2").read_text().endswith("step-1.ckpt")
    assert run.state["last_checkpoint"].endswith("step-3.ckpt")


EACH_SAVES = "n=$MA_PROC_START_CNT; {save}; until [ -e next-$n ]; do sleep 0.02; done; [ $n -ge 3 ]"
ONE_RESTART = ("--restart-on", "failure", "--max-restarts", "1", "--backoff", "10ms")


def test_a_checkpoint_is_seen_that_is_written_in_the_first_second_of_an_attempt(runs: Runs) -> None:
    """In place, and in the first attempt before the helper runs."""
    code = EACH_SAVES.format(save="sleep 0.05; echo $n > step-$n.ckpt")
    run = runs.start(*ONE_RESTART, "--progress", "*.ckpt", "sh", "-c", code)
    for number in range(1, 4):
        assert run.until("progress", number)["checkpoint"].endswith(f"/step-{number}.ckpt")
        (runs.folder / f"next-{number}").touch()
    assert run.wait() == 0, run.log()
    assert [record["consecutive"] for record in run.named("restart")] == [1, 1]


def test_each_save_into_the_same_folder_is_progress(runs: Runs) -> None:
    code = EACH_SAVES.format(save="mkdir -p last/model; echo $n > last/model/shard; echo $n > last/.metadata")
    run = runs.start(*ONE_RESTART, "--progress", "last", "sh", "-c", code)
    for number in range(1, 4):
        assert run.until("progress", number)["checkpoint"].endswith("/last")
        (runs.folder / f"next-{number}").touch()
    assert run.wait() == 0, run.log()
    assert [record["consecutive"] for record in run.named("restart")] == [1, 1]


def test_helper_survives_restarts_and_is_restarted_when_killed(runs: Runs) -> None:
    """What is saved in between is seen."""
    code = (
        "n = ft.attempt().start_cnt\n"
        "while not os.path.exists(f'next-{n}'): time.sleep(0.02)\n"
        "os._exit(1 if n < 2 else 0)\n"
    )
    run = runs.start("--restart-on", "failure", "--backoff", "10ms", "--progress", "*.ckpt", *python(SAVE + code))
    first = wait_for(lambda: run.helper("checkpoint_watcher"), "the helper")
    (runs.folder / "next-1").touch()
    run.until("spawned", 2)
    assert run.helper("checkpoint_watcher") == first
    os.kill(first, signal.SIGKILL)
    renamed_in(runs.folder / "meanwhile.ckpt")
    second = wait_for(lambda: (now := run.helper("checkpoint_watcher")) != first and now, "the helper again")
    problem = run.until("problem")
    assert (problem["helper"], problem["what"]) == ("checkpoint_watcher", "it exited; ftrun restarts it")
    wait_for(partial(saved, run, "meanwhile.ckpt"), "what was saved in between")
    os.kill(second, signal.SIGSTOP)
    (runs.folder / "next-2").touch()
    assert run.wait() == 0, "a helper that answers no more is no matter"
    wait_for(lambda: not state_of(second), "the end of the helper")
    assert run.named("restart")[0]["reason"] == "failure"


def test_globs_from_each_source(runs: Runs) -> None:

    file = runs.folder / "ftrun.toml"
    file.write_text('progress = ["/a/*.pt", "/b, c/*"]\n')
    both = ("/a/*.pt", "/b, c/*")
    assert option_values.settings({"config": str(file)}, {}).progress == both
    assert option_values.settings({}, {"FTRUN_PROGRESS": "/a/*.pt\n/b, c/*"}).progress == both
    assert option_values.settings({"progress": "/a/*.pt\n/b, c/*"}, {}).progress == both
    assert option_values.settings({}, {}).progress is None
