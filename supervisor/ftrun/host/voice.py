"""ftrun's own lines on stderr: few, prefixed, and never in the job's way."""

import json
import os
import select
import stat

from ftrun.host.signals import writing


class Voice:
    """`level` 0 says nothing, 1 what a person must know, 2 every record.

    A line that stderr cannot take at once is dropped (it is in `run.log`): a full pipe must never block PID 1.  The
    command shares our stderr, so its flags cannot be changed; a pipe or a terminal is opened anew instead.
    """

    def __init__(self, level: int = 1, as_json: bool = False) -> None:
        self.level = level
        self._json = as_json
        self._fd = 2
        try:
            mode = os.fstat(2).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                self._fd = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            pass  # not to be opened anew (another user's terminal): the poll below is what is left

    def say(self, text: str, level: int = 1) -> None:
        if level > self.level:
            return
        text = text.replace("\n", "\\n")
        line = json.dumps({"ftrun": text}) if self._json else f"[ftrun] {text}"
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):
                with writing():
                    os.write(self._fd, (line + "\n").encode("utf-8", "backslashreplace")[:4096])
        except OSError:
            pass
