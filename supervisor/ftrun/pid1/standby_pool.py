"""The standbys that exist: their processes, from the fork until one is taken for a start or ended."""

import os
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from ftrun.core.rules import standby as rules
from ftrun.host.reaper import ChildChange
from ftrun.host.signals import Inherited
from ftrun.host.spawn import Start
from ftrun.host.standby_process import Plan, StandbyProcess, execute, execute_template, kind, wait_until_gone
from ftrun.host.tree import Tree

ENDED: Final = "it ended"


class Standby:
    """One standby: `ready` after its imports, which took `seconds`; then it has `size` bytes of memory.  `forked`: by a
    template, whose memory it shares."""

    def __init__(self, process: StandbyProcess, command: Sequence[str], now: float) -> None:
        self.process, self.command, self.started_at = process, tuple(command), now
        self.ready = self.forked = False
        self.seconds, self.size = 0.0, 0

    def fits(self, start: Start) -> bool:
        return self.ready and self.command == tuple(start.command) and self.process.streams == dict(start.streams)


class Template:
    """A process that imports and then forks these standbys, by local rank."""

    def __init__(self, process: StandbyProcess, standbys: dict[int, Standby], now: float) -> None:
        self.process, self.standbys, self.started_at = process, standbys, now


class Owner(Protocol):
    """The owner of a pool, which is informed of what becomes of its standbys."""

    def on_forked(self) -> None:
        """There are new processes, which are in `pids`."""

    def on_imported(self, process: StandbyProcess, command: Sequence[str]) -> None:
        """This process has written the list of what it has imported."""

    def on_failed(self, local_ranks: Sequence[int], why: str) -> None:
        """The standbys of these ranks are gone; new ones may succeed."""

    def on_cold(self, why: str) -> None:
        """A standby has found that it could behave unlike a new process, as every other standby of this command
        would."""

    def on_alone(self, why: str) -> None:
        """A template has found that ranks which are forked from it could behave unlike new processes."""


class Pool:
    """`waiting`: by local rank.  `pids`: its processes until they are reaped or are the command.  `patience`: seconds
    for the imports of one."""

    def __init__(self, tree: Tree, inherited: Callable[[], Inherited], poll: select.poll, owner: Owner) -> None:
        self._tree, self._inherited, self._poll, self._owner = tree, inherited, poll, owner
        self.waiting: dict[int, Standby] = {}
        self._template: Template | None = None
        self.pids: set[int] = set()
        self.patience = rules.IMPORTING

    # --- forks ------------------------------------------------------------------------------------------------------

    def park(self, number: int, start: Start, imports: str, now: float, eager: bool = False) -> None:
        """Execute a standby for this local rank.  Raises OSError or ValueError."""
        process = execute(self._plan(start, imports, False, eager), start.streams)
        self._exclude(process.pid)
        self._wait_for({number: Standby(process, start.command, now)})

    def fork(
        self, starts: Mapping[int, Start], imports: str, reports: Sequence[str], now: float, eager: bool = False
    ) -> None:
        """Execute a template for these local ranks.  Raises OSError or ValueError."""
        plan = self._plan(next(iter(starts.values())), imports, True, eager)
        streams = [start.streams for start in starts.values()]
        process, standbys = execute_template(plan, streams, rules.DIFFERING, reports)
        self._exclude(process.pid)
        pairs = zip(starts.items(), standbys, strict=True)
        forked = {number: Standby(one, start.command, now) for (number, start), one in pairs}
        self._template = Template(process, forked, now)
        self._poll.register(process.answers, select.POLLIN)
        self._owner.on_forked()

    def execute_first(self, starts: Mapping[int, Start], imports: str, now: float) -> None:
        """Execute standbys of a command that has not run here yet.  Raises OSError or ValueError."""
        alike = self.alike(starts)
        for number in starts:
            if number not in alike or len(alike) == 1:
                self.park(number, starts[number], imports, now, eager=True)
        if len(alike) > 1:
            self.fork({number: starts[number] for number in alike}, imports, (), now, eager=True)

    def alike(self, starts: Mapping[int, Start]) -> list[int]:
        """The local ranks that one process can be the template of: most of them, but not rank 0 where it has the
        terminal."""
        kinds = {number: kind(start.streams) for number, start in starts.items()}
        return [number for number in kinds if kinds[number] == kinds[max(kinds)]]

    def _plan(self, start: Start, imports: str, template: bool, eager: bool = False) -> Plan:
        environment = rules.parked_environment(start.environment, template)
        added = start.environment.keys() - environment.keys()
        room = sum(len(os.fsencode(f"{name}={start.environment[name]}")) + 1 for name in added)
        return Plan(start.command, environment, imports, self._inherited(), room, eager)

    def _exclude(self, pid: int) -> None:
        self._tree.exclude(pid)
        self.pids.add(pid)

    def _wait_for(self, standbys: Mapping[int, Standby]) -> None:
        self.waiting.update(standbys)
        for one in standbys.values():
            self._poll.register(one.process.answers, select.POLLIN)
        self._owner.on_forked()

    # --- answers ----------------------------------------------------------------------------------------------------

    @property
    def is_importing(self) -> bool:
        return self._template is not None or not all(one.ready for one in self.waiting.values())

    @property
    def deadline(self) -> float | None:
        """When the imports under way have taken too long."""
        began = [one.started_at for one in self.waiting.values() if not one.ready]
        began += [self._template.started_at] if self._template is not None else []
        return min(began) + self.patience if began else None

    @property
    def descriptors(self) -> set[int]:
        waiting = [one.process.answers for one in self.waiting.values()]
        return {*waiting, *([self._template.process.answers] if self._template else [])}

    def read(self, now: float) -> None:
        """Read the answers, and end a standby whose imports hang."""
        if self._template is not None:
            self._read_template(self._template, now)
        for local_rank, one in [*self.waiting.items()]:
            if self.waiting.get(local_rank) is one:
                self._read(local_rank, one, now)

    def _read_template(self, template: Template, now: float) -> None:
        content = template.process.read()
        if content is None and now < template.started_at + self.patience:
            return
        what, *words = (content or b"").decode("utf-8", "replace").strip().split("\0")
        numbers = [*template.standbys]
        if what == "forked" and len(words) == 1 + len(numbers):
            for one, pid in zip(template.standbys.values(), words[1:], strict=True):
                one.process.pid, one.forked = int(pid), True
                self._exclude(one.process.pid)
            self._owner.on_imported(template.process, template.standbys[numbers[0]].command)
            with suppress(OSError):  # it has been killed meanwhile; whether these live, they say themselves
                template.process.go_on()
            self._wait_for(template.standbys)
            template.standbys = {}
            self._close_template()
            return
        template.process.kill()
        self._close_template()
        if what == "alone" and words:
            self._owner.on_alone(words[0])
        elif what == "cold" and words:
            self._owner.on_cold(words[0])
        else:
            self._owner.on_failed(numbers, "its imports hang" if content is None else ENDED)

    def _read(self, local_rank: int, one: Standby, now: float) -> None:
        content = one.process.read()
        if content is None:
            if not one.ready and now >= one.started_at + self.patience:
                self._fail(local_rank, "its imports hang")
            return
        what, *words = content.decode("utf-8", "replace").strip().split("\0")
        if what == "ready" and len(words) >= 2 and not one.ready:
            one.ready, one.seconds, one.size = True, float(words[0]), int(words[1])
            self._owner.on_imported(one.process, one.command)
        elif what == "cold" and words:
            self.end(local_rank)
            self._owner.on_cold(words[0])
        else:
            self._fail(local_rank, ENDED)

    def child_changed(self, change: ChildChange, now: float) -> None:
        """A child was reaped, stopped or continued; perhaps a standby."""
        if change.ended:
            self.pids.discard(change.pid)
        if change.how == os.CLD_CONTINUED:
            return
        if self._template is not None and self._template.process.pid == change.pid:
            self._template_changed(self._template, change, now)
        number = next((number for number, one in self.waiting.items() if one.process.pid == change.pid), None)
        if number is None:
            return
        if change.ended:
            self._read(number, self.waiting[number], now)  # the reason, and then its end
        if number in self.waiting:
            self._fail(number, ENDED if change.ended else "it was stopped")

    def _template_changed(self, template: Template, change: ChildChange, now: float) -> None:
        if change.ended:
            self._read_template(template, now)
        if self._template is template:
            template.process.kill()
            self._close_template()
            self._owner.on_failed([*template.standbys], ENDED if change.ended else "it was stopped")

    def _fail(self, local_rank: int, why: str) -> None:
        self.end(local_rank)
        self._owner.on_failed([local_rank], why)

    # --- the end ----------------------------------------------------------------------------------------------------

    def take(self, local_rank: int, start: Start) -> Standby | None:
        """The standby for this start, which stops being a standby: the one of this rank, or else any that fits."""
        usable = (n for n in (local_rank, *self.waiting) if n in self.waiting and self.waiting[n].fits(start))
        number = next(usable, None)
        if number is None:
            return None
        taken = self.waiting.pop(number)
        self._poll.unregister(taken.process.answers)
        self.pids.discard(taken.process.pid)
        return taken

    def end(self, local_rank: int) -> None:
        one = self.waiting.pop(local_rank)
        self._poll.unregister(one.process.answers)
        one.process.kill()
        one.process.close()

    def end_all(self) -> None:
        if self._template is not None:
            self._template.process.kill()
            self._close_template()
        for local_rank in [*self.waiting]:
            self.end(local_rank)

    def _close_template(self) -> None:
        template, self._template = self._template, None
        assert template is not None
        self._poll.unregister(template.process.answers)
        for one in (template.process, *(standby.process for standby in template.standbys.values())):
            one.close()

    def wait_until_gone(self, until: float) -> None:
        """Wait until all processes of the pool are gone: for the very end, when waiting is allowed."""
        for pid in self.pids:
            wait_until_gone(pid, until)
