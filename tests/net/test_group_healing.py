"""A chip of one member is healed while the whole group waits for it, each container in its place."""

from collections.abc import Callable
from pathlib import Path

from support.device.npu_smi import FakeNpuSmi
from support.device.rig import SOON
from support.group_runs import Group
from support.hosts import PATHS, Container, Hosts
from support.runs import wait_for

Make = Callable[[int], Hosts]
FAULTY = 1  # the member whose chip has the fault
RESETS = ("40F84E00", "node type=L2BUFF, event state=bus")  # a reset of the chip cures it
WORK = ("--steps", "100000", "--step-time", "0.02")
# Says what it was given, and ends as the file `cured` says, once there is one.
HEAL = """
echo "$FTRUN_FAULT_DEVICE $FTRUN_FAULT_CODE $FTRUN_FAULT_SEVERITY" >>healed
while [ ! -e cured ]; do sleep 0.05; done
exit "$(cat cured)"
"""


class Chips:
    """A group of which each member has a chip; that of one gets a fault in the first epoch."""

    def __init__(self, made: Hosts, *options: str) -> None:
        self.group = Group(made, *WORK, wait="60s", options=("--probe", "ascend", *options), ftrun=SOON)
        self._tools = [FakeNpuSmi(made.folder / f"smi-{rank}") for rank in range(made.size)]

    def start(self, rank: int, schedule: int = 1) -> Container:
        path = f"{self._tools[rank].folder}:{PATHS}"
        heal = ("--heal", HEAL) if rank == FAULTY else ()
        return self.group.start(rank, options=heal, PATH=path, MA_SCHEDULE_CNT=str(schedule))

    def until_healing(self) -> Container:
        """Start all members, and have the fault come; the member whose chip is being healed."""
        for rank in range(self.group.size):
            self.start(rank)
        self.group.until_started(1)
        self.group.until_step(5)
        self._tools[FAULTY].set(codes=[RESETS], health="Alarm")
        member = self.group.rank(FAULTY)
        wait_for((self._folder(member) / "healed").exists, f"the healing; {self.group.log()}")
        return member

    def cure(self, member: Container, code: int) -> None:
        """End the command that heals."""
        if code == 0:
            self._tools[FAULTY].set(codes=[], health="OK")
        beside = self._folder(member) / ".cured"
        beside.write_text(str(code))
        beside.rename(beside.with_name("cured"))

    def replace_tool(self) -> None:
        """Another node has a chip that is well."""
        self._tools[FAULTY].set(codes=[], health="OK")

    def healed(self, member: Container) -> str:
        return (self._folder(member) / "healed").read_text()

    def _folder(self, member: Container) -> Path:
        return member.run_dir.parent


def test_a_chip_is_healed_while_all_members_wait_and_then_all_start_again(hosts: Make) -> None:
    chips = Chips(hosts(3))
    group = chips.group
    member = chips.until_healing()
    for one in group.hosts.last:
        one.until("exited")
        assert not one.ended
        assert len(one.named("spawned")) == 1
    assert group.book.epochs == [1], "no member starts before the chip is well"
    assert not member.helper("probe"), "it holds the chip open"
    assert chips.healed(member) == f"0-0 {RESETS[0]} major\n"
    chips.cure(member, 0)
    group.until_started(2)
    starts = {line["rank"]: (line["reason"], line["starts"]) for line in group.book.named("start", epoch=2)}
    assert starts == {0: ("peer", 2), FAULTY: ("fault", 2), 2: ("peer", 2)}
    for one in group.hosts.last:
        (run,) = (order for order in one.named("group") if order["what"] == "run" and order["epoch"] == 2)
        assert run["cause"] == "fault"
    group.must_succeed(epochs=[1, 2])
    assert chips.healed(member).count("\n") == 1
