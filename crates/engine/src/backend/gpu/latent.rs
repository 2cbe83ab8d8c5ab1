//! Latent attention: queries meet the cached rows themselves, so that prompts and answers do the same sums.
//!
//! Some tokens of a run at a time go through, because queries and sums are as wide as the row for every head. Nothing
//! of a token depends on which others go with it.

use gpu::op::attention::{KeyValue, Run};
use gpu::op::attention_wide::{self, Attended, Chosen, Shape};
use gpu::op::head_product::{self, Rows};
use gpu::op::latent::{self, Appended, QueryHeads, Row, Turned};
use gpu::{Buffer, Gpu, GpuError};
use store::LayerId;

use super::{GpuBackend, Register};
use crate::EngineError;
use crate::model::config::{LatentConfig, ModelConfig};
use crate::model::latent::{HeadRows, LatentAttention};
use crate::model::rope::Pairs;

/// Tokens at a time: of DeepSeek-V3 35 MB.
const TOKENS: usize = 64;

/// Numbers of the buffers of latent attention: queries that meet rows, and sums of rows.
pub(super) fn sizes(config: &ModelConfig, batch_tokens: usize) -> [usize; 2] {
    let Some(shape) = &config.latent else { return [0; 2] };
    let pairs = batch_tokens.min(TOKENS) * config.attention.query_heads;
    [pairs * config.attention.head_dim, pairs * shape.rank]
}

/// Columns of the widest matrix that only latent attention has.
pub(super) fn widest(config: &ModelConfig) -> usize {
    let heads = config.attention.query_heads;
    let of = |it: &LatentConfig| (heads * it.value_dim).max(it.query_rank.unwrap_or(0));
    config.latent.as_ref().map_or(0, of)
}

/// Rows of some tokens.
pub(super) struct LatentBuffers {
    /// `[tokens, heads, rank + rotated]`
    query: Buffer,
    /// `[tokens, heads, rank]`
    sums: Buffer,
}

impl LatentBuffers {
    pub(super) fn new(gpu: &mut Gpu, [query, sums]: [usize; 2]) -> Result<Self, EngineError> {
        let mut numbers = |count: usize| gpu.buffer("latent attention", 4 * count as u64);
        Ok(Self { query: numbers(query)?, sums: numbers(sums)? })
    }
}

/// What is cached of a token.
fn row(config: &ModelConfig, shape: &LatentConfig) -> Row {
    let rope = &config.attention.rope;
    Row { rank: shape.rank, rotated: rope.dims, neighbours: rope.pairs == Pairs::Neighbours }
}

/// Attention of queries to rows, which are keys and values.
fn attention(config: &ModelConfig, latent: &LatentConfig) -> Shape {
    Shape {
        query_heads: config.attention.query_heads,
        key_value_heads: 1,
        row: config.attention.head_dim,
        values: latent.rank,
        scale: latent.scale,
    }
}

/// What of the widths the kernels do not compute.
pub(super) fn unserved(config: &ModelConfig) -> Option<String> {
    let shape = config.latent.as_ref()?;
    let (rank, rotated) = (shape.rank, config.attention.rope.dims);
    if !attention(config, shape).is_served() {
        let [values, row] = [attention_wide::VALUES_LIMIT, attention_wide::ROW_LIMIT];
        return Some(format!(
            "is {rank} with {rotated} rotated values; the GPU kernels serve even numbers, up to {values} and {row} \
             together"
        ));
    }
    let query = shape.plain_dim + rotated;
    let served = head_product::serves(query) && head_product::serves(rank);
    (!served).then(|| {
        format!("is {rank}, with queries of {query}; the GPU kernels serve multiples of four")
    })
}

fn head_rows(rows: HeadRows, heads: usize) -> head_product::HeadRows {
    let HeadRows { stride, first, count, .. } = rows;
    head_product::HeadRows { heads, stride, first, count }
}

impl GpuBackend {
    /// Norms and rotates the rows in `Key` and appends them to the layer's cache; `Context` = attention of `Query` over
    /// the rows, per head the values of the weighted sum. With `top` a token sees the rows chosen for it, so many.
    pub(super) fn attend_latent(
        &mut self,
        layer: LayerId,
        weights: &LatentAttention,
        top: Option<usize>,
    ) -> Result<(), GpuError> {
        let Some(config) = &self.config.latent else { return Ok(()) };
        let (cache, heads) = (self.cache(), self.config.attention.query_heads);
        let (shape, of) = (row(&self.config, config), attention(&self.config, config));
        let [query, rows, context] = [Register::Query, Register::Key, Register::Context]
            .map(|register| &self.registers[register as usize]);
        let [absorb, expand] = [weights.absorb, weights.expand]
            .map(|it| (self.trunk.matrix(it.matrix.index()), head_rows(it, heads)));
        let norm = &self.vectors[weights.norm.index()];
        let width = config.plain_dim + shape.rotated;
        let LatentBuffers { query: meets, sums } = &self.latent;
        let gpu = &mut self.residency.device_mut().gpu;
        for span in &self.spans {
            let (held, _) = self.places.cache(span.sequence, layer);
            let appended = Appended { rows, norm, angles: &self.angles, to: held };
            latent::launch_append(gpu, cache, appended, shape, config.rms_epsilon, span.into())?;
            for start in (0..span.tokens).step_by(TOKENS) {
                let tokens = TOKENS.min(span.tokens - start);
                let first = span.first + start;
                let x = Rows { buffer: query, first, width };
                let y = Rows { buffer: meets, first: 0, width: shape.width() };
                head_product::launch(gpu, absorb, x, y, tokens)?;
                let ends = Turned { query, angles: &self.angles, turned: meets };
                let queries = QueryHeads { heads, plain: config.plain_dim };
                latent::launch_turn(gpu, ends, shape, queries, (first, tokens))?;
                let run = Run { first: 0, tokens, position: span.position + start };
                let places = KeyValue { keys: held, values: held };
                let attended = Attended { query: meets, places, y: sums };
                match top {
                    Some(top) => {
                        let chosen = Chosen { rows: &self.choice.chosen, first, top };
                        attention_wide::launch_chosen(gpu, cache, attended, chosen, of, run)?;
                    }
                    None => attention_wide::launch(gpu, cache, attended, of, run)?,
                }
                let x = Rows { buffer: sums, first: 0, width: shape.rank };
                let y = Rows { buffer: context, first, width: config.value_dim };
                head_product::launch(gpu, expand, x, y, tokens)?;
            }
        }
        Ok(())
    }
}
