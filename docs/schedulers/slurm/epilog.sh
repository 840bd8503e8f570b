#!/bin/bash
# EpilogSlurmctld: drain the node that the ftrun of this job found at fault (exit code 197).
# Slurm starts the job again only after this has ended, so it comes back on another node.
export PATH=/usr/bin:/bin # Slurm gives none: add where scontrol is

[ "$SLURM_JOB_EXIT_CODE2" = 197:0 ] || exit 0

# The state dir of job.sh.  The file is the user's: whatever it is, a few seconds and KiB are all that it gets.
verdict=$(timeout 10 head -c 65536 -- "$SLURM_JOB_WORK_DIR/ftrun-$SLURM_JOB_ID/verdict.json" | tr '\0\n' '  ')

# Keys are told from words of a message by their quotes, which are escaped there.
number() { [[ $verdict =~ \"$1\"\ *:\ *([0-9]+) ]] && echo "${BASH_REMATCH[1]}"; }
text() { [[ $verdict =~ \"$1\"\ *:\ *\"(([^\"\\]|\\.)*)\" ]] && echo "${BASH_REMATCH[1]}"; }

# Any job may end with 197; only a verdict of this very schedule, and on a node of this job, takes a node away.
[ "$(number exit_code)" = 197 ] || exit 0
[ "$(number schedule_cnt)" = $((SLURM_JOB_RESTART_COUNT + 1)) ] || exit 0
node=$(text node)
scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -qxF -e "$node" || exit 1

why=$(text why)
why=${why//[^[:alnum:] .,:;()_\/-]/ }
exec scontrol update NodeName="$node" State=DRAIN Reason="ftrun: job $SLURM_JOB_ID: ${why:0:200}"
