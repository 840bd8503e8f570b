"""Which records of a run are one incident, and when its one notification is due.

An incident is reported with the restart, the recovery or the end that follows from a hang or a fault, or after HOLD s
without such a decision; what follows after that, only if it ends the run.  In a group the first member reports for all,
and the coordinator reports the loss of another member.  While the coordinator is lost, the first of the others reports
that, after HOLD s without contact the second one does, too, and after two HOLD the last one, since the first ones may
have been lost with the coordinator.  The other members report only their own incidents that nobody has decided on
within HOLD s, and their own ends.
"""

from collections.abc import Callable
from typing import Any, Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import exit_codes
from ftrun.core.text import recurrences, sentences
from ftrun.messages.group_view import MemberRow
from ftrun.records.files import recent_events, state
from ftrun.records.files.record_files import Record

HOLD: Final = 60.0  # s
STILL: Final = 120.0  # s without a heartbeat, far less than a stall
BEGINS: Final = ("hang", "fault")
DECIDES: Final = ("restart", "recovering", "ended")
ASKED: Final = ("manual", "returned")  # restarts that are no incident
RESTORED: Final = "contact with the coordinator is restored"


class Due(NamedTuple):
    """A notification that is due.  `event`: its name; `about`: the incident, for its JSON; None: it is about none."""

    event: str
    record: Record
    about: dict[str, Any] | None = None


class Incidents:
    """`names`: the records that are reported.  `member`: of a group; None: there is none.  `rows`: of its members, as
    this one knew them last.  `limit`: how many restarts in a row are permitted; None: any number."""

    def __init__(
        self,
        names: tuple[str, ...],
        node: str,
        member: int | None,
        rows: Callable[[], tuple[MemberRow, ...]],
        limit: Callable[[], int | None],
    ) -> None:
        self._names, self._node, self._member, self._rows, self._limit = names, node, member, rows, limit
        self._silent: int | None = None  # the coordinator, while it is lost
        self._is_cut_off = False  # from the coordinator
        self._members = {0, 1, 2}  # of the group, before it has begun
        self._troubles: tuple[str, ...] = ()  # hangs and failures here, and their places in the code
        self._forget()

    def _forget(self) -> None:
        self._own: Record | None = None  # what happened here
        self._decided: Record | None = None  # what the group has found to be the first failure
        self._held: Due | None = None
        self._until, self._again = 0.0, ""
        self._reported = self._asked = self._stopping = self._ended_by_group = False

    @property
    def _turn(self) -> int | None:
        """0: this member reports for its group; 1, 2: it does after so many HOLD, since those before may be lost, too;
        None: it does not."""
        if self._member is None:
            return 0
        absent = {row.rank for row in self._rows() if not row.present} | {self._silent}
        living = sorted((self._members - absent) or {self._member})
        turn = living.index(self._member) if self._member in living else None
        if turn and self._silent is not None:
            return 1 if turn == 1 else 2 if turn == len(living) - 1 else None
        return None if turn else turn

    @property
    def _reports(self) -> bool:
        return self._turn == 0

    def _stands_still_below(self) -> bool:
        """Whether a member with a lower number stands still, too, which then reports the stall."""
        below = (row for row in self._rows() if row.rank < (self._member or 0) and row.present)
        return any((row.beat or 0.0) > STILL for row in below)

    def take(self, found: Record, now: float) -> list[Due]:
        """The notifications that are due after this record."""
        event, due = str(found["event"]), self._follow(found, now)
        if event not in self._names:
            return due
        if event in BEGINS:
            if "restart" not in self._names:
                return [*due, Due(event, found, self._about(found))]
            return due + self._hold(event, found, now)
        if event == "recovering" and found.get("rung") == "tree" and "restart" in self._names:
            return due  # a restart follows
        if event in DECIDES:
            return due + self._decide(event, found)
        if event in ("lost", "waiting"):
            return due + self._lost_or_waiting(event, found, now)
        if event == "stalled" and self._stands_still_below():
            return due
        if event == "frozen" and not self._reports:
            return due  # a whole job is suspended and continued together
        return [*due, Due(event, found)]

    def _lost_or_waiting(self, event: str, found: Record, now: float) -> list[Due]:
        coordinates = event == "lost" and not self._is_cut_off
        if event == "lost" and (turn := self._turn):
            return self._hold(event, found, now, turn * HOLD)
        if not (self._reports or coordinates) or (event == "waiting" and self._reported):
            return []
        self._reported = True
        return [Due(event, found, self._about(found))]

    def overdue(self, now: float, ended: bool = False) -> list[Due]:
        """What is reported without a decision."""
        held = self._held
        if held is None or not (ended or now >= self._until):
            return []
        self._held, self._reported = None, True
        return [held._replace(about=self._about(held.record))]

    def _follow(self, found: Record, now: float) -> list[Due]:
        """Note what the record says about the incident."""
        match found["event"]:
            case "spawned":
                due = self.overdue(now, ended=True) if self._reports else []
                self._forget()
                return due
            case "hang":
                self._own = found
                self._remember("hang", found)
            case "escalated" if self._own is None:
                self._own = found
            case "fault" if recent_events.is_serious(found):
                self._own = found
            case "exited" if self._own is None and not self._stopping and (found.get("code") or found.get("signal")):
                self._own = found
                self._remember("failure", found)
            case "stopping":
                self._stopping, self._asked = True, self._asked or found.get("by") == "outside"
            case "lost":
                if self._is_cut_off:
                    self._silent = state.integer(found.get("member"))
                self._own = self._own or found
            case "group":
                return self._follow_group(found, now)
        return []

    def _remember(self, what: str, found: Record) -> None:
        """Note the place of a hang or a failure in the code, and whether it comes there again."""
        self._troubles, self._again = recurrences.remembered(self._troubles, what, recent_events.place(found))

    def _follow_group(self, found: Record, now: float) -> list[Due]:
        what, cause = found.get("what"), found.get("cause")
        if isinstance(members := found.get("members"), list):
            self._members = {*members}
        if what in ("run", "stop", "end") or str(found.get("why")).startswith(RESTORED):
            self._silent, self._is_cut_off = None, False
            if self._held is not None and self._held.event == "lost":
                self._held = None
        elif what in ("unheard", "cut"):
            self._is_cut_off, self._silent = True, self._silent or 0
        self._ended_by_group = self._ended_by_group or what in ("end", "cut")
        bad = found.get("exit_code") and found.get("verdict") != exit_codes.STOPPED
        if what == "end" and bad and self._decided is None:
            self._decided = found
        if what not in ("run", "stop") or cause in (None, "first"):
            return []
        self._decided = found
        if not self._reports:
            self._held = None  # another member reports it
        elif what == "stop" and cause in BEGINS and cause in self._names and self._held is None:
            return self._hold(str(cause), found, now)
        return []

    def _hold(self, event: str, found: Record, now: float, wait: float = HOLD) -> list[Due]:
        if not self._reported:
            self._held, self._until = Due(event, found), now + wait
        return []

    def _decide(self, event: str, found: Record) -> list[Due]:
        last = self._turn == 2 and self._held is not None and self._held.event == "lost"
        self._held = None
        alone = event == "ended" and not (self._ended_by_group or self._asked)  # an end that is its own
        later = last or (self._turn == 1 and not self._reported)
        if not (self._reports or later or alone) or (self._reported and event != "ended"):
            return []
        self._reported = event != "restart"  # after it another attempt begins
        return [Due(event, found, self._about(found))]

    # --- what is said about it ----------------------------------------------------------------------------------------

    def _about(self, found: Record) -> dict[str, Any] | None:
        """Cause, host, rank, what was done, the restarts that are left, and what a person can do."""
        group, own = self._decided, self._own
        if found.get("reason") in ASKED or (group is not None and group.get("cause") in ASKED):
            return None
        elsewhere = group is not None and group.get("node") not in (None, self._node)
        source = group if group is not None and (elsewhere or own is None) else own
        if source is None and found["event"] != "waiting":
            return None
        cause = _cause(source) if source is not None else "wait"
        left = self._left(found)
        why, again = recurrences.parted("" if source is None else _why(source))
        again = self._again if source is own else again
        about = {
            "cause": cause,
            "why": sentences.sentence(why, again),
            "node": self._node if source is None else source.get("node", self._node),
            "member": self._member if source is None else source.get("member", self._member),
            "rank": None if source is None else source.get("rank"),
            "step": None if source is None else source.get("step"),
            "done": _done(found, self._member is not None),
            "left": left,
        }
        place = about["node"] or f"member {about['member']}"
        if source is not None and cause == "loss" and source.get("member") is None:  # several, or none has ever come
            place = "the members that are missing"
        return about | {"do": _do(found, cause, left, again, str(place))}

    def _left(self, found: Record) -> int | None:
        most, used = self._limit(), state.integer(found.get("consecutive"))
        return None if most is None or used is None else max(0, most - used)


def text(about: dict[str, Any]) -> str:
    """The incident in a sentence."""
    rank = "" if about["rank"] is None else f", {sentences.rank(about['rank'])}"
    what = f"{about['cause']} on {about['node']}{rank}: {about['why']}"
    left = about["left"]
    rest = "" if left is None else f"{sentences.several(left, 'restart')} left without progress"
    return sentences.sentence(what, about["done"], rest, about["do"])


def _cause(source: Record) -> str:
    match source["event"]:
        case "group":
            cause = str(source.get("cause") or source.get("verdict"))
            return "loss" if cause == "peer" else cause
        case "escalated":
            return str(source.get("cause"))
    return {"exited": "failure", "lost": "loss"}.get(str(source["event"]), str(source["event"]))


def _why(source: Record) -> str:
    return str(source.get("why")) if source["event"] in ("group", "lost") else recent_events.why(source)


def _done(found: Record, grouped: bool) -> str:
    match found["event"]:
        case "restart":
            every = "all members were started again, here as" if grouped else "started again as"
            return f"{every} attempt {found.get('attempt')}"
        case "recovering":
            return f"recovery by {found.get('rung')}, without a restart"
        case "ended":
            return f"ended with {found.get('exit_code')} ({found.get('verdict')})"
        case "hang" | "group":
            return "the processes are being ended"
        case "fault" if found.get("severity") not in ("warning", "user", "minor", "minor+user"):
            return "the device is being healed"
    return ""


def _do(found: Record, cause: str, left: int | None, again: str, node: str) -> str:
    """What a person can do now."""
    report = "`ftctl report`" if cause in ("hang", "failure") else "`ftctl events`"  # nothing else has a report
    match found["event"]:
        case "restart":
            ends = f"the next {cause} without progress ends the job: look now, with {report}"
            if left != 0 and again:
                return "mend what `ftctl report` shows: it comes again at the same place"
            return ends if left == 0 else f"nothing has to be done; {report} has the details"
        case "ended" if found.get("exit_code"):
            known = exit_codes.named(found.get("verdict"))
            outer = "" if known is None else f"the scheduler should {known.outer}; "
            details = f"{report} and `ftctl history` have the details"
            return outer + (f"look after {node}" if cause == "loss" else details)
        case "lost":
            return f"look after {node}; `ftctl status --all` on any other member shows the group"
        case "waiting":
            return "`ftctl status` says what is waited for, and until when"
        case "hang" | "fault" | "group":
            return "`ftctl status` shows what is being done"
    return ""
