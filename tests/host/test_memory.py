"""How much memory is left: the least of the control groups and the machine."""

from pathlib import Path

from ftrun.core.rules.standby import Memory
from ftrun.host import memory

MIB = 1 << 20


def group(folder: Path, **files: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".", 1)).write_text(f"{content}\n")
    return str(folder)


def test_cached_files_count_as_free(tmp_path: Path) -> None:
    stat = f"anon 5\ninactive_file {2 * MIB}"
    folder = group(tmp_path, memory__max=8 * MIB, memory__current=7 * MIB, memory__stat=stat)
    assert memory.available(folder) == Memory(8 * MIB, 3 * MIB)


def test_the_narrowest_of_nested_groups_counts(tmp_path: Path) -> None:
    group(tmp_path, memory__max=8 * MIB, memory__current=6 * MIB)
    folder = group(tmp_path / "inner", memory__max=64 * MIB, memory__current=6 * MIB)
    assert memory.available(folder) == Memory(8 * MIB, 2 * MIB)


def test_version_1(tmp_path: Path) -> None:
    folder = group(tmp_path, memory__limit_in_bytes=8 * MIB, memory__usage_in_bytes=9 * MIB)
    assert memory.available(folder) == Memory(8 * MIB, 0)


def test_a_group_without_limit_leaves_the_machine(tmp_path: Path) -> None:
    without = group(tmp_path / "2", memory__max="max", memory__current=6 * MIB)
    old = group(tmp_path / "1", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=6 * MIB)
    for folder in (without, old, ""):
        found = memory.available(folder)
        assert found is not None
        assert 0 < found.free < found.limit
        assert found.limit > 256 * MIB
