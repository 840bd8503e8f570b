"""`first_line.py FIFO [torch] [fail]`: a rank.  It writes a line with its number and the number of restarts to the
FIFO, after `import torch` if asked.  With `fail` the ranks of the first start wait, and the last one
fails once `FIFO.fail` exists."""

import os
import sys
import time


def main(fifo: str, *asked: str) -> None:
    if "torch" in asked:
        import torch  # noqa: F401
    rank, restarts = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    with open(fifo, "wb", buffering=0) as stream:
        stream.write(b"%d %d\n" % (rank, restarts))
    while "fail" in asked and restarts == 0:
        if rank == int(os.environ["WORLD_SIZE"]) - 1 and os.path.exists(f"{fifo}.fail"):
            sys.exit(1)
        time.sleep(0.005)


if __name__ == "__main__":
    main(*sys.argv[1:])
