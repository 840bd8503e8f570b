/* Ranks of MPI that touch the file of the heartbeats in each step.  In the first start, by the first argument, one of
   them stands still or ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **words) {
    char path[4096];
    int rank, sum;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s/touch", getenv("FTRUN_BEAT_DIR"));
    int beats = open(path, O_WRONLY | O_CLOEXEC);
    for (int step = 0; step < 20; step++) {
        usleep(50000);
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        futimens(beats, NULL);
        if (step == 10 && rank == 1 && !strcmp(getenv("MA_PROC_START_CNT"), "1")) {
            if (!strcmp(words[1], "hang"))
                pause();
            if (!strcmp(words[1], "crash"))
                _exit(5);
        }
    }
    MPI_Finalize();
    return 0;
}
