"""Bad input: one clear line, the right code, nothing started; and where an option's value comes from."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftrun.cli.run import _with_click, run, split
from ftrun.config import derived, option_table, option_values
from ftrun.config.parsers import duration
from ftrun.pid1 import loop
from support.refusals import refusal
from support.runs import FTRUN, Runs, need_mounts

COMMAND = ("touch", "started")


def refused(folder: Path, *words: str, prefix: Sequence[str] = (), environment: Mapping[str, str] = {}) -> str:
    """The one line of a process that refuses, having started and written nothing."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FTRUN_", "MA_"))}
    done = subprocess.run(
        [*prefix, *FTRUN, *words], cwd=folder, env=kept | dict(environment), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("ftrun: ")
    assert not (folder / "started").exists()
    return line.removeprefix("ftrun: ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--hang-timout", "1s"], "--hang-timeout"),
        (["--frobnicate"], "--frobnicate"),
        (["-x"], "-x"),
        (["--hang-timeout"], "--hang-timeout"),
        (["--quiet=1"], "--quiet"),
        (["--hang-timeout", "0"], "--hang-timeout: '0' is not a duration; write 500ms, 90s, 10m, 1h or 1d, or off"),
        (["--hang-timeout", "-1"], "--hang-timeout: '-1' is not a duration"),
        (["--hang-timeout", "0s"], "'0s' is out of range; write a duration above zero and below 3660d, or off"),
        (["--hang-timeout", "999999d"], "out of range"),
        (["--start-timeout", "soon"], "--start-timeout: 'soon' is not a duration"),
        (["--grace", "auto"], "--grace: 'auto' is not a duration"),
        (["--group-size", "3:2"], "'3:2' is not MIN:MAX, because 3 is greater than 2; write 2:3, or off"),
        (["--max-restarts", "-1"], "--max-restarts: '-1' is not a whole number"),
        (["--max-restarts", "9" * 5000], "is too large"),
        (["--restart-on", "hangs"], "did you mean 'hang'?"),
        (["--restart-on", "none,hang"], "--restart-on: none cannot be combined with others"),
        (["--local-ranks-filter", "0"], "--local-ranks-filter needs --nproc-per-node"),
        (["--log-format", "jsn"], "did you mean 'json'?"),
        (["--idle-io", "16K"], "--idle-io: '16K' is not a number"),
        (["--idle-cpu", "-1"], "is not a number"),
        (["--probe", "nvidea"], "did you mean 'nvidia'?"),
        (["--progress", ""], "--progress: the value is empty"),
        (["--no-grace"], "--no-grace"),
        (["--auto-beat=on"], "--auto-beat"),
        (["--run-dir", ""], "--run-dir: the value is empty"),
        (
            ["--log-dir", "a", "--run-dir", "b"],
            "--run-dir and --log-dir cannot be used together: both come from the command line",
        ),
        (["-q", "-v"], "--quiet and --verbose cannot be used together: both come from the command line"),
        (["--config", "missing.toml"], "missing.toml: No such file or directory"),
        (["--config", "."], "--config .: Is a directory"),
    ],
)
def test_bad_option_is_one_line(tmp_path: Path, options: list[str], says: str) -> None:
    assert says in refusal(tmp_path, *options, *COMMAND)
    assert not list(tmp_path.iterdir())


def test_a_variable_that_is_too_large_is_one_line(tmp_path: Path) -> None:
    line = refusal(tmp_path, *COMMAND, environment={"MA_HANG_DETECT_TIME": "99999999999"})
    assert line == "MA_HANG_DETECT_TIME: '99999999999' is too large"


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["--dry-run", "true"]])
def test_a_full_standard_output_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*FTRUN, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "ftrun: stdout: No space left on device\n")


def test_a_full_standard_error_does_not_change_the_exit_code() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*FTRUN, "--no-such-option", "true"], stdout=subprocess.PIPE, stderr=full, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_closed_standard_error_leaves_standard_output_alone() -> None:
    words = ["sh", "-c", 'exec 2>&-; exec "$@"', "sh", *FTRUN, "--no-such-option", "true"]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")


def test_an_unexpected_error_before_the_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(derived, "idle_timeout", mock.Mock(side_effect=KeyError("planted")))
    assert run(COMMAND) == 125
    assert capsys.readouterr().err == "ftrun: KeyError('planted')\n"


def test_a_lack_of_memory_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setattr(loop, "prepare", mock.Mock(side_effect=MemoryError))
    monkeypatch.setattr(loop, "print_error", printed.append)
    assert loop.supervise(COMMAND, option_values.settings({}, {}), mock.Mock()) == 125
    assert printed == ["MemoryError"]


@pytest.mark.parametrize("words", [[], ["--hang-timeout", "1s", "--"]])
def test_command_has_to_be_given(tmp_path: Path, words: list[str]) -> None:
    assert "no command given" in refusal(tmp_path, *words)


def test_process_that_refuses_starts_and_writes_nothing(tmp_path: Path) -> None:
    assert "'--hang-timeout'" in refused(tmp_path, "--hang-timout", "1s", *COMMAND)
    assert "FTRUN_RESTART_ON: " in refused(tmp_path, *COMMAND, environment={"FTRUN_RESTART_ON": "never"})
    assert not list(tmp_path.iterdir())
    why = "run dir /dev/null/x: Not a directory"
    assert why in refused(tmp_path, *COMMAND, environment={"FTRUN_RUN_DIR": "/dev/null/x"})


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("FTRUN_HANG_TIMOUT", "1s", "FTRUN_HANG_TIMOUT: no such option (did you mean 'FTRUN_HANG_TIMEOUT'?)"),
        ("FTRUN_HANG_TIMEOUT", "5", "FTRUN_HANG_TIMEOUT: '5' is not a duration"),
        ("FTRUN_QUIET", "maybe", "FTRUN_QUIET: 'maybe' is neither on nor off"),
    ],
)
def test_bad_variable_is_one_line(tmp_path: Path, variable: str, text: str, says: str) -> None:
    assert says in refusal(tmp_path, *COMMAND, environment={variable: text})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hang-timeout", "Expected"),
        (b"\xff\xfe", "decode"),
        (b"hang-timeot = '1s'", "unknown key 'hang-timeot' (did you mean 'hang-timeout'?)"),
        (b"config = 'x'", "the key 'config' has no meaning"),
        (b"hang-timeout = 5", "hang-timeout: '5' is not a duration"),
        (b"hang-timeout = true", "'True' is not a duration"),
        (b"restart-on = ['hang', 'falt']", "did you mean 'fault'?"),
        (b"max-restarts = inf", "is not a whole number"),
        (b"on-exit = {a = 1}", "'on-exit' is neither a text nor a number nor true or false"),
        (b"on-exit = [[1]]", "'on-exit' is neither"),
        (b"hang-timeout = 2026-11-30", "'hang-timeout' is neither"),
        (b"run-dir = ['a', 'b']", "'run-dir' takes no list"),
        (b"hang-timeout = '1s'\nhang-timeout = '2s'", "overwrite"),
        (b"x = " + b"[" * 50_000, ""),
    ],
    ids=range(14),
)
def test_bad_config_file_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "ftrun.toml").write_bytes(content)
    line = refusal(tmp_path, "--config", "ftrun.toml", *COMMAND)
    assert says in line
    assert "ftrun.toml" in line
    assert len(line) < 500


@pytest.mark.parametrize(
    "line",
    ["annotations = 'x'", "run-dir = 'x'", "[[phase]]\nname = 'a'\ncommand = ['x']"],
    ids=["file", "path", "word"],
)
def test_a_config_file_with_a_nul_character_is_one_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "ftrun.toml").write_text(line.replace("'x'", '"a\\u0000b"'))
    assert "has a NUL character" in refusal(tmp_path, "--config", "ftrun.toml", *COMMAND)


@pytest.mark.parametrize("option", ["config", "fault-table"])
@pytest.mark.parametrize("kind", ["pipe", "endless", "large"])
def test_a_file_that_is_not_read_to_its_end_is_one_line(tmp_path: Path, option: str, kind: str) -> None:
    """A pipe has its content only once, and a file is read again for each phase and by helpers."""
    file = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        file.write_text("# a comment\n" * 100_000 + "max-restarts = 1\n")
    says = "larger than 1 MiB" if kind == "large" else "not a regular file"
    assert refusal(tmp_path, f"--{option}", str(file), *COMMAND) == f"--{option} {file}: {says}"


def test_unusable_run_dir_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path, why in (("file", "File exists"), ("file/x", "Not a directory"), ("/proc/x", "No such file")):
        assert why in refused(tmp_path, "--run-dir", path, *COMMAND)
    assert "File exists" in refused(tmp_path, "--log-dir", "file", *COMMAND)
    assert (tmp_path / "file").read_text() == "kept"
    for name in ("events.jsonl", "run.log"):
        folder = tmp_path / f"with-{name}"
        (folder / name).mkdir(parents=True)
        assert "Is a directory" in refused(tmp_path, "--run-dir", str(folder), *COMMAND)


def test_read_only_run_dir_is_one_line(runs: Runs) -> None:
    need_mounts()
    prefix = tuple(runs.mounted(f"mkdir -p {runs.folder}/ro; mount -t tmpfs -o ro tmpfs {runs.folder}/ro"))
    assert "Read-only file system" in refused(runs.folder, "--run-dir", "ro", *COMMAND, prefix=prefix)
    assert "Read-only file system" in refused(runs.folder, "--run-dir", "ro/x", *COMMAND, prefix=prefix)


def test_full_run_dir_does_not_stop_the_job(runs: Runs) -> None:
    """Small files still fit into a folder without space for their content: the job runs, one line says what is lost."""
    need_mounts()
    full = runs.folder / "full"
    script = f"mkdir {full}; mount -t tmpfs -o size=4k tmpfs {full}; head -c 4096 /dev/zero > {full}/zeros"
    run = runs.ends(3, "sh", "-c", "echo ran; exit 3", prefix=runs.mounted(script), run_dir=full / "run")
    assert run.stdout == "ran\n"
    assert run.stderr.count("\n") == 1
    assert "No space left on device" in run.stderr


@pytest.mark.parametrize(
    ("limit", "filler"),
    [("nr_inodes=1", ""), ("nr_inodes=2", ""), ("nr_inodes=3", ""), ("size=4k", "head -c 4096 /dev/zero > full/zeros")],
    ids=["no folder", "no file", "one file", "empty files"],
)
def test_a_full_temp_folder_does_not_stop_the_job(runs: Runs, limit: str, filler: str) -> None:
    """Nobody chose it for the records: they go to another one."""
    need_mounts()
    full = runs.folder / "full"
    prefix = runs.mounted(f"mkdir {full}; mount -t tmpfs -o {limit} tmpfs {full}; {filler}")
    words = [*prefix, *FTRUN, "sh", "-c", "echo $FTRUN_RUN_DIR; rm -f $TMPDIR/zeros; ls -A $TMPDIR; exit 3"]
    environment = runs.environment | {"TMPDIR": str(full)}
    done = subprocess.run(words, cwd=runs.folder, env=environment, capture_output=True, text=True, timeout=60)
    (run_dir,) = done.stdout.splitlines()
    assert done.returncode == 3
    assert re.search(rf"run dir {full}/.+: No space left on device; ftrun works in {run_dir}\n", done.stderr)
    shutil.rmtree(run_dir)


BROKEN = {
    "full": ("cat /dev/zero > $FTRUN_RUN_DIR/filler", "No space left on device"),
    "removed": ("rm -rf $FTRUN_RUN_DIR/..?* $FTRUN_RUN_DIR/*; umount -l $FTRUN_RUN_DIR", "No such file"),
    "emptied": ("rm -rf $FTRUN_RUN_DIR/*", ""),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_run_dir_that_becomes_unusable_does_not_stop_the_job(runs: Runs, kind: str) -> None:
    need_mounts()
    breaking, why = BROKEN[kind]
    code = f"{{ {breaking}; }} 2>/dev/null; echo start $MA_PROC_START_CNT; exit 5"
    options = ("--restart-on", "failure", "--backoff", "1ms", "--max-restarts", "1")
    run = runs.run(*options, "sh", "-c", code, prefix=runs.mounted("mkdir run; mount -t tmpfs -o size=64k tmpfs run"))
    assert run.wait() == 93, "the second failure is one too many"
    assert run.stdout.splitlines() == ["start 1", "start 2"], run.log()
    assert "Traceback" not in run.stderr
    assert runs.verdict["exit_code"] == 93
    assert run.stderr.count("cannot be written") <= 1
    if kind == "full":
        assert why in run.stderr


# --- one table, three sources -----------------------------------------------------------------------------------------

NAMES = [option.name for option in option_table.OPTIONS]
WORDS = st.one_of(
    st.sampled_from(["--", "-", "-q", "-v", "-qv", "-vq", "--help=", "train.py", "", "-x", "--no-such", "1s", "a=b"]),
    st.sampled_from(NAMES).map(lambda name: f"--{name}"),
    st.sampled_from(NAMES).map(lambda name: f"--{name}=1s"),
    st.sampled_from(NAMES).map(lambda name: f"--{name[:-1]}"),
    st.sampled_from(NAMES).map(lambda name: f"--{name}="),
    st.sampled_from(NAMES).map(lambda name: f"--no-{name}"),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(WORDS, max_size=6))
@example(["--run-dir", "--", "x"])
@example(["--run-dir", "-q", "x"])
@example(["-", "x"])
def test_plain_parser_and_click_agree(words: list[str]) -> None:
    plain = split(words)
    if plain is not None:
        assert plain == _with_click(words)


def values(given: dict[str, str], environment: dict[str, str]) -> tuple[object, str]:
    found = option_values.settings(given, environment)
    return found.hang_timeout, found["hang-timeout"].source


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "ftrun.toml"
    file.write_text("hang-timeout = '3s'\nmax_restarts = 7\nrestart-on = ['hang', 'failure']\nquiet = true\n")
    option, variable = {"hang-timeout": "1s"}, {"FTRUN_HANG_TIMEOUT": "2s"}
    by_option, by_variable = {"config": str(file)}, {"FTRUN_CONFIG": str(file)}
    assert values(option | by_option, variable) == (1.0, "option")
    assert values(by_option, variable) == (2.0, "environment")
    assert values({}, variable | by_variable) == (2.0, "environment")
    assert values(by_option, {}) == (3.0, "config file")
    assert values({}, by_variable) == (3.0, "config file")
    assert values(by_option, {"FTRUN_HANG_TIMEOUT": ""}) == (3.0, "config file")
    assert values({}, {}) == ("auto", "default")
    (tmp_path / "annotations").write_text('fault-tolerance/job-retry-num="3"')
    platform = by_option | {"annotations": str(tmp_path / "annotations")}

    def restart_on(given: dict[str, str], environment: dict[str, str]) -> tuple[object, str]:
        found = option_values.settings(given, environment)
        return found.restart_on, found["restart-on"].source

    assert restart_on(platform, {}) == ({"fault"}, "annotations"), "before the file"
    assert restart_on(platform, {"FTRUN_RESTART_ON": "none"}) == (set(), "environment")
    assert restart_on(platform | {"restart-on": "hang"}, {"FTRUN_RESTART_ON": "none"}) == ({"hang"}, "option")
    found = option_values.settings(by_option, {})
    assert found.max_restarts == 7
    assert found.restart_on == {"hang", "failure"}
    assert found.quiet is True


@pytest.mark.parametrize("pair", [*option_table.EXCLUSIVE, *(pair[::-1] for pair in option_table.EXCLUSIVE)])
def test_of_two_options_that_exclude_each_other_the_higher_source_is_used(
    tmp_path: Path, pair: tuple[str, str]
) -> None:
    file = tmp_path / "ftrun.toml"
    kept, dropped = pair
    text = "on" if option_table.BY_NAME[kept].flag else "x"
    by_option, by_variable = {kept: text}, {option_table.BY_NAME[kept].variable: text}
    lower = {option_table.BY_NAME[dropped].variable: text}
    file.write_text(f"{dropped} = '{text}'\n")
    config = {"config": str(file)}
    for source, options, environment, below in (
        ("option", by_option, lower, "environment"),
        ("option", by_option | config, {}, "config file"),
        ("environment", config, by_variable, "config file"),
    ):
        found = option_values.settings(options, environment)
        attributes = [name.replace("-", "_") for name in pair]
        assert [bool(getattr(found, name)) for name in attributes] == [True, False]
        assert (found[kept].source, found[dropped].source) == (source, below)
        meanings = derived.meanings(found, derived.policy(found), None, None)
        assert meanings[dropped] == f"not used: --{kept} ({source}) excludes it"
        assert kept not in meanings
    file.write_text(f"{kept} = '{text}'\n{dropped} = '{text}'\n")
    for options, environment, place in (({}, by_variable | lower, "environment"), (config, {}, "config file")):
        with pytest.raises(option_table.ConfigError, match=f"together: both come from the {place}$"):
            option_values.settings(options, environment)
    assert option_values.settings(by_option | config, {})[dropped].instead == kept, (
        "both in the file, one of them again"
    )


@given(st.text(max_size=12) | st.from_regex(r"-?[0-9.]{0,6}(ms|s|m|h|d)?", fullmatch=True))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 < duration(text) < 3660 * 86400


def test_idle_timeout_defaults_to_the_variable_of_modelarts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def limits(minutes: str, **given: str) -> tuple[float | None, bool]:
        monkeypatch.setenv("MA_HANG_DETECT_TIME", minutes)
        found = derived.policy(option_values.settings({k.replace("_", "-"): v for k, v in given.items()}, {})).limits
        return found.idle, found.idle_given

    assert limits("") == (1800.0, False)
    assert limits("5") == (300.0, False)
    assert limits("0") == (None, False)
    assert limits("5", idle_timeout="2m") == (120.0, True)
    assert limits("5", idle_timeout="off") == (None, False)
    monkeypatch.setenv("MA_HANG_DETECT_TIME", "half an hour")
    assert run(["true"]) == 2
    assert capsys.readouterr().err == ("ftrun: MA_HANG_DETECT_TIME: 'half an hour' is not a whole number such as 3\n")


def test_a_file_for_the_verdict_that_cannot_be_written_is_one_line(runs: Runs) -> None:
    run = runs.ends(0, "--termination-log", str(runs.folder), "true")
    said = f"--termination-log {runs.folder} cannot be written (Is a directory)"
    assert run.stderr.count(said) == 1


@pytest.mark.parametrize("path", ["/proc/ftrun", "a file"])
def test_a_state_dir_that_cannot_be_written_is_one_line(runs: Runs, path: str) -> None:
    (runs.folder / "a file").touch()
    path = str(runs.folder / path)
    run = runs.ends(0, "--state-dir", path, "true")
    (line,) = (line for line in run.stderr.splitlines() if path in line)
    assert "does not outlive this pod; the command is not affected" in line


def test_an_ftrun_inside_a_quiet_one_is_quiet_as_well(runs: Runs) -> None:
    """And is not refused for the variable that the outer one has not used."""
    run = runs.run("-q", *FTRUN, "true", FTRUN_VERBOSE="on")
    assert (run.wait(), run.stderr) == (0, "")
