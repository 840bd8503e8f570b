"""`--metrics` and `--metrics-file`, as a user gives them."""

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from ftrun.config import parsers
from support.refusals import refusal
from support.runs import Run, Runs, python, state_of, wait_for

WAITS = "ft.beat(1)\nft.beat(2)\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
# The same where silence is no hang, however short the timeout is.
WAITS_IN_A_SECTION = (
    "ft.beat(1)\nwith ft.section('wait', timeout='1h'):\n    while not os.path.exists('go'): time.sleep(0.02)\n"
)
WAITING = f"import os, time\n{WAITS}"
Samples = dict[str, dict[str, float]]


def samples(text: str, *left_out: str) -> Samples:
    """By name, then by the values of the labels."""
    found: Samples = {}
    for sample in (sample for family in parse(text) for sample in family.samples):
        labels = " ".join(value for name, value in sorted(sample.labels.items()) if name not in left_out)
        found.setdefault(sample.name, {})[labels] = sample.value
    return found


def scrape(address: str) -> Samples:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return samples(answer.read().decode())


def address(run: Run, number: int = 1) -> str:
    return str(run.until("listening", number)["address"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--metrics", "9400"], "--metrics: '9400' is not HOST:PORT; write 127.0.0.1:9400"),
        (["--metrics", "localhost:"], "is not HOST:PORT"),
        (["--metrics", "localhost:http"], "is not HOST:PORT"),
        (["--metrics", "::1:9400"], "is not HOST:PORT"),
        (["--metrics", "http://localhost:9400"], "is not HOST:PORT"),
        (
            ["--metrics-file", "train.txt"],
            "--metrics-file: 'train.txt' is not the name of a textfile; it has to end in .prom",
        ),
        (["--metrics-file", ".prom"], "it has to end in .prom"),
        (["--metrics-fil", "a.prom"], "--metrics-file"),
    ],
)
def test_bad_value_is_one_line(tmp_path: Path, options: list[str], says: str) -> None:
    assert says in refusal(tmp_path, *options, "true")
    assert not list(tmp_path.iterdir())


HOSTS = ("", "127.0.0.1", "localhost", "node-1", "a_b.example.", "1a", "7.example", "0xfg", "x" * 63)
ADDRESSES = ("[::1]", "[fe80::1%eth0]", "[::ffff:1.2.3.4]")
NUMBERS = ("1.2.3.4.5", "1.2.3", "127.1", "2130706433", "256.1.1.1", "1.2.3.4.", "01.2.3.4", "1..2", "0x7f000001", "0X")
NO_NAMES = ("a.0x1", "a.1", "a..b", ".a", "...", "x" * 64, "ä", "a\n")
NO_ADDRESSES = ("[:::]", "[1:2]", "[1.2.3.4]", "[::1", "[]", "[::1%]", "::1")


@pytest.mark.parametrize("host", [*HOSTS, *ADDRESSES])
def test_host_is_a_name_or_an_address(host: str) -> None:
    assert parsers.address(f"{host}:80") == f"{host}:80"


@pytest.mark.parametrize("host", [*NUMBERS, *NO_NAMES, *NO_ADDRESSES])
def test_invalid_address_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parsers.address(f"{host}:80")


def test_scrape_of_a_run_its_verdict_and_its_last_file(runs: Runs) -> None:
    """docs/metrics.md: a command at the end keeps the server for a scrape that sees the verdict."""
    file, wait = runs.folder / "train.prom", "until test -e seen; do sleep 0.02; done"
    options = ("--metrics", "127.0.0.1:0", "--metrics-file", str(file), "--on-exit", wait)
    run = runs.start(*options, *python(WAITING))
    place = address(run)
    found = wait_for(lambda: (now := scrape(place))["ftrun_step"] == {"": 2} and now, "the second step")
    assert found["ftrun_up"] == {"": 1}
    assert found["ftrun_phase"]["running"] == 1
    assert found["ftrun_ranks"]["moving"] == 1
    assert found["ftrun_rank_step"] == {"0": 2}
    assert found["ftrun_restarts_left"] == {"hang": 3, "fault": 3, "failure": 0}
    assert found["ftrun_timeout_seconds"].keys() >= {"device-wait default", "spin default", "idle default"}
    assert place in run.stderr
    helper = run.helper("metrics")
    (runs.folder / "go").touch()
    at_the_end = wait_for(lambda: scrape(place)["ftrun_verdict_info"], "the verdict")
    assert at_the_end == {"0 succeeded": 1.0}
    (runs.folder / "seen").touch()
    assert run.wait() == 0, run.log()
    wait_for(lambda: not state_of(helper), "the end of the helper")
    left = samples(file.read_text(), "run")
    assert left["ftrun_verdict_info"] == {"0 succeeded": 1}
    assert left["ftrun_up"] == {"": 0}
    assert left["ftrun_phase"]["done"] == 1


def test_counters_continue_over_restarts_and_a_killed_ftrun(runs: Runs) -> None:
    code = f"import os, time\nif ft.attempt().start_cnt == 1: ft.beat(1); time.sleep(3600)\n{WAITS_IN_A_SECTION}"
    options = ("--metrics", "127.0.0.1:0", "--hang-timeout", "500ms", "--grace", "off")
    run = runs.start(*options, *python(code))
    run.until("first_beat", 2)
    first = scrape(address(run))
    assert first["ftrun_restarts_total"]["hang"] == 1
    assert first["ftrun_lost_seconds_total"]["hang"] >= 0.5
    assert first["ftrun_wall_seconds_total"][""] >= sum(first["ftrun_lost_seconds_total"].values())
    run.kill_ftrun()
    again = runs.start(*options, *python(f"import os, time\n{WAITS_IN_A_SECTION}"))
    second = scrape(address(again, len(run.named("listening")) + 1))
    assert second["ftrun_restarts_total"]["hang"] >= 1
    assert second["ftrun_lost_seconds_total"]["hang"] >= 0.5
    (runs.folder / "go").touch()
    assert again.wait() == 0, again.log()
