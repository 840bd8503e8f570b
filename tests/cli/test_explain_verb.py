"""The value of each option, and its source: `ftrun --dry-run` before a start, `ftctl explain` after it."""

import json
import os
import subprocess
from pathlib import Path

from ftrun.config import option_table
from support.runs import FTCTL, Run, Runs, wait_for


def ctl(run: Run, *words: str, code: int = 0) -> str:
    """What it prints, on either stream."""
    done = subprocess.run([*FTCTL, *words, "--run-dir", str(run.run_dir)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


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
    living = ctl(run, "explain")
    shown = json.loads(ctl(run, "explain", "--json"))
    go.touch()
    assert run.wait() == 0
    assert ctl(run, "explain") == living
    check_sources(living)
    assert living.splitlines()[-1].startswith("command: sh -c")
    assert shown["options"]["max-restarts"] == {"value": "7", "source": "environment"}
    assert {option.name for option in option_table.OPTIONS} - set(shown["options"]) == {"dry-run"}
    kept = Path(run.run_dir, "state.json").read_text()
    assert all(word not in text for word in ("T0/secret", "hunter2") for text in (living, json.dumps(shown), kept))


def test_explain_of_a_run_without_options_says_so(runs: Runs) -> None:
    run = runs.run("true")
    assert run.wait() == 0
    state = Path(run.run_dir, "state.json")
    found = json.loads(state.read_text())
    del found["run"]["options"]
    state.write_text(json.dumps(found))
    assert "kept no options" in ctl(run, "explain", code=1)


def test_a_long_value_is_shortened_visibly(runs: Runs) -> None:
    run = runs.run("--on-exit", f"true {'x' * 2000} last", "true")
    assert run.wait() == 0
    value = json.loads(ctl(run, "explain", "--json"))["options"]["on-exit"]["value"]
    assert len(value) <= 1000
    assert value.startswith("true xxx")
    assert "..." in value
    assert value.endswith("xxx last")
