"""Messages of the control channel: one JSON object each way (docs/reference/control.md has them for other clients)."""

import json
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.messages.codec import EXACT, Malformed, parse_object
from ftrun.messages.group_view import FileRequest

SCHEMA: Final = 1
SOCKET: Final = "ftctl.sock"
RECORDS: Final = "records.sock"
ORDERS: Final = ("restart", "stop", "pause", "resume")
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
    verb: str
    by: str = ""
    lasting: float | None = None
    until: float | None = None
    read: FileRequest | None = None


class ControlReply(NamedTuple):
    id: str
    ok: bool
    why: str


def dump_request(request: ControlRequest) -> bytes:
    read = {} if request.read is None else {"read": request.read._asdict()}
    return json.dumps({"schema": SCHEMA, **request._asdict(), **read}).encode("ascii")


def load_request(content: bytes) -> ControlRequest:
    """The request.  RequestRefused if it is not valid; nothing else is raised, whatever the bytes."""
    found = _object(content)
    id, verb, by, lasting, until = (found.get(name) for name in ("id", "verb", "by", "lasting", "until"))
    id = id if isinstance(id, str) and len(id) <= TEXT else ""
    if type(found.get("schema")) is not int or found["schema"] != SCHEMA:
        raise RequestRefused(f"schema {found.get('schema')!r} is not supported, only {SCHEMA}"[:TEXT], id)
    if not isinstance(found.get("id"), str) or len(found["id"]) > TEXT:
        raise RequestRefused(f"`id` is not a text of up to {TEXT} characters", id)
    if verb not in (*ORDERS, PING, READ):
        raise RequestRefused(f"no such verb: {verb!r}"[:TEXT], id)
    if by is not None and not isinstance(by, str):
        raise RequestRefused("`by` is not a text", id)
    if lasting is not None and (type(lasting) not in (int, float) or not 0 < lasting <= LONGEST):
        raise RequestRefused("`lasting` is not a number of seconds", id)
    if until is not None and (type(until) not in (int, float) or not 0 <= until <= 1e12):
        raise RequestRefused("`until` is not a time", id)
    lasting, until = (None if time is None else float(time) for time in (lasting, until))
    try:
        read = EXACT.value(FileRequest, found.get("read")) if verb == READ else None
    except Malformed as why:
        raise RequestRefused(f"`read`: {why}"[:TEXT], id) from None
    return ControlRequest(id, str(verb), (by or "")[:TEXT], lasting, until, read)


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
