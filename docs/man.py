"""Makes man/*.1 from the code: `python docs/man.py`.  A test compares them."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "supervisor"), str(HERE.parent / "hooks")]

import click  # noqa: E402
from made.run_dir import FILES, STATE  # noqa: E402
from reference import READ, SEEN  # noqa: E402

from ftctl import main as ctl  # noqa: E402
from ftrun import __version__  # noqa: E402
from ftrun.cli import hang  # noqa: E402
from ftrun.config import option_table  # noqa: E402
from ftrun.core.rules import exit_codes  # noqa: E402
from ftrun.workload import kinds  # noqa: E402
from waitproof import command as waitproof  # noqa: E402

DATE = "2026-11-21"  # when what is not made from the code was last gone over
LOG = """\
ftrun writes few lines of its own, on stderr, each prefixed `[ftrun]`: what it found, why, and what comes next. The
last one summarises the run; it is left out for a command that reports nothing and ends by itself. A line that stderr
cannot take at once is dropped; all are in `run.log`. On a terminal the prefix is in
colour, unless NO_COLOR is set to anything or TERM is `dumb`."""
JSON = """\
With `--log-format json` each line is one JSON object with the keys `time` (ISO 8601, UTC), `level` (`debug`, `info`,
`warning`; `error` for a verdict of ftrun and for its own failure), `source` (always `ftrun`), `attempt` (its number, or
null) and `message`. A record, with `-v`, has `event` (its name) and `fields` too. A line is at most 4096 bytes. What
the command writes is not changed."""
RUN = """\
Runs COMMAND as the first process of a training container. ftrun knows whether training moves. When training hangs, it
writes down why, kills the whole process tree, and starts the same command again in place. After a number of restarts
in a row without progress it ends with an exit code that tells the outer scheduler what to do next. Signals, exit
codes, the terminal, input, output and environment are those of the bare command."""
PRECEDENCE = """\
Each option is also read from the environment, as FTRUN_ and its name in capitals with `_` for `-`. Option,
environment, annotations, phase, config file, default: the first that is given takes precedence. It also does over the
other of two options that exclude each other, --run-dir and --log-dir, --quiet and --verbose; both from one source are
an error. Durations are written `500ms`, `90s`, `10m`, `1h`, `1d`; `off` disables."""
CTL = """\
Shows a run, also when ftrun is gone, and controls one that is running. Without `--run-dir` it uses FTRUN_RUN_DIR,
else your only running ftrun, else your only run dir under the temp folder; if there are several, it names them."""


METAVARS = {"integer": "N", "integer range": "N", "directory": "DIR", "float": "X"}


def pages() -> dict[str, str]:
    """By file name."""
    return {"ftrun.1": _ftrun(), "ftctl.1": _ftctl(), "fthang.1": _fthang(), "waitproof.1": _waitproof()}


def _ftrun() -> str:
    options = []
    for option in option_table.OPTIONS:
        names = [f"-{option.short}"] if option.short else []
        names += [f"--{option.name}", *([f"--no-{option.name}"] if option.no else [])]
        description = option.meaning
        description += f" Default: {option.default}." if option.default and (option.no or not option.flag) else ""
        description += " Repeatable." if option.many else ""
        options.append((_names(names, option.metavar), _text(description)))
    options += [(_names(["--version"]), "Show the version."), (_names(["--help"]), "Show the options and exit codes.")]
    ends = [(_bold("the command\\(aqs own, or 128+signal"), "It ended by itself: as without ftrun.")]
    for v in exit_codes.TABLE:
        ends.append((_bold(str(v.code)), _text(f"{v.name}: {v.meaning}. The outer scheduler should: {v.outer}.")))
    examples = [
        ("python train.py", "Hangs and device faults are found by themselves, and the command is started again."),
        ("--restart-on hang,fault,failure --progress 'ckpt/*.pt' python train.py", "After failures too."),
        ("--hang-timeout 2s fthang sleep", "Try it: a small training that hangs once."),
    ]
    return "\n".join(
        [
            *_head("ftrun", "find a hung training, end it, start it again in place"),
            ".SH SYNOPSIS",
            f"{_bold('ftrun')} [{_italic('OPTIONS')}] [{_bold('--')}] {_italic('COMMAND')} [{_italic('ARG')}]...",
            *_section("DESCRIPTION", [RUN]),
            *_section("OPTIONS", [PRECEDENCE]),
            *_list(options),
            *_section("OUTPUT", [LOG, JSON]),
            ".SH EXIT STATUS",
            *_list(ends),
            ".SH ENVIRONMENT",
            ".SS Read by ftrun",
            *_list([(_bold(name), _text(words)) for name, words in READ]),
            ".SS Seen by the command",
            *_list([(_bold(name), _text(words)) for name, words in SEEN]),
            ".SH FILES",
            ".SS Run dir",
            *_list([(_bold(file.name), _text(file.words)) for file in FILES]),
            ".SS State dir",
            *_list([(_bold(file.name), _text(file.words)) for file in STATE]),
            ".SH EXAMPLES",
            *_list([(_bold(f"ftrun {arguments}"), _text(description)) for arguments, description in examples]),
            *_also("ftctl", "fthang"),
        ]
    )


def _ftctl() -> str:
    context = click.Context(ctl.cli, info_name="ftctl")
    lines = [
        *_head("ftctl", "show and control a run of ftrun"),
        ".SH SYNOPSIS",
        f"{_bold('ftctl')} {_italic('VERB')} [{_italic('OPTIONS')}]",
        *_section("DESCRIPTION", [CTL]),
        ".SH OPTIONS",
        *_list([(_names(["--run-dir"], "DIR"), "Of every verb that looks at a run or steers it: its run dir.")]),
        *_list([(_names(["--help"]), "Of every verb.")]),
        ".SH VERBS",
    ]
    for name in ctl.VERBS:
        command = ctl.cli.get_command(context, name)
        assert command is not None, name
        own = click.Context(command, info_name=name, parent=context)
        pieces = " ".join(command.collect_usage_pieces(own))
        lines += [f".SS {_bold(name)} {_text(pieces)}", *_prose(command.help or ctl.VERBS[name])]
        lines += [*_list(_options(command, but=["run_dir"])), *_prose(command.epilog or "")]
    ends = [("0", "Done."), ("1", "It cannot be done now; one line of output gives the reason."), ("2", "Usage.")]
    lines += [".SH EXIT STATUS", *_list([(_bold(code), meaning) for code, meaning in ends])]
    lines += [
        ".SH ENVIRONMENT",
        *_list([(_bold("FTRUN_RUN_DIR"), _text("The run dir; ftrun sets it for its command."))]),
    ]
    return "\n".join([*lines, *_also("ftrun", "fthang")])


def _fthang() -> str:
    description = " ".join((hang.__doc__ or "").partition(": ")[2].split())
    ends = [
        ("0", "Trained."),
        ("1", "Checkpoints cannot be kept."),
        ("2", "Usage."),
        (str(hang.CANNOT), "This machine cannot produce that problem."),
    ]
    return "\n".join(
        [
            *_head("fthang", "a small training that hangs on demand"),
            ".SH SYNOPSIS",
            f"{_bold('fthang')} [{_italic('OPTIONS')}] {_italic('KIND')} [{_italic('ARG')}]",
            *_section("DESCRIPTION", [_sentence(description)]),
            ".SH KINDS",
            ".SS Problem",
            *_list([(_bold(kind.usage), _text(kind.description)) for kind in kinds.FAILURES]),
            f".SS Healthy, though it may look like a hang (DURATION: {kinds.DURATION})",
            *_list([(_bold(kind.usage), _text(kind.description)) for kind in kinds.HEALTHY]),
            ".SS One rank of a training that can recover (ftrun --nproc-per-node N fthang KIND)",
            *_list([(_bold(kind.usage), _text(kind.description)) for kind in kinds.RANKS]),
            ".SH OPTIONS",
            *_list(_options(hang.command)),
            ".SH EXIT STATUS",
            *_list([(_bold(code), _text(meaning)) for code, meaning in ends]),
            *_also("ftrun", "ftctl"),
        ]
    )


def _waitproof() -> str:
    title, _, description = waitproof.HELP.partition("\n\n")
    ends = [line.split(None, 1) for line in waitproof.CODES.splitlines()[1:]]
    options = []
    for one in waitproof.parser()._actions:
        metavar = "" if one.nargs == 0 else str(one.metavar or one.dest.upper())
        named = _names(one.option_strings, metavar) if one.option_strings else _italic(metavar)
        options.append((named, _text(_sentence(one.help or ""))))
    return "\n".join(
        [
            *_head("waitproof", title),
            ".SH SYNOPSIS",
            f"{_bold('waitproof')} [{_italic('OPTIONS')}] {_italic('PID')}",
            *_section("DESCRIPTION", [" ".join(description.split())]),
            ".SH OPTIONS",
            *_list(options),
            ".SH EXIT STATUS",
            *_list([(_bold(code), _text(_sentence(meaning))) for code, meaning in ends]),
            *_also("ftrun", "ftctl"),
        ]
    )


# --- roff (man(7)) ----------------------------------------------------------------------------------------------------


def _text(words: str) -> str:
    """Prose: marks of Markdown go, nothing in it is an instruction of roff."""
    words = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", words).replace("`", "").replace("…", "...")
    escaped = words.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"(?m)^(?=[.'])", r"\\&", escaped)


def _bold(words: str) -> str:
    return f"\\fB{words if chr(92) in words else _text(words)}\\fR"


def _italic(words: str) -> str:
    return f"\\fI{_text(words)}\\fR"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def _names(names: Iterable[str], metavar: str = "") -> str:
    return ", ".join(map(_bold, names)) + (f" {_italic(metavar)}" if metavar else "")


def _head(name: str, words: str) -> list[str]:
    title = f'.TH {name.upper()} 1 {DATE} "ftrun {__version__}" "User Commands"'
    return [f'.\\" Made from the code by docs/man.py.\n{title}', ".SH NAME", f"{name} \\- {_text(words)}"]


def _section(title: str, paragraphs: Sequence[str]) -> list[str]:
    lines = [f".SH {title}"]
    for number, paragraph in enumerate(paragraphs):
        lines += [".PP"] if number else []
        lines += [_text(paragraph)]
    return lines


def _prose(text: str) -> list[str]:
    """As click would fill it; what it keeps as it stands (`\\b`) is kept."""
    lines: list[str] = []
    for part in re.split(r"\n\s*\n", text.strip("\n ")):
        if "\b" in part:
            kept = part.replace("\b", "").strip("\n")
            lines += [".PP", ".nf", _text(kept), ".fi"]
        elif part.strip():
            lines += [".PP"] if lines else []
            lines += [_text(" ".join(part.split()))]
    return lines


def _options(command: click.Command, but: Sequence[str] = ()) -> list[tuple[str, str]]:
    found = []
    for one in command.params:
        if not isinstance(one, click.Option) or one.name in but:
            continue
        metavar = "" if one.is_flag else one.metavar or METAVARS.get(one.type.name, one.type.name.upper())
        description = _sentence(one.help or "")
        description += f" Default: {one.default}." if one.show_default and not one.is_flag else ""
        found.append((_names(one.opts, metavar), _text(description)))
    return found


def _list(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [line for name, text in rows for line in (".TP", name, text)]


def _also(*names: str) -> list[str]:
    return [".SH SEE ALSO", " ,\n".join(f".BR {name} (1)" for name in names), ""]


def main() -> None:
    folder = HERE / "man"
    folder.mkdir(exist_ok=True)
    for name, page in pages().items():
        (folder / name).write_text(page, encoding="ascii")


if __name__ == "__main__":
    main()
