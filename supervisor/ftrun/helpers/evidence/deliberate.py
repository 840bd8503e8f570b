"""Whether a process does nothing on purpose, as the idle rule has to know.  Pure."""

from waitproof.world import World


def deliberate(pid: int, world: World) -> str | None:
    """What its main thread waits for that nobody waits for by mistake: a signal (`signal.pause`, `sleep infinity`), or
    a person at a terminal; None: something else."""
    process = world.processes[pid]
    main = process.threads[0] if process.threads else None
    if main is None or main.call is None:
        return None
    call = main.call
    if call.kind == "signal" or (call.kind in ("poll", "select") and not main.fds and not main.timed):
        return f"process {pid} ({process.name}) waits for a signal"
    ends = (process.fds.get(fd) for fd, mode in main.fds if "r" in mode)
    if any(end is not None and end.kind == "terminal" for end in ends):
        return f"process {pid} ({process.name}) waits for a terminal"
    return None
