"""The part of PID 1 that captures output: `capturing.py RUN_DIR ATTEMPTS COMMAND...`.

RUN_DIR/messages has the messages of the helper, one JSON object a line, RUN_DIR/pid its pid, RUN_DIR/log its stderr.
After each attempt the helper is asked for its last lines.  The exit code is that of the last attempt, or 128 + n.
"""

import json
import os
import select
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("supervisor", "hooks")]

import ftrun_hooks  # noqa: E402, F401 - where a helper finds it
from ftrun.host import output_pipes, signals, spawn  # noqa: E402
from ftrun.host.helpers import Helpers  # noqa: E402
from ftrun.messages import output as messages  # noqa: E402

HELPER = "output"
EXIT_HOOKS = "CAPTURING_EXIT_HOOKS"  # s, in place of what PID 1 has


def main(run_dir: str, attempts: str, *command: str) -> int:
    caught = signals.Signals()
    spawn.become_subreaper()
    captured = output_pipes.OutputPipes(output_pipes.RankOutput(kept=True))
    poll = select.poll()
    poll.register(caught.fd, select.POLLIN)
    log = os.open(f"{run_dir}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    helpers = Helpers(poll, log)
    helpers.add(HELPER, *captured.arguments(run_dir), passed=captured.descriptors, lasting=True)
    received = open(f"{run_dir}/messages", "a", buffering=1)  # noqa: SIM115
    code = running = 0

    def turn() -> list[messages.OutputEvent]:
        """One turn of the loop; returns the messages of the helper."""
        nonlocal code, running
        due = helpers.deadline
        ready = {fd for fd, _ in poll.poll(None if due is None else 1000 * max(0.0, due - time.monotonic()) + 1)}
        now = time.monotonic()
        caught.read()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            helpers.child_ended(pid, now, status == 0)
            if pid == running:
                code, running = os.waitstatus_to_exitcode(status), 0
        found: list[messages.OutputEvent] = []
        for _, line in helpers.read_lines(ready, now):
            assert line is not None
            message = messages.OUTPUT_EVENTS.load(line)
            print(line.decode("ascii"), file=received)
            found.append(message)
            if isinstance(message, messages.Broken):
                captured.reader_closed(message.stream)
        if helpers.supervise(now):
            Path(run_dir, "pid").write_text(str(helpers.pids[0]))
        return found

    for attempt in range(int(attempts)):
        helpers.send(HELPER, messages.OUTPUT_REQUESTS.dump(messages.AttemptBegins(attempt + 1, time.monotonic())))
        child = spawn.spawn(spawn.Start(command, dict(os.environ), captured.streams()), caught.inherited)
        running = child.pid
        while running:
            turn()
        os.close(child.report)
        helpers.send(HELPER, messages.OUTPUT_REQUESTS.dump(messages.GetTail()))
        while helpers.is_running(HELPER) and not any(isinstance(message, messages.LastLines) for message in turn()):
            pass
    captured.close_writers()
    finished = helpers.finish(HELPER, float(os.environ.get(EXIT_HOOKS, 5.0)))
    captured.close_readers()
    print(json.dumps({"event": "finished", "well": finished}), file=received)
    helpers.close()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
