"""The page of `ftctl`: its verbs and their options, from click."""

import re

import click

from ftctl.main import VERBS, cli

INTRO = """# ftctl

Generated from the code by `docs/reference.py`.

```
ftctl VERB [OPTIONS]
```

`ftctl` shows a run, also when ftrun is gone, and controls one that is running. Exit codes: 0: done; 1: not possible
now (no run dir, no running ftrun, a missing package), with one line that gives the reason; 2: wrong usage.

**Which run.** `--run-dir`; else `FTRUN_RUN_DIR`; else the only running ftrun of yours; else the only run dir of yours
under the temp folder. If there are several, the message names them. Root, as in `docker exec`, finds those of all
users; another user is told which process is ftrun of whom, and in a container whose PID 1 is ftrun of another user
has to name an old run. The folder of `--log-dir` stands for its newest run, and with phases for the current phase.

**Reading verbs** (`status events top stacks report timeline serve doctor`) read the run dir and change nothing. All
but `stacks`, which reads processes, work when ftrun is gone. **Control verbs** (`restart stop pause resume`) send
requests to a running ftrun through `RUN_DIR/ftctl.sock`, which only the same user and root may use. Each is an
`order` record.
"""


def page() -> str:
    lines = [INTRO]
    lines += ["| verb | what |", "| --- | --- |"]
    lines += [f"| [`{name}`](#{name}) | {words} |" for name, words in VERBS.items()]
    context = click.Context(cli, info_name="ftctl")
    for name in VERBS:
        command = cli.get_command(context, name)
        assert command is not None, name
        lines += ["", f"## {name}", "", *_verb(name, command, context)]
    return "\n".join(lines) + "\n"


def _verb(name: str, command: click.Command, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent)
    lines = ["```", " ".join(["ftctl", name, *command.collect_usage_pieces(context)]), "```"]
    if text := _prose(command.help or ""):
        lines += ["", text]
    rows = [record for one in command.params if (record := one.get_help_record(context))]
    if rows:
        lines += ["", "| option | meaning |", "| --- | --- |"]
        lines += [f"| `{_cell(names)}` | {_cell(words)} |" for names, words in rows]
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
    return " ".join(text.split()).replace("|", "\\|")
