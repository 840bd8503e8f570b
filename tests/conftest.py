"""For all tests: Ctrl-C works, temporary folders are removed, and what needs PyTorch is skipped without it."""

import gc
import importlib.util
import multiprocessing.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial

import pytest

# hypothesis would load trio, whose plugin nothing here needs, into each worker.  Programs of the tests do not see it.
os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"
import hypothesis

del os.environ["HYPOTHESIS_NO_PLUGINS"]
from support.left_behind import Session

# A busy machine draws and runs examples slowly, which is no failure of the code.  The examples are the same in every
# run, so that a new failure has its cause in a change; `--hypothesis-profile explore` draws new ones.
steady = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ftrun", steady, derandomize=True)
hypothesis.settings.register_profile("explore", steady, max_examples=1000)
hypothesis.settings.load_profile("ftrun")

# Whoever runs the tests may have one; a test that needs it sets its own.
os.environ.pop("PYTHONPATH", None)

# A shell ignores SIGINT for what it starts in the background, and so for all processes of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Each file runs in one worker, so the longest ones start first.  Some that are not as long are named too: they would
# otherwise be the last of all, when the other workers have nothing left to do.
LONG = (
    "tests/test_without_options.py",
    "helpers/test_messenger_group.py",
    "cli/test_group_orders.py",
    "net/test_group_deadlock.py",
    "contracts/test_docs_tutorial.py",
    "cli/test_after_the_end.py",
    "ftctl/test_steering.py",
    "cli/test_auto_timeout.py",
    "schedulers/test_local.py",
    "cli/test_network_run_dir.py",
    "net/test_group_silence.py",
    "cli/test_device_faults.py",
    "cli/test_recovery.py",
    "cli/test_idle.py",
    "cli/test_group_shared_folder.py",
    "net/test_group_fewer.py",
    "helpers/test_checkpoint_watcher.py",
    "cli/test_devices.py",
    "container/test_started_ranks.py",
    "container/test_signals.py",
    "tests/test_example.py",
    "cli/test_progress_files.py",
    "schedulers/test_slurm.py",
    "cli/test_schedules.py",
    "container/test_terminal.py",
    "helpers/test_ascend.py",
    "core/test_coordinator_properties.py",
    "cli/test_telemetry.py",
    "net/test_group_recovery.py",
    "container/test_standbys.py",
    "cli/test_rank_faults.py",
    "cli/test_phases.py",
    "waitproof/test_waits.py",
    "helpers/test_evidence_limits.py",
    "ftctl/test_page_browser.py",
    "contracts/test_docs_howto.py",
    "cli/test_crash_of_ftrun.py",
    "container/test_rank_recovery.py",
    "cli/test_healing.py",
    "cli/test_failing.py",
    "schedulers/test_slurm_elastic.py",
    "workload/test_fthang_torch.py",
    "workload/test_fthang_ranks.py",
    "core/test_planted_bugs.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collecting makes a million objects that stay, so looking among them for garbage is in vain, now and later."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: index for index, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(LONG)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Nothing is imported here: that would take seconds in each worker, and memory in all that it forks."""
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: pip install 'ftrun[torch]'")


SESSION = pytest.StashKey[Session]()


def pytest_configure(config: pytest.Config) -> None:
    """The temporary folders of all workers are in one that is removed at the end, also if a worker was killed."""
    if hasattr(config, "workerinput"):
        return
    config.stash[SESSION] = Session(time.time())
    if getattr(config.option, "numprocesses", None):
        tempfile.gettempdir()  # pytest's own folders stay elsewhere
        folder = tempfile.mkdtemp(prefix="ft-")
        config.add_cleanup(partial(_remove_workers, folder, os.environ.get("TMPDIR")))
        os.environ["TMPDIR"] = folder


def _remove_workers(folder: str, before: str | None) -> None:
    os.environ.pop("TMPDIR")
    if before is not None:
        os.environ["TMPDIR"] = before
    shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash[SESSION].end()
    if left:
        terminalreporter.section("left in /dev/shm by a test that did not remove it")
        for path in left:
            terminalreporter.line(str(path))


@pytest.fixture(scope="session", autouse=True)
def no_temporary_folder_stays(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Programs that are killed on purpose leave theirs in this folder; its name is short, for the sockets in it."""
    tmp_path_factory.getbasetemp()  # pytest's own folders stay elsewhere
    before, worker = os.environ.get("TMPDIR"), getattr(pytestconfig, "workerinput", None)
    if worker is None:
        folder = tempfile.mkdtemp(prefix="ft-")
    else:
        folder = os.path.join(tempfile.gettempdir(), worker["workerid"])
        os.mkdir(folder)
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
