"""What lives beside training in most jobs: `companions.py LIBRARY PROGRAM [ARG]...` runs a program beside it.

Threads of a library that is mapped as libcuda.so.1, trackers with threads of their own, a handler of SIGTERM.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import runpy
import signal
import sys
import threading

# A thread as wandb has it: it sends what it finds in its queue, twice a second.
TRACKER = """
import queue, threading
def start():
    def _loop_send():
        items = queue.Queue()
        while True:
            try: items.get(timeout=0.5)
            except queue.Empty: pass
    threading.Thread(target=_loop_send, daemon=True).start()
"""


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    assert library.begin() == 0
    package = os.path.join(os.path.dirname(sys.argv[1]), "site-packages", "wandb")
    os.makedirs(package, exist_ok=True)
    with open(os.path.join(package, "__init__.py"), "w") as file:
        file.write(TRACKER)
    sys.path.insert(0, os.path.dirname(package))
    importlib.import_module("wandb").start()
    if importlib.util.find_spec("prometheus_client"):
        import prometheus_client

        prometheus_client.start_http_server(0, "127.0.0.1")
    last = threading.Event()  # as a program that saves a last checkpoint
    signal.signal(signal.SIGTERM, lambda *_: last.set())
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
