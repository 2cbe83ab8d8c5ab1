//! Memory of a GPU, and the parts of it that kernels are given.

use crate::Gpu;

/// Memory of a GPU.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub(crate) raw: wgpu::Buffer,
    pub(crate) id: u32,
    pub(crate) bytes: u64,
}

impl Buffer {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All of it.
    pub fn all(&self) -> Span<'_> {
        Span { buffer: self, start: 0, bytes: self.bytes }
    }

    /// A part of it that begins at a multiple of [`Gpu::ALIGNMENT`].
    pub fn span(&self, start: u64, bytes: u64) -> Span<'_> {
        debug_assert!(start.is_multiple_of(Gpu::ALIGNMENT) && start + bytes <= self.bytes);
        Span { buffer: self, start, bytes }
    }
}

/// A part of a buffer that a kernel uses.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}
