//! The processor's backend after a panic out of one of its operations.
//!
//! What lives longer than a batch is the state of sequences and the store's bookkeeping. An operation writes to the
//! sequences of its own batch alone: those are forgotten. The store knows whether a change of its bookkeeping was cut
//! short, and leases on records ended when the stack was unwound. All else is scratch that every batch writes before it
//! reads; builds with debug assertions fill it with NaN here, so that tests see what was left over. What a panic can
//! have left without its buffers, or between two lengths, is made anew.

use kernels::Activations;

use super::super::SequenceId;
use super::indexed::IndexScratch;
use super::latent::LatentScratch;
use super::registers::Registers;
use super::{CpuBackend, EngineError};

impl CpuBackend {
    pub(super) fn run_recover(&mut self, live: &[SequenceId]) -> Result<(), EngineError> {
        self.experts.check_bookkeeping()?;
        self.tokens.clear();
        self.positions.clear();
        self.spans.clear();
        self.registers.resize(0);
        self.sequences.recover(live);
        let (config, options) = (&self.config, &self.options);
        let widest = Registers::widest_input(config);
        self.prepared = Activations::with_capacity(options.batch_tokens, widest);
        // It is taken out of its place while it is used.
        self.latent = LatentScratch::new(config, options);
        self.index = IndexScratch::new(config, options);
        self.ngram_rows.forget();
        if cfg!(debug_assertions) {
            self.spoil();
        }
        Ok(())
    }

    /// Fills scratch with what shows in every result.
    fn spoil(&mut self) {
        self.registers.spoil();
        self.projected.fill(f32::NAN);
        self.logits.fill(f32::NAN);
        self.scratch.spoil();
    }
}
