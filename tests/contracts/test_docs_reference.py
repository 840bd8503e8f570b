"""The reference says what the code does: options, variables, records, files, verbs and phases."""

import re
import sys
from pathlib import Path

import pytest

from ftrun.config import option_table
from support.runs import FTHANG, HOUSE, Runs

sys.path.insert(0, str(HOUSE / "docs"))

import reference  # type: ignore[import-not-found]
from made import records, run_dir, states  # type: ignore[import-not-found]
from made.played import played  # type: ignore[import-not-found]

OURS = [*(HOUSE / "supervisor").rglob("*.py"), *(HOUSE / "hooks").rglob("*.py")]
# Words in capitals that are no variables of an environment, and variables that are nobody's business.
NO_VARIABLES = """
    CLOSE_WAIT FIN_WAIT1 FIN_WAIT2 LAST_ACK SYN_RECV SYN_SENT TIME_WAIT FASTEST_FIRST PCI_BUS_ID SC_CLK_TCK SC_OPEN_MAX
    FTRUN_RECORD SYSLOG_IDENTIFIER
    BEAT_DIR EPOCH FAULT_CODE FAULT_DEVICE FAULT_INDEX FAULT_SEVERITY LAST_CHECKPOINT LAST_SECTION LAST_STEP
    RESTART_REASON
    FTHANG_PEER FTRUN_PARKED FTRUN_PARKED_ROOM FTRUN_ROUND GLOO_SOCKET_IFNAME LC_ALL LC_CTYPE XDG_RUNTIME_DIR
"""


@pytest.mark.parametrize("place", sorted(reference.PAGES))
def test_generated_page_is_up_to_date(place: str) -> None:
    written = (HOUSE / "docs" / place).read_text(encoding="utf-8")
    assert written == reference.PAGES[place](), "run: python docs/reference.py"


def test_drawing_has_the_transitions_of_the_code() -> None:
    drawn = states.drawn(states.DRAWING.read_text(encoding="utf-8"))
    assert drawn == states.moving(), "run: python docs/reference.py (with graphviz)"
    assert {edge.phase for edge in drawn} | {edge.to for edge in drawn} == {phase.__name__ for phase in states.PHASES}


def test_each_written_record_is_documented() -> None:
    written = set(records.named()) | set(played().records)
    assert written == set(records.MEANING)


def test_each_written_field_is_documented() -> None:
    """But for what a scenario makes up: evidence is whatever a helper says."""
    made_up = {("hang", "state"), ("hang", "wchan")}
    seen = {(name, field) for name, fields in played().records.items() for field in fields}
    seen |= {(name, field) for name, fields in records.named().items() for field in fields}
    documented = {(name, field) for name, (_, fields) in records.MEANING.items() for field in fields}
    assert seen - documented - made_up == set()


def test_each_documented_field_is_written() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in OURS)
    fields = {field for _, fields in records.MEANING.values() for field in fields}
    assert {field for field in fields if not re.search(rf'"{field}"|^    {field}: ', code, re.M)} == set()


def test_each_variable_in_the_code_is_documented() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in OURS)
    page = (HOUSE / "docs" / "reference.md").read_text(encoding="utf-8")
    names = set(re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', code)) - set(NO_VARIABLES.split())
    assert names
    options = {option.variable for option in option_table.OPTIONS}  # by the rule that the page states
    assert {name for name in names - options if f"`{name}`" not in page} == set()


def test_run_leaves_the_documented_files_and_records(runs: Runs) -> None:
    run = runs.ends(0, "--hang-timeout", "1s", *FTHANG, "sleep", "--steps", "12", "--after", "8")
    left = [path for path in run.run_dir.rglob("*") if not path.is_dir() and "checkpoints" not in path.parts]
    names = [file.name for file in run_dir.FILES]
    assert [str(path) for path in left if not any(_fits(path, run.run_dir, name) for name in names)] == []
    always = ("events.jsonl", "state.json", "run.log", "reports/attempt-*/report.md", "reports/attempt-*/report.json")
    assert [name for name in always if not any(_fits(path, run.run_dir, name) for path in left)] == []
    common = {"schema", "time", "mono", "event", "attempt"}
    strange = [
        (record["event"], field)
        for record in run.records
        for field in record.keys() - common - records.MEANING[record["event"]][1].keys()
    ]
    assert strange == []


def test_run_dir_of_a_later_phase_has_the_documented_files_alone(runs: Runs) -> None:
    phases = "".join(f'[[phase]]\nname = "{name}"\ncommand = ["true"]\n' for name in ("fetch", "train"))
    (runs.folder / "config.toml").write_text(phases)
    run = runs.ends(0, "--config", str(runs.folder / "config.toml"))
    folders = sorted(run.run_dir.glob("*_restartable*"))
    left = [(path, folder) for folder in folders for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    names = [file.name for file in run_dir.FILES]
    assert (folders[1] / "once").is_symlink()
    assert [str(path) for path, folder in left if not any(_fits(path, folder, name) for name in names)] == []


def _fits(path: Path, folder: Path, name: str) -> bool:
    return path.relative_to(folder).match(name)
