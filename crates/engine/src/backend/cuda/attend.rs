//! The time of a batch in which its kernels may wait for the host: its beginning, its end, and the end of a batch that
//! was given up.

use super::{CudaBackend, protocol};
use crate::EngineError;

impl CudaBackend {
    /// Kernels that may wait for the host are about to be launched.
    pub(super) fn attend(&mut self) {
        if self.is_served() && self.steps.attended.is_none() {
            self.steps.attended = Some(self.stream.device().attend());
        }
    }

    /// True when the host has something to do for a step that runs.
    pub(super) fn is_served(&self) -> bool {
        self.experts.residency.can_miss() || self.prefetch.is_some()
    }

    /// All kernels of the batch have ended.
    pub(super) fn forget_batch(&mut self) {
        self.steps.unended = false;
        self.steps.attended = None;
    }

    /// Ends what a batch has left that was given up half-way: its kernels may still wait for records, and what they ask
    /// for or say concerns no batch now. The next batch would overwrite what they read, and take their requests and
    /// their end for its own.
    pub(super) fn end_given_up(&mut self) -> Result<(), EngineError> {
        if !self.steps.unended {
            return Ok(());
        }
        let pinned = &self.buffers.pinned;
        protocol::give_up(pinned.status.words());
        let ended = self.stream.wait();
        while protocol::take_request(pinned.ring.words(), &mut self.steps.taken) != 0 {}
        let _ = protocol::outcome(Ok(()), pinned.status.words());
        self.forget_batch();
        Ok(ended?)
    }

    /// Serves the running step, if there is one; the next operation tells what it met.
    pub(super) fn serve_unasked(&mut self) {
        if let Err(error) = self.finish_step() {
            self.steps.failed = Some(error);
        }
    }
}
