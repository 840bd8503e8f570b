"""The value of each option, and its source: `ftrun --dry-run` before a start, `ftctl explain` after it."""

import json
import os
from pathlib import Path

from ftrun.config import option_table
from support.runs import Run, Runs, wait_for


def explained(run: Run, *words: str) -> str:
    done = run.ftctl("explain", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def check_sources(text: str) -> None:
    """An option from each of the sources that both tests use."""
    rows = [line.split(maxsplit=2) for line in text.splitlines()]
    for row in (
        ["--hang-timeout", "5m", "option"],
        ["--max-restarts", "7", "environment"],
        ["--grace", "20s", "config file"],
        ["--backoff", "1s", "default"],
    ):
        assert row in rows


def test_dry_run_says_where_each_value_comes_from(runs: Runs, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('grace = "20s"\n')
    options = ("--config", str(config), "--hang-timeout", "5m", "--webhook", "https://hooks.example/T0/secret")
    run = runs.run("--dry-run", *options, "python", "train.py", "--api-key", "abc", FTRUN_MAX_RESTARTS="7")
    assert (run.wait(), run.whole_stderr) == (0, "")
    check_sources(run.stdout)
    assert "T0/secret" not in run.stdout
    assert run.stdout.splitlines()[-1] == "command: python train.py --api-key ***"
    assert not os.path.exists(run.run_dir)


def test_explain_says_the_same_of_a_run_that_lives_or_has_ended(runs: Runs, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('grace = "20s"\n')
    secret = "https://user:hunter2hunter2@hooks.example/T0/secret"
    ready, go = tmp_path / "ready", tmp_path / "go"
    script = f"touch {ready}; while [ ! -e {go} ]; do sleep 0.1; done"
    options = ("--config", str(config), "--hang-timeout", "5m", "--webhook", secret, "--notify-on", "hang")
    run = runs.start(*options, "sh", "-c", script, FTRUN_MAX_RESTARTS="7")
    wait_for(ready.exists)
    living = explained(run)
    shown = json.loads(explained(run, "--json"))
    go.touch()
    assert run.wait() == 0
    assert explained(run) == living
    check_sources(living)
    assert living.splitlines()[-1].startswith("command: sh -c")
    assert shown["options"]["max-restarts"] == {"value": "7", "source": "environment"}
    assert {option.name for option in option_table.OPTIONS} - set(shown["options"]) == {"dry-run"}
    kept = Path(run.run_dir, "state.json").read_text()
    assert all(word not in text for word in ("T0/secret", "hunter2") for text in (living, json.dumps(shown), kept))


def test_a_value_that_is_automatic_says_what_it_means_in_this_run(runs: Runs) -> None:
    options = ("--nproc-per-node", "cpu", "--start-timeout", "2h")
    given = {"MA_HANG_DETECT_TIME": "20", "NODE_NAME": "node-7"}
    meanings = {
        "hang-timeout": "no time; what is proved to hang ends",
        "idle-timeout": "20m, once there are heartbeats or an accelerator is used (MA_HANG_DETECT_TIME)",
        "nproc-per-node": f"{os.cpu_count()}",
        "group-size": "no group",
        "node-name": "node-7",
    }
    before = runs.ends(0, "--dry-run", *options, "true", **given)
    run = runs.ends(0, *options, "true", **given)
    found = json.loads(explained(run, "--json"))["options"]
    assert {name: found[name].get("meaning") for name in meanings} == meanings
    assert "meaning" not in found["start-timeout"]
    for text in (before.stdout, explained(run)):
        ends = {name: line for name in meanings for line in text.splitlines() if line.startswith(f"--{name} ")}
        assert all(ends[name].endswith(f": {meaning}") for name, meaning in meanings.items()), text
