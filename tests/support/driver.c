/* What a driver's library does while a host waits for its device. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

static atomic_int never;

void synchronize_by_spinning(void) {
    while (!atomic_load(&never)) {}
}

void synchronize_by_yielding(void) {
    while (!atomic_load(&never)) sched_yield();
}

void synchronize_by_blocking(void) {
    while (!atomic_load(&never)) poll(0, 0, 100);
}

/* As torch_npu, until its queue is empty. */
void synchronize_by_reading(void) {
    eventfd_t empty;
    eventfd_read(eventfd(0, EFD_CLOEXEC), &empty);
}

static void *spin(void *unused) {
    synchronize_by_spinning();
    return unused;
}

/* A thread that carries out a collective, under the name that it has in NCCL. */
int carry(void) {
    pthread_t thread;
    return pthread_create(&thread, 0, spin, 0) || pthread_setname_np(thread, "NCCL Progress 0");
}
