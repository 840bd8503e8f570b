"""`ftctl doctor`."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import click

from ftctl.common import AS_JSON, RUN_DIR, show, show_json, width
from ftctl.doctor import devices, disk, system
from ftctl.doctor.finding import CheckOutcome
from ftrun.accelerators.table import VENDORS
from ftrun.messages.run_state import RunFacts
from ftrun.records.files import liveness, rundir, state
from ftrun.records.present import summary

SCHEMA: Final = 1
NAME: Final = 13  # columns


@click.command(help="Check what this container permits and lacks, what that means for ftrun, and what to do about it.")
@RUN_DIR
@AS_JSON
def command(run_dir: str | None, as_json: bool) -> None:
    try:
        path: str | None = rundir.find(run_dir)
    except rundir.NoRunDir:
        if run_dir is not None:
            raise
        path = None
    found = list(_findings(path))
    if as_json:
        show_json({"schema": SCHEMA, "run_dir": path, "findings": [one._asdict() for one in found]})
    else:
        show(_lines(found, width()))


def _findings(path: str | None) -> Iterator[CheckOutcome]:
    run = RunFacts() if path is None else state.load(path).rest.run
    run = run if liveness.is_local(run) else RunFacts()
    checks: tuple[tuple[str, Callable[[], Iterable[CheckOutcome]]], ...] = (
        ("PID 1", partial(system.first, run.pid)),
        ("signals", partial(system.signalling, run.pid)),
        ("/proc", system.proc),
        ("py-spy", system.tracing),
        ("/dev/shm", system.shared),
        *(devices.CHECKS[vendor.name] for vendor in VENDORS),
        ("cgroup", system.groups),
        ("limits", partial(system.limits, run.pid)),
        ("run dir", partial(disk.folder, path)),
        ("termination", disk.message),
        ("inotify", disk.inotify),
        ("versions", partial(system.versions, run.version)),
    )
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # a failed check must not hide the others
            yield CheckOutcome(name, "warning", f"the check failed: {error!r}", "unknown")


def _lines(found: list[CheckOutcome], width: int) -> Iterator[str]:
    for one in found:
        first, *others = _wrapped(one.found, width)
        yield f"{one.state:<8} {one.name:<{NAME}} {first.strip()}"
        yield from others
        yield from _wrapped(one.meaning, width)
        if one.remedy:
            yield from _wrapped(f"remedy: {one.remedy}", width)
    bad = [one for one in found if one.state != "ok"]
    yield ""
    see = f"; see: {', '.join(one.name for one in bad)}" if bad else ""
    yield f"{len(found) - len(bad)} of {len(found)} checks are ok{see}"


def _wrapped(text: str, width: int) -> list[str]:
    indent = " " * (NAME + 10)
    return summary.wrapped(text, width, indent, indent) or [indent]
