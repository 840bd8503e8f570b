"""The page of the run dir: its files, each with who writes it.  A test compares it with what a run leaves."""

from typing import Final, NamedTuple

from ftrun_hooks import layout


class File(NamedTuple):
    """`name` as a glob below the run dir."""

    name: str
    words: str


FILES: Final = (
    File("events.jsonl", "the [records](records.md), appended"),
    File("state.json", "how the run stands, replaced in one instant: counts, where training is, limits, the account"),
    File("run.log", "ftrun's own lines with their time, and what helpers say that nobody expected"),
    File("steps.jsonl", "samples of the steps while ranks step: `mono`, `attempt`, `low`, `high`, `ranks`"),
    File("devices.json", "the accelerators as the probe last saw them, replaced in one instant"),
    File("ftctl.sock", "the control channel, for the same user and root"),
    File("records.sock", "the stream of the records, as they are written"),
    File("output.log", "what the command printed, with `--log-dir`"),
    File("reports/attempt-*/report.md", "why that attempt was taken for hung, for a person"),
    File("reports/attempt-*/report.json", "the same for machines"),
    File("reports/attempt-*/stacks/*", "stacks of each process, whole"),
    File("state.json.corrupt-*", "a state that could not be read, set aside"),
    File("mirror.json", "on a network disk: which ftrun copies there, and from where; `mirror.lock`: that it does"),
    File("*.unread-*", "on a network disk that did not answer at the start: what was there, set aside"),
)
STATE: Final = (
    File("history.json", "device faults by node, chip, code and time; what each schedule came to"),
    File("verdict.json", "why ftrun ended, with the node"),
    File("phases.json", "which of several phases are done; `phases-N.json` for task N of several"),
)


def page() -> str:
    lines = ["# Files", "", "Made from the code by `docs/reference.py`.", ""]
    lines += ["## Run dir", "", *WHERE, "", *_table(FILES), ""]
    lines += [
        "A reader finds `state.json` whole or not at all, and `events.jsonl` with a last line that may be half.",
        "",
    ]
    lines += [
        "## State dir",
        "",
        "`--state-dir`, else `--log-dir`: what outlives the container. A helper writes it.",
        "",
    ]
    lines += [*_table(STATE), "", "## Elsewhere", "", "| where | what |", "| --- | --- |", *ELSEWHERE]
    return "\n".join(lines) + "\n"


WHERE: Final = (
    "`--run-dir`; with `--log-dir DIR` the folder `DIR/<YYYYmmdd_HHMMSS>_restartable`; else a fresh one,",
    "`ftrun-UID-PID-…`, in the temp folder. Mode 0700. One ftrun at a time works in it. It is not removed: what is in",
    "it is kilobytes. Several `[[phase]]` tables: each has one of its own, and `phases.json` beside them says which.",
    "",
    "On a network disk it is a copy, a second late, of a local folder, which ftrun names in its first line and",
    "`FTRUN_RUN_DIR` for the command: a disk that is dead stops nothing. `ftctl` takes either. What the command puts",
    "there itself is copied too, up to 64 MiB a file, and is not brought back.",
)
ELSEWHERE: Final = (
    f"| `/dev/shm/ftrun-beats-…` | the beat folder, `FTRUN_BEAT_DIR`: {layout.FILE_BYTES // 1024} KiB in memory, for"
    f" {layout.SLOTS} ranks; removed at the end. That of a killed ftrun is removed by the next ftrun of the same user"
    " there, in whichever container, unless a process that the killed one left still gives heartbeats in it |",
    "| `/dev/termination-log` | the verdict as one line of JSON, at most 4,096 bytes, where it exists |",
)


def _table(files: tuple[File, ...]) -> list[str]:
    return ["| file | what |", "| --- | --- |", *(f"| `{one.name}` | {one.words} |" for one in files)]
