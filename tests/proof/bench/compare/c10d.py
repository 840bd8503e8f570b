"""`c10d.py SIZE [rendezvous]`: measure the store and the rendezvous of torchrun with SIZE members, print JSON.

Without arguments: the store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

LONG = timedelta(seconds=60)


def main(size: int, with_rendezvous: bool) -> None:
    """`barrier`: the time in ms from the message of the last member until all members have the reply of a TCPStore, to
    which they are connected; `memory` of the store's process in MiB; `rendezvous`: the time in ms of torch's c10d
    rendezvous of all members, which start at once; null if it takes more than a minute, or is not requested."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        clients = [TCPStore("127.0.0.1", port, is_master=False, timeout=LONG) for _ in range(size)]
        for client in clients[1:]:
            client.add("ready", 1)
        began = time.monotonic()
        if clients[0].add("ready", 1) == size:
            clients[0].set("go", "1")
        for client in clients:
            client.get("go")
        barrier = time.monotonic() - began
        found = {"barrier": barrier * 1e3, "memory": memory(server.pid), "rendezvous": None}
        if with_rendezvous and (took := rendezvous(clients)) is not None:
            found["rendezvous"] = took * 1e3
        print(json.dumps(found), flush=True)
        server.kill()
        os._exit(0)  # does not wait for the threads that keep the rendezvous alive


def rendezvous(clients: list[Any]) -> float | None:
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

    size = len(clients)
    agreed: list[int] = []

    def join(client: Any) -> None:
        backend = C10dRendezvousBackend(client, "job")
        handler = DynamicRendezvousHandler.from_backend(
            "job", client, backend, size, size, "127.0.0.1", RendezvousTimeout(join=LONG)
        )
        try:
            agreed.append(handler.next_rendezvous().rank)
        except RendezvousTimeoutError:
            pass

    threads = [threading.Thread(target=join, args=(client,), daemon=True) for client in clients]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, began + LONG.total_seconds() - time.monotonic()))
    return time.monotonic() - began if sorted(agreed) == list(range(size)) else None


def serve() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
    sys.stdin.read()


def memory(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) / 1024


if __name__ == "__main__":
    main(int(sys.argv[1]), len(sys.argv) > 2) if len(sys.argv) > 1 else serve()
