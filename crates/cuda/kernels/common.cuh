// What all kernels share: encodings of weights, the unpacking of 32 values, reductions over a warp.
//
// A quantised row is a little-endian bit stream (docs/formats.md). Kernels take it 32 values at a time: BITS
// words, so that every shift is a constant. Records of experts lie where the checkpoint put them and pieces may
// begin at any byte; loads look at the address, which is the same branch for a whole warp.
#pragma once
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "abi.cuh"

// A matrix [rows, columns]; addresses are device addresses or mapped host addresses.
struct Matrix {
    const uint8_t* weight;
    const uint8_t* scales;
    const uint8_t* biases;
    uint32_t rows;
    uint32_t columns;
    uint32_t kind;       // Kind
    uint32_t bits;       // AFFINE
    uint32_t group;      // AFFINE
    uint32_t scale_kind; // AFFINE: Kind of scales and biases, see `bias_factor`; BLOCK_FP8: of scales
};

// What biases are multiplied with. Where a matrix has none because its codes are symmetric, its scales are read as
// biases, and bits SYMMETRIC_SHIFT.. of `scale_kind` say how far below zero they begin: at -2^(bits - 1) scales.
__device__ inline float bias_factor(uint32_t scale_kind) {
    uint32_t bits = scale_kind >> SYMMETRIC_SHIFT;
    return bits ? -float(1u << (bits - 1)) : 1.0f;
}

// Where 32 values begin: bytes into the weights, and their group. Group sizes are powers of two: a division by a
// number that the compiler does not know costs more than the 32 products.
struct ChunkPlace {
    size_t byte;
    uint32_t group;
};

template <int BITS>
__device__ inline ChunkPlace chunk_place(const Matrix& m, uint32_t row, uint32_t column) {
    uint32_t shift = 31 - __clz(m.group);
    uint32_t chunk = row * (m.columns / 32) + column / 32;
    return {size_t(chunk) * (BITS * 4), chunk >> (shift - 5)};
}

constexpr uint32_t FULL = 0xffffffffu;

// Overlap with the kernel before (programmatic dependent launch, compute capability 9.0 and later): it may still be
// running until `await_inputs` returns. Until then a kernel may only read what no kernel of the step writes.
__device__ inline void await_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the blocks of the next kernel be placed from now on.
__device__ inline void release_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Weights that a kernel after the next ones reads: bytes from an address on, multiples of 16.
struct Ahead {
    const uint8_t* from;
    uint64_t bytes;
};

// Asks the second-level cache for weights. By warp `warp` of `warps`, which read nothing else and await nothing.
__device__ inline void read_ahead(const Ahead& a, uint32_t warp, uint32_t warps) {
    constexpr uint32_t PIECE = 4096;
    for (uint64_t at = (uint64_t(warp) * 32 + threadIdx.x % 32) * PIECE; at < a.bytes; at += uint64_t(warps) * 32 * PIECE) {
        uint32_t bytes = uint32_t(min(uint64_t(PIECE), a.bytes - at));
#if __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.from + at), "r"(bytes));
#else
        for (uint32_t line = 0; line < bytes; line += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(a.from + at + line));
#endif
    }
}

// Stores a word of mapped host memory: the host sees all of it or nothing, after everything that this thread stored
// before (docs/device-protocol.md, rule 3). Not an atomic exchange: across a bus that is none (compute-sanitizer
// refuses it).
__device__ inline void tell_host(uint32_t* word, uint32_t value) {
    __threadfence_system();
    *reinterpret_cast<volatile uint32_t*>(word) = value;
}

__device__ inline void tell_host(uint64_t* word, uint64_t value) {
    __threadfence_system();
    *reinterpret_cast<volatile uint64_t*>(word) = value;
}

// Orders (value, lower index first) as an integer, zeros of both signs alike; NaN and plus infinity, which no sound
// model produces, above everything, so that they are seen.
__device__ inline uint64_t rank_of(float v, uint32_t index) {
    uint32_t bits = __float_as_uint(__fadd_rn(v, 0.0f));
    uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (!(v < INFINITY)) ordered = 0xffffffffu;
    return uint64_t(ordered) << 32 | (0xffffffffu - index);
}

__device__ inline uint32_t load_u16(const uint8_t* p) {
    if (reinterpret_cast<uintptr_t>(p) & 1) return p[0] | uint32_t(p[1]) << 8;
    return *reinterpret_cast<const uint16_t*>(p);
}

__device__ inline float load_float(const uint8_t* p, size_t index, uint32_t kind) {
    kind &= (1u << SYMMETRIC_SHIFT) - 1;
    if (kind == F32) {
        const uint8_t* at = p + 4 * index;
        if ((reinterpret_cast<uintptr_t>(at) & 3) == 0) return *reinterpret_cast<const float*>(at);
        return __uint_as_float(at[0] | uint32_t(at[1]) << 8 | uint32_t(at[2]) << 16 | uint32_t(at[3]) << 24);
    }
    uint32_t bits = load_u16(p + 2 * index);
    if (kind == BF16) return __uint_as_float(bits << 16);
    return __half2float(__ushort_as_half((unsigned short)bits));
}

// The bits of a scale at a multiple of two bytes, and the number that they are: apart, so that what asks ahead of its
// use does not wait for it. `load_float` decides by the kind after it has loaded, and a warp waits for memory there.
// Loads say that memory is the device's: of records the compiler does not know it, and orders them with shared memory.
__device__ inline uint32_t group_scale_bits(const uint8_t* p, size_t index, uint32_t kind) {
    if ((kind & ((1u << SYMMETRIC_SHIFT) - 1)) != F32) return __ldg(reinterpret_cast<const uint16_t*>(p) + index);
    const uint16_t* at = reinterpret_cast<const uint16_t*>(p) + 2 * index;
    if ((reinterpret_cast<uintptr_t>(at) & 3) == 0) return __ldg(reinterpret_cast<const uint32_t*>(at));
    return __ldg(at) | uint32_t(__ldg(at + 1)) << 16;
}

__device__ inline float group_scale_value(uint32_t bits, uint32_t kind) {
    kind &= (1u << SYMMETRIC_SHIFT) - 1;
    if (kind == F32) return __uint_as_float(bits);
    return kind == BF16 ? __uint_as_float(bits << 16) : __half2float(__ushort_as_half((unsigned short)bits));
}

// Loads N words from any address.
template <int N>
__device__ inline void load_words(const uint8_t* p, uint32_t (&words)[N]) {
    uintptr_t address = reinterpret_cast<uintptr_t>(p);
    if constexpr (N % 4 == 0) {
        if ((address & 15) == 0) {
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                uint4 v = reinterpret_cast<const uint4*>(p)[i];
                words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
            }
            return;
        }
    }
    if constexpr (N % 2 == 0) {
        if ((address & 7) == 0) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                uint2 v = reinterpret_cast<const uint2*>(p)[i];
                words[2 * i] = v.x, words[2 * i + 1] = v.y;
            }
            return;
        }
    }
    const uint32_t* base = reinterpret_cast<const uint32_t*>(address & ~uintptr_t(3));
    uint32_t shift = (address & 3) * 8;
    uint32_t low = base[0];
    if (shift == 0) {
#pragma unroll
        for (int i = 0; i < N; i++) words[i] = base[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t high = base[i + 1];
        words[i] = __funnelshift_r(low, high, shift);
        low = high;
    }
}

// Value `I` of 32 packed ones.
template <int BITS, int I>
__device__ inline uint32_t value(const uint32_t (&words)[BITS]) {
    constexpr int bit = I * BITS, word = bit / 32, shift = bit % 32;
    if constexpr (shift + BITS <= 32) {
        return (words[word] >> shift) & ((1u << BITS) - 1);
    } else {
        return __funnelshift_r(words[word], words[word + 1], shift) & ((1u << BITS) - 1);
    }
}

// Calls f.template operator()<I>() for I in 0..N.
template <int I, int N, typename F>
__device__ inline void unroll(F&& f) {
    if constexpr (I < N) {
        f.template operator()<I>();
        unroll<I + 1, N>(f);
    }
}

__device__ inline float warp_sum(float v) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(FULL, v, offset);
    return v;
}

__device__ inline float warp_max(float v) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, offset));
    return v;
}

// Sum over a block of at most 1024 threads; every thread gets it. `scratch` is 32 floats of shared memory.
__device__ inline float block_sum(float v, float* scratch) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

__device__ inline float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
__device__ inline float silu(float v) { return v / (1.0f + expf(-v)); }
