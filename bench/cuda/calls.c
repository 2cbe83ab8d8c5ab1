// Counts every call that a program makes of the CUDA driver, and those in which the host waited for the device.
//
// The driver loads this library by itself when CUDA_INJECTION64_PATH names it, and CUPTI reports each call:
//   cc -O2 -shared -fPIC -I"$CUDA/include" -o calls.so bench/cuda/calls.c -L"$CUDA/lib64" -lcupti
//   CUDA_INJECTION64_PATH=$PWD/calls.so CALLS_OUT=calls.tsv flashmoe bench MODEL --device cuda
// At the end of the program the file named by CALLS_OUT has a line per call: its name, a tab, how often.
// bench/cuda/calls.py runs this over two lengths and gives the calls of one token.
#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define NAMES 1024
static uint64_t counts[NAMES];

static void CUPTIAPI called(void *data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *found) {
    (void)data;
    const CUpti_CallbackData *call = found;
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API && call->callbackSite == CUPTI_API_ENTER && id < NAMES)
        __atomic_fetch_add(&counts[id], 1, __ATOMIC_RELAXED);
}

static void report(void) {
    const char *path = getenv("CALLS_OUT");
    FILE *out = path ? fopen(path, "w") : stderr;
    if (!out) return;
    for (uint32_t id = 0; id < NAMES; id++) {
        const char *name = NULL;
        if (counts[id] && cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) == CUPTI_SUCCESS)
            fprintf(out, "%s\t%llu\n", name, (unsigned long long)counts[id]);
    }
    if (out != stderr) fclose(out);
}

int InitializeInjection(void) {
    CUpti_SubscriberHandle subscriber;
    if (cuptiSubscribe(&subscriber, called, NULL) != CUPTI_SUCCESS) return 0;
    if (cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) != CUPTI_SUCCESS) return 0;
    atexit(report);
    return 1;
}
