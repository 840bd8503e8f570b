"""What holds for all tests: Ctrl-C works, and no temporary folder stays."""

import multiprocessing.util
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

# A busy machine draws and runs examples slowly, which says nothing about the code.  The examples are the same in every
# run, so that a change fails for what it changes; `--hypothesis-profile explore` looks for new ones.
steady = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ftrun", steady, derandomize=True)
hypothesis.settings.register_profile("explore", steady, max_examples=1000)
hypothesis.settings.load_profile("ftrun")

# Whoever starts the tests in the background has a shell that ignores it for them, and for all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Each file is one worker's, so a long one that begins late is what all the others wait for: these begin first.
LONG = (
    "core/test_mutations.py",
    "cli/test_device_faults.py",
    "helpers/test_ascend.py",
    "hooks/test_auto_torch.py",
    "cli/test_schedules.py",
    "helpers/test_evidence_waits.py",
    "hooks/test_last.py",
    "tests/test_example.py",
    "schedulers/test_slurm.py",
    "schedulers/test_local.py",
    "helpers/test_messenger_group.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(LONG)))


@pytest.fixture(scope="session", autouse=True)
def no_temporary_folder_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that are killed on purpose leave theirs behind: they have one in which they do, with a short name, since
    there are sockets in it."""
    tmp_path_factory.getbasetemp()  # pytest's own stay where they were
    before, folder = os.environ.get("TMPDIR"), tempfile.mkdtemp(prefix="ft-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield
    tempfile.tempdir = None
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before
    if any(name.startswith("pymp-") for name in os.listdir(folder)):
        # multiprocessing removes its own at the very end, by a finalizer of priority -100.
        multiprocessing.util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-200)
    else:
        shutil.rmtree(folder, ignore_errors=True)
