"""A program run by path: `python -I isolated.py ftrun|ftctl [ARG]...`, started by `entry.py` in place of itself."""

import os
import sys


def main() -> None:
    program = sys.argv[1]
    sys.argv[:2] = [program]
    # An isolated interpreter has no PYTHONPATH and no folder of the user's packages: what is not installed otherwise is
    # found where we are.  The standard library comes before it.
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    hooks = ours if os.path.isdir(f"{ours}/ftrun_hooks") else f"{os.path.dirname(ours)}/hooks"
    at = next((i for i, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
    sys.path[at:at] = [path for path in dict.fromkeys((ours, hooks)) if path not in sys.path]
    from ftrun.cli import entry

    getattr(entry, program)()


if __name__ == "__main__":
    main()
