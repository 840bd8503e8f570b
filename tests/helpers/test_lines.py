"""What all helpers do alike, shown of one: bad requests, errors, Ctrl-C, and a PID 1 that no longer reads."""

import os
import signal

from support.helper_process import DEADLINE, HelperProcess

BAD = (
    *(b"", b"nonsense", b"[]", b"\xff\xfe", b"[" * 5000, b'{"ask": 1}', b'{"ask": "tea"}', b'{"ask": "sampled_tree"}'),
    b'{"ask": "sampled_tree", "root": "x", "spared": []}',
)


def test_a_malformed_request_is_one_problem_and_changes_nothing() -> None:
    with HelperProcess("sampler", "3600") as helper:
        for line in BAD * 2:
            helper.write(line + b"\n")
        helper.event("problem")
        helper.process.send_signal(signal.SIGINT)  # Ctrl-C is for the command
        helper.ask(ask="sampled_tree", root=os.getpid(), spared=[])
        assert helper.event("begun")["root"] == os.getpid()
        assert 4 < len(helper.problems) <= len(BAD)
        assert all("malformed request" in what for what in helper.problems)
        assert len(set(helper.problems)) == len(helper.problems)
        assert helper.end() == 0


def test_a_malformed_request_in_the_command_line_is_one_problem() -> None:
    with HelperProcess("evidence", "nonsense") as helper:
        assert "malformed request" in helper.event("problem")["what"]
        assert helper.ended() == 2


def test_an_unexpected_error_is_one_problem() -> None:
    fails = "import ftrun.helpers.sampler.counters as counters; counters.counts = lambda *_: 1 / 0"
    with HelperProcess("sampler", "3600", before=fails) as helper:
        helper.ask(ask="sampled_tree", root=os.getpid(), spared=[])
        assert "unexpected error: ZeroDivisionError" in helper.event("problem")["what"]
        assert helper.ended() == 1


def test_it_ends_when_nobody_reads() -> None:
    with HelperProcess("sampler", "3600") as helper:
        assert helper.process.stdout is not None
        helper.process.stdout.close()
        helper.process.stdout = None
        helper.ask(ask="sampled_tree", root=os.getpid(), spared=[])
        assert helper.process.wait(DEADLINE) == 0
