"""The metrics of a run: names, units, labels, and the number of series."""

import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families as parse

from ftrun.core.rules.standby import NextStart
from ftrun.helpers.metrics import catalogue
from ftrun.helpers.metrics.catalogue import readings
from ftrun.helpers.metrics.exporter import Readings
from ftrun.records.present.snapshot import DeviceNow, Limit, RankNow, Snapshot

NEW = Snapshot(run_dir="/run", alive=True, phase="launching", attempt=1, reason="first")
AWFUL = 'two\nlines "quoted" \\ back {slash}'
write_openmetrics: Callable[[Readings], bytes] = exposition.generate_latest
parse_openmetrics: Callable[[str], Iterator[Metric]] = parser.text_string_to_metric_families


def ranks(number: int) -> tuple[RankNow, ...]:
    return tuple(
        RankNow(n, 100 + n, "moving", step=50 + n, rule="step", age=1.0 + n, limit=30.0, step_time=0.5 + n)
        for n in range(number)
    )


def full(number: int = 8) -> Snapshot:
    """Every value is known."""
    some = ranks(number)
    some = (some[0]._replace(straggler="2s per step, the others 1s", work=0.4, device="7"), *some[1:])
    return NEW._replace(
        phase="running",
        version="0.1.0",
        round=2,
        recovered={"rank": 1},
        next_start=NextStart(3, 8, "an import started a thread", 2.5),
        part="train",
        attempt=3,
        wall=1000.5,
        counts={"hang": 2, "fault": 0, "failure": 0},
        left={"hang": 1, "fault": 3, "failure": None},
        restarts={"hang": 2, "manual": 1},
        step=50,
        step_time=0.25,
        checkpoint_step=40,
        checkpoint_age=12.0,
        ranks=some,
        slowest=some[0],
        stalest=some[-1],
        limits=(
            Limit("hang", 38.0, "option"),
            Limit("start", 3600.0, "default"),
            Limit("section", None, "default"),
            Limit("idle", 1800.0, "option, once the job uses an accelerator"),
        ),
        paused=4.0,
        devices=(DeviceNow("GPU-1", AWFUL, 75.0, 1 << 30, 80 << 30, 300.5, 2.0), DeviceNow("GPU-2")),
        lost={"hang": 90.0, "redone": 10.5},
        goodput=0.9,
        lost_members=1,
        began="2026-01-02T03:04:05.000Z",
        ended="2026-01-02T03:04:06.500Z",
        verdict="hang-limit",
        exit_code=195,
    )


def exposed(found: Snapshot) -> str:
    return generate_latest(Readings(readings(found), {})).decode()


def values(found: Snapshot) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(reading.name, reading.labels): reading.value for reading in readings(found)}


def test_every_metric_has_a_reading_and_every_reading_a_metric() -> None:
    assert {reading.name for reading in readings(full())} == {metric.name for metric in catalogue.METRICS}
    for reading in readings(full()):
        assert len(reading.labels) == len(catalogue.BY_NAME[reading.name].labels), reading


def test_the_values_have_the_units_of_prometheus() -> None:
    found = values(full())
    assert found["ftrun_restarts_total", ("hang",)] == 2
    assert found["ftrun_end_time_seconds", ("hang-limit", "195")] - found["ftrun_start_time_seconds", ()] == 1.5
    assert found["ftrun_restarts_total", ("fault",)] == 0, "a counter is there before it counts"
    assert found["ftrun_restarts_left", ("hang",)] == 1
    assert ("ftrun_restarts_left", ("failure",)) not in found, "no limit"
    assert found["ftrun_lost_seconds_total", ("redone",)] == 10.5
    assert found["ftrun_timeout_seconds", ("hang", "option")] == 38.0
    assert found["ftrun_timeout_seconds", ("idle", "option")] == 1800.0
    assert not any(name == "ftrun_timeout_seconds" and labels[0] == "section" for name, labels in found), "off"
    assert found["ftrun_device_utilization_ratio", ("GPU-1",)] == 0.75
    assert ("ftrun_device_power_watts", ("GPU-2",)) not in found
    assert found["ftrun_stalest_rank", ()] == 7
    assert found["ftrun_lowest_step", ()] == 50
    assert found["ftrun_highest_step", ()] == 57
    assert found["ftrun_slowest_step_seconds", ()] == 7.5
    assert found["ftrun_ranks", ("moving",)] == 8
    assert found["ftrun_verdict_info", ("hang-limit", "195")] == 1
    assert found["ftrun_paused", ()] == 1


def test_exactly_one_phase_is_on() -> None:
    for phase in (*catalogue.PHASES, "one that is not known here"):
        states = {name[1][0]: on for name, on in values(NEW._replace(phase=phase)).items() if name[0] == "ftrun_phase"}
        assert [name for name, on in states.items() if on] == [phase]
        assert set(states) >= set(catalogue.PHASES)


def test_an_unknown_value_has_no_reading() -> None:
    names = {reading.name for reading in readings(NEW)}
    assert {"ftrun_up", "ftrun_attempt", "ftrun_lost_seconds_total"} <= names
    assert not names & {"ftrun_step", "ftrun_goodput_ratio", "ftrun_checkpoint_step", "ftrun_verdict_info"}
    assert not any(name.startswith(("ftrun_rank_", "ftrun_device_", "ftrun_stalest_")) for name in names)
    assert "ftrun_step" not in {r.name for r in readings(NEW._replace(step_time=float("nan")))}


def test_a_process_without_a_rank_has_a_label_that_does_not_change_with_its_pid() -> None:
    def labels(pids: list[int]) -> dict[str, float]:
        some = tuple(one._replace(rank=-1 - pid, pid=pid) for one, pid in zip(ranks(len(pids)), pids, strict=True))
        return {r.labels[0]: r.value for r in readings(NEW._replace(ranks=some)) if r.name == "ftrun_rank_step"}

    assert labels([4711, 4712]) == labels([815, 816]) == {"none-0": 50.0, "none-1": 51.0}


def test_the_number_of_series_is_bounded() -> None:
    at_most = len(readings(full(catalogue.RANKS)))
    many = readings(full(1024))
    assert at_most <= 350 + 2 * 6
    assert len(many) <= 70 + 2 * 6
    assert not any(reading.name.startswith("ftrun_rank_") for reading in many)
    assert values(full(1024))["ftrun_highest_step", ()] == 1073
    crowd = NEW._replace(devices=tuple(DeviceNow(f"GPU-{n}", power=1.0) for n in range(500)))
    assert sum(r.name == "ftrun_device_power_watts" for r in readings(crowd)) == catalogue.DEVICES


def test_no_series_occurs_twice() -> None:
    twice = full()._replace(
        devices=(DeviceNow("GPU-1"), DeviceNow("GPU-1")),
        limits=(Limit("hang", 1.0, "option"), Limit("hang", 2.0, "default")),
    )
    keys = [(reading.name, reading.labels) for reading in readings(twice)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("found", [NEW, full(), full(1024)], ids=["new", "full", "many"])
def test_the_parsers_of_prometheus_understand_it(found: Snapshot) -> None:
    plain = [sample for family in parse(exposed(found)) for sample in family.samples]
    assert len(plain) == len(readings(found))
    names = {sample.name for sample in plain}
    assert names == {reading.name for reading in readings(found)}
    text = write_openmetrics(Readings(readings(found), {})).decode()
    families = list(parse_openmetrics(text))
    assert sum(len(family.samples) for family in families) == len(plain)
    for family in families:
        assert family.documentation
        kinds = {catalogue.BY_NAME[sample.name].kind for sample in family.samples}
        assert kinds == {family.type}, family.name


@pytest.mark.parametrize("found", [NEW, full()], ids=["new", "full"])
def test_promtool_accepts_the_metrics(found: Snapshot) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    done = subprocess.run([promtool, "check", "metrics"], input=exposed(found), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
