"""`python -I -m ftrun`: ftrun, in whatever environment."""

from ftrun.cli.entry import ftrun

if __name__ == "__main__":
    ftrun()
