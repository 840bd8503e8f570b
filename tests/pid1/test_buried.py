"""What an ftrun knows of the one before it in its run dir."""

import pytest

from ftrun.core.group.messages import EpochRun
from ftrun.core.machine.values import Ledger
from ftrun.host import procfs
from ftrun.messages.run_state import RunFacts, RunState
from ftrun.messages.state import dump_state, load_state
from ftrun.pid1.bootstrap import _buried

RAN = EpochRun(3, "life")


def known(ran: EpochRun | None, boot: str) -> EpochRun | None:
    state = RunState(run=RunFacts(boot=boot), ran=ran)
    return _buried(load_state(dump_state(Ledger(), state._asdict())))


def test_the_ftrun_before_on_this_machine_is_dead() -> None:
    assert known(RAN, procfs.boot_id()) == RAN


@pytest.mark.parametrize("ran", [RAN, None])
def test_nothing_is_known_of_one_on_another_machine(ran: EpochRun | None) -> None:
    assert known(ran, "another") is None
    assert known(None, procfs.boot_id()) is None
    assert _buried(None) is None


@pytest.mark.parametrize("ran", [{"epoch": "3", "life": "life"}, [3, "life"], "life"])
def test_a_damaged_state_says_nothing(ran: object) -> None:
    state = RunState(run=RunFacts(boot=procfs.boot_id()))._asdict() | {"ran": ran}
    assert _buried(load_state(dump_state(Ledger(), state))) is None
