//! Attention over heads' keys and values: each run appends its own and attends to what it sees.

use kernels::{AttentionExtras, AttentionShape, KvType};
use store::LayerId;

use super::{CpuBackend, Register};
use crate::model::config::AttentionConfig;
use crate::sequences::Part;
use crate::weights::VectorId;

/// The heads of a layer as kernels take them.
pub(super) fn attention_shape(attention: &AttentionConfig, kv_type: KvType) -> AttentionShape {
    AttentionShape {
        query_heads: attention.query_heads,
        key_value_heads: attention.key_value_heads,
        head_dim: attention.head_dim,
        scale: attention.score_scale(),
        kv_type,
    }
}

impl CpuBackend {
    pub(super) fn run_attend(&mut self, layer: LayerId, sinks: Option<VectorId>) {
        let extras = AttentionExtras {
            window: match self.is_head(layer) {
                // The row of the first token is no pair; a draft runs one token at a time.
                true => Some(self.positions[0] as usize),
                false => self.config.layers[layer.index()].window,
            },
            sinks: sinks.map(|sinks| self.weights.vector(sinks)),
        };
        let attention = self.config.attention_of(layer.index());
        let shape = attention_shape(attention, self.options.kv_type);
        let (query_width, key_width) = (attention.query_width(), attention.key_width());
        let most = self.sequences.part_tokens(layer);
        for (run, span) in self.spans.iter().enumerate() {
            for start in (0..span.tokens).step_by(most) {
                let count = most.min(span.tokens - start);
                let (first, position) = (span.first + start, span.position + start);
                let rows = |width: usize| first * width..(first + count) * width;
                let keys = &self.registers.get(Register::Key)[rows(key_width)];
                let values = &self.registers.get(Register::Value)[rows(key_width)];
                let sides = &[keys, values][..];
                self.sequences.append(span.sequence, layer, &shape, position, sides);
                let positions = position..position + count;
                let (begin, blocks) = self.sequences.blocks(span.sequence, layer, positions);
                let (query, context) = self.registers.pair(Register::Query, Register::Context);
                self.compute.attention_with(
                    &shape,
                    extras,
                    &query[rows(query_width)],
                    position - begin,
                    &blocks,
                    &mut context[rows(query_width)],
                );
            }
            if self.config.layers[layer.index()].kept_window().is_some() {
                self.sequences.keep(layer, Part::Window, run);
            }
        }
    }
}
