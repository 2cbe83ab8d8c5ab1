// Times every kernel that a program runs on the device, those of recorded graphs among them.
//
// The driver loads this library by itself when CUDA_INJECTION64_PATH names it, as it does `calls.c`. KERNEL is the
// newest CUpti_ActivityKernel of cupti_activity.h, 10 in CUDA 13.0:
//   cc -O2 -shared -fPIC -DKERNEL=CUpti_ActivityKernel10 -I"$CUDA/include" -o kernels.so bench/cuda/kernels.c
//      -L"$CUDA/lib64" -lcupti
//   CUDA_INJECTION64_PATH=$PWD/kernels.so KERNELS_OUT=kernels.tsv flashmoe bench MODEL --device cuda -p 0 -n 96 -r 1
// At the end of the program the file named by KERNELS_OUT has a line per kernel, those that took longest first: its
// name, a tab, how often, a tab, microseconds in all. `bench` decodes its tokens once cold and as often as -r says.
// With KERNELS_LAST=FILE the last kernels of the program are listed there in order: name, start and length, microseconds.
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES 512
#define NAME_BYTES 96
#define BUFFER_BYTES (8 << 20)
#define LAST 1024
struct kernel {
    char name[NAME_BYTES];
    uint64_t count, nanoseconds;
};
static struct kernel kernels[NAMES];
static int names;
// A ring of what ran last.
static struct {
    int kernel;
    uint64_t start, end;
} last[LAST];
static uint64_t seen;

static void CUPTIAPI requested(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0, *most = 0;
}

// CUPTI calls this from one thread at a time.
static void CUPTIAPI completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        const KERNEL *found = (const KERNEL *)record;
        int i = 0;
        while (i < names && strncmp(kernels[i].name, found->name, NAME_BYTES - 1)) i++;
        if (i == NAMES) continue;
        if (i == names) strncpy(kernels[names++].name, found->name, NAME_BYTES - 1);
        last[seen % LAST].kernel = i, last[seen % LAST].start = found->start, last[seen % LAST].end = found->end;
        seen++;
        kernels[i].count++, kernels[i].nanoseconds += found->end - found->start;
    }
    free(buffer);
}

static int longer(const void *a, const void *b) {
    uint64_t first = ((const struct kernel *)a)->nanoseconds, second = ((const struct kernel *)b)->nanoseconds;
    return (first < second) - (first > second);
}

static void list_last(const char *path) {
    FILE *out = fopen(path, "w");
    uint64_t first = seen > LAST ? seen - LAST : 0;
    for (uint64_t i = first; out && i < seen; i++)
        fprintf(out, "%s\t%.2f\t%.2f\n", kernels[last[i % LAST].kernel].name,
                (double)(last[i % LAST].start - last[first % LAST].start) / 1e3,
                (double)(last[i % LAST].end - last[i % LAST].start) / 1e3);
    if (out) fclose(out);
}

static void report(void) {
    cuptiActivityFlushAll(1);
    if (getenv("KERNELS_LAST")) list_last(getenv("KERNELS_LAST"));
    qsort(kernels, names, sizeof(kernels[0]), longer);
    const char *path = getenv("KERNELS_OUT");
    FILE *out = path ? fopen(path, "w") : stderr;
    if (!out) return;
    for (int i = 0; i < names; i++)
        fprintf(out, "%s\t%llu\t%.1f\n", kernels[i].name, (unsigned long long)kernels[i].count,
                (double)kernels[i].nanoseconds / 1e3);
    if (out != stderr) fclose(out);
}

int InitializeInjection(void) {
    if (cuptiActivityRegisterCallbacks(requested, completed) != CUPTI_SUCCESS) return 0;
    if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return 0;
    atexit(report);
    return 1;
}
