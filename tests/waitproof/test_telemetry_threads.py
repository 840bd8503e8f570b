"""Libraries that report what training does, for real: a deadlock beside each is proved, a healthy wait is not.

Large ones are tried where they are installed, or where FTRUN_TRACKERS names a folder with them:

    pip install --target /tmp/trackers/site-packages tensorboard tensorboardX wandb mlflow-skinny sentry-sdk
    FTRUN_TRACKERS=/tmp/trackers/site-packages python -m pytest tests/waitproof/test_telemetry_threads.py
"""

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import COLLECTIVE, HEAD, closed, see
from support.runs import wait_for
from waitproof import recognized
from waitproof.stacks import Frame

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
    found = closed(job, job.pid, step=7)
    assert "waits for a lock" in found.mechanism
    assert found.pid == job.pid


@pytest.mark.parametrize("begin", libraries())
def test_a_healthy_wait_beside_it_is_not(job: Job, begin: str) -> None:
    """A thread of the program gives what its main thread waits for, after a while."""
    fed = "items = queue.Queue()\ndef load():\n    time.sleep(10**5)\n    items.put(1)\nthread(load)"
    start(job, f"{begin}\n{fed}\nready(); items.get()")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason


# A package that reports what training does: its thread works for what is waited for, and has a timer.
REPORTS = """import asyncio, ctypes, logging, queue, socket, subprocess, threading, time
loop, done, entries = asyncio.new_event_loop(), threading.Event(), queue.Queue()
def run():
    loop.call_later(10**5, done.set)
    loop.run_forever()
def begin(daemon=True):
    threading.Thread(target=run, daemon=daemon).start()
def finish():
    asyncio.run_coroutine_threadsafe(asyncio.sleep(10**5), loop).result()
def relay():
    def target():
        done.wait()
        entries.put(1)
    threading.Thread(target=target, daemon=True).start()
    entries.get()
def keep_log():
    def worker():
        with logging.getLogger().handlers[0].lock:
            done.set()
            time.sleep(10**5)
    threading.Thread(target=worker, daemon=True).start()
    done.wait()
def compress():
    def worker():
        done.wait()
        ctypes.PyDLL(None).sleep(10**5)
    threading.Thread(target=worker, daemon=True).start()
def flush():
    time.sleep(10**5)
def _publish_queue():  # as that of wandb's ServiceFinalizer
    entries.get()
def publish():
    threading.Thread(target=_publish_queue, daemon=True).start()
def traced(function):
    function()
def connect(program):
    own, other = socket.socketpair()
    subprocess.Popen([program], stdin=other)
    other.close()
    def run():
        own.recv(1)
    threading.Thread(target=run, daemon=True).start()
"""
WITHIN = {
    "an upload": "wandb.begin(); ready(); wandb.finish()",
    "a thread of it that waits for another one": "wandb.begin(); ready(); wandb.relay()",
    "all threads at the end": "wandb.begin(daemon=False); ready()",
    "a lock of the log": """import logging; logging.basicConfig(); wandb.keep_log(); ready()
logging.warning('it trains')""",
    "a thread of the program that calls it": """t = threading.Thread(target=wandb.flush, daemon=True)
t.start(); ready(); t.join()""",
}


def install(job: Job) -> str:
    """The first lines of a program with this package, loaded from where packages are installed."""
    package = job.folder / "site-packages/wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(REPORTS)
    return f"{HEAD}sys.path.insert(0, {str(package.parent)!r}); import wandb\n"


@pytest.mark.parametrize("name", WITHIN)
def test_what_it_waits_for_itself_may_come_from_its_threads(job: Job, name: str) -> None:
    job.start(install(job) + WITHIN[name], "0")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason


def test_the_lock_of_the_interpreter_that_its_thread_holds_may_come_from_it(job: Job) -> None:
    job.start(f"{install(job)}wandb.compress(); ready(); wandb.done.set()\nwhile True: pass", "0")
    wait_for(lambda: "waits for a timer" in (see(job, job.pid, step=7).open_reason or ""), "the reason")


@pytest.mark.parametrize("call", ["wandb.traced(stuck)", "wandb.traced(lambda: all_reduce(threading.Lock()))"])
def test_a_deadlock_of_the_program_that_it_has_called_is_proved(job: Job, call: str) -> None:
    job.start(f"{install(job)}{COLLECTIVE}wandb.begin(); wandb.publish(); ready(); {call}", "0")
    closed(job, job.pid, step=7)


def test_neither_its_threads_nor_the_program_that_it_brings_are_the_cause(job: Job) -> None:
    code = install(job)
    program = job.folder / "site-packages/wandb/bin/wandb-core"
    program.parent.mkdir()
    shutil.copy("/bin/cat", program)
    job.start(f"{code}wandb.connect({str(program)!r}); ready(); stuck()", "0")
    found = closed(job, job.pid, step=7)
    assert found.pid == job.pid
    assert re.fullmatch(
        r"deadlock: rank 0 .* waits for a lock at \S+, which only its own threads can end", found.mechanism
    )


def test_a_library_between_the_program_and_its_wait_may_be_waited_for_by_telemetry() -> None:
    def frames(*paths: str) -> list[Frame]:
        return [Frame("wait", "/usr/lib/python3.11/threading.py", 1), *(Frame("f", path, 1) for path in paths)]

    packages = "/venv/lib/python3.11/site-packages"
    wandb, tqdm, other = (f"{packages}/{name}/a.py" for name in ("wandb", "tqdm", "tenacity"))
    torch, own = f"{packages}/torch/utils/data/dataloader.py", "/job/train.py"
    assert recognized.awaits_report(frames(wandb, own))
    assert recognized.awaits_report(frames(other, wandb, own))
    assert recognized.awaits_report(frames(tqdm, own)), "it waits for a lock that its monitor may have"
    wait, iterates = frames(own)[0], Frame("tqdm.__iter__", f"{packages}/tqdm/std.py", 1181)
    assert not recognized.awaits_report([wait, iterates, *frames(own)[1:]]), "it waits for what it iterates"
    assert recognized.awaits_report(frames(f"{packages}/torch/utils/tensorboard/writer.py", own))
    for others in ((own,), (own, wandb), (torch, wandb, own), (other, tqdm, own), (torch, tqdm, own)):
        assert not recognized.awaits_report(frames(*others)), others


# A package that reports errors, and therefore calls what each thread runs, as sentry_sdk/integrations/threading.py.
WRAPS = """from threading import Thread
start = Thread.start
def wrapped(old):
    def run():
        return old()
    return run
def sentry_start(self):
    self.run = wrapped(self.run)
    start(self)
Thread.start = sentry_start
"""
RUNS = {
    "a Timer": "e = threading.Event(); threading.Timer(10**5, e.set).start(); ready(); e.wait()",
    "a thread that runs a program": (
        "t = threading.Thread(target=subprocess.check_call, args=(['sleep', '900'],), daemon=True)\n"
        "t.start(); ready(); t.join()"
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_thread_that_runs_only_the_standard_library_reports_nothing_although_it_is_wrapped(
    job: Job, name: str
) -> None:
    package = job.folder / "site-packages/sentry_sdk/integrations"
    package.mkdir(parents=True)
    (package / "wraps.py").write_text(WRAPS)
    head = f"{HEAD}sys.path.insert(0, {str(package.parents[1])!r}); import sentry_sdk.integrations.wraps\n"
    job.start(f"{head}{RUNS[name]}", "0")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason
