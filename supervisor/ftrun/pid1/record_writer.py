"""Writes the records of a run, and shows them and the log lines to the operator."""

from collections.abc import Callable, Sequence

from ftrun.core.machine.notices import GivenNotices, Notices, notices
from ftrun.core.machine.states import Job
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations, sentences
from ftrun.pid1.bootstrap import Setup
from ftrun.pid1.clients.registry import Clients
from ftrun.pid1.state_file import StateFile


class RecordWriter:
    """`attempt`: the number of the start that the next record belongs to.  `logged`: whether a decision was logged.
    `job` returns the current state."""

    def __init__(
        self,
        setup: Setup,
        command: Sequence[str],
        phase: str,
        clients: Clients,
        state_file: StateFile,
        job: Callable[[], Job],
        policy: Policy,
    ) -> None:
        self._setup, self._command, self._phase, self._job = setup, command, phase, job
        self._journal = setup.journal
        self._clients, self._state_file = clients, state_file
        self.attempt, self.logged = setup.ledger.start_cnt, False
        self._printed_problem: str | None = None
        self._policy, self._notices = policy, Notices(GivenNotices())

    def persist(self, event: str, fields: tuple[tuple[str, object], ...], durable: bool) -> None:
        """`durable`: the record and the state are on disk when this returns."""
        journal, console = self._journal, self._setup.console
        if event == "started":
            fields += self._setup.describe_run(self._command, self._phase)
        stamp = journal.record(event, self.attempt, fields, durable)
        if durable:
            self._state_file.save(self._job(), True)
        self._clients.keep(self._job().ledger)
        console.attempt = self.attempt
        console.record(stamp, event, fields)
        if journal.problem not in (None, self._printed_problem):
            self._printed_problem = journal.problem
            console.print(str(journal.problem))

    def write_those_of_helpers(self) -> None:
        """Write the records that the clients of the helpers have made, and print what is for the operator.  During a
        pause a debugger may hold a rank, which is no straggler then."""
        for event, fields, text in self._clients.drain_records():
            if event == "straggler" and self._job().paused is not None:
                continue
            self.persist(event, fields, False)
            if text is not None:
                self._setup.console.print(text, severity="warning" if event == "problem" else "info")

    @property
    def notices_due(self) -> float | None:
        """When `write_notices` has to be called next, also if the job has not changed."""
        return self._notices.due

    def write_notices(self, now: float) -> None:
        """Write what ftrun notes of its own accord."""
        job, setup = self._job(), self._setup
        self._notices = found = notices(job, self._policy, self._notices.given, setup.run_dir.given, now)
        for line in found.lines:
            self._journal.log(line)
            setup.console.print(line, severity="info")
        if (wait := found.wait) is not None:
            start = job.ledger.start_cnt
            self._journal.record("waiting", start, (("seconds", wait.seconds), ("why", wait.why)), False)
            setup.console.print(f"no command has run for {durations.seconds(wait.seconds)}: {wait.why}")

    def problem(self, what: str, printed: bool = False) -> None:
        self.persist("problem", (("what", what),), False)
        if printed:
            self._setup.console.print(what)

    def log(self, text: str) -> None:
        self.logged = True
        self._journal.log(sentences.printable(text))
        self._setup.console.print(text)
