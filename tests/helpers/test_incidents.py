"""One notification an incident, for the whole group, from where it is decided what is done about it."""

from collections.abc import Iterable, Sequence
from typing import Any

from ftrun.config.option_table import OPTIONS
from ftrun.helpers.notifier.incidents import HOLD, Due, Incidents, text
from ftrun.messages.group_view import MemberRow

Fields = dict[str, Any]
NAMES = tuple(next(option.default for option in OPTIONS if option.name == "notify-on").split(","))
HANG: Fields = {
    "event": "hang",
    "rule": "step",
    "rank": 5,
    "step": 7,
    "age": 41.0,
    "limit": 38.0,
    "mechanism": "rank 5 sleeps",
}
STOPPING: Fields = {"event": "stopping", "by": "SIGTERM"}
SPAWNED: Fields = {"event": "spawned"}
RESTART: Fields = {"event": "restart", "reason": "hang", "consecutive": 1, "attempt": 2}
PEER: Fields = RESTART | {"reason": "peer"}
OPEN: Fields = {
    "event": "group",
    "what": "stop",
    "epoch": 1,
    "why": "member 2 (c): rank 5 stopped",
    "node": "c",
    "member": 2,
}
STOP: Fields = OPEN | {"cause": "hang", "rank": 5, "step": 7}
RUN: Fields = STOP | {"what": "run", "epoch": 2}
LOST: Fields = {
    "event": "lost",
    "why": "member 2 (c) is lost: it has died",
    "member": 2,
    "node": "c",
    "wait": 600.0,
    "then": "end",
}
ZERO: Fields = {"event": "lost", "why": "no reply from rank 0 for 60s", "member": 0, "wait": 600.0, "then": "end"}
WAITING: Fields = {"event": "waiting", "seconds": 300.0, "why": "member 2 (c) is lost"}
END: Fields = {"event": "ended", "verdict": "hang-limit", "exit_code": 195, "why": "rank 5 hangs"}
GROUP_END: Fields = {
    "event": "group",
    "what": "end",
    "epoch": 1,
    "why": "rank 5 hangs",
    "verdict": "hang-limit",
    "exit_code": 195,
}


def made(
    member: int | None = None, absent: Sequence[int] = (), names: tuple[str, ...] = NAMES, beat: float = 1.0
) -> Incidents:
    """Of a member on the host of its letter; three restarts in a row are permitted."""
    rows = tuple(MemberRow(n, "abc"[n], "running", "", 1, 0.0, beat=beat, present=n not in absent) for n in range(3))
    found = Incidents(names, "abcde"[member or 0], member, lambda: rows, lambda: 3)
    if member is not None:
        assert found.take({"event": "group", "what": "run", "epoch": 1, "members": [0, 1, 2]}, 0.0) == []
    return found


def events(found: Incidents, records: Iterable[Fields], later: float | None = None) -> list[str]:
    """The names of what is due after these records, and after so many seconds."""
    due = [due for record in records for due in found.take(record, 100.0)]
    return [one.event for one in (*due, *(() if later is None else found.overdue(100.0 + later)))]


def about(found: Incidents, *records: Fields) -> Fields:
    """What the only notification of these records says."""
    (due,) = [due for record in records for due in found.take(record, 110.0)]
    assert due.about is not None
    return due.about


def test_a_hang_and_its_restart_are_one_notification() -> None:
    found = made()
    assert events(found, [HANG, STOPPING, {"event": "exited", "signal": 9}], HOLD - 1) == []
    due = about(found, RESTART)
    assert (due["cause"], due["node"], due["rank"], due["step"], due["left"]) == ("hang", "a", 5, 7, 2)
    assert text(due).startswith("hang on a, rank 5: rank 5 stopped at step 7")
    assert "; started again as attempt 2; 2 restarts left without progress; nothing has to be done" in text(due)
    assert found.take(SPAWNED, 111.0) == found.overdue(1000.0) == []


def test_the_last_restart_says_that_the_next_one_ends_the_job() -> None:
    said = text(about(made(), HANG, RESTART | {"consecutive": 3}))
    assert "0 restarts left without progress; the next hang without progress ends the job: look now" in said


def test_what_comes_again_at_the_same_place_has_to_be_mended() -> None:
    hang = HANG | {"why": "train.py:68 step"}
    found = made()
    elsewhere = hang | {"why": "eval.py:5"}
    assert events(found, [hang, RESTART, SPAWNED, elsewhere, RESTART, SPAWNED, hang]) == ["restart"] * 2
    due = about(found, RESTART | {"attempt": 4})
    assert due["why"].endswith("; second hang at train.py:68")
    assert due["do"] == "mend what `ftctl report` shows: it comes again at the same place"
    run = RUN | {"why": "member 2 (c): rank 5 stopped; third hang at train.py:68"}
    due = about(made(0), STOP, run, PEER)
    assert due["why"].endswith("; third hang at train.py:68")
    assert due["do"].startswith("mend what")


def test_an_end_is_always_reported_and_says_what_the_scheduler_should_do() -> None:
    due = about(made(), HANG, STOPPING, END)
    assert due["cause"] == "hang"
    assert "the scheduler should reschedule" in due["do"]


def test_a_fault_has_no_report_but_records() -> None:
    fault = {"event": "fault", "device": "npu-3", "code": "80E01801", "severity": "major", "why": "HBM"}
    due = about(made(), fault, RESTART | {"reason": "fault"})
    assert due["do"] == "nothing has to be done; `ftctl events` has the details"
    due = about(made(), fault, END | {"verdict": "node-fault", "exit_code": 197})
    assert due["do"].endswith("`ftctl events` and `ftctl history` have the details")


def test_what_nobody_decides_on_is_reported_alone_and_its_restart_not_again() -> None:
    fault = {"event": "fault", "device": "npu-3", "code": "80E01801", "severity": "major", "why": "HBM"}
    found = made()
    assert events(found, [fault, {"event": "healing"}], HOLD) == ["fault"]
    assert events(found, [RESTART | {"reason": "fault"}, SPAWNED, HANG, RESTART]) == ["restart"]


def test_only_the_records_that_are_asked_for_are_reported() -> None:
    assert events(made(names=("hang",)), [HANG, RESTART]) == ["hang"]
    assert events(made(names=("restart",)), [HANG, RESTART, END]) == ["restart"]
    assert events(made(names=("ended", "problem")), [HANG, RESTART, {"event": "problem", "what": "x"}, END]) == [
        "problem",
        "ended",
    ]


def test_a_requested_restart_is_no_incident() -> None:
    assert made().take(RESTART | {"reason": "manual"}, 1.0) == [Due("restart", RESTART | {"reason": "manual"})]


def test_member_0_reports_a_hang_of_another_one_for_all() -> None:
    zero, one, two = made(0), made(1), made(2)
    for other in (one, two):
        own = [HANG] if other is two else []
        assert events(other, [*own, OPEN, STOPPING, STOP, RUN, PEER, SPAWNED], 2 * HOLD) == []
    assert events(zero, [OPEN, STOPPING, {"event": "exited", "signal": 15}, STOP], HOLD - 1) == []
    due = about(zero, RUN, PEER)
    assert text(due).startswith("hang on c, rank 5: member 2 (c): rank 5 stopped; all members were started again")
    assert (due["member"], due["left"]) == (2, 2)


def test_one_end_of_a_group_is_one_notification() -> None:
    assert events(made(0), [OPEN, STOPPING, GROUP_END, END]) == ["ended"]
    assert events(made(1), [OPEN, STOPPING, GROUP_END, END]) == []
    assert events(made(2), [HANG, OPEN, STOPPING, GROUP_END, END]) == []
    asked = [{"event": "stopping", "by": "outside"}, END | {"verdict": "stopped", "exit_code": 143}]
    assert [events(made(member), asked) for member in (0, 1)] == [["ended"], []]
    assert events(made(1), [END | {"verdict": "node-fault", "exit_code": 197}]) == ["ended"], "its own end"


def test_a_lost_member_is_one_notification_also_when_it_comes_back() -> None:
    peer = OPEN | {"why": LOST["why"]}
    back = [peer, STOPPING, peer | {"cause": "peer"}, WAITING, peer | {"what": "run", "cause": "peer"}, PEER, SPAWNED]
    assert events(made(0), [LOST, *back], 2 * HOLD) == ["lost"]
    assert events(made(1), back, 2 * HOLD) == []
    assert events(made(0), [LOST, *back[:4], GROUP_END, END]) == ["lost", "ended"]


def test_the_end_that_a_lost_member_leads_to_names_it_and_no_report() -> None:
    end = GROUP_END | {"cause": "peer", "node": "c", "member": 2, "why": "member 2 (c) is lost and was not back"}
    zero = made(0)
    assert events(zero, [LOST, OPEN, STOPPING]) == ["lost"]
    due = about(zero, end, END)
    assert due["cause"] == "loss"
    assert due["do"].endswith("; look after c")
    never = GROUP_END | {"cause": "peer", "why": "members 1 and 2 did not join within 10m"}
    assert about(made(0), never, END)["do"].endswith("; look after the members that are missing")


UNHEARD: Fields = {"event": "group", "what": "unheard", "epoch": 1, "why": "no reply"}
CUT: Fields = UNHEARD | {"what": "cut"}


def test_without_member_0_the_first_of_the_others_reports() -> None:
    assert events(made(1), [UNHEARD, ZERO, WAITING, CUT, END]) == ["lost", "ended"]
    assert events(made(2, absent=[1]), [UNHEARD, ZERO, CUT, END]) == ["lost", "ended"]
    assert events(made(2), [UNHEARD, ZERO, HANG], HOLD) == ["hang"], "nobody else knows of it"


def test_the_second_one_reports_what_the_first_may_not() -> None:
    """Members 0 and 1 may have been lost together, which nobody can tell member 2."""
    two = made(2)
    assert events(two, [UNHEARD, ZERO, WAITING], HOLD - 1) == []
    assert [due.event for due in two.overdue(100.0 + HOLD)] == ["lost"]
    assert events(two, [CUT, END]) == [], "whoever read it knows how it ends"
    assert events(made(2), [UNHEARD, ZERO, CUT, END]) == ["ended"], "before it was due"
    back = UNHEARD | {"what": "contact", "why": "contact with the coordinator is restored"}
    assert events(made(2), [UNHEARD, ZERO, back], HOLD) == []


def test_the_last_one_reports_what_neither_the_first_nor_the_second_may() -> None:
    """Members 0, 1 and 2 may have been lost together, as with their rack."""
    begun = RUN | {"epoch": 1, "cause": "first", "members": [0, 1, 2, 3, 4]}
    last = made(4)
    assert events(last, [begun, UNHEARD, ZERO, WAITING], 2 * HOLD - 1) == []
    assert [due.event for due in last.overdue(100.0 + 2 * HOLD)] == ["lost"]
    assert events(last, [CUT, END]) == [], "whoever read it knows how it ends"
    assert events(made(4), [begun, UNHEARD, ZERO, CUT, END]) == ["ended"], "before it was due"
    assert events(made(3), [begun, UNHEARD, ZERO, CUT, END], 10 * HOLD) == []
    back = UNHEARD | {"what": "contact", "why": "contact with the coordinator is restored"}
    assert events(made(4), [begun, UNHEARD, ZERO, back], 10 * HOLD) == []


def test_a_group_that_has_gone_on_without_member_0_has_its_first_member_report() -> None:
    others = RUN | {"members": [1, 2], "cause": "peer", "member": 0, "node": "a", "why": "member 0 (a) is lost"}
    for member, reports in ((1, True), (2, False)):
        found = made(member, absent=[0])
        found.take(others, 100.0)
        assert events(found, [SPAWNED, OPEN, STOPPING, STOP, RUN, PEER, SPAWNED]) == ["restart"] * reports


def test_who_coordinates_reports_a_lost_member() -> None:
    assert events(made(2, absent=[0]), [UNHEARD, ZERO, RUN, SPAWNED, LOST | {"member": 1}]) == ["lost"]


def test_members_that_stall_together_report_it_once() -> None:
    stalled, names = {"event": "stalled", "rank": 1}, (*NAMES, "stalled")
    assert [len(made(member, names=names, beat=600.0).take(stalled, 1.0)) for member in (0, 1, 2)] == [1, 0, 0]
    assert len(made(2, names=names).take(stalled, 1.0)) == 1, "it stalls alone"


def test_of_members_that_were_suspended_together_member_0_says_it() -> None:
    frozen, names = {"event": "frozen", "seconds": 40.0}, (*NAMES, "frozen")
    assert [len(made(member, names=names).take(frozen, 1.0)) for member in (0, 1, 2)] == [1, 0, 0]


def test_a_long_wait_is_reported() -> None:
    (due,) = made().take(WAITING, 1.0)
    assert (due.event, due.about and due.about["cause"]) == ("waiting", "wait")
    assert events(made(1), [WAITING]) == []
