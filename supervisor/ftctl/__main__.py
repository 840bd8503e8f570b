"""`python -I -m ftctl`, and the entry point of `ftctl`: Python's environment variables have no effect on it."""

from ftrun.host.isolation import isolate


def ftctl() -> None:
    isolate("ftctl")
    from ftctl.main import main

    main()


if __name__ == "__main__":
    ftctl()
