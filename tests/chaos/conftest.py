from runs import runs as runs
