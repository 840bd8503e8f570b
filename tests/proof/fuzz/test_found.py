"""What the fuzzers found: each of it once more, as it was, and then as a user meets it."""

import subprocess
from pathlib import Path

import pytest

from proof.fuzz.findings import tried
from proof.fuzz.seeds import FOUND
from proof.fuzz.targets import TARGETS, clean
from support.runs import HOUSE, Runs, need_mounts, python
from support.runs import runs as runs

SUPERVISOR = str(HOUSE / "supervisor")


@pytest.fixture(scope="module", autouse=True)
def _cleaned() -> object:
    yield
    clean()


@pytest.mark.parametrize(("target", "content"), FOUND)
def test_it_is_no_finding_any_more(target: str, content: bytes) -> None:
    assert tried(TARGETS[target], content) is None


def test_a_mount_point_of_any_name_stops_no_start(runs: Runs) -> None:
    need_mounts()
    points = [runs.folder / name for name in ("a\fb", "a\u2028b", "a b\tc")]
    for point in points:
        point.mkdir()
    mounted = runs.mounted("\n".join(f"mount -t tmpfs none '{point}'" for point in points))
    runs.ends(0, "true", prefix=mounted)
    readers = "liveness._devices('/tmp', 0), list(system.proc()), disk._kind('/tmp'), mounts.network_kind('/tmp')"
    modules = "ftrun.records.files import liveness", "ftctl.doctor import disk, system", "ftrun.host import mounts"
    code = "\n".join([*(f"from {module}" for module in modules), readers])
    subprocess.run([*mounted, *python(code)], check=True, timeout=60, env=runs.environment | {"PYTHONPATH": SUPERVISOR})


def test_a_name_with_a_nul_in_it_stops_no_restart(runs: Runs, tmp_path: Path) -> None:
    """It would be part of a variable of the next start, and the kernel takes none."""
    code = """
if ft.attempt().start_cnt > 1: sys.exit(0)
ft.checkpoint(5, "c\\0d"); ft.section("s\\0t").__enter__(); ft.beat(6); sys.exit(7)
"""
    runs.ends(0, "--restart-on", "failure", "--backoff", "10ms", "--", *python(code))
