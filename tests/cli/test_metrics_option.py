"""`--metrics` and `--metrics-file`, as a user gives them."""

import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from ftrun.config import option_values, parsers
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


def test_a_command_at_the_end_keeps_the_server_for_a_scrape_that_sees_the_verdict(runs: Runs) -> None:
    """docs/metrics.md: with --metrics alone the alerts know a good end from a bad one by it."""
    wait = "until test -e seen; do sleep 0.02; done"
    run = runs.start("--metrics", "127.0.0.1:0", "--on-exit", wait, *python(WAITING))
    place = address(run)
    (runs.folder / "go").touch()
    found = wait_for(lambda: scrape(place)["ftrun_verdict_info"] and scrape(place), "the verdict")
    assert found["ftrun_verdict_info"] == {"0 succeeded": 1.0}
    (runs.folder / "seen").touch()
    assert run.wait() == 0


def address(run: Run, number: int = 1) -> str:
    return str(run.until("listening", number)["address"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--metrics", "9400"], "--metrics: '9400' is not HOST:PORT; write 127.0.0.1:9400"),
        (["--metrics", ""], "is not HOST:PORT"),
        (["--metrics", "localhost"], "is not HOST:PORT"),
        (["--metrics", "localhost:"], "is not HOST:PORT"),
        (["--metrics", "localhost:65536"], "is not HOST:PORT"),
        (["--metrics", "localhost:http"], "is not HOST:PORT"),
        (["--metrics", "localhost:-1"], "is not HOST:PORT"),
        (["--metrics", "::1:9400"], "is not HOST:PORT"),
        (["--metrics", "[localhost]:9400"], "is not HOST:PORT"),
        (["--metrics", "http://localhost:9400"], "is not HOST:PORT"),
        (["--metrics", "a b:9400"], "is not HOST:PORT"),
        (["--metrics", "localhost:9400\n"], "is not HOST:PORT"),
        (["--metrics", "localhost:٣"], "is not HOST:PORT"),
        (["--metrics", "1.2.3.4.5:80"], "is not HOST:PORT"),
        (["--metrics", "0x7f000001:80"], "is not HOST:PORT"),
        (
            ["--metrics-file", "train.txt"],
            "--metrics-file: 'train.txt' is not the name of a textfile; it has to end in .prom",
        ),
        (["--metrics-file", ".prom"], "it has to end in .prom"),
        (["--metrics-file", "folder/.prom"], "it has to end in .prom"),
        (["--metrics-file", ""], "it has to end in .prom"),
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


def test_scrape_of_a_run_and_its_last_file(runs: Runs) -> None:
    file = runs.folder / "train.prom"
    run = runs.start("--metrics", "127.0.0.1:0", "--metrics-file", str(file), *python(WAITING))
    found = scrape(address(run))
    assert found["ftrun_up"] == {"": 1}
    assert found["ftrun_phase"]["running"] == 1
    assert found["ftrun_step"] == {"": 2}
    assert found["ftrun_ranks"]["moving"] == 1
    assert found["ftrun_rank_step"] == {"0": 2}
    assert found["ftrun_restarts_left"] == {"hang": 3, "fault": 3, "failure": 0}
    assert found["ftrun_timeout_seconds"].keys() >= {"device-wait default", "spin default", "idle default"}
    assert address(run) in run.stderr
    wait_for(file.exists, "the file")
    helper = run.helper("metrics")
    (runs.folder / "go").touch()
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
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    again = runs.start(*options, *python(f"import os, time\n{WAITS_IN_A_SECTION}"))
    second = scrape(address(again, len(run.named("listening")) + 1))
    assert second["ftrun_restarts_total"]["hang"] >= 1
    assert second["ftrun_lost_seconds_total"]["hang"] >= 0.5
    (runs.folder / "go").touch()
    assert again.wait() == 0, again.log()


def test_address_in_use_and_missing_folder_are_problems(runs: Runs) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = f"127.0.0.1:{taken.getsockname()[1]}"
        run = runs.start("--metrics", wanted, "--metrics-file", "none/a.prom", *python(WAITING))
        wait_for(lambda: len(run.named("problem")) >= 2, "both problems")
        (runs.folder / "go").touch()
        assert run.wait() == 0, run.log()
    assert sorted(record["what"] for record in run.named("problem")) == [
        f"--metrics {wanted}: Address already in use; ftrun tries again",
        "--metrics-file none/a.prom: No such file or directory",
    ]


def test_killed_helper_is_restarted_and_a_stopped_one_delays_nothing(runs: Runs) -> None:
    run = runs.start("--metrics", "127.0.0.1:0", "--metrics-file", "a.prom", *python(WAITING))
    address(run)
    first = run.helper("metrics")
    os.kill(first, signal.SIGKILL)
    assert scrape(address(run, 2))["ftrun_up"] == {"": 1}
    second = run.helper("metrics")
    assert second not in (0, first)
    os.kill(second, signal.SIGSTOP)
    (runs.folder / "go").touch()
    assert run.wait() == 0, run.log()
    wait_for(lambda: not state_of(second), "the end of the helper")


def test_metrics_from_the_environment_and_off() -> None:
    environment = {"FTRUN_METRICS": "127.0.0.1:9400", "FTRUN_METRICS_FILE": "a.prom"}
    found = option_values.settings({"metrics": "off"}, environment)
    assert (found.metrics, found["metrics"].source) == (None, "option")
    assert (found.metrics_file, found["metrics-file"].source) == ("a.prom", "environment")
    assert option_values.settings({}, {}).metrics is None


def test_supervisor_does_not_load_prometheus(runs: Runs) -> None:
    run = runs.start("--metrics", "127.0.0.1:0", *python(WAITING))
    address(run)
    loaded = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (run.pid, run.helper("metrics"))}
    assert ["_ssl" in maps for maps in loaded.values()] == [False, True], "which prometheus-client loads"
    (runs.folder / "go").touch()
    assert run.wait() == 0, run.log()
