// Tensor cores and asynchronous copies of compute capability 8.0 and later: pairs of 16-bit values, fragments, copies
// to shared memory that do not wait.
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 800

// Two 16-bit values in a register, and their products.
struct HalfPair {
    using Value = __half;
    static __device__ inline uint32_t pack(float x, float y) {
        __half2 v = __floats2half2_rn(x, y);
        return *reinterpret_cast<uint32_t*>(&v);
    }
    static __device__ inline float2 unpack(uint32_t v) { return __half22float2(*reinterpret_cast<__half2*>(&v)); }
    static __device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct Bf16Pair {
    using Value = __nv_bfloat16;
    static __device__ inline uint32_t pack(float x, float y) {
        __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<uint32_t*>(&v);
    }
    static __device__ inline float2 unpack(uint32_t v) {
        return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
    }
    static __device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

// The two parts of two values: what 16 bits hold, and what they hold of the rest.
template <typename PAIR>
__device__ inline void split_parts(float x, float y, uint32_t& high, uint32_t& low) {
    high = PAIR::pack(x, y);
    float2 back = PAIR::unpack(high);
    low = PAIR::pack(x - back.x, y - back.y);
}

__device__ inline uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ inline void load_matrices(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

__device__ inline void load_matrices_transposed(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

// Copies 16 bytes to shared memory without waiting; zeros instead when not `live`.
__device__ inline void copy_16(uint32_t to, const void* from, bool live) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}

// Begins to copy 8 bytes to shared memory; zeros instead when not `live`.
__device__ inline void copy_8(uint32_t to, const void* from, bool live) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(live ? 8 : 0) : "memory");
}

// Begins to copy 4 bytes to shared memory; zeros instead when not `live`.
__device__ inline void copy_4(uint32_t to, const void* from, bool live) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(live ? 4 : 0) : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ inline void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Shared memory of rows of DIM 16-bit values. Units of 16 bytes are permuted within their row by the row's number, so
// that eight rows' units of one column lie in different banks.
template <int DIM>
__device__ inline uint32_t unit_offset(uint32_t row, uint32_t unit) {
    return (row * (DIM / 8) + (unit ^ (row & 7))) * 16;
}

// Waits until at most `stages` - 2 groups of copies are under way, of two to six stages.
__device__ inline void await_stage(uint32_t stages) {
    switch (stages) {
        case 2: return await_copies<0>();
        case 3: return await_copies<1>();
        case 4: return await_copies<2>();
        case 5: return await_copies<3>();
        default: return await_copies<4>();
    }
}

#endif
