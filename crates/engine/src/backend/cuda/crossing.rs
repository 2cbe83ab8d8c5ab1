//! Where a model's layers are spread over several devices: the residual stream that one leaves and the next takes.
//!
//! It crosses through the process's memory. A step's lies in pinned memory when the step has ended, copied behind its
//! graph; the next device's graph runs behind a copy from such memory, which is queued before it. What is recorded
//! knows nothing of either, so that a copy from device to device can take their place. A prompt's is copied at once.

use super::{CudaBackend, Register};
use crate::EngineError;

impl CudaBackend {
    /// Ends this device's layers of the batch; gives what they leave.
    pub(super) fn leave_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError> {
        let count = self.register(Register::Residual).len();
        if self.single && !self.sizes.ends() {
            self.finish_step()?;
            to.clear();
            to.extend(self.buffers.pinned.residual.collect(0..count));
        } else {
            self.settle()?;
            to.resize(count, 0.0);
            self.buffers.registers[Register::Residual as usize].read(0, to)?;
        }
        self.at_work = false;
        Ok(())
    }

    /// Begins this device's layers of the batch behind what the device before has left.
    pub(super) fn take_residual(&mut self, from: &[f32]) -> Result<(), EngineError> {
        let to = self.register(Register::Residual);
        assert_eq!(from.len(), to.len(), "stages have the same batch");
        self.at_work = true;
        if self.single {
            let pinned = &self.buffers.pinned.residual;
            pinned.hand_over(0, from.iter().copied());
            self.stream.copy(pinned.span(0, from.len()), to)?;
            self.begin_recording();
        } else {
            // What was asked of the batch before may still read it.
            self.stream.wait()?;
            self.buffers.registers[Register::Residual as usize].write(0, from)?;
        }
        self.run(|this| this.upload_inputs());
        match self.mode {
            // A recording ends before its failure is reported.
            super::Mode::Capture => Ok(()),
            _ => self.failure.take().map_or(Ok(()), |error| Err(error.into())),
        }
    }
}
