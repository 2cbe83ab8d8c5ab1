// The time that 8 KiB need from one GPU to the next behind an event: by a copy between devices with and without peer
// access, and through pinned memory with the host in between. What `--device cuda:0,cuda:1` pays at a cut.
//
//     nvcc -O2 -o hop bench/cuda/hop.cu && ./hop
//
// Each way is a chain of hops there and back; a kernel writes the residual before each, so that none is left out. The
// time of the same chain on one device, kernels and events alone, is printed as well: what is above it is the hop.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t failed = (call);                                                             \
        if (failed != cudaSuccess) {                                                             \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(failed));                      \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

constexpr int VALUES = 2048;
constexpr int HOPS = 200;
constexpr int ROUNDS = 21;

__global__ void touch(float *values) { values[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }

struct Side {
    int device;
    cudaStream_t stream;
    cudaEvent_t event;
    float *values;
};

static Side open_side(int device) {
    Side side{device, nullptr, nullptr, nullptr};
    CHECK(cudaSetDevice(device));
    CHECK(cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&side.event, cudaEventDisableTiming));
    CHECK(cudaMalloc(&side.values, VALUES * sizeof(float)));
    CHECK(cudaMemset(side.values, 0, VALUES * sizeof(float)));
    CHECK(cudaDeviceSynchronize());
    return side;
}

static void compute(Side &side) {
    CHECK(cudaSetDevice(side.device));
    touch<<<VALUES / 256, 256, 0, side.stream>>>(side.values);
    CHECK(cudaGetLastError());
}

// The copy engine behind an event; no host in between.
static void direct(Side &from, Side &to) {
    CHECK(cudaEventRecord(from.event, from.stream));
    CHECK(cudaSetDevice(to.device));
    CHECK(cudaStreamWaitEvent(to.stream, from.event, 0));
    CHECK(cudaMemcpyPeerAsync(to.values, to.device, from.values, from.device, VALUES * sizeof(float), to.stream));
}

static float *pinned;

// A copy to pinned memory behind the work; the host sees its event, and queues the copy to the other device.
static void through_host(Side &from, Side &to) {
    CHECK(cudaMemcpyAsync(pinned, from.values, VALUES * sizeof(float), cudaMemcpyDeviceToHost, from.stream));
    CHECK(cudaEventRecord(from.event, from.stream));
    while (cudaEventQuery(from.event) == cudaErrorNotReady) {
    }
    CHECK(cudaSetDevice(to.device));
    CHECK(cudaMemcpyAsync(to.values, pinned, VALUES * sizeof(float), cudaMemcpyHostToDevice, to.stream));
}

// Pinned memory as well, and the second copy waits for the event: no host in between.
static void queued_through_host(Side &from, Side &to) {
    CHECK(cudaMemcpyAsync(pinned, from.values, VALUES * sizeof(float), cudaMemcpyDeviceToHost, from.stream));
    CHECK(cudaEventRecord(from.event, from.stream));
    CHECK(cudaSetDevice(to.device));
    CHECK(cudaStreamWaitEvent(to.stream, from.event, 0));
    CHECK(cudaMemcpyAsync(to.values, pinned, VALUES * sizeof(float), cudaMemcpyHostToDevice, to.stream));
}

static void nothing(Side &from, Side &) { CHECK(cudaEventRecord(from.event, from.stream)); }

static double microseconds(Side &first, Side &second, void (*hop)(Side &, Side &)) {
    std::vector<double> rounds;
    for (int round = 0; round < ROUNDS; round++) {
        auto began = std::chrono::steady_clock::now();
        Side *from = &first, *to = &second;
        for (int done = 0; done < HOPS; done++) {
            compute(*from);
            hop(*from, *to);
            std::swap(from, to);
        }
        for (Side *side : {&first, &second}) {
            CHECK(cudaSetDevice(side->device));
            CHECK(cudaStreamSynchronize(side->stream));
        }
        std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - began;
        rounds.push_back(spent.count() / HOPS);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
}

int main() {
    int devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaMallocHost(&pinned, VALUES * sizeof(float)));
    Side first = open_side(0), second = open_side(devices > 1 ? 1 : 0);
    printf("kernel and event, no hop: %.2f us\n", microseconds(first, first, nothing));
    printf("through the host, which waits: %.2f us\n", microseconds(first, second, through_host));
    printf("through pinned memory, queued behind the event: %.2f us\n",
           microseconds(first, second, queued_through_host));
    if (devices < 2) {
        printf("one GPU: no copies between devices\n");
        return 0;
    }
    printf("copy between devices without peer access: %.2f us\n", microseconds(first, second, direct));
    int allowed = 0;
    CHECK(cudaDeviceCanAccessPeer(&allowed, 0, 1));
    if (!allowed) {
        printf("the devices have no peer access\n");
        return 0;
    }
    for (int device : {0, 1}) {
        CHECK(cudaSetDevice(device));
        CHECK(cudaDeviceEnablePeerAccess(1 - device, 0));
    }
    printf("copy between devices with peer access: %.2f us\n", microseconds(first, second, direct));
    return 0;
}
