//! A request's hold on a model of several: while it is held, the model stays loaded.

use std::sync::Arc;

use super::several::Several;

/// Given back when it is dropped: at the end of the answer.
pub(crate) struct Lease {
    several: Arc<Several>,
    index: usize,
}

impl Lease {
    /// For a lease that the book has counted.
    pub(super) fn new(several: Arc<Several>, index: usize) -> Self {
        Self { several, index }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Lease").field(&self.index).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.several.give_back(self.index);
    }
}
