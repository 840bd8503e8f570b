/* Heartbeats from C: cc -o train beat.c; ftrun --hang-timeout 10m ./train */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int beats = -1;

static void beat(void) {
    const char *folder = getenv("FTRUN_BEAT_DIR");
    if (beats < 0 && folder) {
        int at = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
        beats = openat(at, "touch", O_WRONLY | O_CLOEXEC);
        close(at);
    }
    if (beats >= 0)
        futimens(beats, NULL);
}

int main(void) {
    for (int step = 0; step < 3; step++) {
        usleep(100000); /* train */
        beat();
    }
    return 0;
}
