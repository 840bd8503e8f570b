"""An ordinary program that hangs in its first start: the loader fails, and nobody loads what the training waits for."""

import queue
import threading
import time
from pathlib import Path

CHECKPOINT = Path("checkpoint.txt")
STEPS = 30

first = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
batches: queue.Queue[int] = queue.Queue(4)


def load() -> None:
    for step in range(first + 1, STEPS + 1):
        if step == 20 and first == 0:
            raise OSError("the file server did not answer")  # ends this thread, and no other
        batches.put(step)


threading.Thread(target=load).start()
print("begin after step", first, flush=True)
for step in range(first + 1, STEPS + 1):
    batches.get()
    time.sleep(0.1)
    if step % 10 == 0:
        CHECKPOINT.write_text(str(step))
        print("saved step", step, flush=True)
