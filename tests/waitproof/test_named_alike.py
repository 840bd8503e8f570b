"""What waitproof has to know of ftrun and cannot import from it is the same in both."""

import ftrun
import waitproof
from ftrun.accelerators.table import VENDORS
from ftrun.core.machine.values import unranked
from ftrun.core.text import sentences
from ftrun_hooks import layout
from waitproof import connections, text
from waitproof.world import ACCELERATORS


def test_accelerators_of_all_vendors_are_recognized() -> None:
    assert {path for vendor in VENDORS for path in vendor.opened} <= set(ACCELERATORS)


def test_the_socket_of_ftrun_is_recognized() -> None:
    assert connections.FTRUN == layout.RANKS


def test_both_have_one_version() -> None:
    assert waitproof.__version__ == ftrun.__version__


def test_ranks_have_the_same_names() -> None:
    for number in (None, 0, 7, -1, unranked(812)):
        assert text.rank(number) == sentences.rank(number)
