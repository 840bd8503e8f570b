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
    # Orders and pauses
    Mutation("judged_in_a_pause", "watching.py", "attempt.stopped_at is not None or job.paused", "attempt.stopped_at"),
    Mutation("a_pause_never_ends", "pausing.py", "and now >= job.paused.until", "and False"),
    Mutation("a_pause_counts_as_silence", "pausing.py", "attempt = forgiven(attempt, max(", "forgiven(attempt, max("),
    Mutation("a_pause_before_the_start_counts", "pausing.py", "max(job.paused.since, attempt.spawned_at)", "0.0"),
    Mutation("a_suspicion_outlives_a_pause", "ordering.py", 'effects + dropped(phase, "paused")', "effects"),
    Mutation("faults_act_in_a_pause", "job.py", "if job.paused is None else put_off", "if True else put_off"),
    Mutation(
        "faults_in_a_pause_are_forgotten", "job.py", "waiting = (after.paused or job.paused).faults", "waiting = ()"
    ),
    Mutation(
        "faults_in_a_pause_wait_too_long", "job.py", "(after.paused is not None and isinstance(", "(True or isinstance("
    ),
    Mutation("one_fault_in_a_pause_is_many", "pausing.py", "if event.fault in [", "if event in ["),
    Mutation(
        "a_second_pause_is_the_first", "ordering.py", "before = job.paused or Paused(event.now)", "before = Paused(0.0)"
    ),
    Mutation(
        "an_order_before_the_exec_is_lost",
        "ordering.py",
        "early=(*phase.early[1 - EARLY :], event)",
        "early=phase.early",
    ),
    Mutation("an_order_waits_for_the_backoff", "ordering.py", "job.want._replace(delay=0.0)", "job.want"),
    Mutation(
        "a_restart_revives_an_end",
        "ordering.py",
        "case Stopping() | Healing() if isinstance(job.want, Again):",
        "case Stopping() | Healing():",
    ),
    Mutation(
        "a_stop_in_backoff_is_a_start",
        "ordering.py",
        "job, effects = again(job._replace(want=want)",
        "job, effects = again(job",
    ),
    Mutation("a_stop_waits_as_asked", "ordering.py", 'case Stopping(stage="asked"):', 'case Stopping(stage="never"):'),
    Mutation("a_killed_hang_ends_well", "ordering.py", "want=want._replace(own=False)", "want=want"),
    Mutation(
        "orders_before_words",
        "ordering.py",
        'return do.Persist("order", fields), do.Answer(event.order.id, ok, why)',
        'return do.Answer(event.order.id, ok, why), do.Persist("order", fields)',
    ),
    Mutation("an_order_that_nobody_waits_for", "ordering.py", "event.now >= event.order.until", "False"),
    Mutation("a_fault_put_off_is_no_cause", "job.py", "job.paused is not None and job.paused.faults:", "False:"),
    Mutation("a_pause_outlives_its_end", "job.py", "if over(after, event.now) and not", "if False and not"),
    Mutation("an_order_dies_with_the_exec", "job.py", "return job, answers + end", "return job, end"),
    Mutation("what_was_early_is_late", "job.py", "waiting._replace(now=now), policy)", "waiting, policy)"),
    Mutation("grace_from_outside_is_lost", "goodput.py", 'return "" if phase.stage == "asked" else', "return"),
    Mutation("a_debugger_works", "goodput.py", "if before.paused is not None and after.paused is None:", "if False:"),
    Mutation("what_was_stopped_is_lost", "goodput.py", "job.want.verdict == STOPPED:", "False:"),
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
    Mutation(
        "progress_resets_hangs_only",
        "policy.py",
        "_replace(hang=0, fault=0, failure=0, reached=True)",
        "_replace(hang=0, reached=True)",
    ),
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
        "if policy.files or newest is not None or ledger.best_checkpoint is not None:",
        "if policy.files or newest is not None:",
    ),
    Mutation("no_saved_file_is_progress", "policy.py", "if not attempt.progressed and advanced(attempt):", "if False:"),
    Mutation(
        "any_saved_file_is_progress",
        "saving.py",
        "any(_same(file, newest[series]) for series in now & newest.keys() for file in resumed)",
        "True",
    ),
    Mutation("an_older_file_resumes_too", "saving.py", "return loaded.version == saved.version", "return True"),
    Mutation("saved_files_are_forgotten", "restarting.py", "inherited=ledger.saved", "inherited=()"),
    Mutation("stable_counts_time_away", "policy.py", "until, attempt.aways)", "until, ())"),
    Mutation("backoff_unbounded", "policy.py", ", BACKOFF_LIMIT)", ", 1e9)"),
    Mutation("backoff_does_not_double", "policy.py", "ledger.failure - 1, 0), 30", "ledger.failure - 1, 0), 0"),
    Mutation("hang_restart_delayed", "policy.py", 'if cause != "failure":', 'if cause == "fault":'),
    Mutation(
        "backoff_ignored",
        "restarting.py",
        "isinstance(want, Again) and want.delay > 0",
        "isinstance(want, Again) and False",
    ),
    Mutation(
        "an_order_costs_budget",
        "ordering.py",
        'job = job._replace(want=Again("manual")',
        'job = job._replace(ledger=job.ledger.counted("hang"), want=Again("manual")',
    ),
    # One of a group
    Mutation(
        "a_start_waits_for_nobody", "restarting.py", "if policy.group:\n        if job", "if False:\n        if job"
    ),
    Mutation("a_late_word_starts", "restarting.py", "job.order.epoch <= epoch", "job.order.epoch < epoch"),
    Mutation("an_epoch_that_is_over_starts", "joining.py", 'if event.order.what == "stop":', "if False:"),
    Mutation("a_verdict_waits_for_nobody", "joining.py", "if not policy.group or", "if True or"),
    Mutation(
        "a_verdict_waits_for_ever",
        "joining.py",
        "return now + WORD + (policy.peer_timeout if _yields(job.want) else 0.0)",
        "return None",
    ),
    Mutation(
        "success_does_not_wait",
        "joining.py",
        "    if job.want.verdict == exitcode.SUCCEEDED:\n        return None",
        "    if False:\n        return None",
    ),
    Mutation(
        "a_verdict_does_not_wait_for_rank_0",
        "joining.py",
        "job = job._replace(phase=phase._replace(deadline=None))",
        "pass",
    ),
    Mutation("what_ran_is_ended_by_a_misfit", "joining.py", "if event.incurable and job.ledger.epoch:", "if False:"),
    Mutation("a_misfit_is_scheduled_again", "joining.py", "    if event.incurable:\n", "    if False:\n"),
    Mutation(
        "a_failure_by_the_loss_of_rank_0_is_one",
        "joining.py",
        "in (exitcode.SUCCEEDED, exitcode.FAILED)",
        "in (exitcode.SUCCEEDED,)",
    ),
    Mutation(
        "a_group_is_scheduled_for_ever",
        "joining.py",
        "want = unless_in_vain(job, finish_with(exitcode.HANG_LIMIT, event.why))",
        "want = finish_with(exitcode.HANG_LIMIT, event.why)",
    ),
    Mutation(
        "overruled_while_it_is_open", "joining.py", "and event.order.cause is not None:", "and event.order is not None:"
    ),
    Mutation(
        "a_fault_of_the_node_is_overruled", "joining.py", "(*OF_THE_NODE, exitcode.STOPPED)", "(exitcode.STOPPED,)"
    ),
    Mutation("an_operators_end_is_overruled", "joining.py", "(*OF_THE_NODE, exitcode.STOPPED)", "OF_THE_NODE"),
    Mutation("who_is_behind_goes_on", "joining.py", 'case "run" if order.epoch > job', 'case "run" if False and job'),
    Mutation("an_older_stop_ends_it", "joining.py", "order.epoch >= job.ledger.epoch:", "True:"),
    Mutation("progress_of_a_peer_is_none", "joining.py", "if order.progressed:", "if False:"),
    Mutation("counts_of_a_peer_are_none", "joining.py", "hang=hang, fault=fault, failure=failure", "hang=0"),
    Mutation("an_order_is_obeyed_twice", "joining.py", "order.paused != before.paused", "True"),
    Mutation(
        "a_fault_at_the_gate_waits", "joining.py", "and phase.deadline is None and has_to_wait(job):", "and False:"
    ),
    Mutation(
        "cut_off_waits_for_word",
        "joining.py",
        'job = job._replace(order=Order(job.ledger.epoch, "end", event.why))',
        "pass",
    ),
    Mutation(
        "stopped_from_outside_loses_the_verdict",
        "joining.py",
        "if end.verdict == exitcode.SUCCEEDED or (end.asked and",
        "if end.verdict == exitcode.SUCCEEDED or (",
    ),
    # Liveness
    Mutation(
        "section_end_is_a_beat",
        "liveness.py",
        "age = awake(since, now, attempt.aways) - rank.credit",
        "age = 0.0 if rank.credit else awake(since, now, attempt.aways)",
    ),
    Mutation(
        "credit_ignored",
        "liveness.py",
        "age = awake(since, now, attempt.aways) - rank.credit",
        "age = awake(since, now, attempt.aways)",
    ),
    Mutation(
        "inner_section_hides_outer",
        "liveness.py",
        "for section in rank.sections:",
        "for section in rank.sections[-1:]:",
    ),
    Mutation(
        "outer_section_hides_inner", "liveness.py", "for section in rank.sections:", "for section in rank.sections[:1]:"
    ),
    Mutation(
        "sections_have_no_deadline",
        "liveness.py",
        "        findings += _sections(rank, attempt, now, limits)\n",
        "",
    ),
    Mutation(
        "alive_counts_as_moving",
        "liveness.py",
        'rule, since = "step", rank.moved_at',
        'rule, since = "step", max(rank.moved_at, rank.alive_at or 0)',
    ),
    Mutation(
        "gone_ranks_are_waited_for",
        "liveness.py",
        "awaited = [rank for rank in attempt.ranks if rank.present and not rank.done]",
        "awaited = [rank for rank in attempt.ranks if not rank.done]",
    ),
    Mutation(
        "done_ranks_are_waited_for",
        "liveness.py",
        "awaited = [rank for rank in attempt.ranks if rank.present and not rank.done]",
        "awaited = [rank for rank in attempt.ranks if rank.present]",
    ),
    Mutation(
        "only_rank_0_is_watched",
        "liveness.py",
        "awaited = [rank for rank in attempt.ranks if",
        "awaited = [rank for rank in attempt.ranks[:1] if",
    ),
    Mutation(
        "start_limit_not_armed_at_the_spawn",
        "liveness.py",
        "findings, spans = _spawn(attempt, now, limits)",
        "findings, spans = list[Finding]()",
    ),
    Mutation(
        "start_limit_armed_though_not_given",
        "liveness.py",
        "limits.start is None or limits.start_given:",
        "True:",
    ),
    Mutation("aways_ignored", "liveness.py", "return max(0.0, now - since - away)", "return max(0.0, now - since)"),
    Mutation("the_limit_itself_is_not_over", "liveness.py", "if f.age >= f.limit]", "if f.age > f.limit]"),
    Mutation("looks_too_rarely", "liveness.py", "now + min(due, min(spans) / LOOKS_PER_LIMIT)", "now + due"),
    Mutation(
        "the_end_of_a_section_is_not_looked_for",
        "liveness.py",
        "            spans.append(silence.limit)",
        "            pass",
    ),
    # Watching
    Mutation(
        "a_freeze_is_a_hang",
        "watching.py",
        "attempt = forgiven(phase.attempt, event.since, event.now)",
        "attempt = phase.attempt",
    ),
    Mutation(
        "ctrl_z_is_a_hang",
        "watching.py",
        "if attempt.stopped_at is not None or job.paused",
        "if job.paused",
    ),
    Mutation(
        "time_stopped_counts",
        "watching.py",
        "forgiven(attempt._replace(stopped_at=None), attempt.stopped_at, event.now)",
        "attempt._replace(stopped_at=None)",
    ),
    Mutation("suspicion_is_proof", "watching.py", "    if event.cleared is not None:", "    if False:"),
    Mutation(
        "a_moving_suspect_is_condemned",
        "watching.py",
        '(job, _raised(attempt, phase.finding), event.now, "it moved", policy, written)\n    if event.cleared',
        "(job, attempt, event.now, 'it moved', policy, ()) and _hang(job, phase, event.now, policy, (), ())\n"
        "    if event.cleared",
    ),
    Mutation(
        "missing_evidence_clears",
        "watching.py",
        'return _hang(job, phase, event.now, policy, (("evidence", "none in time"),), ())',
        'return _clear(job, phase.attempt, event.now, "no evidence", policy, ())',
    ),
    Mutation(
        "suspicion_without_a_deadline",
        "watching.py",
        "judged.finding, now + policy.evidence_timeout)",
        "judged.finding, None)",
    ),
    # Records
    Mutation("spawn_before_its_record", "restarting.py", "(written, do.Spawn(number))", "(do.Spawn(number), written)"),
    Mutation(
        "kill_before_its_record",
        "ending.py",
        "(*so_far, written, *said, do.Terminate())",
        "(do.Terminate(), *so_far, written, *said)",
    ),
    Mutation(
        "hang_not_on_disk", "watching.py", 'do.Persist("hang", fields, durable=True)', 'do.Persist("hang", fields)'
    ),
    Mutation(
        "exit_before_its_record",
        "ending.py",
        "(written, do.Exit(*want[:3], want.node, want.device))",
        "(do.Exit(*want[:3], want.node, want.device), written)",
    ),
    # Ends
    Mutation("start_cnt_stands_still", "restarting.py", "_replace(start_cnt=number, ", "_replace("),
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
        "verdict_lost_to_sigterm",
        "job.py",
        "    if event.stop and isinstance(job.want, Again):\n        # Not its own",
        "    if event.stop:\n        # Not its own",
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
        "job = job._replace(want=Finish(status, verdict, want.message, asked=want.asked))",
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
    Mutation(
        "a_refused_signal_blames_the_node",
        "surviving.py",
        "    return event.refused or by_command\n",
        "    return by_command\n",
    ),
    Mutation(
        "a_leftover_overrides_the_code",
        "surviving.py",
        "    return event.refused or by_command\n",
        "    return event.refused\n",
    ),
    Mutation(
        "the_commands_own_refusal_to_die_keeps_the_code",
        "surviving.py",
        " and not event.command\n",
        "\n",
    ),
    Mutation(
        "a_refused_signal_is_waited_for",
        "surviving.py",
        '    return phase.stage in ("kill", "inspect") or',
        '    return phase.stage == "inspect" or',
    ),
    Mutation(
        "a_refused_signal_costs_the_grace_of_a_restart",
        "surviving.py",
        'phase.stage == "term" and isinstance(job.want, Finish)',
        'phase.stage == "term"',
    ),
    Mutation(
        "a_failure_beside_a_survivor_loses_its_code", "surviving.py", "    if again.own is not None:", "    if False:"
    ),
    Mutation("a_frozen_tree_loses_its_grace", "job.py", "    (Stopping, ev.Overslept): _overslept_ending,\n", ""),
    Mutation("signals_are_not_128_plus_n", "exitcode.py", "128 + signal if", "127 + signal if"),
    Mutation(
        "outer_stop_is_not_128_plus_n",
        "ending.py",
        "128 + signal, exitcode.STOPPED",
        "signal, exitcode.STOPPED",
    ),
    Mutation(
        "unlisted_failure_escalates",
        "ending.py",
        'if cause == "failure" and (cause not in policy.restart_on or policy.unconditional):',
        'if cause == "failure" and policy.unconditional:',
    ),
    Mutation(
        "unlisted_failure_ends_with_0",
        "ending.py",
        "Finish(own or 1, exitcode.FAILED, why)",
        "Finish(0, exitcode.FAILED, why)",
    ),
    Mutation(
        "restart_on_ignored",
        "ending.py",
        "if cause in policy.restart_on and not exhausted(job.ledger, cause, policy):",
        "if not exhausted(job.ledger, cause, policy):",
    ),
    Mutation(
        "fatal_restarts",
        "ending.py",
        "if attempt.fatal is not None or incurable is not None:",
        "if incurable is not None:",
    ),
    Mutation("ctrl_c_is_a_failure", "exiting.py", " or event.signal in BY_TERMINAL)", ")"),
    Mutation("a_forwarded_signal_is_a_failure", "exiting.py", "(event.signal in attempt.forwarded or ", "("),
    # Faults
    Mutation(
        "critical_fault_restarts", "faulting.py", 'if fault.severity == "critical":', 'if fault.severity == "none":'
    ),
    Mutation(
        "a_users_fault_kills",
        "values.py",
        '("minor", "minor+user", "major", "critical")',
        '("user", "minor", "minor+user", "major", "critical")',
    ),
    Mutation(
        "unknown_faults_kill",
        "values.py",
        '("minor", "minor+user", "major", "critical")',
        '("unknown", "minor", "minor+user", "major", "critical")',
    ),
    Mutation("a_users_fault_isolates_the_node", "values.py", '("user", "minor+user")', "()"),
    Mutation("a_fault_that_the_user_induced_is_no_users", "values.py", 'in ("user", "minor+user")', 'in ("user",)'),
    Mutation(
        "a_fault_that_the_user_induced_is_left",
        "values.py",
        '("minor", "minor+user", "major", "critical")',
        '("minor", "major", "critical")',
    ),
    Mutation(
        "a_fault_of_the_users_speaks_for_another_schedule",
        "faulting.py",
        "clear = ledger.faulted or not fault.by_user",
        "clear = True",
    ),
    Mutation(
        "different_faults_isolate_the_node",
        "ending.py",
        "if fault is not None and (fault.by_user or in_place):",
        "if fault is not None and fault.by_user:",
    ),
    Mutation("faults_without_a_code_are_one", "faulting.py", "if fault.code != NO_CODE:", "if True:"),
    Mutation("the_limit_of_hangs_never_fails", "ending.py", 'if cause == "hang" and policy.limit_fails:', "if False:"),
    Mutation(
        "a_hang_without_hang_retry_ends_it", "watching.py", "if fault is None and policy.hangs_stand:", "if False:"
    ),
    Mutation("a_hang_is_reported_again_and_again", "watching.py", "if not attempt.reported:", "if True:"),
    Mutation(
        "restart_without_healing", "faulting.py", "(isinstance(job.want, Again) and bool(job.want.faults))", "False"
    ),
    Mutation(
        "restart_though_not_healed",
        "restarting.py",
        "and phase.fault is not None and event.cured:",
        "and phase.fault is not None:",
    ),
    Mutation("a_healer_that_hangs_is_waited_for", "job.py", "    (Healing, ev.Ticked): healed,\n", ""),
    # Learning
    Mutation("learned_from_too_little", "learning.py", "ENOUGH: Final = 100 ", "ENOUGH: Final = 10 "),
    Mutation("learned_too_late", "learning.py", "ENOUGH: Final = 100 ", "ENOUGH: Final = 101 "),
    Mutation("no_floor", "learning.py", "FLOOR: Final = 30.0", "FLOOR: Final = 3.0"),
    Mutation("the_bound_is_five_times", "learning.py", "USUAL_TIMES: Final = 10", "USUAL_TIMES: Final = 5"),
    Mutation("the_bound_is_twelve_times", "learning.py", "USUAL_TIMES: Final = 10", "USUAL_TIMES: Final = 12"),
    Mutation(
        "a_rare_silence_teaches_nothing", "learning.py", "    if longest <= by_usual:", "    if longest <= 1e300:"
    ),
    Mutation(
        "what_is_within_the_bound_loosens_it",
        "learning.py",
        "    if longest <= by_usual:",
        "    if 1.2 * longest <= by_usual:",
    ),
    Mutation(
        "a_rare_silence_may_not_come_again", "learning.py", "LONGEST_TIMES: Final = 2", "LONGEST_TIMES: Final = 1"
    ),
    Mutation(
        "a_rare_silence_is_not_capped",
        "learning.py",
        "if start is None else max(by_usual, min(twice",
        "if True else max(by_usual, min(twice",
    ),
    Mutation("the_usual_is_capped", "learning.py", "max(by_usual, min(twice, start))", "min(twice, start)"),
    Mutation(
        "without_a_start_timeout_a_rare_silence_teaches_nothing",
        "learning.py",
        "return twice if start is None",
        "return by_usual if start is None",
    ),
    Mutation("the_limit_of_before_is_forgotten", "learning.py", "    elif before is None:", "    elif True:"),
    Mutation(
        "the_start_is_judged_as_the_rest",
        "learning.py",
        "max(FLOOR, before.limit, WARM_UP_TIMES * before.slowest_start)",
        "max(FLOOR, before.limit)",
    ),
    Mutation("a_start_is_long", "learning.py", "WARM: Final = 10 ", "WARM: Final = 50 "),
    Mutation(
        "a_corrupt_limit_holds", "learning.py", "seconds = max(FLOOR, before.limit)\n", "seconds = before.limit\n"
    ),
    Mutation(
        "the_slow_make_the_fast_slack",
        "learning.py",
        "rare = before is not None and before.longest > _by_usual(before.usual)",
        "rare = True",
    ),
    Mutation("each_waits_for_itself_only", "learning.py", "if before is not None and rare else", "if False else"),
    Mutation("the_fast_judge_the_slow", "learning.py", "    if slow or not known:", "    if not known:"),
    Mutation(
        "who_has_ended_is_waited_for",
        "learning.py",
        "slow = slow or (rank.present and not rank.done and rank.rank != TOUCH)",
        "slow = slow or rank.rank != TOUCH",
    ),
    Mutation("the_touch_file_is_waited_for", "learning.py", " and rank.rank != TOUCH)", ")"),
    Mutation(
        "the_longest_of_before_is_forgotten",
        "learning.py",
        "[rank.longest for rank in known] + ([before.longest] if before else [])",
        "[rank.longest for rank in known]",
    ),
    Mutation("the_job_remembers_the_smallest", "learning.py", "usual, intervals = max(", "usual, intervals = min("),
    Mutation("every_change_is_news", "learning.py", "NEWS: Final = 0.1", "NEWS: Final = 0.0"),
    # A provisional limit, and that of a later start
    Mutation("a_few_steps_teach_nothing", "learning.py", "or start <= seconds else", "or True else"),
    Mutation("a_provisional_limit_is_proof", "learning.py", "else Limit(seconds, True, start)", "else Limit(seconds)"),
    Mutation(
        "a_provisional_limit_is_tight",
        "learning.py",
        "PROVISIONAL_FLOOR: Final = 300.0",
        "PROVISIONAL_FLOOR: Final = 30.0",
    ),
    Mutation(
        "the_first_steps_teach_nothing", "learning.py", "PROVISIONAL_TIMES * rank.slowest_start)", "rank.slowest_start)"
    ),
    Mutation("what_led_to_a_step_counts_once", "learning.py", "START_TIMES * taken)", "taken)"),
    Mutation("a_later_start_is_as_fast", "learning.py", "START_TIMES * first_beat)", "first_beat)"),
    Mutation("no_later_start_is_judged", "liveness.py", "if attempt.first_beat is None or not", "if True or not"),
    Mutation(
        "a_later_start_needs_no_evidence", "liveness.py", "attempt.start_raised), True", "attempt.start_raised), False"
    ),
    Mutation(
        "a_later_start_is_suspected_for_ever",
        "watching.py",
        "attempt._replace(start_raised=2 * finding.age)",
        "attempt",
    ),
    Mutation("one_hang_makes_a_start_patient", "liveness.py", "max(1, attempt.patience // 2)", "attempt.patience"),
    Mutation(
        "the_first_start_is_forgotten",
        "watching.py",
        "ledger._replace(first_beat=max(taken, ledger.first_beat or 0.0))",
        "ledger",
    ),
    Mutation("the_last_start_counts", "watching.py", "max(taken, ledger.first_beat or 0.0)", "taken"),
    Mutation(
        "a_freeze_is_a_slow_start",
        "watching.py",
        "first, attempt.aways)\n    return ledger",
        "first, ())\n    return ledger",
    ),
    Mutation("off_is_not_off_for_a_later_start", "liveness.py", "or not (limits.auto or limits.hang is not None)", ""),
    Mutation("nothing_is_news", "learning.py", "NEWS: Final = 0.1", "NEWS: Final = 10.0"),
    Mutation(
        "a_given_limit_is_learned", "liveness.py", "    if not limits.auto:\n        return limits.hang, False\n", ""
    ),
    Mutation("the_touch_file_is_judged_by_the_ranks", "liveness.py", "    if rank.rank == TOUCH:", "    if False:"),
    Mutation("learning_though_a_limit_was_given", "watching.py", "if not policy.limits.auto:", "if False:"),
    # Evidence against a learned limit
    Mutation(
        "evidence_raises_nothing",
        "watching.py",
        "_raised(attempt, finding) if raises else",
        "attempt if raises else",
    ),
    Mutation(
        "evidence_starts_the_silence_anew",
        "watching.py",
        "_raised(attempt, finding) if raises else",
        "_raised(attempt, finding) if False else",
    ),
    Mutation("a_learned_limit_is_proof", "watching.py", "    if phase.finding.learned:\n", "    if False:\n"),
    Mutation("evidence_for_ever", "liveness.py", "if limit.most is not None and seconds >= limit.most:", "if False:"),
    Mutation(
        "evidence_makes_it_tighter",
        "liveness.py",
        "return max([seconds",
        "return min([seconds",
    ),
    Mutation(
        "evidence_of_one_excuses_all", "liveness.py", "attempt.raised if r.rank == rank.rank", "attempt.raised if True"
    ),
    Mutation("raised_by_nothing", "watching.py", "finding.rank, 2 * finding.age", "finding.rank, finding.age"),
    Mutation("raised_for_ever", "watching.py", "    if attempt.raised:\n", "    if False:\n"),
    Mutation(
        "raised_until_the_first_movement",
        "watching.py",
        "if rank.intervals == counted.get(rank.rank)}",
        "if rank in attempt.ranks}",
    ),
    Mutation(
        "a_given_limit_is_raised",
        "watching.py",
        "    if not finding.learned:\n        return attempt\n",
        "",
    ),
    Mutation("learned_is_not_said", "liveness.py", "rank.pid, by_learning)", "rank.pid, False)"),
    # Sections and ranks
    Mutation(
        "a_side_section_hides_a_hang",
        "liveness.py",
        "all(section.side for section in rank.sections)",
        "not rank.sections",
    ),
    Mutation(
        "a_side_section_has_no_deadline",
        "liveness.py",
        "for section in rank.sections:",
        "for section in [s for s in rank.sections if not s.side]:",
    ),
    Mutation("a_limit_of_the_hooks_sections_holds_in_all", "liveness.py", "if not section.automatic:", "if False:"),
    Mutation(
        "a_learned_section_is_a_proof",
        "liveness.py",
        "return (seconds, True) if seconds < most",
        "return (seconds, False) if seconds < most",
    ),
    Mutation("a_section_learns_nothing", "liveness.py", "or section.longest is None:", "or True:"),
    Mutation("a_learned_section_has_no_end", "liveness.py", "if seconds < most else (most, False)", "if True else ()"),
    Mutation(
        "a_section_opens_unseen", "liveness.py", "            spans.append(limits.automatic)", "            spans += []"
    ),
    Mutation("a_section_of_ours_is_the_last", "values.py", "in r.sections if not s.automatic)", "in r.sections)"),
    Mutation(
        "where_it_broke_is_forgotten", "values.py", "if not s.automatic), r.broken)", "if not s.automatic), None)"
    ),
    Mutation("the_launcher_hides_the_training", "ranks.py", "return trains, view.present", "return True, view.present"),
    Mutation("who_is_done_is_waited_for", "ranks.py", "(view.present or view.done)", "view.present"),
    Mutation(
        "the_first_that_moved_speaks",
        "ranks.py",
        "view.moved_at or view.claimed_at\n",
        "-(view.moved_at or view.claimed_at)\n",
    ),
    Mutation(
        "a_stand_in_is_as_old_as_its_beat",
        "ranks.py",
        "if (speaker.moved_at or 0.0) < last and not speaker.done:",
        "if False:",
    ),
    Mutation(
        "what_another_saved_is_lost",
        "ranks.py",
        "checkpoint_step=saved.checkpoint_step",
        "checkpoint_step=speaker.checkpoint_step",
    ),
    Mutation("a_hang_hides_among_others_without_rank", "ranks.py", "if len(apart) < 2:", "if True:"),
    Mutation("who_waits_for_its_children_hangs", "ranks.py", "if view.pid not in parents", "if True"),
    Mutation("ranks_that_were_told_are_told_apart", "ranks.py", "[] if any(view.ranked for view in views) else ", ""),
    Mutation("the_last_words_of_another_are_lost", "ranks.py", "        fatal=fatal,\n", ""),
    # Checkpoint files
    Mutation(
        "a_file_is_no_progress",
        "watching.py",
        "job.ledger._replace(hang=0, fault=0, failure=0, reached=True)",
        "job.ledger._replace(reached=True)",
    ),
    Mutation("steps_count_beside_files", "policy.py", "if policy.files or newest", "if newest"),
    Mutation("a_file_of_before_is_progress_of_now", "watching.py", "event.at < attempt.spawned_at and", "False and"),
    Mutation("a_file_of_now_is_progress_of_before", "watching.py", "event.at < attempt.spawned_at and", "True and"),
    Mutation(
        "a_file_while_stopping_is_a_free_restart",
        "watching.py",
        "        ledger = ledger.counted(want.reason)\n",
        "",
    ),
    Mutation(
        "a_file_that_a_kill_cut_off_is_a_checkpoint",
        "watching.py",
        "if not event.renamed and _cut_off(phase, attempt, event.at):",
        "if False:",
    ),
    Mutation(
        "no_file_written_in_place_is_a_checkpoint",
        "watching.py",
        "return attempt.number > 1 and at < attempt.spawned_at + AT_REST",
        "return True",
    ),
    Mutation(
        "a_closed_section_is_idle_time",
        "liveness.py",
        " - max((rank.credit for rank in attempt.ranks), default=0.0)",
        "",
    ),
    Mutation(
        "a_finished_rank_has_never_moved",
        "liveness.py",
        "r.moved_at for r in attempt.ranks if r.moved_at is not None)])\n    age",
        "r.moved_at for r in present if r.moved_at is not None)])\n    age",
    ),
    Mutation(
        "an_open_section_is_idle",
        "liveness.py",
        "if any(not section.side for rank in present for section",
        "if any(False for rank in present for section",
    ),
    Mutation(
        "idle_without_an_accelerator", "liveness.py", "if not (limits.idle_given or idle.accelerator):", "if False:"
    ),
    Mutation(
        "evidence_does_not_raise_the_idle_limit",
        "watching.py",
        "raised=2 * finding.age, still",
        "raised=0.0, still",
    ),
    Mutation(
        "evidence_does_not_raise_the_limit_of_all_containers",
        "watching.py",
        "still_raised=2 * finding.age",
        "still_raised=0.0",
    ),
    Mutation("what_is_written_clears_all_containers", "watching.py", "is None and not still:", "is None:"),
    Mutation("a_file_while_healing_is_lost", "job.py", "    (Healing, ev.Saved): saved,\n", ""),
    Mutation("a_file_while_waiting_is_lost", "job.py", "    (Pending, ev.Saved): saved,\n", ""),
    # Races and rare turns
    Mutation("a_tick_for_an_earlier_phase_counts", "job.py", "event.now < job.phase.deadline)", "False)"),
    Mutation("silence_is_stable", "policy.py", "    if judged:\n", "    if False:\n"),
    Mutation("an_exit_before_the_exec_is_stable", "restarting.py", "        spawned_at=now,\n", ""),
    Mutation("no_patience_after_a_hang", "restarting.py", "patience=1 << min(ledger.hang, 10)", "patience=1"),
    Mutation("time_away_counts_twice", "liveness.py", "max(start, reached)", "max(start, since)"),
    Mutation(
        "a_checkpoint_while_stopping_is_a_free_restart",
        "job.py",
        "ledger, want = ledger.counted(want.reason), want._replace(consecutive=1)",
        "pass",
    ),
    Mutation(
        "evidence_of_one_condemns_another",
        "watching.py",
        "    if finding is None or not same(finding, phase.finding):\n        return _clear(job, _raised(attempt, "
        'phase.finding), event.now, "it moved", policy, written)\n    if event',
        "    if finding is None:\n        return _clear(job, _raised(attempt, "
        'phase.finding), event.now, "it moved", policy, written)\n    if event',
    ),
    Mutation(
        "the_age_at_the_verdict_is_that_of_the_suspicion",
        "watching.py",
        "_replace(attempt=attempt, finding=finding)",
        "_replace(attempt=attempt)",
    ),
    Mutation(
        "a_suspect_that_moved_is_named",
        "watching.py",
        "    if finding is None or not same(finding, phase.finding):\n        return _clear(job, _raised(attempt, "
        'phase.finding), event.now, "it moved", policy, written)\n    return job',
        "    if finding is None:\n        return _clear(job, _raised(attempt, "
        'phase.finding), event.now, "it moved", policy, written)\n    return job',
    ),
    Mutation("another_is_proven", "liveness.py", "(same(f, suspected), f.age - f.limit)", "f.age - f.limit"),
    Mutation(
        "who_was_started_again_is_as_old_as_the_attempt",
        "watching.py",
        "if attempt.moved and not seen.moved else seen",
        "if False else seen",
    ),
    Mutation("critical_fault_while_stopping_lost", "job.py", "    (Stopping, ev.Faulted): faulted_ending,\n", ""),
    Mutation("a_users_fault_is_healed", "ending.py", "if fault is not None and fault.acts else ()", "if fault else ()"),
    Mutation("a_stray_answer_condemns", "surviving.py", 'return phase.stage == "inspect"\n', "return True\n"),
    # Device faults, schedules, failures
    Mutation(
        "a_device_that_nobody_answers_for_isolates", "job.py", "if not event.held:", "if not event.held + event.silent:"
    ),
    Mutation("a_fault_is_counted_each_time_it_fires", "faulting.py", " and fault.mark not in attempt.known\n", "\n"),
    Mutation("twice_in_a_day_is_enough", "history.py", "TIMES: Final = 3", "TIMES: Final = 2"),
    Mutation("a_fault_counts_for_two_days", "history.py", "DAY: Final = 86400.0", "DAY: Final = 2 * 86400.0"),
    Mutation("another_node_counts", "history.py", "if other[:2] == one[:2]]", "if other.device == one.device]"),
    Mutation(
        "another_chip_counts",
        "history.py",
        "if other[:2] == one[:2]]",
        "if other.node == one.node]",
    ),
    Mutation("another_code_counts", "history.py", "if other.code != one.code or ", "if "),
    Mutation(
        "another_code_ends_no_row",
        "history.py",
        "if other[:2] == one[:2]]",
        "if other[:3] == one[:3]]",
    ),
    Mutation(
        "a_clock_set_back_forgives",
        "history.py",
        "    return max(0.0, now.wall - then.wall)",
        "    return 1e9 if now.wall < then.wall else now.wall - then.wall",
    ),
    Mutation(
        "the_wall_clock_decides_within_a_boot", "history.py", "if then.boot and then.boot == now.boot:", "if False:"
    ),
    Mutation("another_boot_is_the_same", "history.py", "if then.boot and then.boot == now.boot:", "if True:"),
    Mutation(
        "faults_are_forgotten_when_the_past_comes",
        "remembering.py",
        "occurrences=noted(faults, ledger.occurrences)",
        "occurrences=tuple(faults)",
    ),
    Mutation(
        "the_past_is_forgotten",
        "remembering.py",
        "occurrences=noted(faults, ledger.occurrences)",
        "occurrences=ledger.occurrences",
    ),
    Mutation("faults_of_another_job_count", "remembering.py", "if one.job in jobs]", "]"),
    Mutation("schedules_of_another_job_count", "remembering.py", "if not name or s.job == name]", "]"),
    Mutation(
        "a_fault_breaks_no_row", "history.py", "if schedule.progressed or schedule.faulted:", "if schedule.progressed:"
    ),
    Mutation(
        "progress_breaks_no_row", "history.py", "if schedule.progressed or schedule.faulted:", "if schedule.faulted:"
    ),
    Mutation("a_stopped_schedule_counts", "history.py", "row += schedule.failed and not schedule.faulted", "row += 1"),
    Mutation("the_third_schedule_is_the_last", "ending.py", "or vain < TIMES:", "or vain < TIMES - 1:"),
    Mutation("progress_now_is_not_seen", "ending.py", "if job.ledger.reached or clear", "if clear"),
    Mutation("a_fault_now_is_not_seen", "ending.py", "if job.ledger.reached or clear", "if job.ledger.reached"),
    Mutation(
        "user_faults_are_rescheduled_for_ever",
        "ending.py",
        " and want.code != exitcode.USER_FAULT_LIMIT.code",
        "",
    ),
    Mutation(
        "a_schedule_that_ended_with_196_is_not_counted",
        "ending.py",
        "ledger = ledger._replace(faulted=False)  #",
        "pass  #",
    ),
    Mutation(
        "tasks_of_a_job_count_each",
        "remembering.py",
        "if grouped and schedule.number == grouped[-1].number:",
        "if False:",
    ),
    Mutation("another_job_in_the_folder_counts", "remembering.py", "            break\n", "            continue\n"),
    Mutation(
        "best_of_the_past_is_not_taken_over",
        "remembering.py",
        "best_step=step if _above(step, ledger.best_step) else ledger.best_step",
        "best_step=ledger.best_step",
    ),
    Mutation("early_steps_count_beyond_the_past", "remembering.py", "ledger = ledger._replace(reached=False)", "pass"),
    Mutation(
        "a_users_fault_for_the_third_time_restarts",
        "ending.py",
        "if fault is not None and fault.by_user and often(",
        "if fault is not None and False and often(",
    ),
    Mutation(
        "the_third_time_is_healed", "faulting.py", "if often(job.ledger, fault, policy) else None", "if False else None"
    ),
    Mutation("an_old_fault_is_blamed", "faulting.py", "or moved > attempt.fault_at + AFTERMATH", "or False"),
    Mutation(
        "a_hang_is_not_its_faults", "watching.py", "    fault = blamed(phase.attempt, policy)\n", "    fault = None\n"
    ),
    Mutation(
        "a_fault_during_a_kill_is_not_healed",
        "faulting.py",
        "want=want._replace(faults=(*want.faults, fault))",
        "want=want",
    ),
    Mutation(
        "the_second_fault_is_not_healed",
        "faulting.py",
        "tuple(fault for fault in job.want.faults if fault.device != device)",
        "()",
    ),
    Mutation(
        "each_code_of_a_device_is_healed",
        "faulting.py",
        "tuple(fault for fault in job.want.faults if fault.device != device)",
        "job.want.faults[1:]",
    ),
    Mutation(
        "what_comes_again_is_known",
        "restarting.py",
        "attempt=phase.attempt._replace(known=())",
        "attempt=phase.attempt",
    ),
    Mutation(
        "a_device_that_was_given_up_is_healed",
        "restarting.py",
        "    under_way = isinstance(job.want, Again) and phase.fault in job.want.faults\n",
        "    under_way = True\n",
    ),
    Mutation(
        "a_removed_device_kills",
        "faulting.py",
        "fault.device in job.ledger.removed:\n        return job._replace",
        "False:\n        return job._replace",
    ),
    Mutation("the_platform_is_not_asked", "faulting.py", "return job.held is not None or ", "return "),
    Mutation(
        "the_platform_is_waited_for_for_ever",
        "restarting.py",
        "    if lighter is None:\n",
        "    if lighter is None and phase.fault is None:\n        return job, ()\n    if lighter is None:\n",
    ),
    Mutation(
        "devices_are_not_asked_after_healing",
        "restarting.py",
        "    return free(job, phase.attempt, now, policy, written)\n",
        "    return again(job, phase.attempt, now, policy, written)\n",
    ),
    Mutation(
        "too_few_devices_are_enough",
        "faulting.py",
        "or len(left) < policy.min_devices",
        "or len(left) + 1 < policy.min_devices",
    ),
    Mutation(
        "the_pod_s_end_is_not_heard_after_the_platform_s_word",
        "job.py",
        "if isinstance(job.want, Again) and event.stop:",
        "if False:",
    ),
    Mutation("who_was_sent_away_isolates_its_node", "faulting.py", "phase.fault is None and job.leaving:", "False:"),
    Mutation("a_device_comes_back_unseen", "faulting.py", "        and device.id in event.well\n", ""),
    Mutation("a_device_comes_back_at_once", "faulting.py", "        and device.id not in job.shed\n", ""),
    Mutation("a_device_comes_back_only_once", "restarting.py", ", blame=None, shed=())", ", blame=None)"),
    Mutation(
        "a_device_comes_back_again_and_again",
        "faulting.py",
        "        and not _keeps_failing(job, device.id, event.clock, policy)\n",
        "",
    ),
    Mutation("the_bad_device_stays", "faulting.py", "if device.id not in removed]", "if True]"),
    Mutation(
        "shed_though_nobody_asked", "faulting.py", "policy.min_devices is None or ", "(policy.min_devices or 0) > 9 or "
    ),
    Mutation(
        "anothers_verdict_is_not_taken",
        "job.py",
        "    if event.code is not None:\n        job",
        "    if False:\n        job",
    ),
    Mutation(
        "nobody_is_asked_for_the_verdict",
        "job.py",
        "if policy.shared and job.want.asked:",
        "if False:",
    ),
    Mutation(
        "waiting_for_the_others_for_ever",
        "restarting.py",
        'Stopping(attempt, "verdict", now + ANSWER)',
        'Stopping(attempt, "verdict")',
    ),
    Mutation(
        "a_verdict_outlives_the_stop",
        "job.py",
        "if policy.shared and job.want.asked:",
        "if policy.shared:",
    ),
    Mutation("an_incurable_failure_restarts", "exiting.py", "and not found.recoverable and", "and False and"),
    Mutation(
        "incurable_though_failures_are_not_listed",
        "exiting.py",
        ' and "failure" in policy.restart_on else None',
        " else None",
    ),
    Mutation(
        "the_first_start_asks_nobody",
        "beginning.py",
        '(("platform", policy.asks_platform), ',
        '(("platform", False), ',
    ),
    Mutation("the_first_start_waits_for_ever", "beginning.py", "(CHECK if policy.checks_devices else ANSWER)", "1e9"),
    Mutation(
        "the_first_start_looks_at_no_device",
        "beginning.py",
        '("devices", policy.checks_devices))',
        '("devices", False))',
    ),
    Mutation(
        "a_freeze_ends_the_look_at_the_devices", "beginning.py", "event, ev.Overslept) and phase.awaits", "event, int)"
    ),
    Mutation("the_first_start_waits_for_one_of_two", "beginning.py", "return (job, ()) if phase.awaits else", "return"),
    Mutation(
        "what_stands_is_not_looked_up",
        "beginning.py",
        "        if unhealed(job, fault, policy):\n",
        "        if False:\n",
    ),
    Mutation(
        "what_stands_always_ends_it", "beginning.py", "        if unhealed(job, fault, policy):\n", "        if True:\n"
    ),
    Mutation(
        "what_could_heal_ends_it_before_it_starts",
        "faulting.py",
        'if event.fault.severity != "critical" or event.fault.device in job.ledger.removed:',
        "if event.fault.device in job.ledger.removed:",
    ),
    Mutation(
        "a_removed_device_ends_it_before_it_starts",
        "faulting.py",
        'if event.fault.severity != "critical" or event.fault.device in job.ledger.removed:',
        'if event.fault.severity != "critical":',
    ),
    Mutation(
        "what_stood_before_acts_when_it_is_seen_late",
        "faulting.py",
        'if not event.standing or event.fault.severity == "critical":',
        "if True:",
    ),
    Mutation(
        "what_is_critical_and_seen_late_is_let_be",
        "faulting.py",
        'if not event.standing or event.fault.severity == "critical":',
        "if not event.standing:",
    ),
    # Where the time goes
    Mutation(
        "what_the_user_halts_works", "goodput.py", 'stopped_at is None else "paused"', 'stopped_at is None else ""'
    ),
    Mutation("time_of_another_boot_counts", "goodput.py", "    if not _unstarted(before):\n", "    if True:\n"),
    Mutation("time_after_the_end_counts", "goodput.py", '_replace(into="", at=None)', '_replace(into="")'),
    Mutation("the_clock_runs_backwards", "goodput.py", "else max(account.at, now)", "else now"),
    Mutation("a_suspicion_is_a_hang", "goodput.py", "if isinstance(event, Evidenced | Ticked) else", "if True else"),
    Mutation("a_hang_begins_at_its_limit", "goodput.py", "after.phase.finding.age", "after.phase.finding.limit"),
    Mutation("a_hang_ends_at_the_suspicion", "goodput.py", "account.silent + passed if", "account.silent if"),
    Mutation("startup_until_a_look", "goodput.py", "work = min(account.open, max(0.0, now - first))", "work = 0.0"),
    Mutation("the_platform_heals", "goodput.py", "isinstance(phase, Healing) and phase.fault is not None", "phase"),
    Mutation("nothing_between_two_points", "goodput.py", "return since + (until - since) *", "return since + 0 *"),
    Mutation("steps_beyond_are_redone", "goodput.py", 'return float("inf")', "return 0.0"),
    Mutation("a_trace_for_ever", "goodput.py", "elif len(trace) == TRACE:", "elif False:"),
    Mutation("the_last_time_at_a_step", "goodput.py", "if trace and step <= trace[-1][1]:", "if False:"),
    Mutation(
        "a_checkpoint_keeps_what_follows",
        "goodput.py",
        "rest, account = min(account.open, since),",
        "rest, account = 0.0,",
    ),
    Mutation("a_late_file_is_of_this_attempt", "goodput.py", "and event.at < attempt.spawned_at", "and False"),
    Mutation("lost_before_the_steps_tell", "goodput.py", "account.past or not account.earlier", "not account.earlier"),
    Mutation("no_late_file_is_told_for_ever", "goodput.py", "account.begun or account.open >= TOLD", "account.begun"),
    Mutation("work_that_nobody_reported_may_be_kept", "goodput.py", "not (account.trace or account.saved)", "False"),
    Mutation("success_was_for_nothing", "goodput.py", "and job.phase.code == 0", "and False"),
    Mutation("goodput_before_the_checkpoint", "account.py", "pending if moved else", "0.0 if moved else"),
)
