"""`ftctl completion`: the script of click for a shell.  It calls the programs, so it is always up to date."""

from typing import Final

import click
from click.shell_completion import get_completion_class

PROGRAMS: Final = ("ftrun", "ftctl", "fthang")
SHELLS: Final = ("bash", "zsh", "fish")
WHERE: Final = """\b
bash  ~/.bashrc:                   source <(ftctl completion bash)
zsh   ~/.zshrc, after compinit:    source <(ftctl completion zsh)
fish  ~/.config/fish/config.fish:  ftctl completion fish | source
"""


@click.command(help="Print the completion script for ftrun, ftctl and fthang, or for PROGRAM alone.", epilog=WHERE)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.argument("program", required=False, type=click.Choice(PROGRAMS))
def command(shell: str, program: str | None) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    for name in [program] if program else PROGRAMS:
        script = kind(click.Command(name), {}, name, f"_{name.upper()}_COMPLETE")
        click.echo(script.source_template % script.source_vars())
