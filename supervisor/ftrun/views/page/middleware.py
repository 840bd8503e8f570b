"""What holds for every answer: it only reads, it is for those who were meant, and a browser keeps to itself with it."""

import ipaddress
import sys
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ftrun.core.text.sentences import printable, short

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
OTHERS: Final = ("cross-site", "same-site")
ADDED: Final = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def loopback(host: str) -> bool:
    """Whether this name or address can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def named(header: str) -> str:
    """The host in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


class Middleware:
    """Refuses what is no GET or HEAD, and a `Host` that is neither this machine nor one of `hosts`: a page of somebody
    else's, whose name was made to lead here, must not read this one (DNS rebinding).  `any_address`: a host that is an
    address is right too, as that cannot be made to lead anywhere else."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] = frozenset(), any_address: bool = False) -> None:
        self._app, self._hosts, self._any_address = app, hosts, any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = list(message.get("headers", ()))
                names = {name for name, _ in own}
                message = {**message, "headers": own + [pair for pair in ADDED if pair[0] not in names]}
            await send(message)

        try:
            await (self._refusal(scope) or self._app)(scope, receive, guarded)
        except Exception as error:
            path, why = short(repr(scope["path"])), printable(repr(error))
            print(f"ftctl: {path} failed: {short(why)}", file=sys.stderr, flush=True)
            if not begun:
                await PlainTextResponse("this failed; the terminal says why\n", 500)(scope, receive, guarded)
        return None

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if not self._meant(headers.get("host", "")):
            return PlainTextResponse("not served under this name\n", 421)
        if headers.get("sec-fetch-site") in OTHERS and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("not for pages of others\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this only reads\n", 405, {"allow": "GET, HEAD"})
        return None

    def _meant(self, header: str) -> bool:
        host = named(header)
        if loopback(host) or host.lower().rstrip(".") in self._hosts:
            return True
        try:
            return self._any_address and bool(ipaddress.ip_address(host))
        except ValueError:
            return False
