"""The reports of attempts that failed, made from the files of a run dir."""

import json
from pathlib import Path

from ftrun.views import reports
from support.scripted import Script


def test_the_end_of_the_output_is_that_of_the_attempt(tmp_path: Path) -> None:
    script = Script()
    for number in range(3):
        script.starts("failure" if number else "", startup=1)
        script.after(1).record("exited", code=3, why="the command exited with 3").record("stopping", by="SIGTERM")
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in script.records))
    output = [[f"{number}:{i}" for i in range(40)] for number in (1, 2, 3)]
    lines = [*output[0], "--- attempt 2 ---", *output[1], "--- attempt 3 ---", *output[2]]
    (tmp_path / "output.log").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "output-1.log").write_text("--- attempt 2 ---\nof the rank\n")
    for number in (1, 2, 3):
        found = reports.failure(str(tmp_path), number)
        assert found is not None
        assert found["output"] == (["[1] of the rank"] if number > 1 else []) + output[number - 1][-reports.LINES :]
