#!/bin/sh
# A custom plugin of node-problem-detector: does a verdict of ftrun's say that this node is at fault?
#   npd-check.sh FOLDER      looks at the verdicts in FOLDER and FOLDER/*; NODE_NAME says which node this is
# Exit code 0: none does.  1: one does, and what it says is on stdout.  2: cannot tell.
[ -n "${NODE_NAME:-}" ] || { echo "NODE_NAME is not set"; exit 2; }
[ -d "${1:-}" ] || exit 0 # no training has run here

# Of a pod that has ended alone while the others of its group go on: verdict-member-<n>.json.
for file in "$1"/verdict.json "$1"/verdict-member-*.json "$1"/*/verdict.json "$1"/*/verdict-member-*.json; do
    [ -r "$file" ] || continue
    said=$(tr -d ' \n' < "$file")
    case $said in *'"verdict":"node-fault"'*) ;; *) continue ;; esac
    case $said in *'"node":"'"$NODE_NAME"'"'*) ;; *) continue ;; esac # on a shared disk: of another node
    why=$(tr -d '\n' < "$file" | sed -n 's/.*"why": *"\(\([^"\\]\|\\.\)*\)".*/\1/p')
    echo "$file: ${why:-node-fault}"
    exit 1
done
exit 0
