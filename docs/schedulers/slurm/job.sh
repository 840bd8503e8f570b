#!/bin/bash
# One ftrun a node, each with the same command:   sbatch --nodes=2 job.sh python train.py
# Options of Slurm go before job.sh, those of ftrun into the environment: FTRUN_HANG_TIMEOUT=10m sbatch job.sh ...
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# A minute before the time limit, SIGUSR1 to the training.  Only for one that handles it; any other dies of it.
##SBATCH --signal=B:USR1@60

# What the nodes and the schedules of this job have in common, on a disk that they share.  epilog.sh looks there, too.
export FTRUN_STATE_DIR="$PWD/ftrun-$SLURM_JOB_ID"
mkdir -p -m 755 "$FTRUN_STATE_DIR"

# AVOID_HUNG_NODES=1 sbatch ...: after a 195 this job comes back without the node that its verdict names (epilog.sh).
[ -z "$AVOID_HUNG_NODES" ] || touch "$FTRUN_STATE_DIR/avoid"

# Less than KillWait (30 s): a training that ignores SIGTERM must not take its ftrun, and the verdict, down with it.
export FTRUN_STOP_GRACE="${FTRUN_STOP_GRACE:-20s}"

# With a secret the ftruns are a group, which restarts in step.  A port of the job's own, as nodes may be shared.
if [ -n "$FTRUN_GROUP_SECRET_FILE" ]; then
    export FTRUN_GROUP_ENDPOINT="${FTRUN_GROUP_ENDPOINT:-:$((20000 + SLURM_JOB_ID % 9000))}"
fi

# sbatch's --cpus-per-task, which srun does not take over by itself.
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# exec: a signal for the batch script is srun's, which hands it on and waits; a shell would die of it, and srun, too.
exec srun --kill-on-bad-exit=1 ftrun -- "$@"
