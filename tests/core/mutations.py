"""Planted bugs, kept as data: the tests of the core have to catch every one of them.

Each is (name, file under supervisor/ftrun/core, the exact text that occurs once in it, the text that replaces it).  The
list holds the bugs that would hurt an operator most; CONTRIBUTING.md says how a mutation tool finds the others.
"""

from typing import NamedTuple


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str


# In the decisions about one job: a wrong kill, a hang that is missed, a wrong exit code, a restart that must not be.
JOB = (
    Mutation(
        "judged_in_a_pause", "machine/watching.py", "attempt.stopped_at is not None or job.paused", "attempt.stopped_at"
    ),
    Mutation(
        "one_restart_too_many",
        "rules/policy.py",
        "ledger.count(cause) >= policy.max",
        "ledger.count(cause) > policy.max",
    ),
    Mutation(
        "progress_resets_nothing",
        "rules/policy.py",
        "    if progressed is not None:\n        ledger",
        "    if False:\n        ledger",
    ),
    Mutation("the_same_step_is_progress", "rules/policy.py", "value > best)", "value >= best)"),
    Mutation(
        "sections_have_no_deadline",
        "rules/liveness.py",
        "        findings += _sections(rank, attempt, now, limits)\n",
        "",
    ),
    Mutation(
        "alive_counts_as_moving",
        "rules/liveness.py",
        "else (rank.moved_at, limits.hang)",
        "else (max(rank.moved_at, rank.alive_at or 0), limits.hang)",
    ),
    Mutation(
        "done_ranks_are_waited_for_while_others_train",
        "rules/liveness.py",
        "awaited = [rank for rank in present if not rank.done]",
        "awaited = present",
    ),
    Mutation(
        "done_ranks_are_excused",
        "rules/liveness.py",
        "    if not awaited:\n        last =",
        "    if False:\n        last =",
    ),
    Mutation(
        "a_freeze_is_a_hang",
        "machine/watching.py",
        "attempt = excuse(phase.attempt, event.since, event.now)",
        "attempt = phase.attempt",
    ),
    Mutation(
        "ctrl_z_is_a_hang", "machine/watching.py", "if attempt.stopped_at is not None or job.paused", "if job.paused"
    ),
    Mutation("suspicion_is_proof", "machine/watching.py", "    if event.cleared is not None:", "    if False:"),
    Mutation(
        "missing_evidence_clears",
        "machine/watching.py",
        'return _declare_hang(job, phase, event.now, policy, (("evidence", "none in time"),), ())',
        'return _clear(job, phase.attempt, event.now, "no evidence", policy, ())',
    ),
    Mutation(
        "a_rule_that_needs_evidence_does_without",
        "machine/watching.py",
        "    if hang_rules.needs_evidence(phase.finding, policy.limits.idle_given):\n",
        "    if False:\n",
    ),
    Mutation(
        "kill_before_its_record",
        "machine/stopping.py",
        "(*so_far, written, *log_lines, do.Terminate(in_turn))",
        "(do.Terminate(in_turn), *so_far, written, *log_lines)",
    ),
    Mutation("start_cnt_stands_still", "machine/restarting.py", "_replace(start_cnt=start, ", "_replace("),
    Mutation(
        "spawn_before_the_tree_has_ended",
        "machine/job.py",
        "        return inspect(job, phase.attempt)",
        '        return _launch(job, "restart")',
    ),
    Mutation(
        "restart_after_an_outer_stop",
        "machine/job.py",
        "    if event.stop and isinstance(job.want, Restart):\n",
        "    if False:\n",
    ),
    Mutation(
        "verdict_lost_to_sigterm",
        "machine/job.py",
        "    if event.stop and isinstance(job.want, Restart):\n        # No longer with",
        "    if event.stop:\n        # No longer with",
    ),
    Mutation(
        "own_code_lost_on_outer_stop",
        "machine/job.py",
        "job = job._replace(want=Finish(status, verdict, want.message, asked=want.asked))",
        "pass",
    ),
    Mutation(
        "stop_grace_though_off",
        "machine/stopping.py",
        "return None if duration is None else now + duration",
        "return now + (duration or 10.0)",
    ),
    Mutation("sigkill_without_grace", "machine/stopping.py", "if policy.grace <= 0:", "if True:"),
    Mutation(
        "sigterm_for_ever", "machine/job.py", 'if phase.stage in ("asked", "term"):', 'if phase.stage == "asked":'
    ),
    Mutation(
        "unkillable_restarts",
        "machine/job.py",
        "    (Stopping, ev.ProcessesSurvived): _on_processes_survived,\n",
        '    (Stopping, ev.ProcessesSurvived): lambda j, p, e, q: _launch(j, "restart"),\n',
    ),
    Mutation("signals_are_not_128_plus_n", "rules/exit_codes.py", "128 + signal if", "127 + signal if"),
    Mutation("ctrl_c_is_a_failure", "machine/ending.py", " or signal in BY_TERMINAL)", ")"),
    Mutation(
        "critical_fault_restarts",
        "machine/device_faults.py",
        "if fault.is_final:",
        'if fault.severity == "none":',
    ),
    Mutation(
        "unknown_faults_kill",
        "machine/values.py",
        '("minor", "minor+user", "major", "critical")',
        '("unknown", "minor", "minor+user", "major", "critical")',
    ),
    Mutation("a_users_fault_isolates_the_node", "machine/values.py", '("user", "minor+user")', "()"),
    Mutation(
        "restart_though_not_healed",
        "machine/restarting.py",
        "        if event.cured:",
        "        if True:",
    ),
    Mutation(
        "different_faults_isolate_the_node",
        "machine/stopping.py",
        "if fault is not None and (fault.by_user or in_place):",
        "if fault is not None and fault.by_user:",
    ),
    Mutation(
        "ranks_of_any_number",
        "machine/restarting.py",
        "if place is None or place.number != ranks:",
        "if place is None:",
    ),
)

# In the coordinator of a group: two epochs at work, a wait without an end, a verdict that is not the same everywhere.
COORDINATOR = (
    Mutation("no_fence", "group/fences.py", "        if until > now:", "        if False:"),
    Mutation(
        "a_replaced_coordinator_is_forgotten",
        "group/fences.py",
        "if named.life in group.dead_starters or not group.epoch_reported:",
        "if True:",
    ),
    Mutation(
        "another_life_is_dead",
        "group/fences.py",
        "known is None or known.life != event.life or",
        "known is None or",
    ),
    Mutation(
        "member_0_starts_first",
        "group/membership.py",
        "return self.order if self.others_run else None",
        "return self.order",
    ),
    Mutation(
        "any_minority_decides", "group/fences.py", "return group.size - len(known) < group.shape.fewest", "return True"
    ),
    Mutation("ready_at_any_epoch", "group/membership.py", 'return "ready" if current else "behind"', 'return "ready"'),
    Mutation("epochs_fall", "group/reports.py", "if report.epoch > group.epoch and not", "if report.epoch and not"),
    Mutation(
        "one_is_enough",
        "group/loss_waits.py",
        "if ready + absent < len(group.placed):",
        "if not ready:",
    ),
    Mutation(
        "no_end_of_gathering", "group/membership.py", "Gathering(now + wait, now + HINT)", "Gathering(None, now + HINT)"
    ),
    Mutation(
        "a_verdict_is_not_final",
        "group/coordinator.py",
        "if after is group or isinstance(group.phase, Ended):",
        "if after is group:",
    ),
    Mutation(
        "the_last_decides",
        "group/root_cause.py",
        "return min(came, key=",
        "return max(came, key=",
    ),
    Mutation("one_rank_a_member", "group/world.py", "before + members * count", "before + members"),
    Mutation(
        "the_port_of_the_last_member", "group/world.py", "first, counts = offers[0][1]", "first, counts = offers[-1][1]"
    ),
    Mutation("a_symptom_is_the_cause", "group/root_cause.py", "failure.symptom and", "False and"),
    Mutation(
        "one_done_is_all",
        "group/coordinator.py",
        'if group.epoch and group.kinds.get("done") == len(group.placed):',
        'if group.epoch and group.kinds.get("done"):',
    ),
    Mutation(
        "without_a_member_that_may_work",
        "group/coordinator.py",
        "if restart is not None and over <= now and",
        "if restart is not None and",
    ),
    Mutation("its_predecessor_is_forgotten", "group/fences.py", "return fenced  # nothing", "return 0.0  # nothing"),
    Mutation(
        "fewer_at_once",
        "group/loss_waits.py",
        "(group.shape.fewest if waited else _enough(group))",
        "group.shape.fewest",
    ),
    Mutation("below_the_least", "group/membership.py", "return self.least or self.most", "return 1"),
    Mutation("two_members_zero", "group/places.py", "found.append(others.pop(0))", "found.append(others[0])"),
    Mutation(
        "a_spare_ends_all", "group/ending.py", "not in group.placed and report.rank:", "not in group.placed and 0:"
    ),
)

# In the proof of deadlocks over several members: a member that may go on is taken for one that never does.
WAITS = (
    Mutation(
        "one_wave_is_enough",
        "group/waits.py",
        "    if before is not None and found.fingerprints.items() <= before.fingerprints.items():\n",
        "    if True:\n",
    ),
    Mutation("any_two_waves_are_the_same", "group/waits.py", "found.fingerprints.items() <= before", "before"),
    Mutation("any_wave_counts", "group/waits.py", "if waits.wave != wave_name(waves, prefix):", "if False:"),
    Mutation("what_is_on_its_way_is_lost", "group/waits.py", "not (link.closed and end.closed) or ", ""),
    Mutation("all_ranks_are_here", "group/waits.py", "if len(sizes) != 1 or ranks.keys() != ", "if len(sizes) > 9 != "),
    Mutation("an_epoch_like_another", "group/waits.py", "if waits.epoch != waves.epoch:", "if False:"),
    Mutation(
        "what_may_run_wakes_nobody",
        "group/waits.py",
        "        for other in waiting.get(node, ()):",
        "        for other in ():",
    ),
)

# In the lease of the coordinator in a shared folder: two coordinators that decide, or none.
LEASE = (
    Mutation(
        "the_holder_does_not_stop", "group/lease.py", "return latest + length - drain - LATE", "return latest + 1e9"
    ),
    Mutation("it_stops_when_the_lease_ends", "group/lease.py", "length - drain - LATE", "length"),
    Mutation(
        "the_time_in_the_file_is_trusted",
        "group/lease.py",
        "return Watch(place, now) if newer",
        "return Watch(place, place.written) if newer",
    ),
    Mutation("nobody_waits", "group/lease.py", "watch.since + length + TURN", "watch.since + TURN"),
    Mutation("one_witness_is_enough", "group/lease.py", "contact = min(", "contact = max("),
    Mutation(
        "a_foreign_lease_is_no_hindrance",
        "group/coordinator.py",
        'may_decide(group) and group.lease_state != "foreign"',
        "may_decide(group)",
    ),
    Mutation(
        "a_resumed_observer_goes_on_measuring", "group/lease.py", "return watch._replace(since=now)", "return watch"
    ),
    Mutation(
        "nobody_takes_over", "group/lease.py", "if me in place.witnesses:\n        if not", "if True:\n        if"
    ),
)

# In the rounds of ranks that can recover: two rounds at work, a process beside another one of its rank, a wait without
# an end, the wrong rank replaced, a state that not all ranks have.
RANKS = (
    Mutation(
        "a_round_begins_without_all",
        "ranks/rounds.py",
        'any(member.state != "waiting" for member in rounds.members)',
        'not any(member.state == "waiting" for member in rounds.members)',
    ),
    Mutation(
        "started_before_its_processes_have_ended",
        "ranks/rounds.py",
        "            acts.append(End(member.local_rank))\n",
        "            acts += [End(member.local_rank), Start(member.local_rank, rounds.number + 1)]\n",
    ),
    Mutation(
        "a_survivor_is_not_fenced",
        "ranks/rounds.py",
        "            acts.append(Fence(member.local_rank, rounds.number, why))\n",
        "",
    ),
    Mutation(
        "a_barrier_of_any_round",
        "ranks/rounds.py",
        'event.round != rounds.number or member.state not in ("working", "leaving", "finished")',
        'member.state not in ("working", "leaving", "finished")',
    ),
    Mutation(
        "a_retry_of_any_round",
        "ranks/rounds.py",
        'event.round != rounds.number or member.state != "working" or rounds.stage == "meeting"',
        'member.state != "working" or rounds.stage == "meeting"',
    ),
    Mutation(
        "a_late_rank_is_waited_for",
        "ranks/rounds.py",
        "due=now + rules.timeout))\n            acts.append(F",
        "due=None))\n            acts.append(F",
    ),
    Mutation(
        "no_settling",
        "ranks/rounds.py",
        "    if not event.collective:\n",
        "    if True:\n",
    ),
    Mutation(
        "replaced_again_and_again",
        "ranks/rounds.py",
        "_in_a_row(member, rules) > rules.max_replaced",
        "False",
    ),
    Mutation(
        "progress_does_not_count_for_a_rank",
        "ranks/rounds.py",
        "if member.replaced and member.mark == rules.progress else 1",
        "if member.replaced else 1",
    ),
    Mutation(
        "a_fault_in_the_proving_round_is_tried_again",
        "ranks/rounds.py",
        '    if rounds.rung == "rank":\n        return give_up(rounds, "this was',
        '    if False:\n        return give_up(rounds, "this was',
    ),
    Mutation(
        "a_retry_after_a_retry",
        "ranks/rounds.py",
        'if not replaced and (rounds.rung == "retry" or "retry" not in rules.rungs):',
        'if not replaced and "retry" not in rules.rungs:',
    ),
    Mutation(
        "proved_by_one_rank",
        "ranks/rounds.py",
        "all(member.local_rank in rounds.moved for member",
        "any(member.local_rank in rounds.moved for member",
    ),
    Mutation(
        "a_state_that_not_all_have",
        "ranks/rounds.py",
        "        if len(found) == len(plan):\n",
        "        if found:\n",
    ),
    Mutation(
        "the_oldest_state", "ranks/rounds.py", "for one in member.held}, reverse=True)", "for one in member.held})"
    ),
    Mutation(
        "any_shard",
        "ranks/rounds.py",
        "if member.shard and Snapshot(number, member.shard) in m.held)",
        "if any(one.step == number for one in m.held))",
    ),
    Mutation(
        "an_early_retry_is_lost",
        "ranks/rounds.py",
        "return (rounds, ()) if asker is None else",
        "return (rounds, ()) if True else",
    ),
    Mutation(
        "an_exited_rank_is_waited_for",
        "ranks/rounds.py",
        '        if member.state == "exited":\n            return',
        "        if False:\n            return",
    ),
    Mutation(
        "what_others_load_may_be_overwritten",
        "ranks/loans.py",
        "reason, master, local_rank in lenders)",
        "reason, master, False)",
    ),
    Mutation(
        "a_snapshot_is_released_by_the_first_that_has_loaded_it",
        "ranks/loans.py",
        "    if rounds.borrowers:\n        return rounds, ()",
        "    if not rounds.lenders:\n        return rounds, ()",
    ),
    Mutation(
        "what_was_loaded_in_any_round_counts",
        "ranks/rounds.py",
        "loans.restored(rounds, local_rank) if number == rounds.number else (rounds, ())",
        "loans.restored(rounds, local_rank)",
    ),
)

# In the rounds that the ranks of several members have in common.
GROUP_ROUNDS = (
    Mutation(
        "a_common_round_begins_without_all",
        "group/group_rounds.py",
        "len(view.running) != len(places) or not all(_waits(",
        "places[0] not in view.running or not any(_waits(",
    ),
    Mutation(
        "who_waits_at_another_round_waits_at_this_one",
        "group/group_rounds.py",
        'rounds.number == number and rounds.progress == "waiting"',
        'rounds.progress == "waiting"',
    ),
    Mutation(
        "a_member_begins_before_its_own_ranks_wait",
        "ranks/together.py",
        'order.number != rounds.number + 1 or rounds.stage != "meeting" or not _all_wait(rounds):\n        return',
        'order.number != rounds.number + 1 or rounds.stage != "meeting":\n        return',
    ),
    Mutation(
        "a_new_member_starts_beside_a_round_at_work",
        "machine/restarting.py",
        "return policy.member in order.round.joining and (order.epoch",
        "return (order.epoch",
    ),
    Mutation(
        "a_loss_in_the_round_that_proves_is_recovered",
        "group/group_rounds.py",
        'if order.rung == "rank" and order.what == "work":',
        "if False:",
    ),
    Mutation(
        "a_member_that_is_frozen_is_waited_for",
        "group/group_rounds.py",
        "if phase.round_due is not None and now >= phase.round_due:\n        known = [",
        "if False:\n        known = [",
    ),
)
