"""`python -m waitproof PID`."""

import sys

from waitproof.command import main

if __name__ == "__main__":
    sys.exit(main())
