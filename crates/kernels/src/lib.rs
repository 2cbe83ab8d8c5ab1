//! Number formats and CPU compute: the arithmetic of flashmoe and nothing else.
//!
//! [`mod@format`] says how weights are encoded and decodes them, [`Compute`] multiplies, normalises,
//! attends. Everything works on plain byte and float slices: no I/O, no models. `unsafe` and
//! instruction sets are fenced in by this crate; its interface is safe.
//!
//! Three properties hold and are tested: the result for a token has the same bits whatever the
//! batch, the threads and the alignment of the weights; every instruction set gives the same bits;
//! the default arithmetic (16-bit activations) is within 5e-5 of exact, the other within 1e-6.
//!
//! Where to read on: `lanes.rs` (the vector that most kernels are written in), `quantised.rs` and
//! `generic/float_product.rs` (the order of operations of a product), `choice.rs` (dispatch), `pool.rs`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod activations;
mod attention;
mod blocks;
mod choice;
mod compute;
mod delta;
mod float;
pub mod format;
mod generic;
mod kv_type;
mod lanes;
pub mod memory;
mod pool;
pub mod probe;
mod quantised;
pub mod quantize;
mod rounded;
mod table;
mod task;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use activations::Activations;
pub use attention::{
    AttentionExtras, AttentionShape, BLOCK_TOKENS, KeyValueBlock, KeyValueBlockMut,
    store_keys_values, store_rows,
};
pub use compute::{
    ATTENTION_BYTES, Arithmetic, Compute, ComputeError, ComputeOptions, Isa, MatmulJob, Tokens,
};
pub use delta::{DeltaDecay, DeltaForm, DeltaInputs, DeltaShape};
pub use float::{
    bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_e4m3, f32_from_e8m0, f32_from_f16,
};
pub use kv_type::{KvType, Q8_GROUP, UnknownKvType};
pub use rounded::{decode_fp4, encode_fp4, fp4_bytes, hadamard, round_fp4};

/// An array of what `value` gives for each index.
///
/// In kernels it stands for `array::map` and `array::from_fn`. Those are functions without a kernel's instruction set:
/// their closures, which have it, stay calls in the innermost loop where the compiler does not happen to inline all
/// layers of them (a third of a prompt's time).
#[inline(always)]
pub(crate) fn each<const N: usize, T: Copy>(mut value: impl FnMut(usize) -> T) -> [T; N] {
    let mut all = [value(0); N];
    let mut index = 1;
    while index < N {
        all[index] = value(index);
        index += 1;
    }
    all
}

/// Asks the processor to fetch the cache line at `address` into the second level. Any address will
/// do: a wrong one is ignored.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint that touches no register and no memory.
    unsafe {
        std::arch::asm!("prfm pldl1strm, [{0}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
