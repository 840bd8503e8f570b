"""`ftctl serve` starts the web server of the page (ftctl/page) and prints its address."""

import contextlib
import ipaddress
import socket
import sys

import click

from ftctl import orders
from ftctl.common import RUN_DIR, UserError
from ftrun.config.whole_number import WholeNumber
from ftrun.host import installation
from ftrun.records.files import rundir

BACKLOG = 64
UNREAD_TIMEOUT_MS = 30_000  # after which the kernel closes the connection of a client that does not read


@click.command(
    help="Serve a page with the live view and the timeline, until Ctrl-C.  It is read-only.  There is no password: on "
    "loopback all users of this machine can see it, with --allow-remote all who reach the port.  From elsewhere: "
    "kubectl port-forward POD 8642, or ssh -L 8642:localhost:8642 HOST."
)
@RUN_DIR
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8642, show_default=True, type=WholeNumber(0, 65535), help="0: any free port.")
@click.option("--allow-remote", is_flag=True, help="Permit an address other than loopback, without a password.")
def command(run_dir: str | None, host: str, port: int, allow_remote: bool) -> None:
    try:
        from ftctl.page import app
    except ImportError as error:
        packages = f"starlette and uvicorn ({error.name} is missing)"
        raise UserError(f"serve needs {packages}: {installation.command('page')}") from None
    found = rundir.find(run_dir)
    family, address = _address(host)
    remote = not ipaddress.ip_address(address).is_loopback
    if remote and not allow_remote:
        raise click.UsageError(
            f"--host {host} can be reached from other machines, and there is no password; add --allow-remote "
            "if that is intended"
        )
    listening = listening_socket(family, address, port)
    port = listening.getsockname()[1]
    anywhere = ipaddress.ip_address(address).is_unspecified
    hosts = {host.lower().rstrip("."), address} | ({socket.gethostname().lower()} if anywhere else set())
    shown = "localhost" if anywhere else f"[{address}]" if family == socket.AF_INET6 else address
    page = app.Page(lambda: rundir.find(run_dir or found), orders.read_report)
    with contextlib.suppress(BrokenPipeError):
        print(f"http://{shown}:{port}/", flush=True)
    note = "; reachable from other machines without a password" if remote else ""
    print(f"ftctl: serving {found}, read-only{note}; Ctrl-C stops it", file=sys.stderr, flush=True)
    app.PageServer(page.application(frozenset(hosts), anywhere), page.feed).run([listening])


def _address(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise click.UsageError(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    family, _, _, _, where = found[0]
    return family, str(where[0])


def listening_socket(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_TIMEOUT_MS)
        listening.bind((address, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise UserError(f"{address} port {port}: {error.strerror}") from None
    return listening
