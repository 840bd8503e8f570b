#!/bin/sh
# Cordons the node of each pod that ended with ftrun's verdict node-fault (197).  Needs kubectl; runs for ever.
#
# It reads the termination messages of pods with the label ftrun/on-node-fault=cordon.  A pod can only cordon the node
# that it ran on: a verdict of another node, which ranks may share, is left to that node's own pod.  Done with a pod, it
# changes the label to "cordoned", so that a node which you uncordon after its repair stays so.
# It watches: a JobSet and a Volcano Job delete their pods when they restart.
set -u
label=ftrun/on-node-fault

# A line each: node, namespace, pod, message; the message quoted, so that a line break in it cannot make up a line.
# shellcheck disable=SC2016 # the dollars are the template's
ended='{{$pod := .}}{{range .status.containerStatuses}}{{with .state.terminated}}{{with .message}}'\
'{{$pod.spec.nodeName}} {{$pod.metadata.namespace}} {{$pod.metadata.name}} {{printf "%q" .}}{{"\n"}}'\
'{{end}}{{end}}{{end}}'

while :; do
    kubectl get pods --all-namespaces --watch --selector "$label=cordon" --output go-template="$ended" |
        while read -r node namespace pod message; do
            said=$(printf %s "$message" | tr -d ' ')
            case $said in *'\"verdict\":\"node-fault\"'*) ;; *) continue ;; esac
            case $said in *'\"node\":\"'"$node"'\"'*) ;; *'\"node\":\"'*) continue ;; esac
            printf '%s: %s/%s says %s\n' "$node" "$namespace" "$pod" "$message"
            kubectl cordon "$node" &&
                kubectl annotate node "$node" --overwrite "ftrun/node-fault=$namespace/$pod" &&
                kubectl label pod "$pod" --namespace "$namespace" --overwrite "$label=cordoned"
        done
    sleep 1 # the API server ends a watch now and then
done
