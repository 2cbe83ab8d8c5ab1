// A disk of one rate, without bursts: positional reads of a program take turns, each for as long as its bytes take.
//
//   gcc -O2 -shared -fPIC -o pace.so pace.c        LD_PRELOAD=./pace.so FLASHMOE_PACE=700000000 program
//
// The kernel's block-I/O controller counts in slices of 100 ms: reads of less than a slice's bytes behind a pause pass at
// the drive's own speed, and a stage that waits for another has such pauses. For `--io pread`: io_uring reads by itself.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long long free_at;

static long long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

ssize_t pread64(int file, void *to, size_t bytes, off_t offset) {
    static ssize_t (*next)(int, void *, size_t, off_t);
    static double rate;
    pthread_mutex_lock(&lock);
    if (!next) {
        next = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
        const char *said = getenv("FLASHMOE_PACE");
        rate = said ? atof(said) : 0;
    }
    long long begins = now();
    if (begins < free_at) begins = free_at;
    long long due = begins + (rate > 0 ? (long long)(bytes / rate * 1e9) : 0);
    free_at = due;
    pthread_mutex_unlock(&lock);
    ssize_t got = next(file, to, bytes, offset);
    struct timespec until = {due / 1000000000LL, due % 1000000000LL};
    while (due > now() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {}
    return got;
}
