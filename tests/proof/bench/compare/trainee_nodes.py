"""One rank of a training in lockstep over TCP: `trainee_nodes.py FOLDER [MODULE]`.  It imports nothing but MODULE, and
then also gives heartbeats.

Rank 0 accepts a connection of every other rank and sends each a byte a step; whoever loses a connection fails, as a
rank does whose collective breaks.  A line in `FOLDER/moves` says that this rank has made the first step of a start.
"""

import json
import os
import socket
import sys
import time

PORT = 23999
STEP = 0.02  # s
EVERY = 25  # steps from checkpoint to checkpoint


def connected(rank: int, size: int) -> list[socket.socket]:
    if rank == 0:
        listener = socket.create_server(("", PORT), backlog=size)
        return [listener.accept()[0] for _ in range(size - 1)]
    while True:
        try:
            return [socket.create_connection((os.environ["MASTER_ADDR"], PORT), timeout=2)]
        except OSError:
            time.sleep(0.02)


def main() -> None:
    beat = None
    if len(sys.argv) > 2:
        import ftrun_hooks

        __import__(sys.argv[2])
        beat = ftrun_hooks.beat
    folder, rank, size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    others, step = connected(rank, size), 0
    for other in others:
        other.settimeout(None)
    while True:
        for other in others:
            if rank == 0:
                other.sendall(b"x")
            if not other.recv(1):
                sys.exit(1)
            if rank:
                other.sendall(b"x")
        step += 1
        if beat is not None:
            beat(step)
        if step == 1:
            line = {"time": time.monotonic(), "rank": rank, "size": size, "host": os.uname().nodename}
            with open(f"{folder}/moves", "a", encoding="ascii") as moves:
                moves.write(json.dumps(line) + "\n")
        if rank == 0 and step % EVERY == 0:
            with open(f"{folder}/new", "w", encoding="ascii") as kept:
                kept.write(str(step))
            os.rename(f"{folder}/new", f"{folder}/checkpoint-{time.time_ns()}")
        time.sleep(STEP if rank == 0 else 0)


if __name__ == "__main__":
    main()
