"""For every response: only GET and HEAD, only for permitted hosts, and with headers that restrict the browser."""

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
FOREIGN_SITES: Final = ("cross-site", "same-site")
HEADER_BYTES: Final = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


def loopback(host: str) -> bool:
    """Whether this name or address always means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def host_name(header: str) -> str:
    """The host in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


class Middleware:
    """Refuses methods other than GET and HEAD, and a `Host` that is neither this machine nor one of `hosts`: a foreign
    page whose name was pointed at this machine must not read this one (DNS rebinding).  `any_address`: a host that is
    an IP address is permitted as well, since DNS cannot redirect it."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] = frozenset(), any_address: bool = False) -> None:
        self._app, self._hosts, self._any_address = app, hosts, any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message.get("headers", ()))
                names = {name for name, _ in headers}
                message = {**message, "headers": headers + [pair for pair in HEADER_BYTES if pair[0] not in names]}
            await send(message)

        try:
            await (self._refusal(scope) or self._app)(scope, receive, guarded)
        except Exception as error:
            path, why = short(repr(scope["path"])), printable(repr(error))
            print(f"ftctl: {path} failed: {short(why)}", file=sys.stderr, flush=True)
            if not started:
                await PlainTextResponse("internal error; see the terminal of ftctl serve\n", 500)(
                    scope, receive, guarded
                )
        return None

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if not self._permitted(headers.get("host", "")):
            return PlainTextResponse("this host name is not permitted\n", 421)
        if headers.get("sec-fetch-site") in FOREIGN_SITES and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("requests from other sites are refused\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET and HEAD are permitted\n", 405, {"allow": "GET, HEAD"})
        return None

    def _permitted(self, header: str) -> bool:
        host = host_name(header)
        if loopback(host) or host.lower().rstrip(".") in self._hosts:
            return True
        try:
            return self._any_address and bool(ipaddress.ip_address(host))
        except ValueError:
            return False
