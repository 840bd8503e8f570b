"""Which paths are on a network disk: from the kernel's own list, without touching any that may not answer."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.host.mounts import Mounts
from support.network_disk import Disk
from support.network_disk import disk as disk
from support.runs import DEADLINE, HOUSE

# As in a container: the root, a volume, another one in it, one over it, one whose name has a space.
LIST = """\
100 50 0:30 / / rw,relatime - overlay overlay rw,lowerdir=/a
101 100 0:31 / /proc rw - proc proc rw
102 100 0:32 /job /nfs rw,relatime shared:1 master:2 - nfs4 server:/job rw,hard
103 102 8:1 / /nfs/fast rw - ext4 /dev/sda1 rw
104 100 8:1 /x /data rw - xfs /dev/sdb rw
105 104 0:33 / /data/hidden rw - nfs server:/x rw
106 104 8:2 / /data rw - xfs /dev/sdc rw
107 100 0:34 / /my\\040disk rw - fuse.sshfs me@there:/ rw
108 100 0:35 / /host rw - virtiofs host rw
109 100 0:36 / /home rw - autofs auto.home rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/job/run", None),
        ("/nfs", "nfs4"),
        ("/nfs/run", "nfs4"),
        ("/nfs/fast/run", "nfs4"),  # its mount point is looked up on the way
        ("/nfsx", None),
        ("/data/run", None),
        ("/data/hidden/run", None),  # something else is mounted over it
        ("/my disk/run", "fuse.sshfs"),
        ("/host/run", "virtiofs"),
        ("/home/me/run", "autofs"),
        ("/nfs/../tmp/run", "nfs4"),  # the kernel goes there too
        ("/data/../nfs/run", "nfs4"),
        ("//nfs/./run/", "nfs4"),
    ],
)
def test_the_longest_mount_point_that_can_be_seen(path: str, kind: str | None) -> None:
    assert Mounts(LIST).network_kind(path) == kind


@pytest.mark.parametrize("kind", ["virtiofs", "9p", "nfs4", "fuse.bindfs"])
def test_a_root_that_is_not_a_local_disk(kind: str) -> None:
    """It is looked at all the same: where it does not answer, neither does the program that asks."""
    seen = Mounts(LIST.replace(" - overlay overlay ", f" - {kind} root "))
    for path in ("/data/run", "/data/hidden/run", "/proc/self"):
        assert (seen.network_kind(path), seen.on_root(path)) == (None, False)
    for path in ("/job/run", "/nfsx", "/data/../job/run"):
        assert (seen.network_kind(path), seen.on_root(path)) == (kind, True)
    for path in ("/nfs/run", "/nfs/fast/run", "/nfs/../tmp/run"):
        assert (seen.network_kind(path), seen.on_root(path)) == ("nfs4", False)


def test_in_a_chroot() -> None:
    """The kernel lists what can be reached, with parents that cannot."""
    assert Mounts("7 3 0:9 / /nfs rw - nfs4 s:/ rw\n").network_kind("/nfs/run") == "nfs4"


PACKAGES = [str(HOUSE / folder) for folder in ("supervisor", "hooks")]
STREAMS = """
import os, sys
sys.path[:0] = sys.argv[1:]
from ftrun.host.console import Console
from ftrun.host.output_pipes import OutputPipes, RankOutput
from ftrun.pid1.clients import evidence
answer = os.dup(1)
os.write(answer, b"up\\n")
os.read(0, 1)
for number in (1, 2):
    os.dup2(3, number)
Console()
OutputPipes(RankOutput(kept=True))
os.write(answer, repr(evidence._output()).encode())
os._exit(0)
"""


def test_streams_on_a_dead_disk_are_not_asked(disk: Disk) -> None:
    """The output of a job is often a file on a network disk, which may die before or after PID 1 looks at it."""
    path = disk.view / "slurm-1.out"
    with path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", STREAMS.replace("dup2(3,", f"dup2({output.fileno()},"), *PACKAGES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(output.fileno(),),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        disk.die()
        try:
            process.stdin.write(b"x")
            process.stdin.close()
            answered = select.select([process.stdout], [], [], DEADLINE)[0]
        finally:
            disk.come_back()
        found = process.stdout.read()  # its exit closes the file, for which the disk has to answer
        process.wait(DEADLINE)
        process.stdout.close()
    assert answered, "PID 1 would be blocked"
    assert found == repr((str(path), str(path))).encode()


def test_a_dead_disk_is_not_accessed(disk: Disk, tmp_path: Path) -> None:
    """Also where links lead there, and back."""
    (tmp_path / "link").symlink_to(disk.view / "deep")
    (tmp_path / "relative").symlink_to("net/../link")
    (tmp_path / "loop").symlink_to("loop")
    (disk.real / "home").symlink_to(tmp_path)
    disk.die()
    code = "import sys; from ftrun.host.mounts import network_kind; print(*map(network_kind, sys.argv[1:]))"
    paths = [f"{tmp_path}/{name}/run" for name in ("net", "link", "relative", "loop", "net/home", "none")]
    found = subprocess.run(
        [sys.executable, "-c", code, *paths],
        env=os.environ | {"PYTHONPATH": f"{HOUSE}/supervisor:{HOUSE}/hooks"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.split() == ["fuse", "fuse", "fuse", "None", "fuse", "None"]
