"""An ftrun that is PID 1 of a namespace of its own, as `runs.PID1` starts it: seen from outside."""

import os
import signal
from pathlib import Path

from support.runs import Run


def stop_inside(run: Run) -> None:
    """End it as the end of a container does, so that it puts everything back: with a kill it could not."""
    (pid,) = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(pid), signal.SIGTERM)
    run.wait()
