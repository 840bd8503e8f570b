"""Steer a running ftrun without `ftctl`:  python steer.py RUN_DIR restart|stop|pause|resume|ping

And hear what it does: `records.sock` is a PUB of the records, the name of the record first.
"""

import json
import sys

import zmq

run_dir, verb = sys.argv[1:]
with zmq.Context() as context, context.socket(zmq.REQ) as socket:
    socket.linger = 0
    socket.connect(f"ipc://{run_dir}/ftctl.sock")
    socket.send_json({"schema": 1, "id": "1", "verb": verb, "by": "steer.py"})
    if not socket.poll(15_000):
        sys.exit("no answer")
    answer = json.loads(socket.recv())
print(answer["why"])
sys.exit(0 if answer["ok"] else 1)
