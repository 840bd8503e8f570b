"""The page of `ftctl`: its verbs and their options, from click."""

import re

import click

from ftctl.main import VERBS, cli

INTRO = """# ftctl

Generated from the code by `docs/reference.py`.

`ftctl VERB [OPTIONS]` shows a run, also when ftrun is gone, and controls one that is running. Exit codes: 0: done; 1:
not possible now (no run dir, no running ftrun, a missing package), with one line that gives the reason; 2: wrong usage.

**Which run.** `--run-dir DIR`; else `FTRUN_RUN_DIR`; else the only running ftrun of yours; else the only run dir of
yours under the temp folder. If there are several, the message names them. Root, as in `docker exec`, finds those of all
users. The folder of `--log-dir` stands for its newest run, and with phases for the current phase.

**Verbs that read** the run dir change nothing, and work when ftrun is gone, but for `stacks`, which reads processes.
**Verbs that control** (`restart stop pause resume`) send a request through `RUN_DIR/ftctl.sock`, which only the same
user and root may use; each is an `order` record.
"""
# Options that most verbs have, and what is said of them once.
GENERAL = {"run_dir": "`--run-dir` is an option of each verb", "as_json": "`--json`, which prints JSON, of each"}


def page() -> str:
    lines = [INTRO.rstrip("\n")]
    context = click.Context(cli, info_name="ftctl")
    commands = {name: command for name in VERBS if (command := cli.get_command(context, name))}
    without = {
        option: [
            f"`{name}`" for name, command in commands.items() if option not in {one.name for one in command.params}
        ]
        for option in GENERAL
    }
    lines += ["", "; ".join(f"{words} but {', '.join(without[option])}" for option, words in GENERAL.items()) + "."]
    for name, command in commands.items():
        lines += ["", f"## {name}", "", *_verb(name, command, context)]
    return "\n".join(lines) + "\n"


def _verb(name: str, command: click.Command, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent)
    _, *arguments = command.collect_usage_pieces(context)
    lines = [f"`{' '.join(['ftctl', name, *arguments])}`", ""] if arguments else []
    lines.append(_prose(command.help or ""))
    own = [one for one in command.params if one.name not in GENERAL and isinstance(one, click.Option)]
    rows = [record for one in own if (record := one.get_help_record(context))]
    if rows:
        lines += ["", *(f"- `{_cell(names)}`: {_cell(words)}" for names, words in rows)]
    if text := _prose(command.epilog or ""):
        lines += ["", text]
    return lines


def _prose(text: str) -> str:
    """As click would fill it; what it keeps as it stands (`\\b`) becomes a block of its own."""
    found = []
    for part in re.split(r"\n\s*\n", text.replace("\f", "\n\n").strip()):
        if part.lstrip().startswith("\b"):
            found.append("```\n" + part.replace("\b", "").strip("\n") + "\n```")
        elif part.strip():
            found.append(" ".join(part.split()).replace("<", "\\<"))
    return "\n\n".join(found)


def _cell(text: str) -> str:
    return " ".join(text.split())
