//! x86-64: AVX2, AVX-512 with VNNI, and AMX tiles.

pub(crate) mod amx;
mod amx_probe;
mod amx_tiles;
mod amx_unpack;
pub(crate) mod avx2;
mod avx2_blocks;
mod avx2_codebooks;
mod avx2_formats;
mod avx2_grids;
pub(crate) mod avx2_quantised;
pub(crate) mod avx512;
mod avx512_blocks;
mod avx512_codebooks;
mod avx512_formats;
pub(crate) mod avx512_quantised;
pub(crate) mod avx512_unpack;
pub(crate) mod tables;
