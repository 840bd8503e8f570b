"""The defaults are part of the contract in docs/reference.md: what an option means that nobody gives."""

from ftrun.config import derived, option_values

DEFAULTS = {
    "restart-on": "hang,fault",
    "max-restarts": "3",
    "progress": "",
    "stable-after": "1h",
    "backoff": "1s",
    "hang-timeout": "auto",
    "start-timeout": "auto",
    "idle-timeout": "auto",
    "probe": "auto",
    "grace": "10s",
    "stop-grace": "off",
    "log-dir": "",
    "config": "",
    "annotations": "",
    "heal": "",
    "group-size": "auto",
    "after-limit": "reschedule",
    "check-devices": "on",
    "log-format": "text",
}


def test_each_option_has_the_default_of_the_contract() -> None:
    settings = option_values.settings({}, {})
    assert {name: settings[name].text for name in DEFAULTS} == DEFAULTS
    assert settings.auto_beat is True


def test_what_the_core_is_given_without_options() -> None:
    policy = derived.policy(option_values.settings({}, {}))
    assert policy.restart_on == {"hang", "fault"}
    assert (policy.max_restarts, policy.stable_after, policy.backoff) == (3, 3600.0, 1.0)
    assert (policy.limits.grace, policy.limits.stop_grace) == (10.0, None)
    assert (policy.limits.auto, policy.limits.hang, policy.limits.start, policy.limits.section) == (
        True,
        None,
        None,
        None,
    )
