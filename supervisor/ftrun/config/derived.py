"""Values derived from the options and the environment: the policy of the core, and the names and files of the job."""

import os
from typing import Final, Literal

from ftrun.accelerators.table import present
from ftrun.config.option_table import OPTIONS, RESET_FILE, ConfigError, Settings
from ftrun.config.parsers import count
from ftrun.core.machine.notices import idle_condition
from ftrun.core.ranks.shared import OPERATOR
from ftrun.core.rules.idle import Thresholds
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import Membership, Policy
from ftrun.core.text import durations
from ftrun.platforms import HANG_MINUTES, JOBS, NODES

JOURNAL: Final = "/run/systemd/journal/socket"


def idle_timeout(settings: Settings) -> float | None:
    """The idle timeout in seconds.  ConfigError if the variable of ModelArts is not a number."""
    if settings.idle_timeout != "auto":
        return settings.idle_timeout
    minutes = os.environ.get(HANG_MINUTES) or "30"
    try:
        return count(minutes) * 60.0 or None
    except ValueError as error:
        raise ConfigError(f"{HANG_MINUTES}: {error}") from None


def _given(timeout: float | Literal["auto"] | None) -> float | None:
    """The given timeout in seconds; None: it is off, or was left to ftrun."""
    return None if timeout == "auto" else timeout


def policy(settings: Settings, phase: str = "") -> Policy:
    """The settings that the core needs.

    A timeout that nobody gave is no timeout.  A given hang timeout also applies in sections that the hooks open by
    themselves, because the user does not know of those sections.
    """
    hang, start = _given(settings.hang_timeout), _given(settings.start_timeout)
    section = _given(settings.section_timeout)
    link, library = link_timeout(settings)
    limits = Limits(
        hang=hang,
        start=start,
        section=section,
        auto=settings.hang_timeout == "auto",
        automatic=hang if settings.section_timeout == "auto" else section,
        idle=idle_timeout(settings),
        idle_given=settings.idle_timeout not in ("auto", None),
        grace=settings.grace or 0.0,
        stop_grace=settings.stop_grace,
        device_timeout=None if settings.probe == "off" else settings.device_timeout,
        heal_timeout=settings.heal_timeout,
        recover_timeout=settings.recover_timeout,
        link_timeout=link,
        link_library=library,
    )
    membership = Membership(
        node=node_name(settings),
        phase=phase,
        job=job_name(settings),
        shared=state_dir(settings) is not None,
        recalls=state_dir(settings) is not None,
        peer_timeout=settings.peer_timeout,
    )
    return Policy(
        restart_on=settings.restart_on,
        max_restarts=settings.max_restarts,
        stable_after=settings.stable_after,
        backoff=settings.backoff or 0.0,
        files=bool(settings.progress),
        work=Thresholds(cpu=settings.idle_cpu, io=settings.idle_io),
        limits=limits,
        membership=membership,
        min_devices=settings.min_devices,
        scale_out=settings.min_devices is not None and settings.scale_out == "checkpoint",
        limit_fails=settings.after_limit == "fail",
        only_report_hangs=settings.annotated.only_report_hangs and settings["restart-on"].source == "annotations",
        unconditional=settings.unconditional_retry,
        asks_platform=reset_file(settings) is not None,
        checks_devices=settings.check_devices and settings.probe != "off",
        recover=settings.recover - {OPERATOR},
    )


def link_timeout(settings: Settings) -> tuple[float | None, str]:
    """How long the communication library itself repeats what a faulty link did not deliver, in seconds (None: that is
    not waited for), and the library with the variables that this follows from."""
    given = settings.link_timeout
    if given != "auto" or settings.nproc_per_node is None:
        return _given(given), ""
    from ftrun.core.rules import library_retries  # only where ftrun starts the ranks

    found = library_retries.of_environment(os.environ | relayed(settings))
    return found.seconds, f"{found.library} {found.settings}".strip()


def relayed(settings: Settings) -> dict[str, str]:
    """What ftrun sets for the communication library, where the user has not: that it executes its operators again."""
    if OPERATOR not in settings.recover:
        return {}
    from ftrun.core.rules import library_retries

    name, value = library_retries.RELAYED
    return {} if name in os.environ else {name: value}


def node_name(settings: Settings) -> str:
    names = (settings.node_name, *map(os.environ.get, NODES))
    return next((name for name in names if name), os.uname().nodename)


def job_name(settings: Settings) -> str:
    """Identifies the job over all its schedules: the name from the user, or else from the platform (Slurm keeps its job
    number over a requeue); empty if neither gives one."""
    from_platform = next((text for name in JOBS if (text := os.environ.get(name))), "")
    return settings.group_job or from_platform or settings.annotated.job


def reset_file(settings: Settings) -> str | None:
    """The reset file of MindCluster: the given one, or the default if its folder exists."""
    return settings.reset_file or (RESET_FILE if os.path.isdir(os.path.dirname(RESET_FILE)) else None)


def state_dir(settings: Settings) -> str | None:
    """The folder for what outlives the pod, or None."""
    return settings.state_dir or settings.log_dir or None


def meanings(settings: Settings, found: Policy, ranks: int | None, members: int | None) -> dict[str, str]:
    """What an option means in this run, by its name: those of which the value alone does not say it, as `auto`.
    `found`: the policy that follows from them; `ranks`: how many ftrun starts on this node; `members`: of the group."""
    limits, text = found.limits, durations.seconds
    idle = "off" if limits.idle is None else f"{text(limits.idle)}, {idle_condition(limits)}"
    link = "off" if limits.link_timeout is None else f"{text(limits.link_timeout)} ({limits.link_library})"
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
    known = {name: meaning for name, meaning in automatic.items() if settings[name].text == "auto"}
    if isinstance(settings.nproc_per_node, str):
        known["nproc-per-node"] = f"{ranks}"
    names = {"node-name": found.membership.node, "state-dir": state_dir(settings), "reset-file": reset_file(settings)}
    unused = {
        option.name: f"not used: --{instead} ({settings[instead].source}) excludes it"
        for option in OPTIONS
        if (instead := settings[option.name].instead)
    }
    return known | {name: value for name, value in names.items() if value and not settings[name].text} | unused


def uses_journal(settings: Settings) -> bool:
    """Whether records go to journald: with `--journal auto` where there is a journald, unless it gets ftrun's own lines
    anyway, as those of a unit of systemd."""
    asked = settings.journal
    return asked == "on" or (asked == "auto" and os.path.exists(JOURNAL) and not _stderr_is_journal())


def _stderr_is_journal() -> bool:
    """Whether stderr is a stream of journald, by JOURNAL_STREAM, which has its device and inode (systemd.exec(5))."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
