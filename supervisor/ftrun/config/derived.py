"""Values derived from the options and the environment: the policy of the core, and the names and files of the job."""

import os
from typing import Final

from ftrun.accelerators.table import present
from ftrun.config import annotations
from ftrun.config.option_table import RESET_FILE, ConfigError, Settings
from ftrun.config.parsers import count
from ftrun.core.machine.notices import idle_condition
from ftrun.core.ranks.shared import OPERATOR
from ftrun.core.rules.idle import Thresholds
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Policy
from ftrun.core.text import durations
from ftrun.platforms.modelarts import HANG_MINUTES
from ftrun.platforms.table import NODES

JOURNAL: Final = "/run/systemd/journal/socket"


def idle_timeout(settings: Settings) -> float | None:
    """Seconds.  ConfigError if the variable of ModelArts is not a number."""
    given = settings["idle-timeout"].value
    if given != "auto":
        return None if given is None else float(given)
    minutes = os.environ.get(HANG_MINUTES) or "30"
    try:
        return count(minutes) * 60.0 or None
    except ValueError as error:
        raise ConfigError(f"{HANG_MINUTES}: {error}") from None


def _given(settings: Settings, name: str) -> float | None:
    """Seconds; None: that timeout is off, or was left to ftrun."""
    value = settings[f"{name}-timeout"].value
    return None if value == "auto" else value


def policy(settings: Settings, phase: str = "") -> Policy:
    """The settings that the core needs.

    A timeout that nobody gave is no timeout.  A given hang timeout also applies in sections that the hooks open by
    themselves, because the user does not know of those sections.
    """
    hang, start, section = (_given(settings, name) for name in ("hang", "start", "section"))
    link, library = link_timeout(settings)
    return Policy(
        restart_on=settings["restart-on"].value,
        max_restarts=settings["max-restarts"].value,
        stable_after=settings["stable-after"].value,
        backoff=settings["backoff"].value or 0.0,
        files=bool(settings["progress"].value),
        checks_devices=settings["check-devices"].value and settings["probe"].value != "off",
        device_timeout=None if settings["probe"].value == "off" else settings["device-timeout"].value,
        work=Thresholds(cpu=settings["idle-cpu"].value, io=settings["idle-io"].value),
        limits=Limits(
            hang=hang,
            start=start,
            section=section,
            auto=settings["hang-timeout"].value == "auto",
            automatic=hang if settings["section-timeout"].value == "auto" else section,
            idle=idle_timeout(settings),
            idle_given=settings["idle-timeout"].value not in ("auto", None),
        ),
        grace=settings["grace"].value or 0.0,
        stop_grace=settings["stop-grace"].value,
        heal_timeout=settings["heal-timeout"].value,
        min_devices=settings["min-devices"].value,
        scale_out=settings["min-devices"].value is not None and settings["scale-out"].value == "checkpoint",
        limit_fails=settings["after-limit"].value == "fail",
        only_report_hangs=settings["annotations"].value.only_report_hangs
        and settings["restart-on"].source == "annotations",
        unconditional=settings["unconditional-retry"].value,
        asks_platform=reset_file(settings) is not None,
        node=node_name(settings),
        phase=phase,
        job=job_name(settings),
        shared=state_dir(settings) is not None,
        recalls=state_dir(settings) is not None,
        peer_timeout=settings["peer-timeout"].value,
        recover=settings["recover"].value - {OPERATOR},
        recover_timeout=settings["recover-timeout"].value,
        link_timeout=link,
        link_library=library,
    )


def link_timeout(settings: Settings) -> tuple[float | None, str]:
    """How long the communication library itself repeats what a faulty link did not deliver, in seconds (None: that is
    not waited for), and the library with the variables that this follows from."""
    given = settings["link-timeout"].value
    if given != "auto" or settings["nproc-per-node"].value is None:
        return (None if given == "auto" else given), ""
    from ftrun.core.rules import library_retries  # only where ftrun starts the ranks

    found = library_retries.of_environment(os.environ | relayed(settings))
    return found.seconds, f"{found.library} {found.settings}".strip()


def relayed(settings: Settings) -> dict[str, str]:
    """What ftrun sets for the communication library, where the user has not: that it executes its operators again."""
    if OPERATOR not in settings["recover"].value:
        return {}
    from ftrun.core.rules import library_retries

    name, value = library_retries.RELAYED
    return {} if name in os.environ else {name: value}


def node_name(settings: Settings) -> str:
    names = (settings["node-name"].value, *map(os.environ.get, NODES))
    return next((name for name in names if name), os.uname().nodename)


def job_name(settings: Settings) -> str:
    return annotations.job_name(settings["group-job"].value, os.environ, settings["annotations"].value)


def reset_file(settings: Settings) -> str | None:
    """The reset file of MindCluster: the given one, or the default if its folder exists."""
    given: str | None = settings["reset-file"].value
    return given or (RESET_FILE if os.path.isdir(os.path.dirname(RESET_FILE)) else None)


def state_dir(settings: Settings) -> str | None:
    """The folder for what outlives the pod, or None."""
    return settings["state-dir"].value or settings["log-dir"].value or None


def meanings(settings: Settings, found: Policy, ranks: int | None, members: int | None) -> dict[str, str]:
    """What an option means in this run, by its name: those of which the value alone does not say it, as `auto`.
    `found`: the policy that follows from them; `ranks`: how many ftrun starts on this node; `members`: of the group."""
    limits, text = found.limits, durations.seconds
    idle = "off" if limits.idle is None else f"{text(limits.idle)}, {idle_condition(limits)}"
    link = "off" if found.link_timeout is None else f"{text(found.link_timeout)} ({found.link_library})"
    automatic = {
        "hang-timeout": "no time; what is proved to hang ends",
        "start-timeout": "no time, as for --hang-timeout auto",
        "section-timeout": "no time" if limits.automatic is None else f"{text(limits.automatic)} where ftrun opened it",
        "idle-timeout": f"{idle} ({HANG_MINUTES})" if os.environ.get(HANG_MINUTES) else idle,
        "link-timeout": link,
        "probe": ", ".join(present()) or "there is no driver here",
        "journal": "on" if uses_journal(settings) else "off",
        "group-size": "no group" if members is None else f"{members}",
        "standby": "one for each process" if ranks is None else f"{ranks}",
    }
    known = {name: meaning for name, meaning in automatic.items() if settings[name].value == "auto"}
    if isinstance(settings["nproc-per-node"].value, str):
        known["nproc-per-node"] = f"{ranks}"
    names = {"node-name": found.node, "state-dir": state_dir(settings), "reset-file": reset_file(settings)}
    return known | {name: value for name, value in names.items() if value and not settings[name].text}


def uses_journal(settings: Settings) -> bool:
    """With `--journal auto` where journald is there, unless it gets ftrun's own lines anyway, as those of a unit of
    systemd."""
    asked = settings["journal"].value
    return bool(asked == "on" or (asked == "auto" and os.path.exists(JOURNAL) and not _stderr_is_journal()))


def _stderr_is_journal() -> bool:
    """systemd.exec(5): JOURNAL_STREAM has the device and inode of the stream."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
