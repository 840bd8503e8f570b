/* A library with threads of its own, as libcuda.so.1 and libnccl.so.2 have them: one that polls every 100 ms, one that
   waits for a condition with a timeout, one that waits for ever.  And as libtorch_cpu.so: one that serves connections,
   beside one that waits for work. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static int ends[2];

static void *polls(void *nothing) {
    struct pollfd all = {ends[0], POLLIN, 0};
    pthread_setname_np(pthread_self(), "cuda-EvtHandlr");
    for (;;) poll(&all, 1, 100);
    return nothing;
}

static void *times_out(void *nothing) {
    pthread_mutex_lock(&lock);
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&never, &lock, &until);
    }
    return nothing;
}

static void *waits(void *nothing) {
    pthread_mutex_lock(&lock);
    for (;;) pthread_cond_wait(&never, &lock);
    return nothing;
}

/* A wait in the library, of whoever calls it: with a driver it would be for the device. */
void synchronize(void) {
    pthread_mutex_lock(&lock);
    for (;;) pthread_cond_wait(&never, &lock);
}

int begin(void) {
    pthread_t one, two, three;
    if (pipe(ends)) return -1;
    return pthread_create(&one, 0, polls, 0) | pthread_create(&two, 0, times_out, 0) | pthread_create(&three, 0, waits, 0);
}

static int pool;

static void *serves(void *nothing) {
    struct epoll_event event;
    for (;;) epoll_wait(pool, &event, 1, -1);
    return nothing;
}

/* Threads of torch: one of this name that serves connections at this port (0: a free one), and one that waits for
   work.  The port, or -1. */
int serve(const char *name, int port) {
    pthread_t one, two;
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    socklen_t length = sizeof at;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    pool = epoll_create1(0);
    if (bind(server, (struct sockaddr *)&at, length) || listen(server, 9) || epoll_ctl(pool, EPOLL_CTL_ADD, server, &event))
        return -1;
    if (pthread_create(&one, 0, serves, 0) | pthread_create(&two, 0, waits, 0) | pthread_setname_np(one, name)) return -1;
    return getsockname(server, (struct sockaddr *)&at, &length) ? -1 : ntohs(at.sin_port);
}
