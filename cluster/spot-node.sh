#!/bin/bash
# Start the Ray node of a machine that the provider may take away. Arguments are those of `ray start`:
#   cluster/spot-node.sh --address=HEAD:6379
# At SIGTERM, trainings with workers on this node save a checkpoint and continue on other nodes, and Ray stops when the
# node is idle, or after SPOT_SECONDS. `cluster/spot-node.sh drain` does this for the node that runs here, as a preStop
# hook of a pod.
set -euo pipefail

seconds=${SPOT_SECONDS:-90} # choose fewer than the notice: 120 at AWS, 30 at Google Cloud

# Print the folder in /proc of the raylet that process $1 has started, or of any raylet.
raylet() { # `return 0`: in a trap, a bare return repeats the status of the signal
    local folder command
    for folder in /proc/[0-9]*; do
        IFS= read -r -d '' command <"$folder/cmdline" && [[ $command == */raylet/raylet ]] || continue
        [[ -n ${1:-} ]] && ! grep -qP "^PPid:\s*$1\$" "$folder/status" || { echo "$folder" && return 0; }
    done 2>/dev/null
}

# Ask for the end of all work on the node of process $1, and wait until it has stopped or the time is over.
drain() {
    local process word address node end=$((SECONDS + seconds))
    process=$(raylet "${1:-}")
    [[ -n $process ]] || { echo "no Ray node runs here" >&2; return 0; }
    while IFS= read -r -d '' word; do
        [[ $word != --gcs-address=* ]] || address=${word#*=}
        [[ $word != --node_id=* ]] || node=${word#*=}
    done <"$process/cmdline"
    echo "draining node $node for at most $seconds s" >&2
    ray drain-node --address="$address" --node-id="$node" --reason=DRAIN_NODE_REASON_PREEMPTION \
        --reason-message="the machine stops" --deadline-remaining-seconds="$seconds" || return 0
    while [[ -d $process ]] && ((SECONDS < end)); do sleep 1; done
}

if [[ ${1:-} == drain ]]; then
    drain
    exit
fi
ray start --block "$@" &
node=$!
trap 'trap "" TERM; drain $node; kill -TERM $node 2>/dev/null || true' TERM
code=0
wait "$node" || code=$?
while kill -0 "$node" 2>/dev/null; do # a signal has ended the wait
    code=0
    wait "$node" || true
done
exit "$code"
