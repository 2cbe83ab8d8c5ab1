//! x86-64: AVX2, AVX-512 with VNNI, and AMX tiles.

pub(crate) mod amx;
mod amx_probe;
pub(crate) mod avx2;
pub(crate) mod avx2_quantised;
pub(crate) mod avx512;
pub(crate) mod avx512_quantised;
pub(crate) mod avx512_unpack;
