"""The report of a suspicion: report.md for an operator, report.json with the same for programs, and the folder of both.

The texts are pure, except that `stacks.permission` reads the capabilities of this process.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ftrun.core.machine.values import TOUCH
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import hang_rules
from ftrun.core.text import durations, sentences
from ftrun.core.text.markdown import block, code, plain, table
from ftrun.core.text.redaction import redact
from ftrun.core.text.sentences import begun, printable, several, short
from ftrun.helpers.evidence import nccl_ras
from ftrun.helpers.evidence.classification import Classification
from ftrun.helpers.evidence.flight_recorder import FlightRecord, lagging_ranks
from ftrun.helpers.evidence.nccl_ras import NcclView, sentences_of
from ftrun.helpers.evidence.processes import ProcessChange
from ftrun.host import safe_files
from ftrun.messages.codec import DECODABLE
from ftrun.messages.evidence import EvidenceRequest, RankState
from ftrun.messages.probe import Device
from waitproof import stacks
from waitproof.describe import STOPPED
from waitproof.stacks import Thread
from waitproof.wait_graph import RUNS, GraphNode, WaitGraph
from waitproof.world import LATE, World

LOCATION: Final = 500  # characters of the location in a verdict
PROGRAM: Final = 100  # characters of a command line in a table
NAMED: Final = 10  # processes in one line
FILES: Final = 256  # open files
ROWS: Final = 100  # rows of a table in report.md; report.json has all
KEPT_REPORTS: Final = 8  # reports of earlier suspicions in the same attempt
SCHEMA: Final = 1
WAIT_LINES: Final = 60  # in report.md
NAMED_WAKERS: Final = 4  # others that are named in one line
HEADLINE: Final = 240  # characters of it
NODE_TEXT: Final = 160  # characters of each text of a node


class OpenFiles(NamedTuple):
    """The open files of a process.  `opened`: each descriptor and its object; `more`: how many are left out.  `call`:
    the system call in which the main thread waits, if that is a call on one descriptor."""

    opened: tuple[tuple[int, str], ...]
    more: int
    call: str | None


class ReportFacts(NamedTuple):
    """All that is known.  `changes`: the suspect first, then the ranks, then the rest.  `missing`: data that could not
    be collected, and why.  `time`: the wall clock at `request.now`, ISO-8601 UTC; `since`: when the suspect last made
    progress.  `chain`: the pids from the suspect to the process for which it waits in the end.  `mechanism`: the
    headline, or empty.  `job`: the command, `node`: its host."""

    request: EvidenceRequest
    verdict: Classification
    changes: Sequence[ProcessChange]
    seconds: float  # between the observations
    time: str
    since: str
    missing: Sequence[tuple[str, str]] = ()
    commands: Mapping[int, str] = {}
    files: OpenFiles | None = None
    answers: Mapping[int, FlightRecord] = {}
    output: Mapping[str, str] = {}
    chain: Sequence[int] = ()
    mechanism: str = ""
    graph: WaitGraph = WaitGraph()
    job: tuple[str, ...] = ()
    node: str = ""
    nccl: NcclView | None = None  # what NCCL's RAS says
    hccl: tuple[str, ...] = ()  # what HCCL has written, as clauses

    @property
    def suspect(self) -> ProcessChange | None:
        return next((c for c in self.changes if c.pid == self.request.suspect), None)


def location_summary(facts: ReportFacts) -> str:
    """Where the suspect is, and which process it waits for: for the verdict.  Empty if the suspect has ended."""
    suspect = facts.suspect
    locations = [*_cause(facts), suspect.location] if suspect and not suspect.gone else []
    return printable("; ".join(locations + late(facts)))[:LOCATION]


def late(facts: ReportFacts) -> list[str]:
    """Which ranks are behind in which collective, according to torch's flight recorder, else NCCL or HCCL itself."""
    return lagging_ranks(facts.answers) or nccl_ras.sentences_of(facts.nccl) or list(facts.hccl)


def _cause(facts: ReportFacts) -> list[str]:
    """The state of the suspect and of the process for which it waits in the end; a stopped process comes first."""
    last = facts.chain[-1] if facts.chain else facts.request.suspect
    causes = list[str]()
    for change in facts.changes:
        if change.gone or change.pid not in (last, facts.request.suspect):
            continue
        name, kernel = process_name(facts, change), change.seen.wchan or "the kernel"
        state = {**STOPPED, "D": f"is in state D in {kernel}"}.get(change.seen.stat.state)
        if change.pid != facts.request.suspect:
            causes.append(f"{f'{name} {state}' if state else f'it waits for {name}'}, at {change.location}")
        elif state:
            causes.append(f"{name} {state}")
    return sorted(causes, key=lambda cause: " is stopped " not in cause)


def process_name(facts: ReportFacts, change: ProcessChange) -> str:
    finding, ranks = facts.request.finding, {rank.pid: rank.rank for rank in facts.request.ranks}
    if finding.rank is not None:
        ranks[finding.pid] = finding.rank
    known = ranks.get(change.pid)
    return f"process {change.pid} ({change.seen.stat.name})" if known is None else sentences.rank(known)


def title(facts: ReportFacts) -> str:
    """The first line: the mechanism of the hang, else what the hang rule found."""
    return f"# {plain(_capitalized(facts.mechanism or hang_rules.sentence(facts.request.finding)))}"


def origin(facts: ReportFacts) -> str:
    """The second line: the job, its host, the attempt, and when this was found."""
    command = f" of {code(' '.join(facts.job))}" if facts.job else ""
    host = f" on {plain(facts.node)}" if facts.node else ""
    return f"Attempt {facts.request.attempt}{command}{host}, {facts.time.replace('T', ' ').removesuffix('Z')} UTC."


def opening(facts: ReportFacts) -> str:
    """The first paragraph: which rank hangs, since when, where in the code, and by which rule."""
    finding, suspect = facts.request.finding, facts.suspect
    location = f"It is at {code(suspect.location)}" if suspect and not suspect.gone else "Its process has ended"
    reasons = [plain(_capitalized(hang_rules.sentence(finding))), f"This began at {facts.since}", location]
    reasons += [plain(_capitalized(line)) for line in late(facts)]
    return f"**{'. '.join(reasons)}. The hang rule is {code(finding.rule)}.**"


def what_to_do(facts: ReportFacts) -> str:
    """What a person can do about it, as a sentence.  The restart budget is not known here."""
    involved = [change for change in facts.changes if change.pid in (facts.request.suspect, *facts.chain)]
    by_state = {change.seen.stat.state: change for change in reversed(involved) if not change.gone}
    if stopped := by_state.get("T"):
        return f"find out what stopped {process_name(facts, stopped)}, and continue it with `kill -CONT {stopped.pid}`"
    if traced := by_state.get("t"):
        return f"detach the debugger from process {traced.pid}, or pause ftrun while it is attached (`ftctl pause`)"
    if stuck := by_state.get("D"):
        host = f" of {facts.node}" if facts.node else ""
        where = f"the disk, the network file system and the drivers{host} (`dmesg`)"
        return f"check {where}: process {stuck.pid} waits there"
    if behind := late(facts):
        return f"look at the stack of the rank that is behind: {behind[0]}"
    if "outside the job" in facts.mechanism:
        return "check that what it waits for, outside the job, is there and answers"
    known = involved and not involved[0].gone
    where = f"the code at {_to_mend(facts, involved)}" if known else "what the stacks below show"
    return f"nothing now, if a restart is left; if it comes again at the same place, mend {where}"


def _to_mend(facts: ReportFacts, involved: Sequence[ProcessChange]) -> str:
    """The code of the process for which all others wait, if it waits for no other process itself; else of the suspect.
    Where its main thread has only begun to end, in no code of the program, that of a thread that has."""
    nodes = [(node, {facts.graph.nodes[place].pid for place in node.wakers}) for node in facts.graph.nodes if node.main]
    last = {node.pid for node, others in nodes if others <= {node.pid}} & {*facts.chain[-1:]}
    found = next((change for change in involved if change.pid in last and not change.gone), involved[0])
    threads = (found.main, *found.stack.threads) if found.main and found.stack else ()
    own = next((thread for thread in threads if thread and stacks.own_frame(thread.frames)), None)
    return own.location if own else found.location


def markdown(facts: ReportFacts, picture: str = "") -> str:
    """The content of report.md; `picture`: the file with the picture of the waits, empty where there is none."""
    verdict, suspect = facts.verdict, facts.suspect
    result = f"was cleared: {verdict.cleared}" if verdict.cleared else f"was not cleared: {verdict.reason}"
    parts = [title(facts), origin(facts), opening(facts), plain(f"What to do: {what_to_do(facts)}.")]
    parts += [plain(f"The suspicion {result}."), plain(_first_to_stop(facts))]
    if picture and facts.graph.nodes:
        parts.append(f"![What waits for what]({picture})")
    parts += wait_lines(facts.graph) + _ranks(facts) + _nccl(facts.nccl) + _hccl(facts.hccl) + _groups(facts)
    if suspect is not None:
        parts += _suspect(suspect, facts.files)
    parts += ["## Processes", _processes(facts)]
    if facts.request.devices:
        parts += ["## Devices", _devices(facts.request.devices)]
    for path, text in facts.output.items():
        parts += [f"## Last lines of {code(path)}", block(text)]
    if facts.missing:
        parts.append("## Data that could not be collected")
        parts += [f"* {code(what)}: {plain(why)}" for what, why in facts.missing]
    return "\n\n".join(part for part in parts if part) + "\n"


def stack_text(change: ProcessChange) -> str:
    """The content of stacks/<pid>.txt: all threads, the innermost frame first, the main thread's earlier stack if it
    changed, and the kernel stack."""
    lines = [f"{change.pid} ({printable(change.seen.stat.name)}) {change.seen.stat.state} {change.seen.wchan or '-'}"]
    for thread in change.stack.threads if change.stack else ():
        marks = "".join((", active" if thread.active else "", ", holds the GIL" if thread.gil else ""))
        lines += ["", printable(f"thread {thread.tid or '-'} {thread.name or '-'}{marks}")]
        lines += _frames(thread)
    if change.moved and change.before and change.before.main:
        lines += ["", "the main thread in the first observation:", *_frames(change.before.main)]
    if change.seen.kernel:
        lines += ["", "kernel stack:", *(printable(f"    {line}") for line in change.seen.kernel.splitlines())]
    return "\n".join(lines) + "\n"


def open_files(world: World, pid: int) -> OpenFiles | None:
    """The files of one process; None where they are not known."""
    process = world.processes.get(pid)
    if process is None or not (process.fds or process.threads):
        return None

    def text(fd: int) -> str:
        end = process.fds.get(fd)
        if end is None:
            return "(closed in the meantime)"
        return world.sockets[end.key].description if end.key in world.sockets else end.key

    numbers, main = sorted(process.fds), process.threads[0] if process.threads else None
    opened = tuple((fd, text(fd)) for fd in numbers[:FILES])
    files = OpenFiles(opened, max(0, len(numbers) - FILES), None)
    if main is None or main.call is None or len(main.fds) != 1:
        return files
    return files._replace(call=f"{main.call.name} on {main.fds[0][0]}, {text(main.fds[0][0])}")


def unavailable(
    found: Sequence[ProcessChange], no_stack: Mapping[int, str], world: World, suspect: int
) -> list[tuple[str, str]]:
    """Which data could not be collected, and why: one line each, for any number of processes.  `no_stack`: why the
    stack of a process was not read, in either observation."""
    living = [change for change in found if not change.gone]
    by_reason: dict[str, list[int]] = {}
    for change in living:
        why = no_stack.get(change.pid)
        # A program in another language has no Python stack, which is no limitation.
        if why not in (None, stacks.GONE) and (why != stacks.NO_PYTHON or "python" in change.seen.stat.name):
            by_reason.setdefault(str(why), []).append(change.pid)
    explained = {stacks.REFUSED: f"{stacks.REFUSED}: {stacks.permission()}"}
    lines = [(f"Python stacks of {_process_list(pids)}", explained.get(why, why)) for why, pids in by_reason.items()]
    uncounted = [change.pid for change in living if change.seen.io is None]
    if uncounted:
        lines.append((f"I/O counters of {_process_list(uncounted)}", "not permitted"))
    sleeping = [change for change in living if change.seen.stat.state not in "RZ"]  # others have no kernel stack
    if sleeping and not any(change.seen.kernel for change in sleeping):
        lines.append(("kernel stacks", "not permitted (the capability SYS_ADMIN is required)"))
    if any(change.pid == suspect for change in living) and open_files(world, suspect) is None:
        process = world.processes.get(suspect)
        lines.append(("open files of the suspect", process.problem if process else LATE))
    return lines


def _process_list(pids: Sequence[int]) -> str:
    shown = ", ".join(str(pid) for pid in pids[:NAMED])
    return f"{len(pids)} processes ({shown}{', ...' if len(pids) > NAMED else ''})" if len(pids) > 1 else shown


def _frames(thread: Thread) -> list[str]:
    return [printable(f"    {frame.full}") for frame in thread.frames]


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def first_to_stop(ranks: Sequence[RankState]) -> list[RankState]:
    """The ranks whose last progress is the oldest, among those that are not gone."""
    active = [rank for rank in ranks if rank.present and rank.moved_at is not None]
    earliest = min((rank.moved_at or 0.0 for rank in active), default=0.0)
    return [rank for rank in active if rank.moved_at == earliest]


def ranks_by_stack(facts: ReportFacts) -> dict[tuple[str, ...], list[int]]:
    """The ranks by the stack of their main thread, the smallest group first, because the exception is of interest."""
    by_pid = {change.pid: change for change in facts.changes}
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in facts.request.ranks:
        change = by_pid.get(rank.pid)
        if change is not None and not change.gone:
            frames = change.main.frames if change.main else ()
            stack = tuple(frame.full for frame in frames) or (change.location,)
            groups.setdefault(stack, []).append(rank.rank)
    return dict(sorted(groups.items(), key=lambda group: len(group[1])))


def _first_to_stop(facts: ReportFacts) -> str:
    first, request = first_to_stop(facts.request.ranks), facts.request
    if len(request.ranks) < 2 or not first:
        return ""
    names = ", ".join(sentences.rank(rank.rank) for rank in first)
    step = "" if first[0].step is None else f" after step {first[0].step}"
    age = durations.seconds(request.now - (first[0].moved_at or 0.0))
    return f"The first to stop {'was' if len(first) == 1 else 'were'} {names}{step}, {age} ago."


def _ranks(facts: ReportFacts) -> list[str]:
    if not facts.request.ranks:
        return []

    def age(at: float | None) -> str:
        return "never" if at is None else durations.seconds(max(0.0, facts.request.now - at))

    rows = []
    for rank in facts.request.ranks[:ROWS]:
        state = "done" if rank.done else "" if rank.present else "ended"
        answer = facts.answers.get(rank.rank)
        collectives = "" if answer is None else "; ".join(_collectives(answer)) or "none recorded"
        inside = code(" > ".join(rank.sections)) if rank.sections else ""
        step = "" if rank.step is None else str(rank.step)
        number = str(rank.rank) if rank.rank >= TOUCH else "no RANK"
        numbers = [number, str(rank.pid), step, age(rank.moved_at), age(rank.alive_at)]
        rows.append([*numbers, inside, plain(collectives), state])
    heads = ["rank", "pid", "step", "since progress", "since heartbeat", "section", "last collective", "state"]
    return ["## Ranks", table(heads, rows), _remainder(len(facts.request.ranks))]


def _nccl(view: NcclView | None) -> list[str]:
    found = nccl_ras.sentences_of(view)
    if view is None or not (found or view.communicators):
        return []
    moves = "Two answers a second apart are the same" if view.stands else "It may have changed within a second"
    names = ", ".join(one.name for one in view.communicators[:NAMED])
    known = f"NCCL answers about {sentences.several(len(view.communicators), 'communicator')}: {names}. {moves}."
    return ["## Collectives according to NCCL (RAS)", plain(known), *(f"* {plain(line)}" for line in found)]


def _hccl(found: Sequence[str]) -> list[str]:
    return ["## What HCCL has written into its logs", *(f"* {plain(line)}" for line in found)] if found else []


def _collectives(answer: FlightRecord) -> list[str]:
    if answer.problem:
        return [answer.problem]
    last = [f"{c.number} {c.name} of {g}{', not left' if c.open else ''}" for g, c in answer.last.items()]
    return last + [f"waits in {call}" for call in answer.waiting]


def _groups(facts: ReportFacts) -> list[str]:
    groups = ranks_by_stack(facts)
    if not groups:
        return []
    parts = ["## Stacks of the ranks"]
    for stack, ranks in list(groups.items())[:ROWS]:
        names = [str(rank) if rank >= TOUCH else sentences.rank(rank) for rank in ranks[:32]]
        shown = ", ".join(names) + (", ..." if len(ranks) > 32 else "")
        parts += [f"{'Rank' if len(ranks) == 1 else f'{len(ranks)} ranks:'} {shown}", block("\n".join(stack))]
    return parts


def _suspect(suspect: ProcessChange, files: OpenFiles | None) -> list[str]:
    parts = ["## The suspect", block(stack_text(suspect).rstrip("\n"))]
    if files is not None:
        rows = [[str(number), code(description)] for number, description in files.opened]
        parts += [f"Its main thread is in {code(files.call)}." if files.call else "", "It has these files open:"]
        parts += [table(["descriptor", "file"], rows), f"{files.more} more files are open." if files.more else ""]
    return parts


def _processes(facts: ReportFacts) -> str:
    rows = []
    for c in facts.changes[:ROWS]:
        moved = {None: "not read twice", True: "changed", False: "unchanged"}[c.moved]
        rates = [f"{c.cpu:.0%}", f"{c.cpu_all:.0%}", "unknown" if c.io is None else f"{c.io:.0f}"]
        state = "ended" if c.gone else f"{c.seen.stat.state} {c.seen.wchan or '-'}"
        name = code(facts.commands.get(c.pid) or c.seen.stat.name, PROGRAM)
        rows.append([str(c.pid), name, plain(state), *rates, moved, code(c.main.location) if c.main else ""])
    heads = "pid, program, state, CPU of the main thread, CPU, I/O in B/s, stack, location"
    return f"{table(heads.split(', '), rows)}\n\n{_remainder(len(facts.changes))}".rstrip()


def _devices(devices: Sequence[Device]) -> str:
    known = [name for name in Device._fields if any(getattr(device, name) is not None for device in devices)]
    values = [[getattr(device, name) for name in known] for device in devices[:ROWS]]
    rows = [["-" if value is None else code(str(value)) for value in row] for row in values]
    return table([plain(name) for name in known], rows)


def _remainder(count: int) -> str:
    return f"The other {count - ROWS} are in report.json." if count > ROWS else ""


# --- report.json ------------------------------------------------------------------------------------------------------


def document(facts: ReportFacts) -> dict[str, Any]:
    """The content of report.json."""
    request = facts.request
    content = {
        "schema": SCHEMA,
        "attempt": request.attempt,
        "command": facts.job,
        "node": facts.node,
        "time": facts.time,
        "since": facts.since,
        "finding": request.finding,
        "mechanism": facts.mechanism,
        "do": what_to_do(facts),
        "graph": waits_document(facts.graph),
        "verdict": facts.verdict,
        "where": facts.suspect.location if facts.suspect else None,
        "suspect": request.suspect,
        "seconds_between_looks": facts.seconds,
        "first_to_stop": [rank.rank for rank in first_to_stop(request.ranks)],
        "ranks": [_rank_document(rank, request.now) for rank in request.ranks],
        "groups": [{"stack": stack, "ranks": ranks} for stack, ranks in ranks_by_stack(facts).items()],
        "processes": [_process_document(change, facts) for change in facts.changes],
        "collectives": {"late": late(facts), "ranks": dict(sorted(facts.answers.items()))},
        "nccl": facts.nccl and {"found": sentences_of(facts.nccl), **facts.nccl._asdict()},
        "hccl": facts.hccl,
        "files": facts.files and dict(facts.files.opened),
        "call": facts.files and facts.files.call,
        "devices": request.devices,
        "output": dict(facts.output),
        "missing": [{"what": what, "why": why} for what, why in facts.missing],
    }
    found: dict[str, Any] = DECODABLE.plain(content)
    return found


def _rank_document(rank: RankState, now: float) -> dict[str, Any]:
    def ago(at: float | None) -> float | None:
        return None if at is None else max(0.0, now - at)

    return {
        **{name: getattr(rank, name) for name in ("rank", "pid", "step", "present", "done")},
        "moved_ago": ago(rank.moved_at),
        "alive_ago": ago(rank.alive_at),
        "sections": rank.sections,
    }


def _process_document(c: ProcessChange, facts: ReportFacts) -> dict[str, Any]:
    return {
        **{name: getattr(c.seen.stat, name) for name in ("pid", "parent", "name", "state", "threads", "start")},
        **{name: getattr(c, name) for name in ("cpu", "cpu_all", "io", "moved", "gone")},
        "command": facts.commands.get(c.pid),
        "wchan": c.seen.wchan,
        "stack": c.main and c.main.frames,
        "kernel": c.seen.kernel.splitlines(),
    }


# --- the folder of the reports ----------------------------------------------------------------------------------------


class ReportFolder:
    """`<run_dir>/reports/attempt-<n>`; symbolic links are not followed.  OSError if it cannot be written."""

    def __init__(self, run_dir: str, attempt: int) -> None:
        self.path = os.path.join(run_dir, "reports", f"attempt-{attempt}")
        self.report = os.path.join(self.path, "report.md")
        os.makedirs(run_dir, 0o700, exist_ok=True)
        reports = safe_files.open_subfolder("reports", os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._folder = safe_files.open_subfolder(f"attempt-{attempt}", reports)
        self._stacks = safe_files.open_subfolder("stacks", self._folder)
        self.picture = f"waits-{self._retire()}.svg"

    def write(self, markdown: str, document: Mapping[str, Any], stacks: Mapping[int, str], picture: str = "") -> None:
        """Write each file atomically; `picture` under the name `self.picture`, to which report.md refers.  The reports
        are synced to disk when this returns; the rest is not, because what matters most of it is in the reports."""
        for name in set(os.listdir(self._stacks)) - {f"{pid}.txt" for pid in stacks}:
            os.unlink(name, dir_fd=self._stacks)
        for pid, text in stacks.items():
            _replace(f"{pid}.txt", self._stacks, text, durable=False)
        if picture:
            _replace(self.picture, self._folder, picture, durable=False)
        _replace("report.json", self._folder, json.dumps(document, indent=1) + "\n")
        _replace("report.md", self._folder, markdown)
        os.fsync(self._folder)

    def _retire(self) -> int:
        """Rename the report of an earlier suspicion to a numbered file, and delete the oldest ones.  Returns the number
        that the new report gets when it is renamed; its picture has that number from the beginning."""
        folder, names = self._folder, os.listdir(self._folder)
        numbers = [0, *sorted({int(m[1]) for name in names if (m := re.match(r"report-(\d+)\.", name))})]
        for name in {"report.md", "report.json"}.intersection(names):
            fresh = name.replace(".", f"-{numbers[-1] + 1}.")
            os.replace(name, fresh, src_dir_fd=folder, dst_dir_fd=folder)
        if "report.md" in names:
            numbers.append(numbers[-1] + 1)
        for number in numbers[1:-KEPT_REPORTS]:
            for name in (f"report-{number}.md", f"report-{number}.json", f"waits-{number}.svg"):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        return numbers[-1] + 1


def _replace(name: str, folder: int, text: str, durable: bool = True) -> None:
    safe_files.replace(name, text.encode("utf-8", "backslashreplace"), durable=durable, folder=folder)


# --- what waits for what ----------------------------------------------------------------------------------------------


def headline(sentence: str) -> str:
    return begun(printable(redact(sentence)), HEADLINE)


def clean(text: str) -> str:
    """A text of a node as it is shown."""
    return short(printable(redact(text)), NODE_TEXT)


def wait_lines(graph: WaitGraph) -> list[str]:
    """The section of report.md: one line a node."""
    if not graph.nodes:
        return []
    shown = [_wait_line(node, graph) for node in graph.nodes[:WAIT_LINES]]
    left = sum(node.size for node in graph.nodes[WAIT_LINES:]) + graph.more
    parts = ["## What waits for what", "\n".join(shown)]
    if graph.cycle:
        names = [plain(graph.nodes[place].name) for place in (*graph.cycle, graph.cycle[0])]
        parts.append(f"They wait for each other: {' → '.join(names)}.")
    if left:
        parts.append(f"{several(left, 'thread')} more {'is' if left == 1 else 'are'} not shown here.")
    return parts


def _wait_line(node: GraphNode, graph: WaitGraph) -> str:
    where = f", at {code(node.place)}" if node.place else ""
    return f"* {plain(node.name)}{where}: {plain(node.does)}.{plain(_who_ends(node, graph))}"


def _who_ends(node: GraphNode, graph: WaitGraph) -> str:
    """Who can end the wait of a node, with a space before it."""
    if node.ends == RUNS or node.fails:
        return ""
    if node.ends:
        return f" That may end: it {node.ends}."
    names = [graph.nodes[place].name for place in node.wakers[:NAMED_WAKERS]]
    others = len(node.wakers) - len(names)
    named = "; ".join([*names, f"{others} more"] if others else names)
    if not names:
        return " No thread of the job can end that."
    return f" It can be ended by: {named}."


def waits_document(graph: WaitGraph) -> dict[str, Any]:
    """The graph of the waits for report.json: `wakers` and `cycle` are places in `nodes`."""
    shown = ("pid", "who", "thread", "place", "does", "ends", "wakers", "size")
    nodes = [{name: getattr(node, name) for name in shown} for node in graph.nodes]
    return {"nodes": nodes, "cycle": graph.cycle, "more": graph.more}
