"""Each option's value has the type that its parser in the table gives it: mypy checks these lines as well."""

from typing import Literal, assert_type

from ftrun.config import option_values
from ftrun.config.annotations import Annotations
from ftrun.config.option_table import OPTIONS, Option, Settings


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
