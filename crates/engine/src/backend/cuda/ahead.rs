//! Reads that begin before the layer that needs them: of experts that token ids decide, and in a prompt of whole
//! layers.
//!
//! What is in neither memory is read from the start of a batch; the step asks for it as ever, and finds it there or on
//! its way.

use store::{ExpertId, LayerId};

use super::CudaBackend;
use crate::weights::TableId;

impl CudaBackend {
    /// Begins to read the experts of layers whose tables decide them.
    pub(super) fn read_given(&mut self, layers: &[(LayerId, TableId)]) {
        if !self.experts.residency.can_miss() {
            return;
        }
        let tokens: Vec<u32> = self.buffers.pinned.inputs.collect(0..self.tokens).collect();
        // With fewer experts than trained the router says which of them.
        let trained = self.options.top_k == self.config.moe.top_k;
        let Some(held) = self.compressed.as_mut().filter(|_| trained) else { return };
        let given = layers.iter().map(|&(layer, table)| {
            let numbers = held.numbers_of(table.index(), &tokens);
            (layer, numbers.into_iter().map(ExpertId).collect())
        });
        held.given = given.collect();
        self.experts.residency.read_certain(&held.given);
    }

    /// In a prompt of `pairs` tokens with an expert each: asks for the next layer's records, where tables decide them
    /// or when the chunk will need nearly all.
    pub(super) fn read_ahead(&self, layer: LayerId, pairs: usize) {
        let next = LayerId(layer.0 + 1);
        let residency = &self.experts.residency;
        if !residency.can_miss() || self.sizes.is_last(layer) {
            return;
        }
        let mut given = self.compressed.iter().flat_map(|held| &held.given);
        if let Some(given) = given.find(|given| given.0 == next) {
            residency.read_certain(std::slice::from_ref(given));
        } else if pairs >= 3 * self.sizes.experts {
            residency.read_ahead(next);
        }
    }
}
