"""The reports of this run, of other members of its group, and of earlier schedules, as pages."""

import errno
import html
import os
import re
import stat
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from ftctl.page import report_html
from ftctl.page.threads import Busy, WorkerThreads
from ftrun.core.text.sentences import printable
from ftrun.records.files import reports, state
from ftrun.records.files.rundir import NoRunDir
from ftrun.records.past import schedules

PATIENCE: Final = 10.0  # s, for a file
REMOTE: Final = 20.0  # s, for a file of another member
MOST: Final = 1 << 20  # bytes
NUMBER: Final = "[1-9][0-9]{0,8}"
PICTURE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
}
PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} – ftrun</title>
<link rel="icon" href="{up}icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{up}style.css">
</head>
<body class="report">
<header><p class="quiet">{title} · <a href="{up}">Back to the run</a></p></header>
<main><article>{text}</article></main>
</body>
</html>
"""
ReadMember = Callable[[str, int, int], str]
"""The report of a member and attempt, from any run dir of the group; an exception with one line if it cannot be
read."""


class Reports:
    """`find`: the run dir, as in `Page`.  `read_member`: None: other members cannot be asked."""

    def __init__(self, find: Callable[[], str], threads: WorkerThreads, read_member: ReadMember | None) -> None:
        self._find, self._threads, self._read_member = find, threads, read_member

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/report/{number}", self._own),
            Route("/report/{number}/waits-{picture}.svg", self._waits),
            Route("/member/{member}/report/{number}", self._of_member),
            Route("/history/{key}/{number}", self._earlier),
        ]

    async def _own(self, request: Request) -> Response:
        number = _number(request, "number")

        def read() -> str | None:
            run_dir = self._find()
            try:
                return read_text(reports.path(run_dir, number or 0))
            except FileNotFoundError:
                return reports.text(run_dir, number or 0)

        def picture(name: str) -> str:
            return f"{number}/{name}"

        return await self._answer(f"Report of attempt {number}", "../", read if number else None, PATIENCE, picture)

    async def _of_member(self, request: Request) -> Response:
        member, number, ask = _number(request, "member", "0|"), _number(request, "number"), self._read_member
        title = f"Report of attempt {number} of member {member}"
        if ask is None or member is None or number is None:
            return _missing(title)
        return await self._answer(title, "../../../", lambda: ask(self._find(), member, number), REMOTE)

    async def _earlier(self, request: Request) -> Response:
        key, number = request.path_params["key"], _number(request, "number")

        def read() -> str | None:
            folder = state.load(self._find()).rest.run.state_dir
            return None if folder is None else read_text(schedules.report_copy(folder, key, number or 0))

        return await self._answer(f"Report of attempt {number} of {key}", "../../", read if number else None, PATIENCE)

    async def _answer(
        self,
        title: str,
        up: str,
        read: Callable[[], str | None] | None,
        within: float,
        picture: Callable[[str], str | None] = lambda name: None,
    ) -> Response:
        """The page of what `read` returns; `up`: the relative address of the run."""
        if read is None:
            return _missing(title)
        try:
            text = await self._threads.do(read, within)
        except (Busy, TimeoutError):
            return PlainTextResponse("the disk, or the other member, does not answer\n", 503, {"retry-after": "5"})
        except (NoRunDir, OSError):
            text = None
        except Exception as error:
            return PlainTextResponse(f"{printable(str(error))}\n", 404)
        if text is None:
            return _missing(title)
        body = report_html.render(text, picture)
        return HTMLResponse(PAGE.format(title=html.escape(printable(title)), up=up, text=body))

    async def _waits(self, request: Request) -> Response:
        """The picture to which a report refers."""
        number, picture = _number(request, "number"), _number(request, "picture")
        if number is None or picture is None:
            return _missing("the picture")
        try:
            path = f"reports/attempt-{number}/waits-{picture}.svg"
            text = await self._threads.do(lambda: read_text(f"{self._find()}/{path}"), PATIENCE)
        except (Busy, TimeoutError):
            return PlainTextResponse("the disk does not answer\n", 503, {"retry-after": "5"})
        except (NoRunDir, OSError):
            return _missing("the picture")
        return Response(text, media_type="image/svg+xml", headers=PICTURE_HEADERS)


def _number(request: Request, name: str, also: str = "") -> int | None:
    text = request.path_params[name]
    return int(text) if re.fullmatch(f"{also}{NUMBER}", text, re.ASCII) else None


def _missing(what: str) -> Response:
    return PlainTextResponse(f"not there: {printable(what)}\n".encode("utf-8", "backslashreplace"), 404)


def read_text(path: str) -> str:
    """The text of a regular file: a symbolic link that the job put in its place is not followed."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        content = os.read(fd, MOST)
    finally:
        os.close(fd)
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in content.decode("utf-8", "replace"))
