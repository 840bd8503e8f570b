"""The count of out-of-memory kills, wherever the kernel provides it."""

from pathlib import Path

import pytest

from ftrun.host import cgroup

V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "34 31 0:31 {root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw shared:3 master:1 - cgroup cgroup rw,memory\n"
)
HYBRID = V1 + "41 31 0:38 {root} /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
EVENTS, CONTROL = "/memory.events", "/memory.oom_control"
CASES = {
    "2, in a namespace": ("0::/\n", V2, "/", ["/sys/fs/cgroup" + EVENTS]),
    "2, a group below": ("0::/job/1\n", V2, "/", ["/sys/fs/cgroup/job/1" + EVENTS]),
    "2, the host's path": ("0::/pods/a\n", V2, "/pods/a", ["/sys/fs/cgroup" + EVENTS]),
    "2, below the host's path": ("0::/pods/a/b\n", V2, "/pods/a", ["/sys/fs/cgroup/b" + EVENTS]),
    "2, beside the host's path": ("0::/pods/ab\n", V2, "/pods/a", ["/sys/fs/cgroup" + EVENTS]),
    "2, outside of the namespace": ("0::/../other\n", V2, "/", ["/sys/fs/cgroup" + EVENTS]),
    "1": ("5:cpu:/x\n4:memory:/x\n", V1, "/", ["/sys/fs/cgroup/memory/x" + CONTROL]),
    "1, the host's path": ("4:cpu,memory:/docker/a\n", V1, "/docker/a", ["/sys/fs/cgroup/memory" + CONTROL]),
    "both": (
        "0::/\n4:memory:/x\n",
        HYBRID,
        "/",
        ["/sys/fs/cgroup/memory/x" + CONTROL, "/sys/fs/cgroup/unified" + EVENTS],
    ),
    "none": ("", "", "/", []),
    "mad": ("0\n::\nx:y\n", "a - b\n - \n-\n", "/", []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_paths_of_the_oom_counter(case: tuple[str, str, str, list[str]]) -> None:
    groups, mounts, root, wanted = case
    assert list(cgroup.files(groups, mounts.replace("{root}", root))) == wanted


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", 7),
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # before Linux 4.13
        ("oom_kill many\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_number_of_oom_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, wanted: int | None
) -> None:
    file = tmp_path / "events"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(cgroup, "files", lambda *_: [str(file)])
    assert cgroup.oom_kills() == wanted


def test_files_longer_than_a_page_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def files(groups: str, _: str) -> list[str]:
        seen.append(groups)
        return []

    monkeypatch.setattr(cgroup, "files", files)
    monkeypatch.setattr(cgroup, "_text", lambda path, read=cgroup._text: read(path.replace("cgroup", "maps")))
    assert cgroup.oom_kills() is None
    assert len(seen[0].encode()) > 4096


def test_here() -> None:
    counted = cgroup.oom_kills()
    assert counted is None or counted >= 0
