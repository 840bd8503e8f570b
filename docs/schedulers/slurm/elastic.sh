#!/bin/bash
# As job.sh, for a group that goes on when it has lost a node: a spare takes its place, or fewer nodes go on.
#   FTRUN_GROUP_SECRET_FILE=... FTRUN_SPARES=1 sbatch --nodes=3 elastic.sh python train.py
#   FTRUN_GROUP_SECRET_FILE=... FTRUN_GROUP_SIZE=2:3 sbatch --nodes=3 elastic.sh python train.py
# What has no comment is as in job.sh.
#SBATCH --ntasks-per-node=1
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

export FTRUN_STATE_DIR="$PWD/ftrun-$SLURM_JOB_ID"
mkdir -p -m 755 "$FTRUN_STATE_DIR"
echo "$SLURM_NTASKS" >"$FTRUN_STATE_DIR/elastic" # for epilog.sh: nodes may have to be drained whatever the job ends with
[ -z "$AVOID_HUNG_NODES" ] || touch "$FTRUN_STATE_DIR/avoid"

export FTRUN_STOP_GRACE="${FTRUN_STOP_GRACE:-20s}"
export FTRUN_GROUP_ENDPOINT="${FTRUN_GROUP_ENDPOINT:-:$((20000 + SLURM_JOB_ID % 9000))}"
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# Of a lost node nothing is known but its silence: its place is free after both of these and --stop-grace.
export FTRUN_PEER_TIMEOUT="${FTRUN_PEER_TIMEOUT:-30s}" FTRUN_WAIT_PEER="${FTRUN_WAIT_PEER:-30s}"

# The message of each task at its end.  One of an earlier schedule says nothing about this one.
messages="$FTRUN_STATE_DIR/messages"
mkdir -p "$messages" && rm -f "$messages"/*

# The tasks of a step stay when one ends (--kill-on-bad-exit=0, --wait=0), and when a node fails (--no-kill, also here).
srun --no-kill --kill-on-bad-exit=0 --wait=0 \
    bash -c 'exec ftrun --termination-log "$0/$SLURM_PROCID" -- "$@"' "$messages" "$@" &
step=$!
for signal in TERM INT USR1 USR2; do trap "kill -$signal $step" $signal; done
while kill -0 $step 2>/dev/null; do wait $step; code=$?; done

# The code of srun is that of a lost or faulty task, too, of which the others needed nothing.  The job has ended as task 0
# did, which coordinates the group.  If task 0 was lost, so was the group, and the others say what to do: 195.
code_of() { grep -oh '"exit_code": *[0-9]*' "$@" 2>/dev/null | grep -o '[0-9]*$' | sort -n | tail -n 1; }
own=$(code_of "$messages/0")
own=${own:-$(code_of "$messages"/*)}
exit "${own:-$code}"
