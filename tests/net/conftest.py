from support.hosts import hosts as hosts
