"""What `ftctl status` and the records say of the heartbeats that a run is watched by."""

import json
import subprocess
import sys

from support.runs import FTCTL, Run, Runs, wait_for

# In name only.
PACKAGES = {
    "jax/numpy.py": "",
    "keras/src/callbacks/callback_list.py": """
class CallbackList:
    model = 0
    def on_train_batch_end(self, batch): pass
    on_test_batch_end = on_predict_batch_end = on_train_batch_end
""",
}
CODE = """
import os, sys, time
sys.path.insert(0, 'packages')
import jax.numpy
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
wait_for('train')
from keras.src.callbacks.callback_list import CallbackList
CallbackList().on_train_batch_end(0)
wait_for('end')
"""


def test_status_says_by_whose_heartbeats_the_run_is_watched(runs: Runs) -> None:
    """Of a program with JAX it says what one line would add; the record of the first heartbeat has the framework."""
    for name, text in PACKAGES.items():
        path = runs.folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = runs.start(sys.executable, "-c", CODE)
    silent = wait_for(lambda: (text := heartbeats(run)) and "JAX" in text and text, "the status before it moves")
    assert silent == (
        "none so far: only deadlocks can be found; nothing outside can see a step of JAX: call "
        "ftrun_hooks.beat(step) in the training loop"
    )
    (runs.folder / "train").touch()
    assert run.until("first_beat")["source"] == "Keras"
    wait_for(lambda: heartbeats(run) == "from Keras", "the status after it has moved")
    (runs.folder / "end").touch()
    assert run.wait() == 0


def heartbeats(run: Run) -> str:
    shown = subprocess.run([*FTCTL, "status", "--json", "--run-dir", str(run.run_dir)], capture_output=True, text=True)
    return str(json.loads(shown.stdout or "{}").get("heartbeats") or "")
