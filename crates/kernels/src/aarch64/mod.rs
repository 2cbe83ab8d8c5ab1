//! aarch64: NEON with the dot product extension (every Apple chip, Graviton2 and newer, Raspberry Pi 5).

pub(crate) mod neon;
mod neon_blocks;
mod neon_codebooks;
mod neon_formats;
pub(crate) mod neon_quantised;
pub(crate) mod tables;
