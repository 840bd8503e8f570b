"""The contract with the outer scheduler, number by number: a change here is a new CONTRACT_VERSION."""

import ast
import zlib
from pathlib import Path

from ftrun.core.rules import exit_codes
from support.runs import HOUSE

RELEASED = {2: 4055136482}  # the checksum of the contract, by its version

CONTRACT = {
    "hang-limit": (195, "reschedule the job"),
    "user-fault-limit": (196, "reschedule the job without isolating the node"),
    "node-fault": (197, "isolate the node and reschedule the job"),
    "failure-limit": (93, "mark the job as failed"),
    "non-recoverable": (94, "mark the job as failed at once"),
    "shutdown-hang": (95, "mark the job as failed; look whether its training is complete"),
    "internal": (125, "mark the job as failed"),
    "not-executable": (126, "mark the job as failed"),
    "not-found": (127, "mark the job as failed"),
    "usage": (2, "mark the job as failed"),
}


def test_codes_and_advice_are_the_contract() -> None:
    assert {v.name: (v.code, v.outer) for v in exit_codes.TABLE} == CONTRACT
    assert exit_codes.CONTRACT_VERSION == 2
    known = zlib.crc32(repr(sorted(CONTRACT.items())).encode())
    assert known == RELEASED[exit_codes.CONTRACT_VERSION], "another contract is another version"
    assert len({v.code for v in exit_codes.TABLE}) == len(exit_codes.TABLE), "each verdict has a code of its own"
    assert not {exit_codes.SUCCEEDED, exit_codes.FAILED, exit_codes.STOPPED} & set(CONTRACT)


def test_each_verdict_decides_what_follows_from_it() -> None:
    assert exit_codes.Verdict._field_defaults == {}
    assert {v.code for v in exit_codes.TABLE if v.ends_group} == {125, 196, 197}
    assert {v.code for v in exit_codes.TABLE if v.replaceable} == {125, 197}
    assert {v.code for v in exit_codes.TABLE if v.about_node} == {196, 197}
    assert {v.code for v in exit_codes.TABLE if not v.logged} == {126, 127}


def test_only_codes_to_reschedule_are_retryable() -> None:
    """Retryable for schedulers that take 128 and up for it, and above every 128 + signal."""
    for verdict in exit_codes.TABLE:
        assert (192 < verdict.code < 200) == ("reschedule" in verdict.outer), verdict.name
        assert verdict.code < 128 or verdict.code > 128 + 64


def test_the_status_of_the_command_passes_through() -> None:
    assert [exit_codes.shell_status(code, None) for code in range(256)] == list(range(256))
    assert [exit_codes.shell_status(None, signal) for signal in range(1, 65)] == list(range(129, 193))


def test_each_verdict_is_decided_somewhere() -> None:
    """Outside of the table, which has one entry for each constant of this module."""
    constants = {name for name, value in vars(exit_codes).items() if isinstance(value, exit_codes.Verdict)}
    assert {getattr(exit_codes, name) for name in constants} == set(exit_codes.TABLE)
    assert constants - {name for path in (HOUSE / "supervisor").rglob("*.py") for name in _names(path)} == set()


def _names(path: Path) -> set[str]:
    text = path.read_text()
    if path.name == "exit_codes.py" or "exit_codes" not in text:
        return set()
    nodes = [*ast.walk(ast.parse(text))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return read | {node.id for node in nodes if isinstance(node, ast.Name)}
