"""Writes the lines of ftrun to a file on a network disk: `line_writer`, started by PID 1, with that file as descriptor
3.  The requests are in messages/output.py.  A write that the disk refuses is reported once.
"""

import os
from typing import Final

from ftrun.helpers.lines import ProtocolLines, helper
from ftrun.messages.helpers import PROBLEMS
from ftrun.messages.output import LINE_REQUESTS

FILE: Final = 3


@helper(PROBLEMS, LINE_REQUESTS)
def main(_: list[str], lines: ProtocolLines) -> None:
    while not lines.ended:
        for request in lines.requests():
            content = request.text.encode()
            try:
                while content:
                    content = content[os.write(FILE, content) :]
            except OSError as error:
                lines.problem(f"stderr cannot be written ({error.strerror})")
