"""NVIDIA devices by NVML.

Processes: the driver of today numbers them as the caller's PID namespace does and leaves out those outside of it
(open-gpu-kernel-modules, `os_find_ns_pid`); older ones give the numbers of the host, which in a container name nobody
or somebody else (nvidia-docker#1483); some show none.  So that a process is not listed proves nothing: memory is looked
at as well.

MIG devices say what memory they use and by whom, not how busy they are (NVML API, "Multi Instance GPU Management");
their health is that of the GPU they are a part of.
"""

import ctypes
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ftrun.helpers.probe.device import DeviceFault, Unavailable
from ftrun.helpers.probe.device_release import UNLISTED
from ftrun.helpers.probe.lasting_states import Standing, Words
from ftrun.helpers.probe.visible import Gpu, Mig, Unit, entries, numbered, units, visible
from ftrun.messages.probe import Device

VENDOR: Final = "nvidia"
LIBRARY: Final = "libnvidia-ml.so.1"
AGAIN: Final = 5.0  # s until NVML is started anew where something does not answer; doubles up to
LONGEST_AGAIN: Final = 20.0
# s for which a measurement of PCIe traffic is used again: NVML measures for 20 ms a direction, and blocks meanwhile
# (measured elsewhere: 21 ms), so that eight devices take a third of a second.
TRAFFIC: Final = 2.0
AT_ONCE: Final = 64  # faults told in one turn
ALL_INSTANCES: Final = 0xFFFFFFFF  # an event concerns the whole GPU
# What the values of NVML_GPU_RECOVERY_ACTION ask for.
RECOVERY: Final = ("none", "reset", "reboot", "drain", "drain_reset", "imex", "reset", "reboot")


class Found(NamedTuple):
    """A device of ours.  `handle` and `gpu` (the whole of which it is a part) are None where NVML has none now."""

    id: str
    number: int  # of the GPU, as nvidia-smi counts
    name: str
    handle: Any = None
    gpu: Any = None
    instance: int | None = None  # of a MIG device: its GPU instance
    wrong: str | None = None  # why there is no handle


def open(environment: Mapping[str, str]) -> "Nvidia":
    """The devices that a job with this environment may use.  Unavailable where there is no driver or no such device.

    Any other trouble may pass: it is the `health` of the devices, and NVML is started anew until it is over.
    """
    nvml = _library()
    found = Nvidia(nvml, environment)
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

    def __init__(self, nvml: Any, environment: Mapping[str, str]) -> None:
        self._nvml = nvml
        self.setting = environment.get("CUDA_VISIBLE_DEVICES")
        self._by_speed = environment.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") != "PCI_BUS_ID"
        self._found: dict[str, Found] = {}
        self._names: dict[int, tuple[str, str]] = {}  # UUID and name by index, for when it is lost
        self._entries: dict[str, str] = {}  # of the setting, by the id that the device had at first
        words = Words(*(str(nvml.NVMLError(e)) for e in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)))
        self._standing = Standing(words)
        self._broken = (*words, UNLISTED)
        self._news: list[DeviceFault] = []
        self._traffic: dict[str, tuple[float, float | None]] = {}  # when it was measured
        self._events: Any = None
        self._wrong: str | None = None  # with NVML as a whole
        self._again: float | None = None  # when to start anew
        self._pause = AGAIN
        self.problems: list[str] = []

    def check(self) -> Sequence[Device]:
        return self._looks(self._health)

    def devices(self, urgent: str = "") -> Sequence[Device]:
        return self._looks(self._look)

    def _looks(self, look: Callable[[Found], Device]) -> Sequence[Device]:
        if self._again is not None and time.monotonic() >= self._again:
            self.close()
            try:
                self.start()
            except self._nvml.NVMLError as error:
                self.fail(error)
        if not self._found:
            return [Device(VENDOR, VENDOR, -1, "", health=self._wrong, answers=False)] if self._wrong else []
        looks = [look(found) for found in self._found.values()]
        self._news += self._standing.look(looks)
        if any(device.health != "ok" for device in looks):
            self._soon()
        else:
            self._pause = AGAIN
        return looks

    def faults(self) -> Sequence[DeviceFault]:
        """Xids, and what the looks found.

        Waits at most a millisecond: NVML offers nothing to poll, and does not say what a wait of 0 means.
        """
        told, self._news = self._news, []
        while self._events is not None and len(told) < AT_ONCE:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 1)
            except self._nvml.NVMLError as error:
                # One lost GPU makes every wait fail; with the next start there is a set that it is not in.
                if error.value != self._nvml.NVML_ERROR_TIMEOUT and not _is_grave(self._nvml, error):
                    self.problems.append(f"Xids are not seen: {error}")
                break
            code = str(event.eventData)
            told += [DeviceFault(found.id, found.number, code, f"Xid {code}") for found in self._concerned(event)]
        return told

    def present(self, device: str) -> Collection[str]:
        return self._standing.of(device)

    def close(self) -> None:
        if self._events is not None:
            _Asked(self._nvml)(self._nvml.nvmlEventSetFree, self._events)
            self._events = None
        _Asked(self._nvml)(self._nvml.nvmlShutdown)

    def _soon(self) -> None:
        if self._again is None:
            self._again = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_AGAIN)

    def start(self) -> int:
        """Learn which devices are ours, and listen for their Xids; how many.  NVMLError if nothing can be asked."""
        self._wrong = self._again = None
        self._nvml.nvmlInit()
        self._choose(list(self._list()))
        self._listen()
        return len(self._found)

    def fail(self, error: Exception) -> None:
        self._wrong = str(error)
        self._found = {id: found._replace(handle=None, gpu=None, wrong=str(error)) for id, found in self._found.items()}
        self._soon()

    def _list(self) -> Iterator[tuple[Gpu, Found, Mapping[Mig, Any]]]:
        """All that NVML lists and lets us use; raises NVMLError when it lists nothing."""
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            uuid, name = self._names.get(index, ("", ""))
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_NO_PERMISSION:  # not given to us: CUDA does not count it either
                    yield Gpu(index, uuid), Found(uuid or f"gpu{index}", index, name, wrong=str(error)), {}
                continue
            self._names[index] = uuid, name
            migs = dict(self._migs(handle))
            yield Gpu(index, uuid, tuple(migs)), Found(uuid, index, name, handle, handle), migs

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
                place = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
                yield Mig(nvml.nvmlDeviceGetUUID(handle), *place), handle
            except nvml.NVMLError:
                continue  # there is none at this index

    def _choose(self, listed: Sequence[tuple[Gpu, Found, Mapping[Mig, Any]]]) -> None:
        """Ours are those that are visible at the first time; later the same, whatever their numbers are then."""
        gpus = [gpu for gpu, _, _ in listed]
        first = not self._found
        if first:
            chosen = visible(self.setting, gpus)
            if numbered(self.setting) and self._by_speed and len({found.name for _, found, _ in listed}) > 1:
                self.problems.append(
                    "CUDA_VISIBLE_DEVICES has numbers and the GPUs differ: without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA "
                    "may count them otherwise than NVML, and other devices may be watched than are used"
                )
        else:
            chosen = units(gpus)
        of = {gpu: (found, migs) for gpu, found, migs in listed}
        now = [self._unit(unit, *of[unit[0]]) for unit in chosen]
        if first and self.setting is not None:
            named = entries(self.setting, gpus)
            self._entries = {found.id: named[unit] for found, unit in zip(now, chosen, strict=True)}
        before, self._found = self._found, {}
        for found in now:
            if not before or found.id in before or f"gpu{found.number}" in before:
                self._found[found.id] = found
        indices = {found.number for found in self._found.values()}
        for id, found in before.items():
            if id not in self._found and not (id.startswith("gpu") and found.number in indices):
                self._found[id] = found._replace(handle=None, gpu=None, wrong=found.wrong or UNLISTED)

    def _unit(self, unit: Unit, whole: Found, migs: Mapping[Mig, Any]) -> Found:
        mig = unit[1]
        if mig is None:
            return whole
        handle = migs[mig]
        name = _Asked(self._nvml)(self._nvml.nvmlDeviceGetName, handle) or f"{whole.name} MIG"
        return Found(mig.uuid, whole.number, name, handle, whole.gpu, mig.gpu_instance)

    def _listen(self) -> None:
        """Xids come by the GPU: NVML has no events of MIG devices."""
        nvml = self._nvml
        gpus = {_address(found.gpu): found for found in self._found.values() if found.gpu}
        try:
            self._events = nvml.nvmlEventSetCreate()
            for found in gpus.values():
                nvml.nvmlDeviceRegisterEvents(found.gpu, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError as error:
            self.problems.append(f"not all Xids are seen: {error}")

    def _concerned(self, event: Any) -> Iterator[Found]:
        for found in self._found.values():
            same = found.gpu is not None and _address(found.gpu) == _address(event.device)
            if same and (found.instance is None or event.gpuInstanceId in (ALL_INSTANCES, found.instance)):
                yield found

    def _health(self, found: Found) -> Device:
        """As far as it takes to say whether it works."""
        return self._asked(found, *self._askers(found))

    def _look(self, found: Found) -> Device:
        nvml, (ask, of_gpu) = self._nvml, self._askers(found)
        device, handle = self._asked(found, ask, of_gpu), found.handle
        if handle is None:
            return device
        rates = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        clock = ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        rows = of_gpu(nvml.nvmlDeviceGetRemappedRows, found.gpu)
        uncorrected = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        ecc = of_gpu(nvml.nvmlDeviceGetTotalEccErrors, found.gpu, uncorrected, nvml.NVML_VOLATILE_ECC)
        device = device._replace(
            util=rates and float(rates.gpu),
            memory_util=rates and float(rates.memory),
            power=None if power is None else power / 1000,
            clock=None if clock is None else float(clock),
            traffic=self._measured(ask, found),
            pids=_pids(ask, nvml, handle),
            remapped_rows=rows and rows[0] + rows[1],
            ecc_errors=ecc,
        )
        return self._judged(device, ask, of_gpu)

    def _askers(self, found: Found) -> "tuple[_Asked, _Asked]":
        """For the device, and for the GPU that it is, or is a part of."""
        ask = _Asked(self._nvml)
        return ask, ask if found.instance is None else _Asked(self._nvml)

    def _asked(self, found: Found, ask: "_Asked", of_gpu: "_Asked") -> Device:
        nvml, device = self._nvml, Device(VENDOR, found.id, found.number, found.name, visible=self._visible(found))
        if found.handle is None:
            return device._replace(health=found.wrong, answers=False, broken=found.wrong in self._broken)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, found.handle)
        recovery = of_gpu(_field, nvml, found.gpu, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        device = device._replace(
            memory_used=memory and memory.used,
            memory_total=memory and memory.total,
            recovery=None if recovery is None else dict(enumerate(RECOVERY)).get(recovery, str(recovery)),
        )
        return self._judged(device, ask, of_gpu)

    def _judged(self, device: Device, ask: "_Asked", of_gpu: "_Asked") -> Device:
        """With what the answers say of its health.  Memory that is not told, as unified memory, is no silence."""
        health = ask.wrong or of_gpu.grave or "ok"
        answers = health == "ok" or device.memory_used is not None
        return device._replace(health=health, answers=answers, broken=health in self._broken)

    def _visible(self, found: Found) -> str | None:
        """CUDA may count otherwise than NVML, so a number is a name only where the setting has it."""
        unnamed = f"gpu{found.number}"
        entry = self._entries.get(found.id) or self._entries.get(unnamed)
        return entry or (None if found.id == unnamed else found.id)

    def _measured(self, ask: "_Asked", found: Found) -> float | None:
        at, traffic = self._traffic.get(found.id, (-TRAFFIC, None))
        if time.monotonic() - at >= TRAFFIC:
            nvml = self._nvml
            directions = nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES
            kilobytes = [ask(nvml.nvmlDeviceGetPcieThroughput, found.handle, direction) for direction in directions]
            traffic = None if None in kilobytes else 1000.0 * sum(kilobytes)
            self._traffic[found.id] = time.monotonic(), traffic
        return traffic


class _Asked:
    """Questions to one device.  None is no answer; `wrong` what is wrong with the device: the driver said so, or
    answered nothing at all.  After such a word nothing more is asked: calls to a lost device may take long."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._answers = 0
        self._last: str | None = None
        self.grave: str | None = None

    def __call__(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self.grave is not None:
            return None
        nvml = self._nvml
        try:
            answer = call(*arguments)
        except nvml.NVMLError as error:
            self._last = str(error)
            if _is_grave(nvml, error):
                self.grave = self._last
            return None
        self._answers += 1
        return answer

    @property
    def wrong(self) -> str | None:
        return self.grave or (None if self._answers else self._last)


def _is_grave(nvml: Any, error: Any) -> bool:
    """Whether it says of the device or the driver that it is out of order, not of a question that it has no answer."""
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
        with warnings.catch_warnings():  # beside nvidia-ml-py there may be its deprecated wrapper, which says so
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml
    except ImportError as error:
        raise Unavailable(f"no nvidia-ml-py: {error}") from None
    return pynvml


def _pids(ask: _Asked, nvml: Any, handle: Any) -> tuple[int, ...]:
    found: set[int] = set()
    for kind in ("Compute", "Graphics", "MPSCompute"):
        for version in ("v3", "v2"):  # drivers since 510 have 3
            listed = ask(getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}"), handle)
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
