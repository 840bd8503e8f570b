"""The claims of docs/security.md, with the tests of each."""

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
PAGE: Final = " ".join((TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8").split())
# A part of a sentence of the page, and the tests that prove it.
CLAIMS: Final = {
    "only the modules of the standard library that are on a written list": (
        "contracts/test_house.py::test_pid1_loads_listed_modules_only",
    ),
    "lines of Python, all from this repository": (
        "security/test_small_root.py::test_pid1_loads_as_few_lines_as_the_page_states",
    ),
    "For a single command it listens on no socket": ("security/test_small_root.py::test_pid1_listens_on_no_socket",),
    "whose connections the kernel accepts and nobody reads": (
        "security/test_small_root.py::test_pid1_of_a_member_reads_nothing_from_its_port",
        "host/test_ports.py::test_who_connects_again_and_again_does_not_keep_pid_1_busy",
    ),
    "The messages of a helper are bounded, and no message can end PID 1": (
        "pid1/test_clients.py::test_a_malformed_message_is_one_problem_that_names_the_helper",
        "host/test_helpers.py::test_a_large_output_is_read_in_bounded_parts",
    ),
    "no module from the working directory or from the command's `PYTHONPATH`": (
        "security/test_other_users.py::test_a_helper_loads_no_module_of_the_user",
    ),
    "The run dir and the reports have mode 0700": (
        "security/test_shared_folders.py::test_files_of_ftrun_are_only_for_its_user",
    ),
    "If another user has taken that name, ftrun uses another": (
        "cli/test_network_run_dir.py::test_local_folder_of_another_user_is_not_used",
    ),
    "can neither signal, trace nor read ftrun": (
        "security/test_other_users.py::test_another_user_reaches_neither_processes_nor_files",
    ),
    "The control socket refuses other users": (
        "security/test_other_users.py::test_a_socket_in_an_open_folder_is_only_for_its_user",
    ),
    "Processes of the command that became another user are ended like all others": (
        "security/test_other_users.py::test_as_pid_1_it_ends_a_tree_with_another_users_processes",
    ),
    "ranks of the other user give heartbeats, and their hangs are found": (
        "security/test_changed_user.py::test_a_hang_of_a_rank_of_another_user_is_found",
    ),
    "a third user can neither read, write, fill nor replace anything": (
        "security/test_changed_user.py::test_only_users_of_the_tree_get_access",
    ),
    "ftrun follows no link that an admitted user puts there": (
        "security/test_changed_user.py::test_no_link_of_an_admitted_user_is_followed",
    ),
    "can wake ftrun at most twice a second": (
        "security/test_changed_user.py::test_requests_of_a_third_user_have_little_effect",
    ),
    "missing heartbeats are not counted against any rank": (
        "security/test_changed_user.py::test_without_access_control_lists_missing_heartbeats_do_not_count",
    ),
    "ftrun writes nothing through a link, a pipe or a file with a second name": (
        "security/test_shared_folders.py::test_a_temporary_file_replaces_what_has_its_name",
        "security/test_shared_folders.py::test_records_are_not_written_to_a_foreign_file",
        "security/test_shared_folders.py::test_records_are_not_written_to_a_file_with_a_second_name",
        "security/test_shared_folders.py::test_samples_of_steps_are_not_written_to_a_foreign_file",
        "security/test_shared_folders.py::test_a_report_is_not_written_through_a_link",
        "helpers/test_mirror.py::test_nothing_is_written_through_a_link",
    ),
    "only if the link belongs to its own user or to root": (
        "security/test_shared_folders.py::test_a_link_of_another_user_is_not_a_run_dir",
        "security/test_shared_folders.py::test_the_termination_message_follows_no_link_of_another_user",
    ),
    "A `state.json` of another user, or one that all may write to, is set aside": (
        "security/test_shared_folders.py::test_a_state_of_another_user_is_not_trusted",
    ),
    "From a network disk ftrun copies only files of its own user": (
        "helpers/test_mirror.py::test_a_file_of_another_user_is_not_brought",
    ),
    "ftrun removes and uses only its own beat folder": (
        "security/test_shared_folders.py::test_only_own_beat_folders_are_removed",
        "security/test_shared_folders.py::test_a_beat_folder_that_another_user_recreated_is_not_used",
    ),
    "reads the run dir of a hostile user without harm": (
        "security/test_shared_folders.py::test_ftctl_reads_a_hostile_run_dir_without_harm",
    ),
    "does not take it for a run dir of another user": (
        "security/test_shared_folders.py::test_a_run_dir_belongs_to_the_user_in_its_name",
    ),
    "have no effect on a terminal, in a log, a record, a report, a page or a metric": (
        "security/test_injection.py::test_stderr_and_run_log_have_no_forged_line",
        "security/test_injection.py::test_a_record_is_one_line",
        "security/test_injection.py::test_a_report_is_only_text",
        "security/test_injection.py::test_the_termination_message_is_one_object",
        "security/test_injection.py::test_ftctl_prints_only_text",
        "security/test_injection.py::test_the_page_of_the_timeline_has_no_foreign_markup",
        "security/test_injection.py::test_a_label_of_prometheus_keeps_the_text",
        "ftctl/test_page_browser.py::test_text_from_elsewhere_is_never_markup",
    ),
    "are replaced by `***`": (
        "security/test_masking.py::test_a_secret_is_recognised_by_its_name",
        "security/test_masking.py::test_no_secret_is_in_a_run_dir",
    ),
    "The secret of a group is in no command line, environment or record": (
        "security/test_other_users.py::test_a_secret_is_in_no_command_line_and_no_environment",
    ),
    "Garbage, floods and incomplete messages on the control socket": (
        "helpers/test_messenger.py::test_garbage_partial_messages_and_other_versions_do_no_harm",
        "helpers/test_messenger.py::test_a_flood_of_requests_affects_only_its_sender",
    ),
    "a node without it can neither send nor receive": (
        "helpers/test_messenger_group.py::test_a_wrong_secret_is_reported_at_both_ends_and_gives_no_access",
    ),
    "Neither garbage nor a large number of connections keeps a member out": (
        "helpers/test_messenger_group.py::test_garbage_and_floods_do_not_disturb_the_group",
        "helpers/test_messenger_group.py::test_strangers_cannot_keep_members_out",
    ),
    "The web page listens on loopback by default": (
        "ftctl/test_page_served.py::test_a_remote_address_needs_an_option",
    ),
    "changes nothing, and answers only to its own host names": (
        "ftctl/test_page.py::test_only_reading_methods_are_permitted",
        "ftctl/test_page.py::test_only_permitted_host_names_are_answered",
    ),
    "allow only `GET`": ("helpers/test_metrics_server.py::test_only_a_get_gets_the_metrics",),
}


def test_the_page_makes_the_claims_and_their_tests_exist() -> None:
    assert [claim for claim in CLAIMS if claim not in PAGE] == []
    for name in {name for names in CLAIMS.values() for name in names}:
        file, _, function = name.partition("::")
        assert f"\ndef {function}(" in (TESTS / file).read_text(encoding="utf-8"), name
