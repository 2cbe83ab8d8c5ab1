/* Reads records of a file at random, one way at a time, and prints bytes a second and processor time.
 *
 * reads FILE RECORD_BYTES THREADS SECONDS WAY HINT CUTS ALIGN
 *   WAY   direct | buffered | mapped
 *   HINT  none | sequential | random | willneed   (posix_fadvise for reads, madvise for maps; random turns read-ahead off;
 *         willneed asks for each record just before it is read)
 *   CUTS  a record is read in so many reads, one after the other
 *   ALIGN address that destinations are multiples of: 4096 or 2097152 (then on huge pages where the system has them)
 * Every thread owns a destination of one record and takes the next record of a permutation, so none is read twice before
 * all were read. Threads are the queue depth.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int file;
static uint8_t *map;
static size_t record, records, align;
static int cuts, each_hint;
static double ends;
static _Atomic size_t next, bytes;
static uint32_t *order;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void *reader(void *unused) {
    size_t room = (record + align - 1) / align * align;
    uint8_t *raw = mmap(NULL, room + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) fail("destination");
    uint8_t *destination = (uint8_t *)(((uintptr_t)raw + align - 1) / align * align);
    if (align > 4096) madvise(destination, room, MADV_HUGEPAGE);
    memset(destination, 1, record);
    while (now() < ends) {
        size_t offset = record * order[atomic_fetch_add(&next, 1) % records];
        if (each_hint && map) madvise(map + offset, record, MADV_WILLNEED);
        if (each_hint && !map) posix_fadvise(file, (off_t)offset, (off_t)record, POSIX_FADV_WILLNEED);
        if (map) {
            memcpy(destination, map + offset, record);
        } else {
            size_t piece = (record / (size_t)cuts + 4095) / 4096 * 4096;
            for (size_t at = 0; at < record; at += piece) {
                size_t want = record - at < piece ? record - at : piece;
                if (pread(file, destination + at, want, (off_t)(offset + at)) != (ssize_t)want) fail("read");
            }
        }
        atomic_fetch_add(&bytes, record);
    }
    return unused;
}

int main(int count, char **words) {
    if (count != 9) {
        fprintf(stderr, "reads FILE RECORD_BYTES THREADS SECONDS WAY HINT CUTS ALIGN\n");
        return 2;
    }
    const char *way = words[5], *hint = words[6];
    int threads = atoi(words[3]);
    record = strtoull(words[2], NULL, 10) / 4096 * 4096;
    cuts = atoi(words[7]);
    align = strtoull(words[8], NULL, 10);
    file = open(words[1], O_RDONLY | (strcmp(way, "direct") == 0 ? O_DIRECT : 0));
    struct stat info;
    if (file < 0 || fstat(file, &info) != 0) fail(words[1]);
    records = (size_t)info.st_size / record;
    if (records < 2 || record == 0 || threads < 1 || cuts < 1 || align < 4096) fail("arguments");
    if (strcmp(way, "mapped") == 0) {
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (map == MAP_FAILED) fail("map");
    }
    int advice = -1, map_advice = -1;
    if (strcmp(hint, "sequential") == 0) advice = POSIX_FADV_SEQUENTIAL, map_advice = MADV_SEQUENTIAL;
    if (strcmp(hint, "random") == 0) advice = POSIX_FADV_RANDOM, map_advice = MADV_RANDOM;
    each_hint = strcmp(hint, "willneed") == 0;
    if (advice >= 0 && (map ? madvise(map, (size_t)info.st_size, map_advice) : posix_fadvise(file, 0, 0, advice)) != 0)
        fail("hint");
    order = malloc(records * sizeof *order);
    if (!order) fail("order");
    for (size_t index = 0; index < records; index++) order[index] = (uint32_t)index;
    uint64_t state = 88172645463325252u ^ (uint64_t)getpid();
    for (size_t index = records - 1; index > 0; index--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        size_t other = state % (index + 1);
        uint32_t held = order[index];
        order[index] = order[other], order[other] = held;
    }
    double start = now();
    ends = start + atof(words[4]);
    pthread_t ids[256];
    for (int index = 0; index < threads && index < 256; index++)
        if (pthread_create(&ids[index], NULL, reader, NULL) != 0) fail("thread");
    for (int index = 0; index < threads && index < 256; index++) pthread_join(ids[index], NULL);
    double took = now() - start;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double system = (double)usage.ru_stime.tv_sec + 1e-6 * (double)usage.ru_stime.tv_usec;
    double user = (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec;
    printf("{\"bytes_per_second\": %.0f, \"cpu_seconds_per_gb\": %.4f, \"major_faults\": %ld}\n", (double)bytes / took,
           (system + user) / ((double)bytes / 1e9 + 1e-12), usage.ru_majflt);
    return 0;
}
