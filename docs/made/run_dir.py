"""The page of the run dir: its files, each with who writes it.  A test compares it with what a run leaves."""

from typing import Final, NamedTuple

from ftrun_hooks import layout


class File(NamedTuple):
    """`name` as a glob below the run dir."""

    name: str
    words: str


FILES: Final = (
    File("events.jsonl", "the [records](records.md), appended"),
    File("state.json", "the current state, replaced atomically: counts, progress, timeouts, accounting of the time"),
    File("run.log", "ftrun's own lines with their time, and unexpected output of helpers"),
    File("steps.jsonl", "samples of the steps while ranks step: `mono`, `attempt`, `low`, `high`, `ranks`"),
    File("paces.json", "while ranks step: `step_time` and `work` of each over the last minute, replaced atomically"),
    File("devices.json", "the accelerators as the probe last saw them, replaced atomically"),
    File("group.json", "in a group: the rows of all members as this one knows them, for `ftctl status --all`"),
    File("waits.json", "in a group: what the threads of this member wait for, while another member may end that"),
    File("group_waits.json", "the last answer of rank 0 to these: whether the group is deadlocked"),
    File("ftctl.sock", "the control channel, for the same user and root"),
    File("records.sock", "the stream of the records, while they are written"),
    File("output.log", "what the command printed, with `--log-dir`"),
    File("output-*.log", "the same for each local rank, with `--nproc-per-node`"),
    File("reports/attempt-*/report.md", "why ftrun found that the attempt hangs, for people"),
    File("reports/attempt-*/report.json", "the same for programs"),
    File("reports/attempt-*/waits-*.svg", "a picture of what waits for what; report.md names its own"),
    File("reports/attempt-*/stacks/*", "the complete stacks of each process"),
    File(
        "once",
        "what `ftrun_hooks.torch.once` has done; in each of several `[[phase]]` a link to one folder",
    ),
    File("once/*", "a marker for each"),
    File("state.json.corrupt-*", "a state file that could not be read, set aside"),
    File("mirror.json", "on a network disk: which ftrun copies there, and from where; `mirror.lock`: that it does"),
    File("*.unread-*", "files on a network disk that did not answer at the start, set aside"),
)
STATE: Final = (
    File("imports.json", "what the next container may import in advance"),
    File("history.json", "device faults by node, chip, code and time; the result of each schedule"),
    File("runs/*.json", "each ftrun of the job: its node, end and attempts, for `ftctl history`; the newest 512 files"),
    File("reports/*/attempt-*.md", "copies of the reports of each ftrun, its last 16, with at most 256 KiB each"),
    File("verdict.json", "why ftrun ended, with the node"),
    File("verdict-member-*.json", "the same of a member of a group that ended alone, while the others go on"),
    File("lease-*/", "who coordinates the group, where its members share this folder and their number may change"),
    File("phases.json", "which of several phases are done; `phases-N.json` for task N of several"),
)


def page() -> str:
    lines = ["# Files", "", "Generated from the code by `docs/reference.py`.", ""]
    lines += ["## Run dir", "", *WHERE, "", *_list(FILES), ""]
    lines += [
        "## State dir",
        "",
        "`--state-dir`, else `--log-dir`: files that outlive the container. A helper writes them.",
        "",
    ]
    lines += [*_list(STATE), "", "## Elsewhere", "", *ELSEWHERE]
    return "\n".join(lines) + "\n"


WHERE: Final = (
    "`--run-dir`; with `--log-dir DIR` the folder `DIR/<YYYYmmdd_HHMMSS>_restartable`; else a fresh one in the temp",
    "folder. One ftrun at a time works in it, and it is not removed. Each `[[phase]]` has a run dir of its own.",
    "",
    "With `--log-dir` each start of ftrun begins a new run dir, but for one: if ftrun was killed, for example with its",
    "container, the next ftrun in the same schedule of the same job continues the newest run there of this command,",
    "node and member, with its counts, unless that has an end. On a network disk it begins a new one also then, and",
    "`MA_PROC_START_CNT` is 1 again: there give `--run-dir`.",
    "",
    "A run dir on a network disk is a copy of a local one in the temp folder (`TMPDIR`), up to one second old, so that",
    "a dead disk stops nothing. The first line of ftrun and `FTRUN_RUN_DIR` name that folder; `ftctl` accepts either.",
    "",
    "A local disk that does not answer (a failing NVMe, `fsfreeze`) blocks ftrun, since records are written before it",
    "acts. Meanwhile the command runs on, but gets no signal, also no SIGTERM, and is not restarted. Where local disks",
    "stall, put `--run-dir` into memory, which also outlives a restart of the container in its pod: an `emptyDir` of",
    "`medium: Memory`, or another tmpfs. Name a disk as `--state-dir`, which a helper writes.",
)
ELSEWHERE: Final = (
    f"- `/dev/shm/ftrun-beats-…`: the beat folder, `FTRUN_BEAT_DIR`: {layout.FILE_BYTES // 1024} KiB in memory, for"
    f" {layout.SLOTS} ranks; removed at the end. That of a killed ftrun is removed by the next one of the same user,"
    " unless something still gives heartbeats in it",
    "- `/dev/termination-log`: the verdict as one line of JSON, at most 4,096 bytes, where it exists",
)


def _list(files: tuple[File, ...]) -> list[str]:
    return [f"- `{one.name}`: {one.words}" for one in files]
