"""A deadlock beside a progress bar that is drawn again and again is proved; a bar that is being drawn may go on."""

import importlib.util

import pytest

from support.evidence_job import Job, needs_spy
from support.evidence_job import job as job
from support.proving import HEAD, closed, see
from waitproof.recognized import displays
from waitproof.stacks import Frame

RICH = f"""{HEAD}from rich.console import Console
from rich.progress import Progress, track
console = Console(file=open(os.devnull, 'w'), force_terminal=True)
"""
BARS = {
    "a bar": "bar = Progress(console=console); bar.start(); bar.add_task('epoch', total=9); ready(); stuck()",
    "a loop with a bar": "for _ in track(range(9), console=console): ready(); stuck()",
}
# The default bar of a Trainer where `rich` is installed.
LIGHTNING = f"""{HEAD}import lightning.pytorch as pl, torch
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__(); self.linear = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        if self.global_step == 3: ready(); queue.Queue().get()
        return self.linear(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
trainer = pl.Trainer(max_epochs=2, accelerator='cpu', logger=False, enable_checkpointing=False)
assert type(trainer.progress_bar_callback).__name__ == 'RichProgressBar'
sys.stdout = sys.stderr
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(32, 4), batch_size=4))
"""


@needs_spy
@pytest.mark.parametrize("code", BARS.values(), ids=BARS)
def test_a_deadlock_beside_a_bar_of_rich_is_proved(job: Job, code: str) -> None:
    job.start(RICH + code, "0")
    assert "waits for a lock" in closed(job, job.pid, step=7).mechanism


@needs_spy
def test_a_bar_whose_drawing_takes_long_may_give_the_lock_of_the_bar(job: Job) -> None:
    code = """from rich.live import Live
drawing = threading.Event()
def drawn():
    if threading.current_thread() is not threading.main_thread(): drawing.set(); time.sleep(10**5)
    return ''
live = Live(get_renderable=drawn, console=console)
live.start(); drawing.wait(); ready(); live._lock.acquire()"""
    job.start(RICH + code, "0")
    for _ in range(3):
        assert see(job, job.pid, step=7).open_reason


@needs_spy
@pytest.mark.slow
@pytest.mark.torch
def test_a_deadlock_beside_the_default_bar_of_lightning_is_proved(job: Job) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    job.start(LIGHTNING, "0")
    assert "waits for an item in a queue" in closed(job, job.pid, step=3).mechanism


BAR = Frame("run", "/site-packages/lightning/pytorch/callbacks/progress/rich_progress.py", 83)
WAIT = (
    Frame("Condition.wait", "/lib/python3.11/threading.py", 331),
    Frame("wait", "/lib/python3.11/threading.py", 629),
)
LIVE = Frame("_RefreshThread.run", "/site-packages/rich/live.py", 36)


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        pytest.param((BAR,), True, id="it sleeps"),
        pytest.param((*WAIT, LIVE), True, id="it waits for its end with a timeout"),
        pytest.param((Frame("Live.refresh", LIVE.file, 250), LIVE), False, id="it draws"),
        pytest.param((*WAIT, Frame("refresh", LIVE.file, 250), LIVE), False, id="it waits while it draws"),
        pytest.param((*WAIT, Frame("run", "/mine/live.py", 1)), False, id="a thread of the program"),
        pytest.param((), False, id="no Python"),
    ],
)
def test_a_thread_that_displays_gives_nothing_between_two_drawings(frames: tuple[Frame, ...], waits: bool) -> None:
    assert displays(frames) is waits
