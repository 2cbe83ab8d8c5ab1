//! aarch64: NEON with the dot product extension (every Apple chip, Graviton2 and newer, Raspberry Pi 5).

pub(crate) mod neon;
mod neon_blocks;
pub(crate) mod neon_quantised;
