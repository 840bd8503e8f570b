"""`ftctl history`."""

import os

import click

from ftctl.common import AS_JSON, RUN_DIR, UserError, show, show_json, width
from ftrun.config.whole_number import WholeNumber
from ftrun.records.files import rundir
from ftrun.records.past import schedules
from ftrun.records.past.schedules import RunLife
from ftrun.records.present import summary

SCHEMA = 1


@click.command(
    help="List every schedule of the job, its members and their attempts: node, cause, place in the code, duration, "
    "what it cost, and the report.  They are read from the state dir, also when the containers are gone; of a run "
    "without a state dir from its run dir."
)
@RUN_DIR
@click.option(
    "--state-dir",
    metavar="DIR",
    envvar="FTRUN_STATE_DIR",
    help="The state dir [default: FTRUN_STATE_DIR, else that of the run].",
)
@click.option("-n", "last", type=WholeNumber(1), metavar="N", help="Only the last N schedules.")
@AS_JSON
def command(run_dir: str | None, state_dir: str | None, last: int | None, as_json: bool) -> None:
    given = click.get_current_context().get_parameter_source("state_dir")
    if run_dir is not None and given is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--state-dir cannot be given with --run-dir: each names what is read")
    lives, source = _lives(run_dir, state_dir)
    if last is not None:
        counts = list(dict.fromkeys(life.schedule for life in lives))[-last:]
        lives = [life for life in lives if life.schedule in counts]
    if as_json:
        plain = [
            life._asdict()
            | {"schedule": life.schedule or None, "attempts": [one._asdict() for one in life.attempts]}  # 0: not known
            for life in lives
        ]
        show_json({"schema": SCHEMA, "source": source, "lives": plain})
        return
    columns = width()
    for line in schedules.lines(lives, source):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        show(summary.wrapped(line, columns, indent))


def _lives(run_dir: str | None, state_dir: str | None) -> tuple[list[RunLife], str]:
    """The lives, and the folder that they were read from; UserError if there are none."""
    if run_dir is not None or state_dir is None:
        lives, source = schedules.of_job(rundir.find(run_dir))
    else:
        lives, source = schedules.read(state_dir), os.path.abspath(state_dir)
    if not lives:
        raise UserError(f"{source}: no run was recorded there")
    return lives, source
