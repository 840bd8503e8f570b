"""Planted bugs, kept as data: the tests of the core have to catch every one of them.

Each is (name, file under supervisor/ftrun/core, the exact text that occurs once in it, what stands there instead).
"""

from typing import NamedTuple


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str


MUTATIONS = (
    # Budgets
    Mutation(
        "one_restart_too_many", "policy.py", "ledger.count(cause) >= policy.max", "ledger.count(cause) > policy.max"
    ),
    Mutation("one_restart_too_few", "policy.py", ">= policy.max_restarts", ">= policy.max_restarts - 1"),
    Mutation("no_limit_is_no_restart", "policy.py", "return policy.max_restarts is not None and", "return"),
    Mutation(
        "counts_across_causes", "policy.py", "ledger.count(cause) >=", "ledger.hang + ledger.fault + ledger.failure >="
    ),
    Mutation("faults_counted_as_failures", "values.py", 'if cause == "fault":', 'if cause == "never":'),
    Mutation(
        "progress_resets_nothing",
        "policy.py",
        "    if progressed is not None:\n        ledger",
        "    if False:\n        ledger",
    ),
    Mutation("progress_resets_hangs_only", "policy.py", "_replace(hang=0, fault=0, failure=0)", "_replace(hang=0)"),
    Mutation("the_same_step_is_progress", "policy.py", "value > best)", "value >= best)"),
    Mutation(
        "steps_count_though_checkpoints_are_reported",
        "policy.py",
        'return "checkpoint" if beyond else None',
        'if beyond:\n            return "checkpoint"',
    ),
    Mutation(
        "an_attempt_without_checkpoints_forgets_that_they_are_reported",
        "policy.py",
        "if newest is not None or ledger.best_checkpoint is not None:",
        "if newest is not None:",
    ),
    Mutation(
        "stable_though_steps_are_reported", "policy.py", "if attempt.step is not None or ledger.best", "if ledger.best"
    ),
    Mutation("stable_counts_time_away", "policy.py", "until, attempt.aways)", "until, ())"),
    Mutation("backoff_unbounded", "policy.py", ", BACKOFF_LIMIT)", ", 1e9)"),
    Mutation("backoff_does_not_double", "policy.py", "ledger.failure - 1, 0), 30", "ledger.failure - 1, 0), 0"),
    Mutation("hang_restart_delayed", "policy.py", 'if cause != "failure":', 'if cause == "fault":'),
    Mutation(
        "backoff_ignored", "job.py", "isinstance(want, Again) and want.delay > 0", "isinstance(want, Again) and False"
    ),
    Mutation(
        "an_order_costs_budget",
        "job.py",
        'job = job._replace(want=Again("peer"',
        'job = job._replace(ledger=job.ledger.counted("hang"), want=Again("peer"',
    ),
    # Liveness
    Mutation(
        "section_end_is_a_beat",
        "liveness.py",
        "age = awake(rank.moved_at, now, attempt.aways) - rank.credit",
        "age = 0.0 if rank.credit else awake(rank.moved_at, now, attempt.aways)",
    ),
    Mutation(
        "credit_ignored",
        "liveness.py",
        "age = awake(rank.moved_at, now, attempt.aways) - rank.credit",
        "age = awake(rank.moved_at, now, attempt.aways)",
    ),
    Mutation("inner_section_hides_outer", "liveness.py", "for s in rank.sections]", "for s in rank.sections[-1:]]"),
    Mutation("outer_section_hides_inner", "liveness.py", "for s in rank.sections]", "for s in rank.sections[:1]]"),
    Mutation(
        "sections_have_no_deadline",
        "liveness.py",
        "    if rank.sections:\n",
        "    if rank.sections:\n        return []\n",
    ),
    Mutation(
        "alive_counts_as_moving",
        "liveness.py",
        "age = awake(rank.moved_at, now",
        "age = awake(max(rank.moved_at, rank.alive_at or 0), now",
    ),
    Mutation("gone_ranks_are_waited_for", "liveness.py", "if rank.present and not rank.done]", "if not rank.done]"),
    Mutation("done_ranks_are_waited_for", "liveness.py", "if rank.present and not rank.done]", "if rank.present]"),
    Mutation(
        "only_rank_0_is_watched",
        "liveness.py",
        "rank in attempt.ranks if rank.present",
        "rank in attempt.ranks[:1] if rank.present",
    ),
    Mutation("start_limit_not_armed_at_the_spawn", "liveness.py", "    findings += _spawn(attempt, now, limits)\n", ""),
    Mutation(
        "start_limit_armed_though_not_given",
        "liveness.py",
        "limits.start is None or not limits.start_given",
        "limits.start is None",
    ),
    Mutation("aways_ignored", "liveness.py", "return max(0.0, now - since - away)", "return max(0.0, now - since)"),
    Mutation("the_limit_itself_is_not_over", "liveness.py", "if f.age >= f.limit]", "if f.age > f.limit]"),
    Mutation("looks_too_rarely", "liveness.py", "min(due, look)", "due"),
    # Watching
    Mutation(
        "a_freeze_is_a_hang",
        "job.py",
        "attempt = _forgiven(phase.attempt, event.since, event.now)",
        "attempt = phase.attempt",
    ),
    Mutation(
        "ctrl_z_is_a_hang",
        "job.py",
        "    if attempt.stopped_at is not None:\n        return job._replace(phase=phase(attempt)), so_far\n",
        "",
    ),
    Mutation(
        "time_stopped_counts",
        "job.py",
        "_forgiven(attempt._replace(stopped_at=None), attempt.stopped_at, event.now)",
        "attempt._replace(stopped_at=None)",
    ),
    Mutation("suspicion_is_proof", "job.py", "    if event.cleared is not None:", "    if False:"),
    Mutation(
        "a_moving_suspect_is_condemned",
        "job.py",
        '        return _clear(job, attempt, event.now, "it moved", policy, written)\n    return _hang',
        "        pass\n    return _hang",
    ),
    Mutation(
        "missing_evidence_clears",
        "job.py",
        'return _hang(job, phase, event.now, policy, (("evidence", "none in time"),), ())',
        'return _clear(job, phase.attempt, event.now, "no evidence", policy, ())',
    ),
    Mutation(
        "suspicion_without_a_deadline",
        "job.py",
        "judged.finding, now + policy.evidence_timeout)",
        "judged.finding, None)",
    ),
    # Records
    Mutation("spawn_before_its_record", "job.py", "(written, do.Spawn(number))", "(do.Spawn(number), written)"),
    Mutation(
        "kill_before_its_record",
        "ending.py",
        "(*so_far, written, *said, do.Terminate())",
        "(do.Terminate(), *so_far, written, *said)",
    ),
    Mutation("hang_not_on_disk", "job.py", 'do.Persist("hang", fields, durable=True)', 'do.Persist("hang", fields)'),
    Mutation(
        "exit_before_its_record",
        "ending.py",
        "(written, do.Exit(code, verdict, message))",
        "(do.Exit(code, verdict, message), written)",
    ),
    # Ends
    Mutation("start_cnt_stands_still", "job.py", "_replace(start_cnt=number, ", "_replace("),
    Mutation(
        "spawn_before_the_tree_has_ended",
        "job.py",
        '        return job._replace(phase=phase._replace(stage="inspect", deadline=None)), (do.Inspect(),)',
        '        return _launch(job, "restart")',
    ),
    Mutation(
        "restart_after_an_outer_stop",
        "job.py",
        "    if event.stop and isinstance(job.want, Again):\n",
        "    if False:\n",
    ),
    Mutation("outer_stop_in_backoff_ignored", "job.py", "    (Pending, ev.Signalled): _signalled_idle,\n", ""),
    Mutation(
        "outer_stop_while_launching_forgotten",
        "job.py",
        "    if isinstance(job.want, Finish):\n        asked = ",
        "    if False:\n        asked = ",
    ),
    Mutation(
        "verdict_lost_to_sigterm", "job.py", "    if event.stop and isinstance(job.want, Again):", "    if event.stop:"
    ),
    Mutation(
        "stop_grace_ignored",
        "job.py",
        '    asked = Stopping(attempt, "asked", after(event.now, policy.stop_grace))\n    return',
        '    asked = Stopping(attempt, "asked", None)\n    return',
    ),
    Mutation(
        "stop_grace_though_off",
        "ending.py",
        "return None if duration is None else now + duration",
        "return now + (duration or 10.0)",
    ),
    Mutation(
        "own_code_lost_on_outer_stop",
        "job.py",
        "job = job._replace(want=Finish(status, verdict, want.message))",
        "pass",
    ),
    Mutation("sigkill_without_grace", "ending.py", "if policy.grace <= 0:", "if True:"),
    Mutation("sigterm_for_ever", "job.py", 'if phase.stage in ("asked", "term"):', 'if phase.stage == "asked":'),
    Mutation(
        "unkillable_restarts",
        "job.py",
        "    (Stopping, ev.Survived): _survived,\n",
        '    (Stopping, ev.Survived): lambda j, p, e, q: _launch(j, "restart"),\n',
    ),
    Mutation("a_frozen_tree_loses_its_grace", "job.py", "    (Stopping, ev.Overslept): _overslept_ending,\n", ""),
    Mutation("signals_are_not_128_plus_n", "exitcode.py", "128 + signal if", "127 + signal if"),
    Mutation(
        "outer_stop_is_not_128_plus_n",
        "ending.py",
        "Finish(128 + signal, exitcode.STOPPED",
        "Finish(signal, exitcode.STOPPED",
    ),
    Mutation(
        "unlisted_failure_escalates",
        "ending.py",
        'elif cause == "failure" and cause not in',
        "elif False and cause not in",
    ),
    Mutation(
        "unlisted_failure_ends_with_0",
        "ending.py",
        "want = Finish(own or 0, exitcode.FAILED, why)",
        "want = Finish(0, exitcode.FAILED, why)",
    ),
    Mutation("restart_on_ignored", "ending.py", "elif cause not in policy.restart_on or exhausted(", "elif exhausted("),
    Mutation("fatal_restarts", "ending.py", "if attempt.fatal is not None:", "if False:"),
    Mutation("ctrl_c_is_a_failure", "job.py", " or event.signal in BY_TERMINAL)", ")"),
    Mutation("a_forwarded_signal_is_a_failure", "job.py", "(event.signal in attempt.forwarded or ", "("),
    # Faults
    Mutation("critical_fault_restarts", "job.py", 'if fault.severity == "critical":', 'if fault.severity == "none":'),
    Mutation(
        "a_users_fault_kills", "job.py", '("minor", "major", "critical")', '("user", "minor", "major", "critical")'
    ),
    Mutation(
        "unknown_faults_kill", "job.py", '("minor", "major", "critical")', '("unknown", "minor", "major", "critical")'
    ),
    Mutation("a_users_fault_isolates_the_node", "ending.py", 'fault.severity == "user"', 'fault.severity == "own"'),
    Mutation(
        "restart_without_healing",
        "job.py",
        "isinstance(want, Again) and want.fault is not None",
        "isinstance(want, Again) and False",
    ),
    Mutation(
        "restart_though_not_healed",
        "job.py",
        "isinstance(event, ev.Healed) and event.cured",
        "isinstance(event, ev.Healed)",
    ),
    Mutation("a_healer_that_hangs_is_waited_for", "job.py", "    (Healing, ev.Ticked): _healed,\n", ""),
    # Races and rare turns
    Mutation("a_tick_for_an_earlier_phase_counts", "job.py", "event.now < job.phase.deadline)", "False)"),
    Mutation("silence_is_stable", "policy.py", "if judged else now", "if False else now"),
    Mutation("an_exit_before_the_exec_is_stable", "job.py", "Attempt(number, spawned_at=now)", "Attempt(number)"),
    Mutation("time_away_counts_twice", "liveness.py", "max(start, reached)", "max(start, since)"),
    Mutation(
        "a_checkpoint_while_stopping_is_a_free_restart",
        "job.py",
        "ledger, want = ledger.counted(want.reason), want._replace(consecutive=1)",
        "pass",
    ),
    Mutation(
        "the_wrong_rank_is_named", "job.py", "_replace(attempt=attempt, finding=finding)", "_replace(attempt=attempt)"
    ),
    Mutation("critical_fault_while_stopping_lost", "job.py", "    (Stopping, ev.Faulted): _faulted_stopping,\n", ""),
    Mutation("a_users_fault_is_healed", "ending.py", 'fault.severity != "user" else', "True else"),
    Mutation("a_stray_answer_condemns", "job.py", 'if phase.stage != "inspect":', "if False:"),
)
