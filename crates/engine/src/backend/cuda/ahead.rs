//! Reads that begin before the layer that needs them: of experts that token ids decide, in a prompt of whole layers, and
//! in a step of the weights that follow a mixture, from the device's memory into its cache.
//!
//! What is in neither memory is read from the start of a batch; the step asks for it as ever, and finds it there or on
//! its way.

use cuda::Span;
use store::{ExpertId, LayerId};

use super::CudaBackend;
use super::fuse::{Kind, Launch};
use crate::model::program::{Op, Stage};
use crate::weights::{MatrixId, TableId};

/// What is asked for of the device's second-level cache is at most its size divided by this: the experts' weights pass
/// through it before those asked for are read.
const CACHE_SHARE: usize = 3;

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
        if !residency.can_miss() || next.index() >= self.sizes.layers {
            return;
        }
        let mut given = self.compressed.iter().flat_map(|held| &held.given);
        if let Some(given) = given.find(|given| given.0 == next) {
            residency.read_certain(std::slice::from_ref(given));
        } else if pairs >= 3 * self.sizes.experts {
            residency.read_ahead(next);
        }
    }

    /// The weights that a step reads first after the mixture of `layer`: those of the next layer's first products and of
    /// what follows them in memory up to its mixture; the head's after the last layer.
    pub(super) fn read_next(&self, layer: LayerId) -> Option<Span<u8>> {
        let next = LayerId(layer.0 + 1);
        let ids: Vec<MatrixId> = if next.index() < self.sizes.layers {
            let launches = self.prepared.of(Kind::Step as usize, next, Stage::Mixer);
            launches.iter().flat_map(matrices).collect()
        } else {
            self.steps.head_matrix().into_iter().collect()
        };
        let most = std::env::var("FM_AHEAD").ok().and_then(|v| v.parse().ok()).unwrap_or(self.stream.device().info().cache_bytes / CACHE_SHARE);
        let first = ids.iter().map(|id| id.index()).min()?;
        let last = ids.iter().map(|id| id.index()).max()?;
        let all = self.trunk.all_bytes();
        let offset = |index: usize| match self.matrices.get(index) {
            Some(matrix) => (matrix.address() - all.address()) as usize,
            None => all.len(),
        };
        let (start, end) = (offset(first), offset(last + 1));
        let bytes = end.saturating_sub(start).min(most);
        (bytes > 0).then(|| all.part(start, bytes))
    }
}

/// The matrices of a launch of a mixer, where a step's products alone read them.
fn matrices(launch: &Launch) -> Vec<MatrixId> {
    match launch {
        Launch::NormLinear { products, .. }
        | Launch::DeltaInputs { products, .. }
        | Launch::Plain(Op::Linear { products, .. }) => {
            products.iter().map(|product| product.matrix).collect()
        }
        Launch::DeltaOutput { matrix, .. }
        | Launch::GatedHeads { matrix, .. }
        | Launch::Plain(Op::LinearAdd { matrix, .. }) => vec![*matrix],
        _ => Vec::new(),
    }
}
