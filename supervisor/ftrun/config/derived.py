"""What follows from the options and the environment: the policy of the core, and the names and files of this job."""

import os

from ftrun.config import annotations
from ftrun.config.option_table import RESET_FILE, ConfigError, Settings
from ftrun.config.parsers import count
from ftrun.core.rules.idle import Thresholds
from ftrun.core.rules.liveness import Limits
from ftrun.core.rules.policy import HOUR, Policy
from ftrun.platforms.modelarts import HANG_MINUTES
from ftrun.platforms.table import NODES


def idle_timeout(found: Settings) -> float | None:
    """Seconds; ConfigError where ModelArts' own setting is none."""
    given = found["idle-timeout"].value
    if given != "auto":
        return None if given is None else float(given)
    minutes = os.environ.get(HANG_MINUTES) or "30"
    try:
        return count(minutes) * 60.0 or None
    except ValueError as error:
        raise ConfigError(f"{HANG_MINUTES}: {error}") from None


def policy(found: Settings, phase: str = "") -> Policy:
    """What the core needs of the settings.

    The start timeout is an hour where nobody gave one, and armed at the spawn only where somebody did: a command
    without hooks is never judged by beats on its own.  The hang timeout starts with it and is learned.
    A given one holds in sections that the hooks open by themselves as well: the user does not know of them.
    """
    hang, start, section = (found[f"{name}-timeout"].value for name in ("hang", "start", "section"))
    start_limit = HOUR if start == "auto" else start
    by_itself = section == "auto"
    return Policy(
        restart_on=found["restart-on"].value,
        max_restarts=found["max-restarts"].value,
        stable_after=found["stable-after"].value,
        backoff=found["backoff"].value or 0.0,
        files=bool(found["progress"].value),
        checks_devices=found["check-devices"].value and found["probe"].value != "off",
        device_timeout=None if found["probe"].value == "off" else found["device-timeout"].value,
        work=Thresholds(cpu=found["idle-cpu"].value, io=found["idle-io"].value),
        limits=Limits(
            hang=start_limit if hang == "auto" else hang,
            start=start_limit,
            start_given=start not in ("auto", None),
            section=section if not by_itself else None if hang is None else HOUR,
            automatic=section if not by_itself else HOUR if hang == "auto" else hang,
            automatic_learned=by_itself and hang == "auto",
            auto=hang == "auto",
            idle=idle_timeout(found),
            idle_given=found["idle-timeout"].value not in ("auto", None),
        ),
        grace=found["grace"].value or 0.0,
        stop_grace=found["stop-grace"].value,
        heal_timeout=found["heal-timeout"].value,
        min_devices=found["min-devices"].value,
        limit_fails=found["after-limit"].value == "fail",
        hangs_stand=found["annotations"].value.hangs_stand and found["restart-on"].source == "annotations",
        unconditional=found["unconditional-retry"].value,
        asks_platform=reset_file(found) is not None,
        node=node_name(found),
        phase=phase,
        job=job_name(found),
        shared=state_dir(found) is not None,
        peer_timeout=found["peer-timeout"].value,
    )


def node_name(found: Settings) -> str:
    names = (found["node-name"].value, *map(os.environ.get, NODES))
    return next((name for name in names if name), os.uname().nodename)


def job_name(found: Settings) -> str:
    return annotations.job_name(found["group-job"].value, os.environ, found["annotations"].value)


def reset_file(found: Settings) -> str | None:
    """MindCluster's, where it is given or where its folder says that there will be one."""
    given: str | None = found["reset-file"].value
    return given or (RESET_FILE if os.path.isdir(os.path.dirname(RESET_FILE)) else None)


def state_dir(found: Settings) -> str | None:
    """Where what outlives the pod is kept, if anywhere."""
    return found["state-dir"].value or found["log-dir"].value or None
