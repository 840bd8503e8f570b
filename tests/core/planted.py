"""Planted bugs that the adversaries and transcripts of the core have to catch: wrong behaviour of one function each.

`python tests/core/planted.py NAME` plants one in its own process and runs the tests; without NAME, none.  The list has
the bugs that would hurt an operator most; CONTRIBUTING.md says how a mutation tool finds the others.
"""

import importlib
import math
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from ftrun import core
from ftrun.core.machine import effects as do

ROOT: Final = Path(__file__).parents[2]
# A wrong kill, a hang that is missed, a wrong exit code, a restart that must not be.
JOB: Final = ("test_scenarios", "test_decide_properties")
# In a group: two epochs at work, a wait without an end, a verdict that is not the same everywhere.
COORDINATOR: Final = ("test_coordinator_properties",)
# In the lease of a coordinator in a shared folder: two that decide, or none.
LEASE: Final = ("test_lease",)
# Of ranks that recover: two rounds at work, a wait without an end, the wrong rank replaced, a state that not all have.
RANKS: Final = ("test_rounds", "test_scenarios")
GROUP_ROUNDS: Final = ("test_group_rounds",)
# In the proof of deadlocks over several members: a member that may go on is taken for one that never does.
WAITS: Final = ("test_group_waits",)

Wrong = Callable[..., Any]  # the first argument is the right function


class Bug(NamedTuple):
    place: str  # below ftrun.core: a function, or a property of a class
    wrong: Wrong
    suites: tuple[str, ...]


BUGS: Final[dict[str, Bug]] = {}


def planted(place: str, suites: tuple[str, ...] = JOB) -> Callable[[Wrong], Wrong]:
    def add(wrong: Wrong) -> Wrong:
        BUGS[wrong.__name__] = Bug(place, wrong, suites)
        return wrong

    return add


def plant(bug: Bug) -> None:
    """Replace the function wherever the core has it: in its module, in those that import it, and in their tables."""
    for found in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        importlib.import_module(found.name)
    path, _, name = bug.place.rpartition(".")
    module_name, _, kind = path.rpartition(".")
    if kind[:1].isupper():
        owner = getattr(sys.modules[f"{core.__name__}.{module_name}"], kind)
        right = getattr(owner, name).fget
        setattr(owner, name, property(lambda self: bug.wrong(right, self)))
        return
    right = getattr(sys.modules[f"{core.__name__}.{path}"], name)

    def wrong(*args: Any, **named: Any) -> Any:
        return bug.wrong(right, *args, **named)

    for module in [module for name, module in sys.modules.items() if name.startswith(core.__name__)]:
        for space in (vars(module), *(one for one in list(vars(module).values()) if type(one) is dict)):
            for key in [key for key, value in space.items() if value is right]:
                space[key] = wrong


# --- in the decisions about one job -----------------------------------------------------------------------------------


@planted("machine.watching.check")
def a_command_that_ctrl_z_has_stopped_hangs(right: Wrong, job: Any, attempt: Any, *rest: Any) -> Any:
    return right(job, attempt._replace(stopped_at=None), *rest)


@planted("machine.watching.excuse")
def a_freeze_is_a_silence(right: Wrong, attempt: Any, since: float, now: float) -> Any:
    return attempt


@planted("rules.liveness._sections")
def a_section_has_no_deadline(right: Wrong, *given: Any) -> Any:
    return []


@planted("rules.liveness._silence")
def a_rank_that_is_alive_moves(right: Wrong, rank: Any, *rest: Any) -> Any:
    moved = rank.moved_at and max(rank.moved_at, rank.alive_at or 0.0)
    return right(rank._replace(moved_at=moved), *rest)


@planted("machine.watching.on_evidence_collected")
def a_suspicion_is_a_proof(right: Wrong, job: Any, phase: Any, event: Any, policy: Any) -> Any:
    return right(job, phase, event._replace(cleared=None), policy)


@planted("rules.hang_rules.needs_evidence")
def a_rule_that_needs_evidence_does_without(right: Wrong, *given: Any) -> Any:
    return False


@planted("rules.policy.is_exhausted")
def one_restart_too_many(right: Wrong, ledger: Any, cause: Any, policy: Any) -> Any:
    return policy.max_restarts is not None and ledger.count(cause) > policy.max_restarts


@planted("rules.policy.with_progress")
def progress_resets_no_count(right: Wrong, ledger: Any, attempt: Any, progressed: Any) -> Any:
    return right(ledger, attempt, None)


@planted("rules.policy.is_beyond")
def the_same_step_is_progress(right: Wrong, value: Any, best: Any) -> Any:
    return value is not None and (best is None or value >= best)


@planted("machine.stopping.stop")
def the_tree_is_ended_before_its_record(right: Wrong, *given: Any, **named: Any) -> Any:
    job, effects = right(*given, **named)
    return job, tuple(sorted(effects, key=lambda one: not isinstance(one, do.Terminate)))


@planted("machine.job._on_signal_received_stopping")
def a_restart_follows_a_stop_from_outside(right: Wrong, job: Any, phase: Any, event: Any, policy: Any) -> Any:
    return right(job, phase, event._replace(stop=False), policy)


@planted("machine.job._on_deadline_reached_stopping")
def sigterm_is_waited_for_for_ever(right: Wrong, job: Any, phase: Any, event: Any, policy: Any) -> Any:
    return (job, ()) if phase.stage == "term" else right(job, phase, event, policy)


@planted("machine.job._on_processes_survived")
def a_start_beside_processes_that_cannot_be_killed(right: Wrong, job: Any, phase: Any, event: Any, policy: Any) -> Any:
    from ftrun.core.machine.restarting import launch

    return launch(job, event.now, policy, "restart")


@planted("machine.restarting.launch")
def the_start_count_stands_still(right: Wrong, job: Any, *rest: Any) -> Any:
    after, effects = right(job, *rest)
    return after._replace(ledger=after.ledger._replace(start_cnt=job.ledger.start_cnt)), effects


@planted("rules.exit_codes.shell_status")
def a_signal_is_its_bare_number(right: Wrong, code: Any, signal: Any) -> Any:
    return signal if code is None else code


@planted("machine.values.Fault.is_final")
def a_critical_fault_is_restarted(right: Wrong, fault: Any) -> Any:
    return False


@planted("machine.values.Fault.acts")
def an_unknown_fault_ends_the_attempt(right: Wrong, fault: Any) -> Any:
    return right(fault) or fault.severity == "unknown"


@planted("machine.values.Fault.by_user")
def a_fault_of_the_program_isolates_the_node(right: Wrong, fault: Any) -> Any:
    return False


@planted("machine.restarting.on_healing_finished")
def what_is_not_healed_is_restarted(right: Wrong, job: Any, phase: Any, event: Any, policy: Any) -> Any:
    return right(job, phase, event._replace(cured=True) if hasattr(event, "cured") else event, policy)


# --- in a group -------------------------------------------------------------------------------------------------------


@planted("group.fences.fence", COORDINATOR)
def no_member_is_fenced(right: Wrong, group: Any, now: float, lost: Any) -> Any:
    return group


@planted("group.fences.note_starter", COORDINATOR)
def a_coordinator_that_was_replaced_is_forgotten(right: Wrong, group: Any, *rest: Any) -> Any:
    return group


@planted("group.fences.may_decide", COORDINATOR)
def any_minority_decides(right: Wrong, group: Any) -> Any:
    return True


@planted("group.loss_waits.can_start", COORDINATOR)
def one_member_is_enough(right: Wrong, group: Any, absent: int, waited: bool) -> Any:
    return group.kinds.get("ready", 0) > 0


@planted("group.places.next_members", COORDINATOR)
def two_members_have_one_place(right: Wrong, *given: Any) -> Any:
    found = right(*given)
    return (*found[:1], *found[:1], *found[2:])[: len(found)]


@planted("group.waits.wave_name", WAITS)
def an_answer_to_any_wave_counts(right: Wrong, waves: Any, prefix: str) -> Any:
    return prefix


@planted("group.waits._needs", WAITS)
def what_may_end_a_wait_from_outside_does_not(right: Wrong, *given: Any) -> Any:
    return right(*given) or frozenset()


@planted("group.group_rounds._all_wait", GROUP_ROUNDS)
def a_common_round_begins_without_all(right: Wrong, group: Any, order: Any, view: Any) -> Any:
    return len(view.running) > 0


@planted("machine.restarting.may_start", GROUP_ROUNDS)
def a_new_member_starts_beside_a_round_at_work(right: Wrong, job: Any, order: Any, policy: Any) -> Any:
    return right(job, order._replace(round=None), policy)


# --- in the lease of the coordinator ----------------------------------------------------------------------------------


@planted("group.lease.stops_at", LEASE)
def a_holder_does_not_stop_before_its_lease_ends(right: Wrong, *given: Any) -> Any:
    return math.inf


@planted("group.lease.seen", LEASE)
def the_time_in_the_file_is_trusted(right: Wrong, watch: Any, place: Any, now: float) -> Any:
    after = right(watch, place, now)
    return after if after is watch else after._replace(since=place.written)


@planted("group.lease.takes_at", LEASE)
def a_lease_is_taken_over_without_waiting(right: Wrong, watch: Any, me: Any, length: float, *rest: Any) -> Any:
    return right(watch, me, 0.0, *rest)


@planted("group.fences.may_begin", LEASE)
def a_new_member_0_begins_alone_in_an_empty_mount_point(right: Wrong, group: Any) -> Any:
    return True


@planted("group.reports.take_lease", LEASE)
def a_lost_coordinator_is_waited_for_like_any_member(right: Wrong, group: Any, event: Any) -> Any:
    return right(group, event._replace(before=None))


# --- in the rounds of the ranks of one node ---------------------------------------------------------------------------


@planted("ranks.rounds._meet", RANKS)
def a_round_begins_without_all(right: Wrong, rounds: Any, now: float) -> Any:
    members = tuple(member._replace(state="waiting") for member in rounds.members)
    some = any(member.state == "waiting" for member in rounds.members)
    return right(rounds._replace(members=members) if some and rounds.stage == "meeting" else rounds, now)


@planted("ranks.rounds._left_round", RANKS)
def a_rank_that_left_any_round_has_left_this_one(right: Wrong, rounds: Any, member: Any, event: Any, *rest: Any) -> Any:
    return right(rounds, member, event._replace(round=rounds.number), *rest)


@planted("ranks.rounds._waited", RANKS)
def a_late_rank_is_waited_for(right: Wrong, rounds: Any, *rest: Any) -> Any:
    return (rounds, ()) if rounds.stage == "meeting" else right(rounds, *rest)


@planted("ranks.rounds._in_a_row", RANKS)
def a_rank_is_replaced_again_and_again(right: Wrong, member: Any, rules: Any) -> Any:
    return 1


@planted("ranks.rounds.source", RANKS)
def a_snapshot_of_any_shard_is_restored(right: Wrong, member: Any, members: Any, number: int) -> Any:
    known = [one._replace(shard="a", held=tuple(kept._replace(shard="a") for kept in one.held)) for one in members]
    return right(next(one for one in known if one.local_rank == member.local_rank), known, number)


@planted("ranks.rounds.snapshot_restored", RANKS)
def a_snapshot_is_released_by_the_first_that_has_loaded_it(right: Wrong, rounds: Any, local_rank: int) -> Any:
    return right(rounds._replace(borrowers=rounds.borrowers & {local_rank}), local_rank)


def main(name: str) -> int:
    """Run the tests with this bug, or without; pytest's exit code."""
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "FTRUN_PLANTED": "1"}
    suites = {suite for bug in BUGS.values() for suite in bug.suites}
    if name:
        plant(BUGS[name])
        suites = set(BUGS[name].suites)
    options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow", "-o", "addopts="]
    files = sorted((ROOT / "tests" / "core" / f"{suite}.py" for suite in suites), key=lambda path: path.stat().st_size)
    return pytest.main([*options, "--rootdir", str(ROOT), *map(str, files)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or [""]))
