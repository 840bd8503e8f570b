"""An ftrun that also keeps what its PID 1 decides on: `kept_decisions.py OPTIONS -- COMMAND`, with the file that it
appends to in CHAOS_DECISIONS.  It looks at the devices twice a second, since the jobs are short.

Each entry is a pickle of (event, policy, job); the latter two are None where they are those of the decision before.
"""

import os
import pickle
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / folder) for folder in ("supervisor", "hooks")]

from ftrun.host import early_signals  # noqa: E402

early_signals.block_all()  # as ftrun's entry does, before anything else is imported

from ftrun.cli import entry  # noqa: E402

entry._leave_out_functions_for_training()

from ftrun.cli.run import main  # noqa: E402
from ftrun.core.machine.job import decide  # noqa: E402
from ftrun.pid1 import loop  # noqa: E402
from ftrun.pid1.clients import probe  # noqa: E402


class Keeper:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._policy: Any = None
        self._job: Any = None

    def __call__(self, job: Any, event: Any, policy: Any) -> Any:
        known = policy is self._policy, job is self._job
        os.write(self._file, pickle.dumps((event, None if known[0] else policy, None if known[1] else job)))
        self._policy, (self._job, effects) = policy, decide(job, event, policy)
        return self._job, effects


if __name__ == "__main__":
    setattr(probe, "PERIOD", 0.5)  # noqa: B010
    setattr(loop, "decide", Keeper(os.environ["CHAOS_DECISIONS"]))  # noqa: B010
    main()
