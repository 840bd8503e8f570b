/* A libnvidia-ml.so.1 for tests, whose answers come from a file that nvml.py writes.

   $FTRUN_FAKE_NVML names the file, which every call reads.  A line is SCOPE FROM KEY VALUE...: SCOPE is "-" for the
   library, "0" for GPU 0, "0.1" for MIG device 1 of it; the line is valid from FROM (CLOCK_MONOTONIC, s) on, and the last
   valid one is used.  A value that is missing is not supported.  Layouts are those of nvml.h (versions as named).
   -DOLD leaves out what drivers before 450 did not have. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    OK, UNINITIALIZED, INVALID, UNSUPPORTED, NO_PERMISSION, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15
};
enum { GPUS = 16, MIGS = 7, PIDS = 64, TEXT = 1 << 16 };

typedef struct { char scope[16]; int gpu, mig; } Device; /* mig: -1 for the GPU itself */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process; /* nvmlProcessInfo_v2_t */
typedef struct { Device *device; unsigned long long type, data; unsigned gi, ci; } Event;
typedef struct {
    unsigned field, scope; int64_t timestamp, latency; unsigned type; int result;
    union { double d; unsigned ui; unsigned long long ull; } value;
} Field;
typedef struct { int registered[GPUS]; long seen[GPUS]; } Set;

static Device devices[GPUS], migs[GPUS][MIGS];
static double epoch = -1; /* of the driver at the initialisation; -1: not initialised */
static int initialised;   /* how often */
static int fallen[GPUS];  /* lost GPUs, until the library is initialised again */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void pause_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* The content of the file, which is only ever replaced. */
static const char *state(void) {
    static char text[TEXT];
    static ino_t inode;
    static struct timespec changed;
    const char *path = getenv("FTRUN_FAKE_NVML");
    struct stat now;
    FILE *file;
    if (!path || stat(path, &now)) return "";
    if (now.st_ino == inode && !memcmp(&now.st_mtim, &changed, sizeof changed)) return text;
    inode = now.st_ino;
    changed = now.st_mtim;
    file = fopen(path, "r");
    text[file ? fread(text, 1, TEXT - 1, file) : 0] = 0;
    if (file) fclose(file);
    return text;
}

static const char *next(const char *line) {
    const char *end = strchr(line, '\n');
    return end ? end + 1 : line + strlen(line);
}

/* Store the value of a key in `value`; returns whether there is one. */
static int get(const char *scope, const char *key, char *value, size_t size) {
    size_t length = strlen(scope), k = strlen(key);
    int found = 0;
    for (const char *line = state(); *line; line = next(line)) {
        char *rest;
        double from;
        if (strncmp(line, scope, length) || line[length] != ' ') continue;
        from = strtod(line + length, &rest);
        if (strncmp(++rest, key, k) || rest[k] != ' ' || (from > 0 && from > now())) continue;
        rest += k + 1;
        snprintf(value, size, "%.*s", (int)strcspn(rest, "\n"), rest);
        found = *value != 0;
    }
    return found;
}

static int number(const char *scope, const char *key, double *value) {
    char text[64];
    return get(scope, key, text, sizeof text) && sscanf(text, "%lf", value) == 1;
}

static double number_or(const char *scope, const char *key, double otherwise) {
    double value;
    return number(scope, key, &value) ? value : otherwise;
}

/* Create the file STATE.blocked. */
static void report_blocked(void) {
    char path[4096];
    FILE *file;
    snprintf(path, sizeof path, "%s.blocked", getenv("FTRUN_FAKE_NVML"));
    if ((file = fopen(path, "w"))) fclose(file);
}

/* The begin of every call: it blocks or fails as the file demands. */
static int enter(const Device *device, const char *call) {
    char key[96], which[64];
    const char *scope = device ? device->scope : "-";
    char parent[16] = "-";
    double code;
    if (device) snprintf(parent, sizeof parent, "%d", device->gpu);
    while ((get("-", "blocks", which, sizeof which) || get(scope, "blocks", which, sizeof which))
           && (!strcmp(which, call) || !strcmp(which, "*"))) {
        report_blocked();
        pause_ms(5);
    }
    if (strcmp(call, "nvmlInitWithFlags") && epoch != number_or("-", "epoch", 0)) return UNINITIALIZED;
    snprintf(key, sizeof key, "error:%s", call);
    if (number("-", key, &code) || number(scope, key, &code)) return (int)code;
    if (number("-", "error:*", &code) || number(scope, "error:*", &code)) return (int)code;
    if (device && number_or(parent, "lost", 0)) fallen[device->gpu] = 1;
    return device && fallen[device->gpu] ? LOST : OK;
}

#define ENTER(device) do { int error = enter(device, __func__); if (error) return error; } while (0)

static int integer(const Device *device, const char *key, double factor, unsigned *value) {
    double found;
    if (!number(device->scope, key, &found)) return UNSUPPORTED;
    *value = (unsigned)(found * factor + 0.5);
    return OK;
}

static int copy(const Device *device, const char *key, char *to, unsigned size) {
    return get(device->scope, key, to, size) ? OK : UNSUPPORTED;
}

/* "holders" are PID:BYTES, listed and counted while these processes exist; "pids" are always listed. */
static unsigned holders(const Device *device, Process *found, unsigned long long *bytes) {
    char text[4096], *rest = text, *item;
    unsigned n = 0;
    *bytes = 0;
    if (!get(device->scope, "holders", text, sizeof text)) *text = 0;
    while ((item = strsep(&rest, " "))) {
        unsigned long long used;
        unsigned pid;
        char path[32];
        if (sscanf(item, "%u:%llu", &pid, &used) != 2 || n >= PIDS) continue;
        snprintf(path, sizeof path, "/proc/%u", pid);
        if (access(path, F_OK)) continue;
        found[n++] = (Process){pid, used, 0, 0};
        *bytes += used;
    }
    if (!get(device->scope, "pids", text, sizeof text)) *text = 0;
    for (rest = text; (item = strsep(&rest, " "));)
        if (*item && n < PIDS) found[n++] = (Process){(unsigned)atoi(item), 0, 0, 0};
    return n;
}

static int processes(const Device *device, unsigned *count, Process *to) {
    Process found[PIDS];
    unsigned long long bytes;
    unsigned n = holders(device, found, &bytes), room = *count;
    *count = n;
    if (n > room) return TOO_SMALL;
    if (n) memcpy(to, found, n * sizeof *found);
    return OK;
}

static int none(const Device *device, unsigned *count) {
    (void)device;
    *count = 0;
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(NULL);
    if (epoch == number_or("-", "epoch", 0) && initialised++) return OK;
    initialised = 1;
    memset(fallen, 0, sizeof fallen);
    for (int g = 0; g < GPUS; g++) {
        devices[g] = (Device){.gpu = g, .mig = -1};
        snprintf(devices[g].scope, sizeof devices[g].scope, "%d", g);
        for (int m = 0; m < MIGS; m++) {
            migs[g][m] = (Device){.gpu = g, .mig = m};
            snprintf(migs[g][m].scope, sizeof migs[g][m].scope, "%d.%d", g, m);
        }
    }
    epoch = number_or("-", "epoch", 0);
    return OK;
}

int nvmlShutdown(void) {
    ENTER(NULL);
    if (!--initialised) epoch = -1;
    return OK;
}

const char *nvmlErrorString(int code) { (void)code; return "An error of the fake library"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = (unsigned)number_or("-", "devices", 0);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= GPUS || index >= number_or("-", "devices", 0)) return INVALID;
    ENTER(&devices[index]);
    *device = &devices[index];
    return OK;
}

int nvmlDeviceGetUUID(Device *d, char *to, unsigned size) { ENTER(d); return copy(d, "uuid", to, size); }
int nvmlDeviceGetName(Device *d, char *to, unsigned size) { ENTER(d); return copy(d, "name", to, size); }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *to) { ENTER(d); return integer(d, "power", 1000, to); }
int nvmlDeviceGetClockInfo(Device *d, int kind, unsigned *to) { ENTER(d); (void)kind; return integer(d, "clock", 1, to); }

int nvmlDeviceGetUtilizationRates(Device *d, Rates *to) {
    ENTER(d);
    if (integer(d, "util", 1, &to->gpu)) return UNSUPPORTED;
    return integer(d, "memory_util", 1, &to->memory);
}

int nvmlDeviceGetMemoryInfo(Device *d, Memory *to) {
    Process found[PIDS];
    unsigned long long held;
    double total;
    ENTER(d);
    if (!number(d->scope, "memory_total", &total)) return UNSUPPORTED;
    holders(d, found, &held);
    to->total = (unsigned long long)total;
    to->used = held + (unsigned long long)number_or(d->scope, "memory_used", 0);
    to->free = to->total - to->used;
    return OK;
}

/* As in the driver, which measures for 20 ms. */
int nvmlDeviceGetPcieThroughput(Device *d, int direction, unsigned *to) {
    ENTER(d);
    if (integer(d, direction ? "received" : "sent", 1e-3, to)) return UNSUPPORTED;
    pause_ms(20);
    return OK;
}

int nvmlDeviceGetTotalEccErrors(Device *d, int kind, int counter, unsigned long long *to) {
    double value;
    ENTER(d);
    (void)counter;
    if (!number(d->scope, kind == 1 ? "ecc_errors" : "ecc_corrected", &value)) return UNSUPPORTED;
    *to = (unsigned long long)value;
    return OK;
}

int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
    char key[32];
    ENTER(d);
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "field:%u", fields[i].field);
        fields[i].type = 1;
        fields[i].result = integer(d, key, 1, &fields[i].value.ui);
    }
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *d, unsigned *n, Process *to) {
    ENTER(d);
    return processes(d, n, to);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(Device *d, unsigned *n, Process *to) {
    ENTER(d);
    (void)to;
    return none(d, n);
}

int nvmlEventSetCreate(Set **set) {
    ENTER(NULL);
    *set = calloc(1, sizeof **set);
    return OK;
}

int nvmlEventSetFree(Set *set) {
    ENTER(NULL);
    free(set);
    return OK;
}

/* The first Xid of this GPU after number `after`, or the last number: XID's value is NUMBER CODE GI. */
static long xid(int gpu, long after, unsigned *code, unsigned *gi, int *found) {
    long n;
    int g;
    *found = 0;
    for (const char *line = state(); *line; line = next(line))
        if (sscanf(line, "%d 0 xid %ld %u %u", &g, &n, code, gi) == 4 && g == gpu && n > after) {
            *found = 1;
            return n;
        }
    return after;
}

int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, Set *set) {
    unsigned code, gi;
    int more = 1;
    ENTER(d);
    if (!set || !types) return INVALID;
    if (d->mig >= 0) return UNSUPPORTED;
    while (more) set->seen[d->gpu] = xid(d->gpu, set->seen[d->gpu], &code, &gi, &more);
    set->registered[d->gpu] = 1;
    return OK;
}

#ifndef OLD
int nvmlEventSetWait_v2(Set *set, Event *event, unsigned timeout) {
    double until = now() + timeout / 1e3;
    ENTER(NULL);
    for (;;) {
        for (int g = 0; g < GPUS; g++) {
            unsigned code, gi;
            int found;
            long n;
            if (!set->registered[g]) continue;
            n = xid(g, set->seen[g], &code, &gi, &found);
            if (found) {
                set->seen[g] = n;
                *event = (Event){&devices[g], 8, code, gi, gi};
                return OK;
            }
            /* nvml.h: "if a GPU has fallen off the bus"; then it does not wait. */
            if (number_or(devices[g].scope, "lost", 0) || fallen[g]) return LOST;
        }
        if (now() >= until) return TIMEOUT;
        pause_ms(1);
    }
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *n, Process *to) {
    ENTER(d);
    return processes(d, n, to);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *d, unsigned *n, Process *to) {
    ENTER(d);
    (void)to;
    return none(d, n);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *d, unsigned *n, Process *to) {
    ENTER(d);
    (void)to;
    return none(d, n);
}

int nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed) {
    ENTER(d);
    *pending = *failed = 0;
    if (integer(d, "rows_corrected", 1, corrected)) return UNSUPPORTED;
    return integer(d, "rows_uncorrected", 1, not);
}

int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
    ENTER(d);
    *current = *pending = number_or(d->scope, "migs", 0) > 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *count) {
    ENTER(d);
    *count = MIGS;
    return OK;
}

/* Only every second index has a device. */
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **mig) {
    ENTER(d);
    if (index >= MIGS || index % 2 || index / 2 >= number_or(d->scope, "migs", 0)) return NOT_FOUND;
    *mig = &migs[d->gpu][index / 2];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *id) {
    ENTER(d);
    if (d->mig < 0) return UNSUPPORTED;
    *id = (unsigned)d->mig + 1;
    return OK;
}

int nvmlDeviceGetComputeInstanceId(Device *d, unsigned *id) {
    ENTER(d);
    if (d->mig < 0) return UNSUPPORTED;
    *id = 0;
    return OK;
}
#endif
