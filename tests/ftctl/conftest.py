from support.runs import runs as runs
