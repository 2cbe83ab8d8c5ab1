//! Number formats and CPU compute: the arithmetic of flashmoe and nothing else.
//!
//! [`format`] says how weights are encoded and decodes them; everything here works on plain byte
//! and float slices. No I/O, no models. `unsafe` and instruction sets are fenced in by this crate.

pub mod format;
