"""The place of the ranks that ftrun starts, on one node and in a group."""

import pytest

from ftrun.config.group_config import Group
from ftrun.config.local_world import LOOPBACK, LocalWorld, reads_program
from ftrun.core.machine.values import RankPlace

ALONE = LocalWorld(local_size=2, size=2, port=4000, run_id="job", restarts=3, max_restarts=5)
PLACE = RankPlace(first=8, number=4, size=12, member=2, members=3, address="10.0.0.1", port=5000)


def test_the_place_in_a_group_gives_every_number() -> None:
    found = ALONE.placed(PLACE, "elsewhere", "group", 4).variables(1, {})
    expected = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "12", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "2"}
    expected |= {"GROUP_WORLD_SIZE": "3", "ROLE_RANK": "9", "ROLE_WORLD_SIZE": "12", "MASTER_ADDR": "10.0.0.1"}
    expected |= {"MASTER_PORT": "5000", "TORCHELASTIC_RUN_ID": "group", "TORCHELASTIC_RESTART_COUNT": "3"}
    assert found.items() >= (expected | {"TORCHELASTIC_MAX_RESTARTS": "5"}).items()
    assert ALONE.placed(None, "elsewhere", "group", 4) == ALONE


def test_rank_0_without_an_address_is_where_the_member_itself_reaches_it() -> None:
    nowhere = PLACE._replace(address="")
    assert ALONE.placed(nowhere, "host-0", "", 1).address == "host-0"
    assert ALONE.placed(nowhere, "", "", 1).address == LOOPBACK
    assert ALONE.placed(nowhere, "", "", 1).run_id == "none"


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [("train-0.train:29470", "train-0.train"), ("[fd00::1]:1", "fd00::1"), ("0.0.0.0:1", ""), ("[::]:1", "")],
)
def test_the_address_of_an_endpoint(endpoint: str, address: str) -> None:
    assert Group(2, 0, endpoint, None, 600.0, "", "options").address == address


@pytest.mark.parametrize(
    ("command", "does"),
    [
        ("python -", True),
        ("/usr/bin/python3.11 -u - --epochs 3", True),
        ("python", True),
        ("bash -s", True),
        ("bash -es -- 3", True),
        ("python train.py -", False),
        ("python -um train -", False),
        ("python -c pass", False),
        ("bash -xc true", False),
        ("bash train.sh", False),
        ("cat -", False),
    ],
)
def test_whether_a_command_reads_its_program_from_standard_input(command: str, does: bool) -> None:
    assert reads_program(command.split()) is does
