"""The picture on the home page: what `ftctl timeline` draws from the records in docs/examples/timeline, those of

    ftrun --run-dir run --hang-timeout 4s fthang sleep --steps 60 --after 30 --step-time 100ms

of whose run dir events.jsonl, steps.jsonl and state.json are kept."""

from pathlib import Path
from typing import Final

from ftctl.timeline import timeline
from ftrun.drawing import svg
from ftrun.records.past.history import read

RECORDS: Final = Path(__file__).resolve().parents[1] / "examples" / "timeline"


def picture() -> str:
    return svg.render(timeline.draw(read(str(RECORDS))._replace(run_dir="run")))
