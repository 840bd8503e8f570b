#!/bin/bash
# EpilogSlurmctld: what a verdict of ftrun says of a node of the job that has ended.
#   197  drain that node.  Slurm starts the job again only after this has ended, so it comes back on another node.
#   195  with AVOID_HUNG_NODES=1 in job.sh: this job comes back without that node; it stays good for others.
# A job of elastic.sh goes on after a 197 of one node, and that node is drained whatever the job ends with.
# What goes wrong is in the system log (ftrun-epilog), and in slurmctld's, by the exit status.
export PATH=/usr/bin:/bin # Slurm gives none: add where scontrol is

state="$SLURM_JOB_WORK_DIR/ftrun-$SLURM_JOB_ID" # the state dir of job.sh and elastic.sh
is_elastic() { timeout 10 test -e "$state/elastic"; }
case $SLURM_JOB_EXIT_CODE2 in
    197:0) ;;
    195:0) [ -e "$state/avoid" ] || is_elastic || exit 0 ;;
    *) is_elastic || exit 0 ;;
esac
code=${SLURM_JOB_EXIT_CODE2%:0}

fail() {
    logger -t ftrun-epilog -p daemon.err -- "job $SLURM_JOB_ID: $1" 2>/dev/null
    echo "ftrun-epilog: job $SLURM_JOB_ID: $1" >&2
    exit 1
}

# Slurm gives no SLURM_CONF either: where its file is not in /etc/slurm, slurmctld itself was told, and it is above us.
if [ -z "$SLURM_CONF" ]; then
    pid=$PPID
    while [ "${pid:-0}" -gt 1 ] && [ -z "$SLURM_CONF" ]; do
        mapfile -d '' -t words 2>/dev/null <"/proc/$pid/cmdline"
        for ((i = 1; i < ${#words[@]}; i++)); do [ "${words[i]}" = -f ] && SLURM_CONF=${words[i + 1]}; done
        [ -n "$SLURM_CONF" ] || SLURM_CONF=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | sed -n 's/^SLURM_CONF=//p')
        pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    done
    [ -z "$SLURM_CONF" ] || export SLURM_CONF
fi

# The files are the user's: whatever they are, a few seconds and KiB are all that each gets.
look() { verdict=$(timeout 10 head -c 65536 -- "$state/$1" 2>/dev/null | tr '\0\n' '  ') && [ -n "$verdict" ]; }

# Keys are told from words of a message by their quotes, which are escaped there.
number() { [[ $verdict =~ \"$1\"\ *:\ *([0-9]+) ]] && echo "${BASH_REMATCH[1]}"; }
text() { [[ $verdict =~ \"$1\"\ *:\ *\"(([^\"\\]|\\.)*)\" ]] && echo "${BASH_REMATCH[1]}"; }

# Any job may end with these codes; only a verdict of this very schedule, and on a node of this job, touches a node.
says() { [ "$(number exit_code)" = "$1" ] && [ "$(number schedule_cnt)" = $((SLURM_JOB_RESTART_COUNT + 1)) ]; }
find_node() {
    node=$(text node)
    grep -qxF -e "$node" <<<"$nodes" || fail "its verdict names $node, which is none of its nodes"
}
drain() {
    find_node
    why=$(text why)
    why=${why//[^[:alnum:] .,:;()_\/-]/ }
    said=$(scontrol update NodeName="$node" State=DRAIN Reason="ftrun: job $SLURM_JOB_ID: ${why:0:200}" 2>&1) ||
        fail "$node is not drained: ${said:0:200}"
}

if [ "$code" = 195 ] || [ "$code" = 197 ]; then
    look verdict.json || is_elastic || fail "it ended with $code, and no verdict can be read in $state: no node is touched"
fi
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>&1) || fail "scontrol: ${nodes:0:200}"

# The verdicts of members that ended alone; the file has the number of members.
status=0
if is_elastic; then
    members=$(timeout 10 head -c 5 -- "$state/elastic" 2>/dev/null | tr -cd 0-9)
    for ((member = 0; member < 10#${members:-0}; member++)); do
        [ -e "$state/verdict-member-$member.json" ] && look "verdict-member-$member.json" && says 197 || continue
        (drain) || status=1
    done
fi

look verdict.json && says "$code" || exit $status
if [ "$code" = 197 ]; then
    drain
    exit $status
fi
[ -e "$state/avoid" ] && [ "$code" = 195 ] || exit $status
find_node

# Only a job that waits can be changed, and this one does a moment after we have ended: in a session of its own, since
# Slurm ends ours with us.
export SLURM_JOB_ID node
export -f fail
setsid bash -c '
    for _ in {1..120}; do
        shown=$(scontrol show job "$SLURM_JOB_ID" 2>&1)
        if [[ $shown == *JobState=PENDING* ]]; then
            [[ $shown =~ ExcNodeList=([^[:space:]]*) ]]
            list=${BASH_REMATCH[1]/"(null)"/}
            said=$(scontrol update JobId="$SLURM_JOB_ID" ExcNodeList="${list:+$list,}$node" 2>&1) && exit 0
        fi
        sleep 0.25
    done
    fail "it may come back on $node: ${said:-$shown}"
' </dev/null >/dev/null 2>&1 &
exit $status
