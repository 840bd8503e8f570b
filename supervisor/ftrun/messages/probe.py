"""What PID 1 and the helper `probe` say to each other: how the accelerators are."""

from typing import Final, NamedTuple

from ftrun.messages.codec import Protocol
from ftrun.messages.helpers import Problem


class Device(NamedTuple):
    """One look at one device (a MIG instance or a chip counts as one).  None: it does not say.

    `id` names it for good (a UUID, or `card-chip`).  `util`, `memory_util` in percent, `power` in watts, `clock` in
    MHz, memory in bytes, `traffic` over PCIe in bytes a second, `pids` as this PID namespace numbers them.
    """

    vendor: str
    id: str
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    name: str
    util: float | None = None
    memory_util: float | None = None
    power: float | None = None
    clock: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    traffic: float | None = None
    pids: tuple[int, ...] = ()
    recovery: str | None = None  # what the driver says would cure it: none, reset, reboot, drain, drain_reset, imex
    remapped_rows: int | None = None
    ecc_errors: int | None = None  # uncorrectable ones since the driver was loaded
    health: str | None = None  # ok, or the driver's word for what it is instead
    visible: str | None = None  # what names it in this process's CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES
    answers: bool = True  # it said something in this look: no answer is no fault
    broken: bool = False  # the driver says that it is lost, or of no use before it is reset
    examined: bool = True  # `health` and all faults that it has were asked for, and told, in this look

    @property
    def silent(self) -> bool:
        return not self.answers


class Health(NamedTuple):
    """What the shortest look tells of one device: fields of `Device`."""

    id: str
    vendor: str
    visible: str | None
    memory_used: int | None
    health: str | None
    broken: bool


class Occupied(NamedTuple):
    """A device that is not seen to be free: who holds it, as far as that is known."""

    device: str
    pids: tuple[int, ...]
    memory_used: int | None
    health: str | None


class Look(NamedTuple):
    """Asked: look at the devices now."""


class Free(NamedTuple):
    """Asked: say when these `pids` hold no device, or after `timeout` s that they do.  `used`: bytes of each device
    before the command ran.  `removed`: the command does without these devices; say which of them are well."""

    pids: tuple[int, ...]
    used: dict[str, int]
    timeout: float
    removed: tuple[str, ...] = ()


class Clear(NamedTuple):
    """Asked: say when this fault is over, or after `timeout` s that it is not."""

    device: str
    code: str
    timeout: float


class Ready(NamedTuple):
    """These vendors are probed."""

    vendors: tuple[str, ...]


class Absent(NamedTuple):
    """Instead of `Ready`: there is nothing to probe, and the helper ends."""

    why: str


class Present(NamedTuple):
    """The first look: which devices there are."""

    devices: tuple[Health, ...]


class Checked(NamedTuple):
    """The first look is over, and all faults that it found are said.  `well`: healthy devices without any fault."""

    well: tuple[str, ...]


class Devices(NamedTuple):
    """Every period.  `mono`: of time.monotonic() at the end of the look."""

    mono: float
    devices: tuple[Device, ...]


class Fault(NamedTuple):
    """A device fault has come, or has `gone`.  `old`: the first look at the device found it so."""

    device: str
    index: int  # type: ignore[assignment]
    code: str
    text: str
    gone: bool
    old: bool
    severity: str
    why: str


class Freed(NamedTuple):
    """After `Free`: `ok` if no device is `held`; nobody answers for those that are `silent`; `well`: those of the
    removed devices that are healthy and free."""

    ok: bool
    held: tuple[Occupied, ...]
    silent: tuple[Occupied, ...]
    well: tuple[str, ...]


class Cleared(NamedTuple):
    """After `Clear`."""

    ok: bool
    why: str | None = None


Request = Look | Free | Clear
Event = Ready | Absent | Present | Checked | Devices | Fault | Freed | Cleared | Problem
REQUESTS: Final[Protocol[Request]] = Protocol("ask", Look, Free, Clear)
EVENTS: Final[Protocol[Event]] = Protocol(
    "event", Ready, Absent, Present, Checked, Devices, Fault, Freed, Cleared, Problem
)
