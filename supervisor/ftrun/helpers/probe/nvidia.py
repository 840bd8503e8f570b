"""NVIDIA devices, read through NVML.

Processes: a current driver reports pids of the caller's PID namespace and leaves out processes outside it
(open-gpu-kernel-modules, `os_find_ns_pid`); older ones report the pids of the host, which in a container name no
process or another process (nvidia-docker#1483); some report none.  An unlisted process therefore proves nothing, and
memory is checked as well.

MIG devices report their memory and processes, but not their utilisation (NVML API, "Multi Instance GPU Management");
their health is the health of their GPU.

Which of the devices that NVML lists a job may use follows from CUDA_VISIBLE_DEVICES (`selected`, which is pure), by the
rules of the CUDA Programming Guide ("CUDA environment variables"): unset means all; entries are positions or UUIDs, and
a UUID may be abbreviated as long as it names one device; the first entry that names none ends the list (-1 is used for
that).  As in the driver, "1gpu" is 1, and a repeated entry makes the list empty.  NVIDIA_VISIBLE_DEVICES is for the
container runtime; within a container it misleads (nvidia-container-toolkit#395).
"""

import ctypes
import re
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from ftrun.accelerators.table import NVIDIA
from ftrun.core.named_tuple import NamedTuple
from ftrun.helpers.probe.device import UNLISTED, DeviceFault, LastingStates, Unavailable
from ftrun.messages.probe import Device, DeviceIdentity

LIBRARY: Final = "libnvidia-ml.so.1"
AGAIN: Final = 5.0  # s until NVML is restarted when something does not answer; doubles up to
LONGEST_AGAIN: Final = 20.0
# s for which a measurement of PCIe traffic is reused: NVML measures for 20 ms per direction and blocks for that time
# (measured elsewhere: 21 ms), so eight devices take a third of a second.
TRAFFIC: Final = 2.0
AT_ONCE: Final = 64  # faults reported in one turn
ALL_INSTANCES: Final = 0xFFFFFFFF  # an event concerns all instances of the GPU
# The recovery actions, by the value of NVML_GPU_RECOVERY_ACTION.
RECOVERY: Final = ("none", "reset", "reboot", "drain", "drain_reset", "imex", "reset", "reboot")


class Mig(NamedTuple):
    """A MIG device: a compute instance within a GPU instance."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Gpu(NamedTuple):
    """`number`: as in nvidia-smi; `uuid`: empty if unknown; `migs`: its MIG devices if it is partitioned."""

    number: int
    uuid: str
    migs: tuple[Mig, ...] = ()


Unit = tuple[Gpu, Mig | None]


def selected(setting: str | None, gpus: Sequence[Gpu]) -> dict[Unit, str]:
    """The devices of `gpus`, in order, that this value of CUDA_VISIBLE_DEVICES (None: unset) selects: GPUs that are not
    partitioned, and MIG devices.  Each with the entry that names it, or "" if there is none that names it alone."""
    if setting is None:
        return {unit: "" for gpu in gpus for unit in _units(gpu)}
    found: dict[Unit, str] = {}
    for entry in map(str.strip, setting.split(",")):
        named = _named(entry, gpus)
        if any(unit in found for unit in named):
            return {}
        if not named:
            break
        found |= dict.fromkeys(named, entry if len(named) == 1 else "")
    return found


def has_positions(setting: str | None) -> bool:
    """Whether the order of the devices matters."""
    return setting is not None and re.match(r"\s*\+?\d", setting) is not None


def _units(gpu: Gpu) -> list[Unit]:
    return [(gpu, mig) for mig in gpu.migs] or [(gpu, None)]


def _named(entry: str, gpus: Sequence[Gpu]) -> list[Unit]:
    position = re.match(r"\+?(\d+)", entry)
    if position:
        return [unit for gpu in gpus[int(position[1]) :][:1] for unit in _units(gpu)]
    if entry.startswith("GPU-"):
        # A GPU that was lost before its UUID was read must be the one that no other GPU matches.
        matching = [gpu for gpu in gpus if gpu.uuid.startswith(entry)] or [gpu for gpu in gpus if not gpu.uuid]
        return _units(matching[0]) if len(matching) == 1 else []
    if entry.startswith("MIG-"):
        migs = [(gpu, mig) for gpu in gpus for mig in gpu.migs]
        # Until driver 470 a MIG device was called MIG-<GPU-UUID>/<GPU instance>/<compute instance>; that still works.
        exact = [(g, m) for g, m in migs if entry == f"MIG-{g.uuid}/{m.gpu_instance}/{m.compute_instance}"]
        named: list[Unit] = [*(exact or [(gpu, mig) for gpu, mig in migs if mig.uuid.startswith(entry)])]
        return named if len(named) == 1 else []
    return []


# --- NVML -------------------------------------------------------------------------------------------------------------


class FoundDevice(NamedTuple):
    """A device of this job.  `handle` and `gpu` (the GPU to which it belongs) are None while NVML has none."""

    id: str
    number: int  # of the GPU, as in nvidia-smi
    name: str
    handle: Any = None
    gpu: Any = None
    instance: int | None = None  # the GPU instance of a MIG device
    failure: str | None = None  # why there is no handle


def open(environment: Mapping[str, str], known: Sequence[DeviceIdentity] = ()) -> "Nvidia":
    """The devices that a job with this environment may use.  Unavailable if there is no driver or no such device.
    `known`: devices that were seen before.  A lost GPU does not tell its UUID, so it gets the UUID of its index.

    Any other error may be temporary: it is the `health` of the devices, and NVML is restarted until it is over.
    """
    nvml = _library()
    found = Nvidia(nvml, environment, known)
    try:
        number = found.start()
    except nvml.NVMLError as error:
        if error.value in (
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_GPU_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_NOT_SUPPORTED,
        ):
            raise Unavailable(f"no NVIDIA driver for us: {error}") from None
        found.fail(error)
    else:
        if not number:
            raise Unavailable(f"no NVIDIA device is visible (CUDA_VISIBLE_DEVICES={found.setting})")
    return found


class Nvidia:
    """A Vendor."""

    pace = 0.0

    def __init__(self, nvml: Any, environment: Mapping[str, str], known: Sequence[DeviceIdentity] = ()) -> None:
        self._nvml = nvml
        self.setting = environment.get("CUDA_VISIBLE_DEVICES")
        self._by_speed = environment.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") != "PCI_BUS_ID"
        self._found: dict[str, FoundDevice] = {}
        # UUID and name by index, for a GPU that is lost later; not of MIG devices, which have another UUID.
        self._names = {one.index: (one.id, one.name) for one in known if one.id.startswith("GPU-")}
        self._entries: dict[str, str] = {}  # entries of the setting, by the first id of the device
        codes = nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED
        lost, reset = (str(nvml.NVMLError(code)) for code in codes)
        self._lasting_states = LastingStates(lost, reset)
        self._broken = (lost, reset, UNLISTED)
        self._news: list[DeviceFault] = []
        self._traffic: dict[str, tuple[float, float | None]] = {}  # when it was measured
        self._events: Any = None
        self._failure: str | None = None  # of NVML as a whole
        self._restart_at: float | None = None  # when to restart NVML
        self._pause = AGAIN
        self.problems: list[str] = []

    def check(self) -> Sequence[Device]:
        return self._read_all(full=False)

    def devices(self, urgent: str = "") -> Sequence[Device]:
        return self._read_all(full=True)

    def _read_all(self, full: bool) -> Sequence[Device]:
        if self._restart_at is not None and time.monotonic() >= self._restart_at:
            self.close()
            try:
                self.start()
            except self._nvml.NVMLError as error:
                self.fail(error)
        if not self._found:
            unknown = Device(NVIDIA.name, NVIDIA.name, -1, "", health=self._failure, answers=False)
            return [unknown] if self._failure else []
        devices = [self._sample(found, full) for found in self._found.values()]
        self._news += self._lasting_states.update(devices)
        if any(device.health != "ok" for device in devices):
            self._schedule_restart()
        else:
            self._pause = AGAIN
        return devices

    def faults(self) -> Sequence[DeviceFault]:
        """New Xids, and the changes that were found in the devices.

        Waits at most a millisecond: NVML has nothing to poll, and does not document a wait of 0.
        """
        faults, self._news = self._news, []
        while self._events is not None and len(faults) < AT_ONCE:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 1)
            except self._nvml.NVMLError as error:
                # One lost GPU makes every wait fail; after the next restart the event set does not contain it.
                if error.value != self._nvml.NVML_ERROR_TIMEOUT and not _is_fatal(self._nvml, error):
                    self._problem(f"Xids cannot be read: {error}")
                break
            code = str(event.eventData)
            faults += [DeviceFault(found.id, code) for found in self._devices_of(event)]
        return faults

    def present(self, device: str) -> Collection[str]:
        return self._lasting_states.of(device)

    def close(self) -> None:
        if self._events is not None:
            _DeviceCalls(self._nvml)(self._nvml.nvmlEventSetFree, self._events)
            self._events = None
        _DeviceCalls(self._nvml)(self._nvml.nvmlShutdown)

    def _schedule_restart(self) -> None:
        if self._restart_at is None:
            self._restart_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_AGAIN)

    def start(self) -> int:
        """Find the devices of this job and register for their Xids; returns their number.  NVMLError if NVML fails."""
        self._failure = self._restart_at = None
        self._nvml.nvmlInit()
        self._choose(list(self._list()))
        self._listen()
        return len(self._found)

    def fail(self, error: Exception) -> None:
        self._failure = str(error)
        self._found = {
            id: found._replace(handle=None, gpu=None, failure=str(error)) for id, found in self._found.items()
        }
        self._schedule_restart()

    def _list(self) -> Iterator[tuple[Gpu, FoundDevice, Mapping[Mig, Any]]]:
        """All GPUs that NVML lists and permits; NVMLError if it lists none."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            uuid, name = self._names.get(index, ("", ""))
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            except nvml.NVMLError as error:
                # Without permission it is not assigned to this job: CUDA does not count it either.
                if error.value != nvml.NVML_ERROR_NO_PERMISSION:
                    yield Gpu(index, uuid), FoundDevice(uuid or f"gpu{index}", index, name, failure=str(error)), {}
                continue
            self._names[index] = uuid, name
            migs = dict(self._migs(handle))
            yield Gpu(index, uuid, tuple(migs)), FoundDevice(uuid, index, name, handle, handle), migs

    def _migs(self, gpu: Any) -> Iterator[tuple[Mig, Any]]:
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceGetMigMode(gpu)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return
            number = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
        except nvml.NVMLError:
            return
        for index in range(number):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
                instances = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
                yield Mig(nvml.nvmlDeviceGetUUID(handle), *instances), handle
            except nvml.NVMLError:
                continue  # there is no device at this index

    def _choose(self, listed: Sequence[tuple[Gpu, FoundDevice, Mapping[Mig, Any]]]) -> None:
        """Choose this job's devices: those that are visible at first, and later the same, whatever their numbers."""
        gpus = [gpu for gpu, _, _ in listed]
        first = not self._found
        names = {found.name for _, found, _ in listed}
        if first and has_positions(self.setting) and self._by_speed and len(names) > 1:
            self._problem(
                "CUDA_VISIBLE_DEVICES has numbers and the GPUs differ: without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA "
                "may number them differently from NVML, so other devices may be watched than are used"
            )
        chosen = selected(self.setting if first else None, gpus)
        of = {gpu: (found, migs) for gpu, found, migs in listed}
        now = [self._unit(unit, *of[unit[0]]) for unit in chosen]
        if first:
            self._entries = {found.id: entry for found, entry in zip(now, chosen.values(), strict=True)}
        before, self._found = self._found, {}
        for found in now:
            if not before or found.id in before or f"gpu{found.number}" in before:
                self._found[found.id] = found
        indices = {found.number for found in self._found.values()}
        for id, found in before.items():
            if id not in self._found and not (id.startswith("gpu") and found.number in indices):
                self._found[id] = found._replace(handle=None, gpu=None, failure=found.failure or UNLISTED)

    def _unit(self, unit: Unit, gpu: FoundDevice, migs: Mapping[Mig, Any]) -> FoundDevice:
        mig = unit[1]
        if mig is None:
            return gpu
        handle = migs[mig]
        name = _DeviceCalls(self._nvml)(self._nvml.nvmlDeviceGetName, handle) or f"{gpu.name} MIG"
        return FoundDevice(mig.uuid, gpu.number, name, handle, gpu.gpu, mig.gpu_instance)

    def _listen(self) -> None:
        """Register for Xids by GPU: NVML has no events for MIG devices."""
        nvml = self._nvml
        gpus = {_address(found.gpu): found for found in self._found.values() if found.gpu}
        try:
            self._events = nvml.nvmlEventSetCreate()
            for found in gpus.values():
                nvml.nvmlDeviceRegisterEvents(found.gpu, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError as error:
            self._problem(f"Xids cannot be read from all GPUs: {error}")

    def _problem(self, what: str) -> None:
        if what not in self.problems:
            self.problems.append(what)

    def _devices_of(self, event: Any) -> Iterator[FoundDevice]:
        for found in self._found.values():
            same = found.gpu is not None and _address(found.gpu) == _address(event.device)
            if same and (found.instance is None or event.gpuInstanceId in (ALL_INSTANCES, found.instance)):
                yield found

    def _sample(self, found: FoundDevice, full: bool) -> Device:
        """The state of a device; without `full` only its health and its memory."""
        nvml, device = self._nvml, Device(NVIDIA.name, found.id, found.number, found.name, visible=self._visible(found))
        if found.handle is None:
            return device._replace(health=found.failure, answers=False, broken=found.failure in self._broken)
        query = _DeviceCalls(nvml)
        query_gpu = query if found.instance is None else _DeviceCalls(nvml)
        memory = query(nvml.nvmlDeviceGetMemoryInfo, found.handle)
        recovery = query_gpu(_field, nvml, found.gpu, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        device = device._replace(
            memory_used=memory and memory.used,
            memory_total=memory and memory.total,
            recovery=None if recovery is None else dict(enumerate(RECOVERY)).get(recovery, str(recovery)),
        )
        if full:
            rates = query(nvml.nvmlDeviceGetUtilizationRates, found.handle)
            power = query(nvml.nvmlDeviceGetPowerUsage, found.handle)
            clock = query(nvml.nvmlDeviceGetClockInfo, found.handle, nvml.NVML_CLOCK_SM)
            device = device._replace(
                util=rates and float(rates.gpu),
                memory_util=rates and float(rates.memory),
                power=None if power is None else power / 1000,
                clock=None if clock is None else float(clock),
                traffic=self._pcie_traffic(query, found),
                pids=_pids(query, nvml, found.handle),
            )
        health = query.failure or query_gpu.fatal or "ok"
        answers = health == "ok" or device.memory_used is not None  # unified memory is unknown, which is not silence
        return device._replace(health=health, answers=answers, broken=health in self._broken)

    def _visible(self, found: FoundDevice) -> str | None:
        """CUDA may number devices differently from NVML, so a number is a name only if the setting has it."""
        unnamed = f"gpu{found.number}"
        entry = self._entries.get(found.id) or self._entries.get(unnamed)
        return entry or (None if found.id == unnamed else found.id)

    def _pcie_traffic(self, query: "_DeviceCalls", found: FoundDevice) -> float | None:
        at, traffic = self._traffic.get(found.id, (-TRAFFIC, None))
        if time.monotonic() - at >= TRAFFIC:
            nvml = self._nvml
            directions = nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES
            kilobytes = [query(nvml.nvmlDeviceGetPcieThroughput, found.handle, direction) for direction in directions]
            traffic = None if None in kilobytes else 1000.0 * sum(kilobytes)
            self._traffic[found.id] = time.monotonic(), traffic
        return traffic


class _DeviceCalls:
    """Calls to NVML for one device.  A call returns None if there is no answer.

    `failure`: why the device fails: the driver reports a fatal error, or no call was answered.  After a fatal error no
    further call is made, because calls to a lost device may take long.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._answers = 0
        self._last: str | None = None
        self.fatal: str | None = None

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self.fatal is not None:
            return None
        nvml = self._nvml
        try:
            answer = call(*arguments)
        except nvml.NVMLError as error:
            self._last = str(error)
            if _is_fatal(nvml, error):
                self.fatal = self._last
            return None
        self._answers += 1
        return answer

    @property
    def failure(self) -> str | None:
        return self.fatal or (None if self._answers else self._last)


def _is_fatal(nvml: Any, error: Any) -> bool:
    """Whether the device or the driver fails, rather than one query that it does not support."""
    return error.value in (
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    )


def _library() -> Any:
    try:
        ctypes.CDLL(LIBRARY)  # before the import: most machines have no GPU
    except OSError as error:
        raise Unavailable(f"no NVIDIA driver library: {error}") from None
    try:
        with warnings.catch_warnings():  # beside nvidia-ml-py there may be its deprecated wrapper, which warns
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml
    except ImportError as error:
        raise Unavailable(f"no nvidia-ml-py: {error}") from None
    return pynvml


def _pids(query: _DeviceCalls, nvml: Any, handle: Any) -> tuple[int, ...]:
    found: set[int] = set()
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for version in ("v3", "v2"):  # drivers since 510 have 3
            listed = query(getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}"), handle)
            if listed is not None:
                found.update(process.pid for process in listed)
                break
    return tuple(sorted(found))


def _field(nvml: Any, handle: Any, number: int) -> int:
    answer = nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.uiVal)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
