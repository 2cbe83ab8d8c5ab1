//! Every launch that is asked for, shown to a test: two builds that are to do the same are compared launch by launch.

use std::fmt::Debug;

use crate::op::Op;
use crate::{Gpu, Span};

/// A launch as it was asked for, whether it was recorded ahead or not.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub op: Op,
    /// Buffer number, first byte and bytes of each binding.
    pub bindings: &'a [[u64; 3]],
    /// What the kernel is given.
    pub parameters: &'a [u32],
    /// Its workgroups.
    pub groups: [u32; 3],
}

impl Debug for Launch<'_> {
    /// One line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { op, bindings, parameters, groups } = self;
        write!(f, "{op:?} {groups:?} {parameters:?} {bindings:?}")
    }
}

/// What is called for every launch.
pub(crate) type Observer = Box<dyn FnMut(Launch<'_>) + Send>;

impl Gpu {
    /// Calls `seen` for every launch from now on.
    pub fn observe_launches(&mut self, seen: impl FnMut(Launch<'_>) + Send + 'static) {
        self.observer = Some(Box::new(seen));
    }

    pub(crate) fn observe(
        &mut self,
        op: Op,
        bindings: &[Span<'_>],
        parameters: &[u32],
        groups: [u32; 3],
    ) {
        if let Some(seen) = &mut self.observer {
            let places = bindings.iter().map(|it| [u64::from(it.buffer.id), it.start, it.bytes]);
            let bindings: Vec<_> = places.collect();
            seen(Launch { op, bindings: &bindings, parameters, groups });
        }
    }
}
