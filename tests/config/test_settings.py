"""The value of each option: its type, which mypy checks here as well, its source, and its default by contract."""

from typing import Literal, assert_type

from ftrun.config import derived, option_values
from ftrun.config.annotations import Annotations
from ftrun.config.option_table import OPTIONS, Option, Settings

DEFAULTS = (
    "restart-on=hang,fault max-restarts=3 progress= stable-after=1h backoff=1s hang-timeout=auto start-timeout=auto "
    "idle-timeout=auto probe=auto grace=10s stop-grace=off log-dir= config= annotations= heal= group-size=auto "
    "after-limit=reschedule check-devices=on log-format=text auto-beat=on"
)


def test_a_value_has_the_type_of_its_parser() -> None:
    found = option_values.settings({"progress": "a\nb", "max-restarts": "7", "group-size": "2:4"}, {})
    assert assert_type(found.max_restarts, int | None) == 7
    assert assert_type(found.progress, tuple[str, ...] | None) == ("a", "b")
    assert assert_type(found.group_size, int | tuple[int, int] | Literal["auto"] | None) == (2, 4)
    assert assert_type(found.hang_timeout, float | Literal["auto"] | None) == "auto"
    assert assert_type(found.heal_timeout, float) == 300.0
    assert assert_type(found.heal, str | None) is None
    assert assert_type(found.dry_run, bool) is False
    assert assert_type(found.recover, frozenset[str]) == {"retry", "rank"}
    assert assert_type(found.annotated, Annotations) == Annotations()
    assert assert_type(Settings.max_restarts, Option[int | None]).default == "3"


def test_an_option_is_named_as_its_attribute_and_has_a_text_and_a_source() -> None:
    found = option_values.settings({"max-restarts": "7"}, {"FTRUN_GRACE": "2s"})
    for option in OPTIONS:
        assert getattr(Settings, option.name.replace("-", "_")) is option
        if not option.default:
            assert getattr(found, option.name.replace("-", "_")) is None
    assert (found["max-restarts"].text, found["max-restarts"].source) == ("7", "option")
    assert (found["grace"].text, found["grace"].source) == ("2s", "environment")
    assert (found["backoff"].text, found["backoff"].source) == ("1s", "default")


def test_a_phase_has_a_run_dir_of_its_own_and_all_else_of_its_options() -> None:
    before = option_values.settings({"log-dir": "/logs", "grace": "2s"}, {})
    after = before.with_run_dir("/logs/1")
    assert (before.run_dir, after.run_dir, after["run-dir"].text) == (None, "/logs/1", "/logs/1")
    assert after["run-dir"].source == "phase"
    assert (after.grace, after.log_dir) == (before.grace, before.log_dir)


def test_the_defaults_are_those_of_the_contract_also_for_the_core() -> None:
    settings = option_values.settings({}, {})
    expected = dict(word.split("=") for word in DEFAULTS.split())
    assert {name: settings[name].text for name in expected} == expected
    policy = derived.policy(settings)
    assert policy.restart_on == {"hang", "fault"}
    assert (policy.max_restarts, policy.stable_after, policy.backoff) == (3, 3600.0, 1.0)
    limits = policy.limits
    assert (limits.grace, limits.stop_grace) == (10.0, None)
    assert (limits.auto, limits.hang, limits.start, limits.section) == (True, None, None, None)
