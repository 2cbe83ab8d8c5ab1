//! Where a model's layers are spread over several devices: the residual stream that one leaves and the next takes.
//!
//! It crosses through the process's memory: from device to device it is one copy less, 1.4 of 15 us a hop between two
//! H200s, and needs peer access. A step's is copied to pinned memory behind its graph, with an event behind that. A
//! device that has nothing else to do runs its graph behind that event and a copy from that memory: both are queued
//! while the device before still computes, so that no thread is waited for. Otherwise it is taken from the process's
//! memory once it is there. What is recorded knows nothing of either. A prompt's is copied at once.

use std::sync::Arc;

use cuda::{CudaError, Event, PinnedBuffer};

use super::{CudaBackend, Mode, Register};
use crate::EngineError;
use crate::backend::Crossing;

/// Where a step's residual stream lies once the event has happened.
pub(super) struct Landing {
    residual: PinnedBuffer<f32>,
    there: Event,
}

/// The residual streams of steps on their way.
#[derive(Default)]
pub(super) struct Crossings {
    /// As many as were on their way at a time: those that the device behind has not taken, of batches under way.
    landings: Vec<Arc<Landing>>,
    /// The last step's.
    leaving: Option<Arc<Landing>>,
    /// Of the device before, which this one's step follows: kept until the next batch, before which the step ends.
    followed: Option<Arc<Landing>>,
}

impl CudaBackend {
    /// Where the step that comes will leave its residual. Before the step: the driver would pin memory once its kernels
    /// have ended, which may wait for this thread.
    pub(super) fn free_landing(&mut self) -> Result<Arc<Landing>, CudaError> {
        let length = self.register(Register::Residual).len();
        self.crossings.leaving = None;
        let free = |it: &&Arc<Landing>| Arc::strong_count(it) == 1 && it.residual.len() >= length;
        if let Some(landing) = self.crossings.landings.iter().find(free) {
            return Ok(Arc::clone(landing));
        }
        let device = self.stream.device();
        let residual = PinnedBuffer::new(device, self.sizes.crossing())?;
        let made = Arc::new(Landing { residual, there: Event::new(device)? });
        self.crossings.landings.push(Arc::clone(&made));
        Ok(made)
    }

    /// Queues the copy of what the step leaves, behind its graph.
    pub(super) fn queue_leaving(&mut self, landing: Arc<Landing>) -> Result<(), CudaError> {
        let from = self.register(Register::Residual);
        self.stream.copy(from, landing.residual.span(0, from.len()))?;
        landing.there.record(&self.stream)?;
        self.crossings.leaving = Some(landing);
        Ok(())
    }

    /// What the running step will leave.
    pub(super) fn leaving_ahead(&self) -> Option<Crossing> {
        let leaving = self.crossings.leaving.as_ref().filter(|_| self.steps.is_running())?;
        Some(Crossing(Arc::clone(leaving) as _))
    }

    /// Ends this device's layers of the batch; gives what they leave.
    pub(super) fn leave_residual(&mut self, to: &mut Vec<f32>) -> Result<(), EngineError> {
        let count = self.register(Register::Residual).len();
        if self.single && !self.sizes.ends() {
            self.finish_step()?;
            to.clear();
            let landing = self.crossings.leaving.take();
            let landing = landing.expect("a step that was set going leaves its residual");
            to.extend(landing.residual.collect(0..count));
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
        self.bring_inputs()
    }

    /// Begins this device's layers of a step behind the device before, which still computes it.
    pub(super) fn follow_crossing(&mut self, crossing: &Crossing) -> Result<(), EngineError> {
        let Ok(landing) = Arc::clone(&crossing.0).downcast::<Landing>() else {
            let found = "the device before is of another kind".to_owned();
            return Err(EngineError::Request(found));
        };
        assert!(self.single, "steps alone are followed");
        let to = self.register(Register::Residual);
        self.at_work = true;
        self.stream.wait_for(&landing.there)?;
        self.stream.copy(landing.residual.span(0, to.len()), to)?;
        self.crossings.followed = Some(landing);
        self.begin_recording();
        self.bring_inputs()
    }

    fn bring_inputs(&mut self) -> Result<(), EngineError> {
        self.run(|this| this.upload_inputs());
        match self.mode {
            // A recording ends before its failure is reported.
            Mode::Capture => Ok(()),
            _ => self.failure.take().map_or(Ok(()), |error| Err(error.into())),
        }
    }
}
