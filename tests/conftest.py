"""For all tests: Ctrl-C works, and temporary folders are removed."""

import multiprocessing.util
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

# A busy machine draws and runs examples slowly, which is no failure of the code.  The examples are the same in every
# run, so that a new failure has its cause in a change; `--hypothesis-profile explore` draws new ones.
steady = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ftrun", steady, derandomize=True)
hypothesis.settings.register_profile("explore", steady, max_examples=1000)
hypothesis.settings.load_profile("ftrun")

# A shell ignores SIGINT for what it starts in the background, and so for all processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Each file runs in one worker, so the longest ones start first.
LONG = (
    "core/test_mutations.py",
    "cli/test_device_faults.py",
    "helpers/test_ascend.py",
    "hooks/test_auto_torch.py",
    "cli/test_schedules.py",
    "helpers/test_evidence_waits.py",
    "hooks/test_lightning.py",
    "hooks/test_torch_helpers.py",
    "hooks/test_transformers.py",
    "tests/test_example.py",
    "schedulers/test_slurm.py",
    "schedulers/test_local.py",
    "helpers/test_messenger_group.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: index for index, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(LONG)))


@pytest.fixture(scope="session", autouse=True)
def no_temporary_folder_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that are killed on purpose leave theirs in this folder; its name is short, for the sockets in it."""
    tmp_path_factory.getbasetemp()  # pytest's own folders stay elsewhere
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
