from hosts import hosts as hosts
