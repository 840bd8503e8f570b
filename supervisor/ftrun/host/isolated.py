"""Run by its path: `python -I isolated.py ftrun|ftctl [ARG]...`; `isolation.py` executes it in place of itself."""

import os
import sys
from importlib import import_module


def main() -> None:
    program = sys.argv[1]
    sys.argv[:2] = [program]
    # An isolated interpreter ignores PYTHONPATH and the user's site-packages, so the folder of this package is added,
    # after the standard library.
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    hooks = package if os.path.isdir(f"{package}/ftrun_hooks") else f"{os.path.dirname(package)}/hooks"
    at = next((i for i, path in enumerate(sys.path) if path.endswith("-packages")), len(sys.path))
    sys.path[at:at] = [path for path in dict.fromkeys((package, hooks)) if path not in sys.path]
    getattr(import_module(f"{program}.__main__"), program)()


if __name__ == "__main__":
    main()
