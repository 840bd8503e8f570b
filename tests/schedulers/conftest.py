from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from schedulers.slurm import Cluster, Submit, missing


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real Slurm of two nodes."""
    if lacks := missing():
        pytest.skip(f"no Slurm here: {lacks} not found (apt-get install slurm-wlm munge)")
    with Cluster(tmp_path_factory.mktemp("slurm")) as up:
        yield up


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Submit]:
    """Starts a job with a script of docs/schedulers/slurm.  Leaves no job, and all nodes available."""
    made = Submit(cluster, tmp_path)
    yield made
    cluster.clear()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, None]:
    """A failure shows the output of the jobs and the daemons."""
    outcome = yield
    report = outcome.get_result()
    made = getattr(item, "funcargs", {}).get("submit")
    if report.failed and isinstance(made, Submit):
        report.sections += [(f"job {job.number}", job.log()) for job in made.jobs]
        report.sections.append(("Slurm", made.cluster.log()))
