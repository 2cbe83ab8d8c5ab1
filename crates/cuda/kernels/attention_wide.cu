// Attention of heads of more than 256 values, up to 512: the same forms as of narrower ones.
//
// A block of a prompt has room for the sums of half the columns: two blocks form the same dots. Included after
// attention.cu and attention_chunk.cu, whose arguments and forms it takes.

extern "C" __global__ void __launch_bounds__(256) attend_plain_wide_1(const __grid_constant__ AttendArguments a) {
    attend_plain<1, 16>(a);
}
extern "C" __global__ void __launch_bounds__(256) attend_plain_wide_2(const __grid_constant__ AttendArguments a) {
    attend_plain<2, 16>(a);
}

#define ATTEND_CHUNK_WIDE(SUFFIX, PAIR, WARPS)                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) attend_chunk_##SUFFIX(                              \
        const __grid_constant__ AttendArguments a) {                                                               \
        CHUNK_BODY((attend_chunk<PAIR, 512, WARPS, 32, 2>(a)));                                                   \
    }

ATTEND_STEP(f16, HalfPair, 512)
ATTEND_STEP(bf16, Bf16Pair, 512)
ATTEND_CHUNK_WIDE(f16_512, HalfPair, 4)
ATTEND_CHUNK_WIDE(bf16_512, Bf16Pair, 4)
ATTEND_CHUNK_WIDE(f16_512_small, HalfPair, 2)
ATTEND_CHUNK_WIDE(bf16_512_small, Bf16Pair, 2)
