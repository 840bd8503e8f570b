"""What HCCL, the library of collectives for Ascend, has itself found out about a hang, from the logs of the ranks.

HCCL's heartbeats spread over all ranks what one of them has noticed (HCCL user guide, "Fault Locating").  The lines are
in `run/plog/plog-PID_*.log`, and once an operator has failed also in `debug/plog`, below `ASCEND_PROCESS_LOG_PATH`,
else `ASCEND_WORK_PATH/log`, else `~/ascend/log`.  A rank is called [IP/ID] there: the address of its host and the
number of its device.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ftrun.core.named_tuple import NamedTuple
from ftrun.core.text.sentences import printable
from ftrun.helpers.evidence.blocking_calls import tail
from waitproof import procfs
from waitproof.procfs import TICKS, environment, own_number

SIZE: Final = 1 << 19  # bytes at the end of a log that are read; one has 20 MiB at most
FILES: Final = 2  # the newest logs of a process
RANKS: Final = 64
NAMES: Final = 20_000  # in a folder of logs
SENTENCES: Final = 4
_FOLDERS: Final = ("run/plog", "debug/plog")
_ID: Final = r" ?\[([^\]]{1,80})\]"
_EVENT: Final = re.compile(
    rf"(?:local )?rank{_ID} ?[:：] ?(?:crimer )?rank{_ID} ?status\[([A-Z _]{{1,40}})\] ?by (?:informer )?rank{_ID}"
)
_EXCEPTION: Final = re.compile(
    rf"Cluster Exception Location\[IP/ID\]:{_ID}.*?Discoverer:{_ID}.*?ExceptionType:\[([\w ]{{1,40}}) Occurred\]"
)
_MEANINGS: Final = (  # the first that fits; in the order of HCCL's own priority
    ("CQE", "has an error of its network (ERROR CQE)"),
    ("STUCK", "has not ended a collective (STUCK)"),
    ("LOST", "does not answer HCCL (LOST)"),
)


class HcclEvent(NamedTuple):
    """`place`: the [IP/ID] of the faulty rank; `by`: of the rank that has noticed the fault; `local`: of the rank that
    has written the line, where it says so."""

    place: str
    status: str
    by: str
    local: str = ""


def read(text: str) -> list[HcclEvent]:
    """The events in a log, each once, the earliest first."""
    found = list[HcclEvent]()
    for line in text.splitlines():
        if event := _EVENT.search(line):
            found.append(HcclEvent(event[2], event[3].strip(), event[4], event[1]))
        elif error := _EXCEPTION.search(line):
            found.append(HcclEvent(error[1], error[3].strip().upper(), error[2]))
    return list(dict.fromkeys(found))


def sentences_of(events: Mapping[int, Iterable[HcclEvent]]) -> list[str]:
    """What the ranks with these numbers have written, in a few clauses, the most telling first."""
    names = {event.local: f"rank {rank}" for rank, written in events.items() for event in written if event.local}

    def name(place: str) -> str:
        return names.get(place, f"rank [{place}]")

    found = dict[str, int]()
    for event in (event for written in events.values() for event in written):
        meant = ((order, text) for order, (word, text) in enumerate(_MEANINGS) if word in event.status)
        order, text = next(meant, (len(_MEANINGS), f"has the status {event.status} of HCCL"))
        found[printable(f"{name(event.place)} {text}, which {name(event.by)} has noticed")] = order
    return sorted(found, key=lambda sentence: found[sentence])[:SENTENCES]


def collect(ranks: Mapping[int, int]) -> list[str]:
    """The clauses from the logs of these processes.  `ranks`: the number of the rank, by pid."""
    events = dict[int, list[HcclEvent]]()
    for pid, rank in list(ranks.items())[:RANKS]:
        for path in _logs(pid):
            try:
                events.setdefault(rank, []).extend(read(tail(path, SIZE)))
            except (OSError, ValueError):
                continue
    return sentences_of(events)


def _logs(pid: int) -> Iterator[str]:
    """The newest logs of this process, and of no earlier one with its number."""
    folder = root(environment(pid), f"/proc/{pid}/cwd")
    number, began = own_number(pid), _began(pid)
    for below in _FOLDERS if folder else ():
        found = list[tuple[float, str]]()
        try:
            with os.scandir(f"{folder}/{below}") as entries:
                for _, entry in zip(range(NAMES), entries, strict=False):
                    if re.fullmatch(rf"plog-{number}_\d+\.log", entry.name):
                        found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
        except OSError:
            continue
        yield from (path for written, path in sorted(found, reverse=True)[:FILES] if written >= began)


def root(variables: Mapping[str, str], cwd: str) -> str | None:
    """The folder of CANN's logs for a process with this environment and working folder."""
    if given := variables.get("ASCEND_PROCESS_LOG_PATH"):
        return os.path.join(cwd, given)
    if work := variables.get("ASCEND_WORK_PATH"):
        return os.path.join(cwd, work, "log")
    home = variables.get("HOME")
    return os.path.join(home, "ascend/log") if home else None


def _began(pid: int) -> float:
    """When this process started, as time.time()."""
    stat = procfs.stat(pid)
    age = 0.0 if stat is None else time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / TICKS
    return time.time() - age - 1.0
