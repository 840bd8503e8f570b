"""The last line of a run, and the reason in it."""

from ftrun.core.machine import effects as do
from ftrun.core.machine import events as ev
from ftrun.core.machine.effects import Exit
from ftrun.core.machine.job import decide
from ftrun.core.machine.states import Job, Starting
from ftrun.core.machine.values import Attempt, Ledger
from ftrun.core.rules.crash_causes import CommandFailure
from ftrun.core.rules.policy import Policy
from ftrun.core.text import sentences


def test_a_reason_too_long_for_the_last_line_is_cut_at_its_end() -> None:
    why = (
        "rank 0 was proved to be deadlocked after 28s without movement: rank 0 (process 24434, main thread) waits for "
    )
    why += "a lock at failures.py:79, which only its own threads can end: thread 'Thread-1 (take)' waits for a lock"
    lost = "goodput 1% of 28s; lost 28s: 28s hang, 0.3s startup"
    line = sentences.last_lines(Exit(195, "hang-limit", why), Ledger(start_cnt=1), "/run", 28.0, {}, lost)
    assert line is not None
    assert "waits for a lock at failures.py:79, which" in line
    assert "...; 1 start; goodput" in line, "at its end"
    assert len(line.partition("; records")[0]) <= 300


def test_the_record_of_a_crash_names_its_rank_as_the_log_does() -> None:
    ending = CommandFailure(None, 11, True, None, (), None, 40, 1.0)
    phase = Starting(Attempt(1, spawned_at=0.5))
    exited = ev.CommandExited(2.0, signal=11, rank=3, ending=ending)
    _, effects = decide(Job(phase), exited, Policy(restart_on=frozenset({"failure"})))
    (record,) = (one for one in effects if isinstance(one, do.Persist) and one.event == "exited")
    (said,) = (one for one in effects if isinstance(one, do.LogLine))
    why = str(dict(record.fields)["why"])
    assert why.startswith("signal 11 (SIGSEGV) ended rank 3")
    assert said.text.startswith(why)
