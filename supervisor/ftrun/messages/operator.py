"""Messages of the control channel: one JSON object each way (docs/reference/control.md has them for other clients)."""

import json
from typing import Any, Final, Literal

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import EXACT, TOLERANT, Malformed, parse_object
from ftrun.messages.group_view import FileRequest

SCHEMA: Final = 1
SOCKET: Final = "ftctl.sock"
RECORDS: Final = "records.sock"
ControlVerb = Literal["restart", "stop", "pause", "resume", "ping", "read"]
PING: Final = "ping"
READ: Final = "read"
LIMIT: Final = 4096  # bytes of a request
REPLY_LIMIT: Final = 1 << 16  # bytes of a reply
EXPIRED: Final = "the request expired before it was read"
HANDSHAKE: Final = 2000  # ms that a client has for the handshake of the protocol
TEXT: Final = 100  # characters of a name in a request
LONGEST: Final = 366 * 86400.0  # s


class RequestRefused(ValueError):
    """A request is not valid; the text is one line.  `id`: that of the request, if it could be read."""

    def __init__(self, why: str, id: str = "") -> None:
        super().__init__(why)
        self.id = id


class ControlRequest(NamedTuple):
    """`by`: the requester, as free text.  `lasting`: duration of a pause in s; None: until it is resumed.  `until`:
    when the requester gives up, of CLOCK_MONOTONIC; None: it waits without a limit.  `read`: with the verb READ."""

    id: str
    verb: ControlVerb
    by: str = ""
    lasting: float | None = None
    until: float | None = None
    read: FileRequest | None = None


class ControlReply(NamedTuple):
    id: str
    ok: bool
    why: str


def dump_request(request: ControlRequest) -> bytes:
    return json.dumps({"schema": SCHEMA, **EXACT.plain(request)}).encode("ascii")


def load_request(content: bytes) -> ControlRequest:
    """The request.  RequestRefused if it is not valid; nothing else is raised, whatever the bytes."""
    found = {name: value for name, value in _object(content).items() if value is not None}
    id = found.get("id")
    id = id if isinstance(id, str) and len(id) <= TEXT else ""
    if found.get("schema") != SCHEMA:
        raise RequestRefused(f"schema {found.get('schema')!r} is not supported, only {SCHEMA}"[:TEXT], id)
    try:
        request = TOLERANT.value(ControlRequest, found)
        if len(request.id) > TEXT:
            raise Malformed(f"`id`: more than {TEXT} characters")
        if request.lasting is not None and not 0 < request.lasting <= LONGEST:
            raise Malformed("`lasting`: not a number of seconds")
        if (request.read is not None) != (request.verb == READ):
            raise Malformed("`read`: it belongs to the verb `read`")
    except Malformed as why:
        raise RequestRefused(str(why), id) from None
    return request._replace(by=request.by[:TEXT])


def dump_reply(reply: ControlReply, **more: object) -> bytes:
    return json.dumps({"schema": SCHEMA, **reply._asdict(), **more}).encode("ascii")


def load_reply(content: bytes) -> dict[str, Any]:
    """The reply with all its fields, of which `id`, `ok` and `why` are checked; or RequestRefused."""
    found = _object(content, REPLY_LIMIT)
    if not isinstance(found.get("id"), str) or not isinstance(found.get("ok"), bool):
        raise RequestRefused("the reply is not valid")
    return found | {"why": str(found.get("why") or "")[:1000]}


def _object(content: bytes, limit: int = LIMIT) -> dict[str, Any]:
    try:
        return parse_object(content, limit)
    except Malformed as why:
        raise RequestRefused(str(why)) from None
