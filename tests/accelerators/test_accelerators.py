"""A vendor is one record, of which every field is required, and one entry of each table."""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from ftctl.doctor import devices
from ftrun.accelerators.table import BY_NAME, VENDORS, Accelerator, present
from ftrun.config.option_table import PROBES
from ftrun.core.rules.fault_codes import parse
from ftrun.helpers.probe import ascend, nvidia
from ftrun.helpers.probe.device import Vendor
from ftrun.messages.probe import DeviceIdentity

# Typed, so that mypy compares each probe with the interface.
OPEN: Final[dict[str, Callable[[Mapping[str, str], Sequence[DeviceIdentity]], Vendor]]] = {
    "nvidia": nvidia.open,
    "ascend": ascend.open,
}


def test_no_field_of_a_record_has_a_default() -> None:
    assert Accelerator._field_defaults == {}


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: str(vendor.name))
def test_a_record_is_complete(vendor: Accelerator) -> None:
    assert all(vendor)
    assert vendor.name in PROBES
    assert not any(re.fullmatch(vendor.device_files, Path(file).name) for file in vendor.driver_files)
    assert import_module(vendor.probe).open is OPEN[vendor.name]
    assert parse(Path(vendor.faults).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["null", "nvidiactl", "nvidia0"], ("nvidia",)),
        (["dxg"], ("nvidia",)),
        (["davinci_manager_docker", "davinci7"], ("ascend",)),
        (["davinci_manager", "nvidia-uvm"], ("nvidia", "ascend")),
        (["null", "shm", "tty0"], ()),
    ],
)
def test_a_driver_is_found_by_its_files_also_where_a_platform_has_renamed_some(
    monkeypatch: pytest.MonkeyPatch, files: list[str], found: tuple[str, ...]
) -> None:
    monkeypatch.setattr("os.listdir", lambda folder: files if folder == "/dev" else [])
    monkeypatch.setattr("os.path.exists", lambda file: Path(file).name in files)
    assert present() == found


def test_the_doctor_checks_every_vendor() -> None:
    assert set(devices.CHECKS) == set(BY_NAME)


def test_every_table_of_faults_belongs_to_a_vendor() -> None:
    (folder,) = {Path(vendor.faults).parent for vendor in VENDORS}
    assert {str(path) for path in folder.iterdir()} == {vendor.faults for vendor in VENDORS}
