"""`fthang KIND`: a small real training that gets into trouble on demand, for trying ftrun without a GPU.

It fits a line by gradient descent, reports its beats and checkpoints, resumes from the newest intact checkpoint, and in
the first starts (`--times`) gets into the trouble that KIND names.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

import ftrun_hooks as ft
from ftrun import __version__
from ftrun.cli import trouble
from ftrun.cli.hang_checkpoint import Checkpoint, newest, save
from ftrun_hooks._duration import nanoseconds

POINTS = [(x / 16, 3 * x / 16 - 1 + 0.1 * (-1) ** x) for x in range(-16, 17)]
RATE = 0.1


def training(state: Checkpoint, steps: int) -> Iterator[Checkpoint]:
    """Each step from `state` on up to `steps`; the same state gives the same steps, wherever it was resumed."""
    slope, offset = state.weights
    for step in range(state.step + 1, steps + 1):
        errors = [(slope * x + offset - y, x) for x, y in POINTS]
        slope -= RATE * sum(error * x for error, x in errors) / len(errors)
        offset -= RATE * sum(error for error, _ in errors) / len(errors)
        yield Checkpoint(step, (slope, offset), sum(error * error for error, _ in errors) / len(errors))


def seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return nanoseconds(value) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.version_option(__version__, prog_name="fthang")
@click.command(help=f"Train a little, and get into trouble.\n\nKIND: {', '.join(trouble.USAGE)}.")
@click.argument("kind")
@click.argument("arg", required=False)
@click.option("--steps", default=50, show_default=True, type=click.IntRange(1), help="Train up to this step.")
@click.option("--step-time", default="20ms", show_default=True, callback=seconds, help="How long a step takes.")
@click.option("--after", default=10, show_default=True, type=click.IntRange(0), help="Trouble begins after this step.")
@click.option("--times", default=1, show_default=True, type=click.IntRange(0), help="Only in the first so many starts.")
@click.option("--checkpoint-dir", type=click.Path(path_type=Path, file_okay=False), help="Where checkpoints are kept.")
@click.option("--checkpoint-every", default=5, show_default=True, type=click.IntRange(1), help="Steps between them.")
@click.option("--no-hooks", is_flag=True, help="Tell ftrun nothing.")
def command(
    kind: str,
    arg: str | None,
    steps: int,
    step_time: float,
    after: int,
    times: int,
    checkpoint_dir: Path | None,
    checkpoint_every: int,
    no_hooks: bool,
) -> None:
    try:
        planned = trouble.plan(kind, arg)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    folder = checkpoint_dir or default_folder()
    folder.mkdir(parents=True, exist_ok=True)
    attempt = ft.attempt()
    state = begun = newest(folder) or Checkpoint(0, (0.0, 0.0), 0.0)
    say(
        f"start {attempt.start_cnt}"
        + (f" (restart after {attempt.reason}): " if attempt.is_restart else ": ")
        + (f"resumed at step {state.step}" if state.step else "from the beginning")
    )
    troubled = kind != "none" and attempt.start_cnt <= times
    if troubled and kind == "nobeat":
        never_beat(state, step_time)
    for state in training(begun, steps):
        time.sleep(step_time)
        say(f"step {state.step} loss {state.loss:.6f}")
        if not no_hooks:
            ft.beat(state.step)
        # A start that is bound for trouble saves nothing beyond `after`: each such start ends where the first did.
        due = state.step % checkpoint_every == 0 or state.step == steps
        if due and not (troubled and state.step > after):
            path = save(folder, state)
            if not no_hooks:
                ft.checkpoint(state.step, path)
        if troubled and state.step >= after:
            say(planned.line)
            planned.begin()
            troubled = False
    say(f"finished at step {state.step}, loss {state.loss:.6f}")


def never_beat(state: Checkpoint, step_time: float) -> None:
    """Train on for ever, and tell nobody."""
    say("hanging: nobeat")
    for _ in training(state, sys.maxsize):
        time.sleep(step_time)


def default_folder() -> Path:
    import os

    run_dir = os.environ.get("FTRUN_RUN_DIR")
    return Path(run_dir, "checkpoints") if run_dir else Path("fthang-checkpoints")


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """The program.  Exits with 0 when trained, 2 for bad usage, 1 where checkpoints cannot be kept."""
    try:
        command(prog_name="fthang", standalone_mode=False)
    except click.ClickException as error:
        sys.exit(complaint(error.format_message(), 2))
    except click.Abort:
        sys.exit(130)
    except OSError as error:
        sys.exit(complaint(str(error), 1))


def complaint(message: str, code: int) -> int:
    print(f"fthang: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
