"""`fthang KIND`: a small real training that hangs or fails on demand, for trying ftrun without a GPU.

It fits a line by gradient descent, reports heartbeats and checkpoints, resumes from the newest intact checkpoint, and
in the first starts (`--times`) does what KIND names: a hang, another failure, or something healthy like a hang.  The
kinds `rank-...` are a training of several ranks that recovers from the failure of one of them.
"""

import os
import sys
from pathlib import Path

import click

import ftrun_hooks as ft
from ftrun import __version__
from ftrun.config.whole_number import WholeNumber
from ftrun.host import installation
from ftrun.workload import kinds, ranks
from ftrun.workload.run import train
from ftrun.workload.training import BEGINNING, RequirementMissing, Setting, newest, say

CANNOT = 77  # the exit code of a skipped test in Automake


def listed(title: str, group: tuple[kinds.FailureKind, ...]) -> str:
    return "\n".join(["\b", title, *(f"  {kind.usage:<27}{kind.description}" for kind in group)])


def seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return kinds.seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in kinds.KINDS if name.startswith(incomplete)]


@click.version_option(__version__, prog_name="fthang")
@click.command(
    help="Run a small training that hangs, crashes or is slow on demand.",
    epilog=f"{listed('Failures:', kinds.FAILURES)}\n\n"
    f"{listed(f'Healthy, though it may look like a hang (DURATION: {kinds.DURATION}):', kinds.HEALTHY)}\n\n"
    f"{listed('One rank of a training that can recover (ftrun --nproc-per-node N fthang KIND):', kinds.RANKS)}",
    context_settings={"max_content_width": 120, "help_option_names": ["-h", "--help"]},
)
@click.argument("kind", shell_complete=_kinds)
@click.argument("arg", required=False)
@click.option("--steps", default=50, show_default=True, type=WholeNumber(1), help="Train up to this step.")
@click.option("--step-time", default="20ms", show_default=True, callback=seconds, help="How long a step takes.")
@click.option(
    "--after",
    default=10,
    show_default=True,
    type=WholeNumber(0),
    help="Misbehave after this step; 0: before the first.",
)
@click.option("--times", default=1, show_default=True, type=WholeNumber(0), help="Misbehave in this many starts.")
@click.option("--checkpoint-dir", type=click.Path(path_type=Path, file_okay=False), help="Checkpoint folder.")
@click.option(
    "--checkpoint-every", default=5, show_default=True, type=WholeNumber(1), help="Steps between checkpoints."
)
@click.option("--no-hooks", is_flag=True, help="Report no heartbeats.")
@click.option("--torch", is_flag=True, help="Train with PyTorch and report nothing: ftrun sees the optimizer steps.")
@click.option("--workers", default=0, show_default=True, type=WholeNumber(0), help="Of the loader, with --torch.")
@click.option("--in-worker", is_flag=True, help="Misbehave in a worker of the loader.")
@click.option(
    "--rank",
    "failing",
    type=WholeNumber(0),
    multiple=True,
    help="Which rank misbehaves, in a kind rank-...; may be given again, for several at once.  [default: 1]",
)
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
    torch: bool,
    workers: int,
    in_worker: bool,
    failing: tuple[int, ...],
) -> None:
    try:
        chosen, value = kinds.parse(kind, arg)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if in_worker and not (torch and workers):
        raise click.UsageError("--in-worker needs --torch and --workers")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if chosen.ranks and (torch or no_hooks):
        raise click.UsageError(f"{kind} has neither --torch nor --no-hooks")
    if failing and (not chosen.ranks or max(failing) >= size):
        raise click.UsageError(
            "--rank is for the kinds rank-..." if not chosen.ranks else f"--rank is less than {size} here"
        )
    if torch or chosen.torch:
        try:
            import torch as _  # noqa: F401 - only whether it can be imported
        except ImportError:
            raise RequirementMissing(f"this needs PyTorch: {installation.command('torch')}") from None
    run_dir = os.environ.get("FTRUN_RUN_DIR")
    folder = checkpoint_dir or (Path(run_dir, "checkpoints") if run_dir else Path("fthang-checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    attempt = ft.attempt()
    hooks = not (no_hooks or torch)
    setting = Setting(value, folder, steps, after, step_time, checkpoint_every, hooks, torch, workers, in_worker)
    if chosen.ranks:
        at = frozenset(failing or [min(1, size - 1)])
        ranks.train(chosen, setting._replace(ranks=at), kind != "rank-none" and attempt.start_cnt <= times)
        return
    begun = newest(folder) or BEGINNING
    say(
        f"start {attempt.start_cnt}"
        + (f" ({_why(attempt)}): " if attempt.is_restart else ": ")
        + (f"resumed at step {begun.step}" if begun.step else "from the beginning")
    )
    state = train(chosen, setting, begun, kind != "none" and attempt.start_cnt <= times)
    say(f"finished at step {state.step}, loss {state.loss:.6f}")


def _why(attempt: ft.Attempt) -> str:
    """Why this start is not the first one of the job."""
    first = attempt.reason == "first"  # in its container
    return f"of schedule {attempt.schedule_cnt}" if first else f"restart after {attempt.reason}"


def main() -> None:
    """Exit with 0 after the last step, 2 for wrong usage, 1 if checkpoints cannot be written, 77 if this machine cannot
    produce that hang or failure."""
    try:
        command(prog_name="fthang", standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except (click.ClickException, RequirementMissing, OSError) as error:
        message, code = str(error), CANNOT if isinstance(error, RequirementMissing) else 1
        if isinstance(error, click.ClickException):
            message, code = error.format_message(), 2
        print(f"fthang: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
