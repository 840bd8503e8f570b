"""One of two ranks that answer each other over one connection, without PyTorch: `python group_sockets.py FOLDER`.

In the first start each waits at step 5 for what the other has not sent.  The next one goes on to its end.
Environment: RANK, MASTER_ADDR, MASTER_PORT, MA_PROC_START_CNT.
"""

import os
import socket
import sys
import time
from pathlib import Path

import ftrun_hooks as ft

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connected() -> socket.socket:
    if rank == "0":
        with socket.create_server(("", address[1])) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.05)


connection = connected()
for step in range(8):
    if step != 5 or os.environ["MA_PROC_START_CNT"] != "1":
        connection.sendall(b"x")
    assert connection.recv(1) == b"x"
    ft.beat(step)
(folder / f"ended-{rank}").write_text(os.environ["MA_PROC_START_CNT"])
