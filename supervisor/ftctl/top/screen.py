"""`ftctl top` as text: one screen of any size.  Pure; control characters in foreign text are escaped."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ftctl.common import size
from ftctl.top.keys import HELP, Chosen, plain
from ftrun.core.machine.values import TOUCH
from ftrun.core.named_tuple import NamedTuple
from ftrun.core.rules import stalls
from ftrun.core.text import sentences, states
from ftrun.core.text.durations import seconds, step_duration
from ftrun.records.files.record_files import Record, own_fields
from ftrun.records.present import advice, summary
from ftrun.records.present.own_ranks import ENDED
from ftrun.records.present.snapshot import DeviceNow, RankNow, Snapshot

WIDE: Final = 70  # cells that the full table needs
TABLE: Final = "rank     pid state          step    moved  silent of limit    per step"
USED: Final = "       CPU     memory"  # of the process of a rank
WIDEST: Final = 91  # cells that the table needs with it
NARROW: Final = "rank state          step silent of limit"
SHORT: Final = 12  # lines of a screen that has no room for long sentences
BAR: Final = 24  # cells at most
ENDS: Final = 60  # records at most
BLOCKS, SIGNS = "▁▂▃▄▅▆▇█", "_.-~=+*#"


class Screen(NamedTuple):
    """`unicode`: whether the terminal shows more than ASCII."""

    width: int = 80
    height: int = 24
    unicode: bool = True


def render(
    shown: Snapshot,
    paces: Sequence[float],
    records: Sequence[Record],
    note: str,
    screen: Screen,
    group: Sequence[tuple[str, bool]] = (),
    chosen: Chosen = Chosen(),  # noqa: B008 - a value that nobody changes
) -> Text:
    """At most `height` lines of at most `width` cells; `note` is the last line.  `paces`: seconds per step in this
    attempt, the newest last.  `group`: lines about the members of the group; True for one that needs attention."""
    page = _Page(screen)
    if chosen.help:
        keys = [page.line((f"  {key:<4} ", "bold"), (what, "")) for key, what in HELP]
        return Text("\n", end="").join([page.line(("Keys", "bold")), *keys[: screen.height - 1]])
    head = _head(page, shown, paces)
    room = screen.height - 1
    lines = head[: max(1, room - 3)]
    room -= len(lines)
    members = _members(page, group, max(room // 3, min(len(group), room // 2)))
    lines += members
    room -= len(members)
    ranks, devices, recent = _rooms(room, len(shown.ranks), len(shown.devices), len(records))
    lines += _ranks(page, shown, ranks, chosen)
    lines += _devices(page, shown.devices, devices)
    lines += _records(page, records, recent)
    lines = lines[: screen.height - 1]
    return Text("\n", end="").join([*lines, page.line((note, "dim"))])


def _rooms(room: int, ranks: int, devices: int, records: int) -> tuple[int, int, int]:
    """Lines for ranks, devices and records: none gets more than it can use, ranks get the rest.  A heading counts."""
    recent = min(records, ENDS, max(1, room // 4)) if room > 2 else 0
    needed = min(devices, max(1, room // 5)) if room > 6 else 0
    left = max(0, room - recent - needed)
    wanted = ranks + 1 if ranks else 0
    if wanted < left:
        needed = min(devices, needed + left - wanted) if needed else 0
        recent = min(records, ENDS, room - wanted - needed)
    return min(wanted, left), needed, recent


class _Page:
    """Makes lines that fit the screen."""

    def __init__(self, screen: Screen) -> None:
        self.width, self.unicode, self.tall = screen.width, screen.unicode, screen.height > SHORT

    def plain(self, text: str) -> str:
        """The text with printable characters only, and in ASCII if the terminal shows no others."""
        return plain(text, self.unicode)

    def line(self, *parts: tuple[str, str]) -> Text:
        """A line from (text, style) pairs, cut to the width."""
        found, left = Text(end=""), self.width
        for text, style in parts:
            cut = self.plain(text)
            cut = cut if cell_len(cut) <= left else set_cell_size(cut, max(0, left))
            found.append(cut, style)
            left -= cell_len(cut)
        return found

    def wrapped(self, text: str, style: str, most: int) -> list[Text]:
        """The text on at most `most` lines, of which the last is cut."""
        found: list[Text] = []
        rest = self.plain(text)
        while rest and len(found) < most:
            if cell_len(rest) <= self.width or len(found) == most - 1:
                return [*found, self.line((rest, style))]
            cut = set_cell_size(rest, self.width)
            at = cut.rfind(" ") if " " in cut.strip() else len(cut.rstrip())
            found.append(self.line((rest[:at], style)))
            rest = rest[at:].lstrip()
        return found

    def bar(self, part: float, width: int) -> str:
        full = max(0, min(width, round(part * width)))
        return ("█" * full + "░" * (width - full)) if self.unicode else "#" * full + "-" * (width - full)

    def spark(self, values: Sequence[float]) -> str:
        """The values as a row of small bars.  The scale ends at three times the median: a hang must not flatten the
        rest, nor noise fill it."""
        most = 3 * sorted(values)[len(values) // 2] or 1.0
        levels = BLOCKS if self.unicode else SIGNS
        return "".join(levels[min(7, int(8 * value / most))] for value in values)


# --- the state of the run --------------------------------------------------------------------------------------------


def _head(page: _Page, shown: Snapshot, paces: Sequence[float]) -> list[Text]:
    found = page.wrapped(f"ftrun: {summary.headline(shown)}", mood(shown), 2)
    if todo := advice.what_to_do(shown):
        found += page.wrapped(f"do       {todo}", "", 2 if page.tall else 1)
    if shown.phase == "done":
        found += page.wrapped((shown.why or "").partition(" (report: ")[0], "", 2)
    found += _deadline(page, shown)
    found += _steps(page, shown, paces)
    found += _slow(page, shown)
    if shown.checkpoint_age is not None:
        step = "" if shown.checkpoint_step is None else f"step {shown.checkpoint_step}, "
        found.append(page.line(("saved    ", "dim"), (f"{step}{summary.saved(shown)}", "")))
    if shown.restarts or shown.left:
        found += page.wrapped(f"restarts {summary.restarts(shown)}", "", 2 if page.tall else 1)
    if shown.wall:
        found.append(page.line(("goodput  ", "dim"), (summary.goodput(shown), "")))
    if shown.trouble is not None and shown.trouble.why != (shown.why or "").partition(" (report: ")[0]:
        at = shown.trouble.time[11:19]
        when = f"{at} UTC, " if at else ""
        text = f"{when}{shown.trouble.title}: {shown.trouble.why}"
        found.append(page.line(("incident ", "dim"), (text, "")))
    found.append(page.line(("job      ", "dim"), (" ".join(shown.command), "")))
    if shown.ended is not None:
        found.append(page.line(("ended    ", "dim"), (summary.ago(shown.ended), "")))
    for problem in shown.problems[:2]:
        found += page.wrapped(f"warning  {problem}", "yellow", 2)
    return found


def mood(shown: Snapshot) -> str:
    """The style of the headline."""
    if shown.phase == "done":
        return "bold green" if shown.exit_code == 0 else "bold red"
    if shown.phase == "cut off":
        return "bold red"
    if shown.paused is not None:
        return "bold reverse"
    if shown.job is not None:
        return "bold red" if shown.job.lost else "bold yellow"
    if shown.suspended is not None or shown.recovery is not None:
        return "bold yellow"
    if shown.phase == "suspect":
        return "bold red"
    stale = shown.stalled is not None or (shown.stalest is not None and shown.stalest.used > 0.5)
    return "bold yellow" if stale or shown.phase not in ("running", "starting", "spare", "finished") else "bold green"


def _deadline(page: _Page, shown: Snapshot) -> list[Text]:
    """How near the stalest rank is to its limit, and what ftrun does next."""
    stalest, found = shown.stalest, list[Text]()
    if stalest is not None and stalest.age is not None and stalest.limit:
        text = f" {seconds(stalest.age)} of {seconds(stalest.limit)}, {sentences.rank(stalest.rank)}"
        bar = page.bar(stalest.used, max(4, min(BAR, page.width - 9 - len(text))))
        found.append(page.line(("silent   ", "dim"), (bar, _heat(stalest)), (text, "")))
    if shown.stalled is not None and shown.alive:
        text = f"{sentences.rank(shown.stalled.rank)} for {seconds(shown.stalled.age)}: {shown.wait or stalls.UNKNOWN}"
        found.append(page.line(("stalled  ", "dim"), (text, "yellow")))
    if shown.next and shown.alive:
        found.append(page.line(("next     ", "dim"), (shown.next, "")))
    return found


def _heat(rank: RankNow) -> str:
    return "red" if rank.used > 0.8 else "yellow" if rank.used > 0.5 else "green"


def _steps(page: _Page, shown: Snapshot, paces: Sequence[float]) -> list[Text]:
    if shown.step is None:
        return []
    pace = f", {step_duration(shown.step_time)} per step" if shown.step_time else ""
    if still := advice.no_step(shown):
        pace = f", {still}"
    behind = (shown.step or 0) - (shown.slowest.step or 0) if shown.slowest is not None and len(shown.ranks) > 1 else 0
    text = f"{shown.step}{pace}" + (f", the slowest rank is {behind} behind" if behind > 0 else "")
    room = page.width - 9 - cell_len(text) - 2
    line = [("step     ", "dim"), (text, "")]
    values = paces[-max(0, min(60, room - 14)) :]
    if room >= 20 and len(values) >= 6:
        line += [("  ", ""), (page.spark(values), "cyan"), (f" max {step_duration(max(values))}", "dim")]
    return [page.line(*line)]


def _slow(page: _Page, shown: Snapshot) -> list[Text]:
    """A line for the first straggler, with its place, and how many more there are."""
    slow = [rank for rank in shown.ranks if rank.straggler is not None]
    if not slow:
        return []
    more = f"; and {len(slow) - 1} more" if slow[1:] else ""
    return page.wrapped(f"slow     {summary.straggler(shown, slow[0])}{more}", "yellow", 2)


# --- the tables -----------------------------------------------------------------------------------------------------


def _ranks(page: _Page, shown: Snapshot, room: int, chosen: Chosen) -> list[Text]:
    """The table of the ranks in the chosen order, by default the stalest first; if there is no room for all, the last
    line counts the states of the others."""
    if room < 2 or not shown.ranks:
        return []
    ranks, picked = chosen.ordered(shown.ranks), chosen.rank(shown.ranks)
    if len(ranks) > room - 1:
        skip = min(chosen.skip, len(ranks) - max(1, room - 2))
        ranks = ranks[skip:] + ranks[:skip]
    few = ranks if len(ranks) <= room - 1 else ranks[: max(1, room - 2)]
    used = USED if page.width >= WIDEST and any(rank.memory is not None for rank in ranks) else ""
    found = [page.line((f"{TABLE}{used}" if page.width >= WIDE else NARROW, "dim"))]
    for rank in few:
        line = _rank(page, rank)
        if rank is picked:
            line.stylize("bold")
        found.append(line)
    rest = ranks[len(few) :]
    if rest and len(found) < room:
        states = Counter(rank.state for rank in rest)
        text = ", ".join(f"{count} {state}" for state, count in states.most_common())
        order = f"; by {chosen.text}" if chosen.order or chosen.reverse else ""
        found.append(page.line((f"and {len(rest)} more: {text}{order}", "dim")))
    return found


def _members(page: _Page, group: Sequence[tuple[str, bool]], room: int) -> list[Text]:
    """The heading, and rows as far as there is room: those that need attention first."""
    if room < 2 or not group:
        return []
    head, *rows = group
    few = rows if len(rows) < room else sorted(rows, key=lambda row: not row[1])[: max(1, room - 2)]
    lines = [page.line((head[0], "dim")), *(page.line((text, "yellow" if marked else "")) for text, marked in few)]
    more = f"and {len(rows) - len(few)} more members: ftctl status --all"
    return lines if len(few) == len(rows) or room < 3 else [*lines, page.line((more, "dim"))]


def _rank(page: _Page, rank: RankNow) -> Text:
    name = "touch" if rank.rank == TOUCH else "-" if rank.rank < TOUCH else str(rank.rank)
    if rank.local_rank not in (None, rank.rank):
        name = f"{name}/{rank.local_rank}"  # in a group: the number in the job, and that on this node
    state = "moving" if rank.state == "section" and not rank.section else rank.section or rank.state
    if rank.state == "moving" and advice.quiet(rank):
        state = states.QUIET
    state = states.STRAGGLER if rank.straggler is not None and state == "moving" else state
    stands_out = rank.straggler is not None or rank.state == "stalled" or state == states.QUIET
    moved = "never" if rank.moved is None else seconds(rank.moved)
    wide = page.width >= WIDE
    limit = pace = bar = measured = ""
    if rank.age is not None and rank.limit is not None:
        limit, bar = f"{seconds(rank.age):>6} of {seconds(rank.limit):<7}", page.bar(rank.used, 5) + " "
        pace = "" if rank.step_time is None else f"{step_duration(rank.step_time):>6}"
    if rank.memory is not None and page.width >= WIDEST:
        cpu = "" if rank.cpu is None else f"{rank.cpu:.0f}%"
        measured = f"{'':{29 - cell_len(bar + limit + pace)}}{cpu:>8}{size(rank.memory):>11}"
    return page.line(
        (f"{name:>4} {rank.pid:>7} " if wide else f"{name:>4} ", ""),
        (set_cell_size(page.plain(state), 11), "dim" if rank.state in ENDED else "yellow" * stands_out),
        (f" {'' if rank.step is None else rank.step:>7} ", ""),
        *(((f"{moved:>8}  ", ""), (bar, _heat(rank))) if wide else ()),
        (limit + (pace if wide else "") + measured, ""),
    )


def _devices(page: _Page, devices: Sequence[DeviceNow], room: int) -> list[Text]:
    """The table of the devices: those with a fault first, then the idlest: a device that idles while others work
    indicates a hang."""
    ordered = sorted(devices, key=lambda d: (not d.fault, d.util is not None, d.util or 0.0))
    few = ordered if len(ordered) <= room else ordered[: room - 1]
    found = []
    for device in few if room else []:
        util = "" if device.util is None else f"{device.util:>4.0f}%"
        memory = ""
        if device.memory_used is not None and device.memory_total:
            memory = f"  {device.memory_used / 2**30:.1f} of {device.memory_total / 2**30:.0f} GiB"
        power = "" if device.power is None else f"  {device.power:.0f} W"
        old = f"  {seconds(device.age)} ago" if device.age > 30 else ""
        bar = (page.bar((device.util or 0.0) / 100, 10), "cyan") if device.util is not None else ("", "")
        name = set_cell_size(page.plain(f"{device.id} {device.name}"), min(30, page.width // 3))
        health = (f"  {page.plain(device.fault)}" if device.fault else "", "red")
        found.append(page.line(("dev ", "dim"), (f"{name} ", ""), bar, (f"{util}{memory}{power}{old}", ""), health))
    if room and len(ordered) > len(few):
        found.append(page.line((f"and {len(ordered) - len(few)} more devices, all with a higher utilization", "dim")))
    return found


def folded(records: Sequence[Record]) -> list[tuple[Record, int]]:
    """Progress that follows progress of the same kind is one entry, the newest, with its number."""
    found: list[tuple[Record, int]] = []
    for record in records:
        before, times = found[-1] if found else ({}, 0)
        kinds = [(one.get("event"), one.get("by"), one.get("attempt")) for one in (before, record)]
        if kinds[0] == kinds[1] and record.get("event") == "progress":
            found[-1] = record, times + 1
        else:
            found.append((record, 1))
    return found


def _records(page: _Page, records: Sequence[Record], room: int) -> list[Text]:
    found = []
    for record, times in folded(records)[-room:] if room else []:
        event = str(record.get("event"))
        style = "red" if event in ("hang", "fault", "escalated") else ""
        text = sentences.record(f"{event:<10}" if times == 1 else f"{event} x{times}", own_fields(record))
        found.append(page.line((str(record.get("time"))[11:19] + " ", "dim"), (text, style)))
    return found
