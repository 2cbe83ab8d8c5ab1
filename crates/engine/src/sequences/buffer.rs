//! Memory of the process in which pages and states lie: a vector, or bytes that a device asks for since its copies
//! reach them sooner.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytemuck::Pod;

use super::pool::Recycled;

/// Bytes of a device's lender.
pub(crate) trait Lent: DerefMut<Target = [u8]> + Send + Sync {}

impl<T: DerefMut<Target = [u8]> + Send + Sync> Lent for T {}

/// Makes so many bytes, all zero, aligned for any number; `None` where the process gets no more of them.
pub(crate) type Lender = Arc<dyn Fn(usize) -> Option<Box<dyn Lent>> + Send + Sync>;

/// Values of one length.
pub(crate) enum Buffer<T> {
    Own(Vec<T>),
    Lent(Box<dyn Lent>),
}

impl<T: Pod> Buffer<T> {
    /// `length` zeros, of `lender` where there is one and it has some.
    pub(super) fn new(length: usize, lender: Option<&Lender>) -> Self {
        let lent = lender.and_then(|lend| lend(length * size_of::<T>()));
        lent.map_or_else(|| Self::Own(vec![T::zeroed(); length]), Self::Lent)
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Own(values) => values,
            Self::Lent(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Own(values) => values,
            Self::Lent(bytes) => bytemuck::cast_slice_mut(bytes),
        }
    }
}

impl Recycled for Buffer<u8> {
    fn spoil(&mut self) {
        // NaN in every type.
        self.fill(0xff);
    }
}

impl Recycled for Buffer<f32> {
    fn spoil(&mut self) {
        self.fill(f32::NAN);
    }
}
