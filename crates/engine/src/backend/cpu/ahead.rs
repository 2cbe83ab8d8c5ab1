//! Reads that begin before the layer that needs them: of experts that token ids decide, and in a prompt of whole
//! layers.

use store::cache::Phase;
use store::{ExpertId, LayerId};

use super::CpuBackend;
use crate::weights::TableId;

impl CpuBackend {
    /// The experts that the batch's tokens have in `table`, ascending.
    fn given(&self, table: TableId) -> Vec<ExpertId> {
        let given = self.weights.table(table).numbers_of(&self.tokens);
        given.into_iter().map(ExpertId).collect()
    }

    /// Begins to read the experts of layers whose tables decide them.
    pub(super) fn expect_given(&mut self, layers: &[(LayerId, TableId)]) {
        self.given_layers.clear();
        // With fewer experts than trained the router says which of them.
        if self.options.top_k == self.config.moe.top_k {
            self.given_layers.extend_from_slice(layers);
            let wanted = layers.iter().map(|&(layer, table)| (layer, self.given(table)));
            self.experts.read_certain(&wanted.collect::<Vec<_>>());
        }
    }

    /// In a prompt: asks for the next layer's experts, where tables decide them or when this chunk will need nearly
    /// all. In a draft: for those of its layer that were left out.
    pub(super) fn read_ahead(&self, layer: LayerId, phase: Phase) {
        match phase {
            Phase::Decode => return,
            Phase::Draft => return self.ask_for_absent(layer),
            Phase::Prefill => {}
        }
        let moe = &self.config.moe;
        let next = LayerId(layer.0 + 1);
        if let Some(&(_, table)) = self.given_layers.iter().find(|given| given.0 == next) {
            self.experts.read_certain(&[(next, self.given(table))]);
            return;
        }
        // A chunk of 3E/k tokens touches 95 % of the experts: nothing needs to be predicted.
        if next.index() < self.config.trunk_layers()
            && self.expert_shapes.get(next.index()).is_some_and(Option::is_some)
            && self.tokens.len() * self.options.top_k >= 3 * moe.experts
        {
            self.experts.read_ahead(next, &self.every_expert);
        }
    }

    /// What was read ahead for `layer`, and for later ones by their tables, will not be used.
    pub(super) fn forget_ahead(&self, layer: LayerId) {
        self.experts.forget_ahead(layer);
        for &(given, _) in self.given_layers.iter().filter(|given| given.0 > layer) {
            self.experts.forget_ahead(given);
        }
    }
}
