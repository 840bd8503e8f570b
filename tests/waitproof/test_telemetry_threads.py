"""Libraries that report what training does, for real: a deadlock beside each is proved, a healthy wait is not.

Large ones are tried where they are installed, or where FTRUN_TRACKERS names a folder with them:

    pip install --target /tmp/trackers/site-packages tensorboard tensorboardX wandb mlflow-skinny sentry-sdk
    FTRUN_TRACKERS=/tmp/trackers/site-packages python -m pytest tests/waitproof/test_telemetry_threads.py
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, closed, see

pytestmark = [needs_spy, pytest.mark.timeout(300)]

FOLDER = os.environ.get("FTRUN_TRACKERS", "")

# By the package that has to be installed: how a program begins to report, in its own folder.
LIBRARIES = {
    "prometheus_client": "import prometheus_client; prometheus_client.start_http_server(0, addr='127.0.0.1')",
    "tqdm": "import tqdm; bar = tqdm.tqdm(range(10), file=open(os.devnull, 'w')); bar.update()",
    "opentelemetry.sdk": """from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
nowhere = open(os.devnull, 'w')
provider = TracerProvider(); provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=nowhere)))
with provider.get_tracer('a').start_as_current_span('step'): pass
meters = MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter(out=nowhere))])""",
    "tensorboard": """from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter('.'); writer.flush()""",
    "tensorboardX": "import tensorboardX; writer = tensorboardX.SummaryWriter('.'); writer.add_scalar('loss', 1.0, 1)",
    "wandb": """import wandb
run = wandb.init(project='p', mode='offline', dir='.', settings=wandb.Settings(silent=True)); run.log({'loss': 1.0})""",
    "mlflow": """import mlflow
os.environ['MLFLOW_ALLOW_FILE_STORE'] = 'true'
mlflow.set_tracking_uri('file:m'); mlflow.set_system_metrics_sampling_interval(1)
mlflow.start_run(log_system_metrics=True); mlflow.log_metric('loss', 1.0)""",
    "sentry_sdk": """import sentry_sdk
sentry_sdk.init(dsn='http://key@127.0.0.1:9/1'); sentry_sdk.capture_message('it trains')""",
}


def libraries() -> list[Any]:
    def installed(name: str) -> bool:
        if FOLDER and (Path(FOLDER) / name).exists():
            return True
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    missing = {name: pytest.mark.skipif(not installed(name), reason=f"{name} is not installed") for name in LIBRARIES}
    return [pytest.param(code, id=name, marks=missing[name]) for name, code in LIBRARIES.items()]


def start(job: Job, code: str) -> None:
    job.start(HEAD + code, "0", **({"PYTHONPATH": FOLDER} if FOLDER else {}))


@pytest.mark.parametrize("begin", libraries())
def test_a_deadlock_beside_it_is_proved(job: Job, begin: str) -> None:
    start(job, f"{begin}\nready(); stuck()")
    assert "waits for a lock" in closed(job, job.pid, step=7).mechanism


@pytest.mark.parametrize("begin", libraries())
def test_a_healthy_wait_beside_it_is_not(job: Job, begin: str) -> None:
    """A thread of the program gives what its main thread waits for, after a while."""
    fed = "items = queue.Queue()\ndef load():\n    time.sleep(10**5)\n    items.put(1)\nthread(load)"
    start(job, f"{begin}\n{fed}\nready(); items.get()")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason
