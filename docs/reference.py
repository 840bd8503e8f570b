"""Makes reference.md from the code: `python docs/reference.py`.  A test compares the two."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "supervisor"), str(ROOT / "hooks")]

from ftrun import config  # noqa: E402
from ftrun.core import exitcode  # noqa: E402

SEEN = (
    ("MA_PROC_START_CNT", "1, then one more at each start in this pod"),
    (
        "MA_SCHEDULE_CNT",
        "how often this pod was scheduled: passed on, else the outer scheduler's count of restarts + 1, else 1",
    ),
    ("FTRUN_RUN_DIR", "the run dir"),
    ("FTRUN_BEAT_DIR", "the beat folder; touching `touch` in it is a beat"),
    ("FTRUN_RESTART_REASON", "first, hang, fault, failure, manual or peer"),
    ("FTRUN_LAST_STEP", "the highest step that the earlier attempt reported; absent if none"),
    ("FTRUN_LAST_CHECKPOINT", "path of the newest checkpoint reported; absent if none"),
    ("FTRUN_LAST_SECTION", "the outermost section that the earlier attempt ended or broke in; absent if none"),
)


def page() -> str:
    """The whole page as MyST Markdown."""
    lines = ["# Reference", "", "Made from the code by `docs/reference.py`.", "", "## Options", ""]
    lines += ["| option | variable | default | meaning |", "| --- | --- | --- | --- |"]
    for option in config.OPTIONS:
        short = f"`-{option.short}`, " if option.short else ""
        metavar = f" {option.metavar}".replace("|", "\\|") if option.metavar else ""
        default = "" if option.flag and not option.no else option.default
        name = f"--{option.name}`, `--no-{option.name}" if option.no else f"--{option.name}{metavar}"
        repeated = "; repeatable, in the variable one a line" if option.many else ""
        lines.append(f"| {short}`{name}` | `{option.variable}` | {default} | {option.meaning}{repeated} |")
    lines += ["", "Option > environment > annotations > phase > config file > default.  `off` disables.", ""]
    lines += ["Durations: `500ms 90s 10m 1h 1d`.", ""]
    lines += ["## What the command sees", "", "| variable | meaning |", "| --- | --- |"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in SEEN]
    lines += ["", f"## Exit codes (contract version {exitcode.CONTRACT_VERSION})", ""]
    lines += ["| code | verdict | meaning | the outer scheduler should |", "| --- | --- | --- | --- |"]
    lines.append("| the command's own, or 128+signal | | it ended by itself | do as without ftrun |")
    lines += [f"| {v.code} | `{v.name}` | {v.meaning} | {v.outer} |" for v in exitcode.TABLE]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("reference.md").write_text(page(), encoding="utf-8")
