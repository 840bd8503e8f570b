"""Files of other members of the group, by way of the messengers: `ftctl report --member` and `stacks --member`."""

import base64
import binascii
from typing import Any, Final, Literal

import click

from ftctl.common import UserError
from ftrun.config.whole_number import WholeNumber
from ftrun.messages.group_view import MOST, FileRequest
from ftrun.records import schedules

COLLECTED: Final = 90.0  # s for stacks that have to be collected
What = Literal["report.md", "report.json", "stacks", "present stacks"]
MEMBER: Final = click.option(
    "--member",
    type=WholeNumber(0),
    metavar="M",
    help="Of this member of the group, by way of rank 0, encrypted as all messages of the group.",
)


def read_report(run_dir: str, member: int, attempt: int) -> str:
    """The report of that member as Markdown: from the member itself, else the copy in the state dir; UserError if there
    is neither."""
    try:
        return read_file(run_dir, member, "report.md", attempt).decode("utf-8", "replace")
    except UserError as why:
        if (copy := schedules.kept_report(run_dir, member, attempt)) is None:
            raise UserError(f"{why}; the state dir has no copy of its report") from None
        return copy


def read_file(run_dir: str, member: int, what: What, attempt: int, rank: int | None = None) -> bytes:
    """A file of that member, from any member that runs; UserError if it cannot be had.  `attempt` 0: the last one with
    a report.  `rank`: only that rank of its present stacks."""
    from ftctl.orders import PATIENCE, exchange

    content = b""
    while True:
        patience = COLLECTED if what == "present stacks" and not content else PATIENCE
        reply = exchange(
            run_dir, "read", FileRequest("1", member, what, attempt, len(content), rank), patience=patience
        )
        part = reply.get("part")
        if not reply.get("ok") or not isinstance(part, dict):
            raise UserError(str(reply.get("why") or "the reply is not valid"))
        attempt, more, size = _part(part)
        content += more
        if not more or len(content) >= min(size, MOST):
            return content


def _part(part: dict[str, Any]) -> tuple[int, bytes, int]:
    try:
        return int(part["attempt"]), base64.b64decode(str(part["content"]), validate=True), int(part["size"])
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise UserError("the reply is not valid") from None
