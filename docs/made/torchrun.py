"""The page of torchrun's options: what ftrun makes of each."""

from ftrun.config.torchrun_options import TABLE

ABOVE = """# Options of torchrun

Generated from the code by `docs/reference.py`.

`ftrun` can take the place of `torchrun` in a working command: [ranks](../howto/ranks.md). Underscores in place of
hyphens are accepted. An option that is not here is one of [ftrun](../reference.md), or an error.

The variables `PET_<OPTION>`, such as `PET_NNODES`, count like the options where the command line has one of these, or
its command is a Python file and `PET_NPROC_PER_NODE` is set. They do not affect `ftrun torchrun ...`.

What ftrun uses in the place of each:

"""


def page() -> str:
    ignored = [row for row in TABLE if row.meaning.startswith("not needed") and "refused" not in row.meaning]
    used = "".join(f"- `--{row.name}`: {row.meaning}\n" for row in TABLE if row not in ignored)
    return ABOVE + used + f"\nAccepted, and not needed: {', '.join(f'`--{row.name}`' for row in ignored)}.\n"
