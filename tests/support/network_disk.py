"""A network disk that dies and comes back: a FUSE file system whose server is stopped, and goes on."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runs import wait_for


class Disk:
    """`view` is what a client sees; `real` is what the server has, which can be looked at while it is dead."""

    def __init__(self, folder: Path) -> None:
        self.real, self.view = folder / "real", folder / "net"
        self.real.mkdir()
        self.view.mkdir()
        self.mount()

    def mount(self) -> None:
        # Nothing is cached: a server that is stopped answers nothing at all.
        words = ["bindfs", "-f", "-o", "attr_timeout=0,entry_timeout=0,negative_timeout=0"]
        self._server = subprocess.Popen([*words, str(self.real), str(self.view)], stderr=subprocess.PIPE)
        wait_for(lambda: self._server.poll() is not None or self._mounted(), "the disk is mounted")
        if self._server.poll() is not None:
            pytest.skip(f"no FUSE here: {self._server.communicate()[1].decode(errors='replace')}")

    def die(self) -> None:
        self._server.send_signal(signal.SIGSTOP)

    def come_back(self) -> None:
        self._server.send_signal(signal.SIGCONT)

    def unmount(self) -> None:
        """As when its server is gone for good, and an operator has cleared it away."""
        self._server.kill()
        self._server.wait(60)
        self._clear()

    def _clear(self) -> None:
        assert self._server.stderr is not None
        self._server.stderr.close()
        if self._mounted():  # somebody had it open
            subprocess.run(["umount", "--lazy", str(self.view)], check=True, timeout=60)

    def _mounted(self) -> bool:
        return f" {self.view} " in Path("/proc/self/mountinfo").read_text()

    def end(self) -> None:
        self.come_back()
        if self._server.poll() is None:
            self._server.terminate()  # it unmounts what it has mounted
        self._server.wait(60)
        self._clear()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if shutil.which("bindfs") is None or not os.path.exists("/dev/fuse"):
        pytest.skip("bindfs is not installed, or there is no /dev/fuse")
    made = Disk(tmp_path)
    yield made
    made.end()
