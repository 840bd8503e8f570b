"""The idle rule: an idle job is found without its help, and a working one is left alone."""

import sys
from typing import Any

import pytest

from ftrun.core.rules.idle import DeviceUse, Idle, Thresholds, TreeSample, observe
from support.device.nvml import BUSY, IDLE, SPINNING
from support.device.rig import faked
from support.runs import Runs, patched

# With ModelArts' minute made a second.
FAST = """
import ftrun.config.derived as derived
timeout = derived.idle_timeout
derived.idle_timeout = lambda found: 1.0 if timeout(found) == 60.0 else timeout(found)
"""
MINUTE = patched(FAST)
OPTIONS = ("--idle-timeout", "1s", "--no-auto-beat", "--grace", "off", "--restart-on", "none", "--probe", "off")
AUTO = ("--no-auto-beat", "--grace", "off", "--restart-on", "none", "--probe", "nvidia")
# It sleeps for longer than any test may last: only ftrun, or the test, ends it.
QUIET = "import time\ntime.sleep(10**6)"
# Works for so long, and ends well.
FOR = "import os, time\nuntil = time.monotonic() + {}\nwhile time.monotonic() < until:\n    {}\nos._exit(0)"


# --- the rule -------------------------------------------------------------------------------------------------------


def after(*samples: Any, cpu: float = 0.0, io: float = 0.0) -> Idle:
    """The state after samples of 60 s each: of one device or a list of several, and of the CPU and I/O of the tree."""
    idle = Idle()
    for number, sample in enumerate(samples):
        uses = [sample] if isinstance(sample, dict) else sample
        devices = tuple(DeviceUse(**({"id": str(n)} | use)) for n, use in enumerate(uses))
        idle = observe(idle, TreeSample(60.0 * (number + 1), 60.0, cpu, io, devices), Thresholds())
    return idle


def use(util: float, memory_util: float | None, power: float | None, traffic: float = 0.0, **more: Any) -> Any:
    return {"util": util, "memory_util": memory_util, "power": power, "traffic": traffic} | more


REST = use(0, 0, 71.5)
WORKING = use(97, 43, 650.0, 4e8)
SPIN = use(100, 0, 118.0)
RESIDENT = use(99, 1, 520.0)  # small matrices that stay in the cache: hardly any memory traffic, steadily


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([REST] * 30, id="idle from the start"),
        pytest.param([REST] + [SPIN] * 30, id="spinning from the start"),
        pytest.param([SPIN] * 30, id="spinning, and never seen otherwise"),
        pytest.param([WORKING] * 9 + [SPIN] * 30, id="spinning after work"),
        pytest.param([WORKING] * 9 + [REST] * 30, id="at rest after work"),
        pytest.param([[WORKING, WORKING]] * 9 + [[SPIN, REST]] * 30, id="one spins, one does not"),
        pytest.param([use(97, 43, None)] * 9 + [use(100, 0, None)] * 30, id="power is unknown"),
        pytest.param([use(0, 0, 70 + n % 3) for n in range(30)], id="power wobbles at rest"),
        pytest.param([WORKING] * 9 + [[]] * 30, id="the devices are unknown now"),
        pytest.param([[]] * 30, id="no device"),
    ],
)
def test_samples_of_an_idle_job(samples: list[Any]) -> None:
    idle = after(*samples)
    assert idle.idle_since is not None
    assert idle.idle_since >= 60.0 * (len(samples) - 31)
    assert len(samples) * 60.0 - idle.idle_since >= 25 * 60.0, "and was found so from the beginning"


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([WORKING] * 30, id="steady work"),
        pytest.param([REST] + [RESIDENT] * 60, id="steady work that touches no memory"),
        pytest.param([[REST, WORKING]] * 30, id="one of two devices works"),
        pytest.param([use(90 + 7 * (n % 2), 1, 300) for n in range(30)], id="utilisation changes"),
        pytest.param([use(50, 1, 100)] * 4 + [use(54, 1, 100)] * 4, id="its median changes"),
        pytest.param([REST] * 40 + [use(12, 0, 75)], id="one short burst after a long rest"),
        pytest.param([use(100, 0, 118, 5e6)] * 30, id="data moves over PCIe"),
        pytest.param([use(100, None, 300)] * 30, id="memory use is unknown and power is high"),
        pytest.param([[REST, use(80, 40, 600, id="0"), REST]] * 30, id="it was seen at work between two samples"),
        pytest.param([[use(50, 0, 99), use(50, 9, 99, id="0"), use(50, 0, 99, id="0")]] * 30, id="memory, in between"),
        pytest.param([[REST, use(n % 9, 0, 75, id="0")] for n in range(30)], id="bursts between two samples"),
    ],
)
def test_samples_of_a_working_job(samples: list[Any]) -> None:
    assert after(*samples).idle_since is None or len(after(*samples).idle_samples) < 4


def test_cpu_is_work_unless_a_device_may_be_waited_for() -> None:
    assert after(*[REST] * 30, cpu=1.0).idle_since is None
    assert after(*[WORKING] * 9, *[REST] * 30, cpu=1.0).idle_since is None, "evaluation on the host"
    assert after(*[WORKING] * 9, *[SPIN] * 30, cpu=1.0).idle_since is not None, "a spinning wait for the device"
    assert after(*[WORKING] * 9, *[[]] * 30, cpu=1.0).idle_since is None, "of devices that nobody sees nothing is known"


def test_io_above_a_rate_is_work() -> None:
    assert after(*[SPIN] * 30, io=1e6).idle_since is None
    assert after(*[SPIN] * 30, io=500.0).idle_since is not None


def test_work_ends_a_silence_and_its_raised_timeout() -> None:
    idle = after(*[REST] * 9)._replace(raised=7200.0)
    idle = observe(idle, TreeSample(600.0, 60.0, 0.0, 1e6), Thresholds())
    assert (idle.idle_since, idle.raised, idle.idle_samples) == (None, 0.0, ())


# --- end to end -----------------------------------------------------------------------------------------------------


def test_idle_program_with_a_keep_alive_thread_is_found(runs: Runs) -> None:
    code = (
        "import threading, time, os\n"
        "def noise():\n"
        "    while True: os.write(os.open('/dev/null', os.O_WRONLY | os.O_CLOEXEC), b'alive'); time.sleep(0.3)\n"
        "threading.Thread(target=noise, daemon=True).start()\nthreading.Event().wait()"
    )
    run = runs.ends(195, *OPTIONS, sys.executable, "-c", code)
    (found,) = run.named("hang")
    assert (found["rule"], found["limit"]) == ("idle", 1.0)


def test_working_program_is_not_suspected(runs: Runs) -> None:
    """CPU, then I/O of its own, then a loop of children that each live only for a moment."""
    work = ["pass", "open('/dev/zero', 'rb').read(1 << 18); time.sleep(0.05)"]
    work.append("os.system('head -c 1000000 /dev/zero >/dev/null')")
    parts = [FOR.format(1.5, one) for one in work]
    code = f"import subprocess, sys\nfor part in {parts!r}: subprocess.run([sys.executable, '-c', part])"
    run = runs.ends(0, *OPTIONS, sys.executable, "-c", code)
    assert run.named("hang") == []


def test_slow_program_is_cleared_by_evidence_and_found_when_it_stops(runs: Runs) -> None:
    """It moves, with less work than any threshold, and is never twice in the same place; then it stops."""
    places = 600
    code = "import os, time\n"
    code += "".join(f"def place_{n}(): time.sleep(0.2)\n" for n in range(places))
    code += f"places = [globals()[f'place_{{n}}'] for n in range({places})]\n"
    # It stops for longer than the test may last: ftrun has to find it.
    code += "while not os.path.exists('stop'): places.pop()()\ntime.sleep(3600)"
    run = runs.start("-v", *OPTIONS, sys.executable, "-c", code)
    cleared = run.until("cleared")
    assert "its Python stack changes" in cleared["why"]
    (runs.folder / "stop").touch()
    assert run.wait() == 195, run.log()
    (found,) = run.named("hang")
    assert found["limit"] >= 2.0


def test_auto_does_not_apply_to_a_job_without_an_accelerator(runs: Runs) -> None:
    run = runs.ends(0, "--no-auto-beat", "--probe", "auto", "sleep", "3", program=MINUTE, MA_HANG_DETECT_TIME="1")
    assert run.named("suspect") == []


def test_auto_finds_a_job_whose_accelerators_stopped(runs: Runs) -> None:
    fake = faked(runs)
    fake.set(0, **BUSY)
    words = (*AUTO, sys.executable, "-c", QUIET)
    run = runs.spawned(*words, program=MINUTE, MA_HANG_DETECT_TIME="1")
    for key, value in SPINNING.items():
        fake.later(1.5, 0, **{key: value})
    assert run.wait() == 195, run.log()
    (found,) = run.named("hang")
    assert (found["rule"], found["limit"]) == ("idle", 1.0)


def test_auto_does_not_apply_where_only_others_use_the_devices(runs: Runs) -> None:
    """A quiet `sleep` on a machine where somebody else trains, until that one is done."""
    fake = faked(runs)
    fake.set(0, **BUSY, pids=[1])
    run = runs.spawned(*AUTO, "sleep", "5", program=MINUTE, MA_HANG_DETECT_TIME="1")
    for key, value in IDLE.items():
        fake.later(2.0, 0, **{key: value})
    assert run.wait() == 0, run.log()
    assert run.named("suspect") == []


def test_last_sample_of_a_blocked_probe_is_no_proof(runs: Runs) -> None:
    """It saw an idle device for a moment; since then nobody knows, while the main thread waits for the device."""
    program = patched(f"{FAST}import ftrun.pid1.clients.probe as probe\nprobe.STALE = 0.6")
    fake = faked(runs)
    fake.set(0, **SPINNING)
    code = "import os\nwhile not os.path.exists('nvml.state.blocked'): pass\n" + FOR.format(1.5, "pass")
    run = runs.spawned(*AUTO, sys.executable, "-c", code, program=program, MA_HANG_DETECT_TIME="1")
    fake.later(0.8, "-", blocks="*")
    assert run.wait() == 0, run.log()
    assert run.named("hang") == []
