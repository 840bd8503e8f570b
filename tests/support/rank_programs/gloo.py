"""The threads of gloo in this process."""

from pathlib import Path


def has_threads() -> bool:
    """Whether a process group still has its threads, which run the collectives."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return "pt_gloo_runloop" in names
