//! Snapshots of sequences on a GPU: recurrent states in the process's memory.
//!
//! Keys and values stay where they are on the device, so a snapshot is good for the sequence it was taken from.

use std::sync::Arc;

use super::super::pool::Pool;
use super::buffers::Sizes;
use super::{Backend, CudaBackend, CudaOptions, SequenceId, Snapshot};
use crate::EngineError;

/// The memory of snapshots' recurrent states.
pub(super) fn pool(sizes: &Sizes, options: &CudaOptions) -> Pool<Vec<f32>> {
    let values = sizes.delta_layers * (sizes.state + sizes.tail);
    Pool::new(options.snapshots, false, move || vec![0.0; values])
}

impl CudaBackend {
    /// The sequence's recurrent state and length.
    pub(super) fn take_snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, EngineError> {
        self.settle()?;
        let index = sequence.0 as usize;
        let states = self.sizes.delta_layers * self.sizes.state;
        let tails = self.sizes.delta_layers * self.sizes.tail;
        let length = self.sequence_length(sequence);
        if states == 0 {
            return Ok(Snapshot { length, pages: Vec::new(), state: None });
        }
        let full = || EngineError::Request("no room for another snapshot".to_owned());
        let mut state = self.snapshots.take().ok_or_else(full)?;
        self.buffers.states.read(index * states, &mut state[..states])?;
        self.buffers.tails.read(index * tails, &mut state[states..])?;
        Ok(Snapshot { length, pages: Vec::new(), state: Some(Arc::new(state)) })
    }

    /// Sets a sequence to where it was.
    pub(super) fn return_to(
        &mut self,
        sequence: SequenceId,
        snapshot: &Snapshot,
    ) -> Result<(), EngineError> {
        self.settle()?;
        let index = sequence.0 as usize;
        if let Some(state) = &snapshot.state {
            let states = self.sizes.delta_layers * self.sizes.state;
            let tails = self.sizes.delta_layers * self.sizes.tail;
            self.buffers.states.write(index * states, &state[..states])?;
            self.buffers.tails.write(index * tails, &state[states..])?;
        }
        self.lengths[index] = Some(snapshot.length);
        Ok(())
    }
}
