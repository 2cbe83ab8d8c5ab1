//! Latent attention on CUDA: queries meet the cached rows themselves, all or chosen ones, in steps and in prompts.
//!
//! Some tokens of a run go through together, because queries and sums are as wide as a row for every head. Nothing of a
//! token depends on which others go with it.

use cuda::launch::{self, ChosenRows, HeadMatrix, LatentCache, LatentShape, TokenPlaces};
use cuda::{CudaError, Span};
use store::LayerId;

use super::chosen_rows::seen_whole;
use super::{CudaBackend, CudaOptions, Register};
use crate::EngineError;
use crate::model::config::ModelConfig;
use crate::model::latent::{HeadRows, LatentAttention};
use crate::model::rope::Pairs;

/// Tokens of a prompt that go together: enough to fill a large device, with queries of 128 heads in 40 MB.
const TOKENS: usize = 128;

/// The shape of a model's latent attention, where it has some.
pub(super) fn shape(config: &ModelConfig) -> Option<LatentShape> {
    let latent = config.latent.as_ref()?;
    Some(LatentShape {
        heads: config.attention.query_heads,
        rank: latent.rank,
        rotated: config.attention.rope.dims,
        plain: latent.plain_dim,
        values: latent.value_dim,
        neighbours: config.attention.rope.pairs == Pairs::Neighbours,
    })
}

/// Tokens that go together, of batches of at most so many.
pub(super) fn tokens_together(config: &ModelConfig, batch_tokens: usize) -> usize {
    if config.latent.is_some() { batch_tokens.min(TOKENS) } else { 0 }
}

/// Refuses rows that the kernels do not serve.
pub(super) fn check_limits(config: &ModelConfig, options: &CudaOptions) -> Result<(), EngineError> {
    let Some(shape) = shape(config) else { return Ok(()) };
    let (rank, rotated, kind) = (shape.rank, shape.rotated, options.kv_type);
    if launch::serves_latent(rank, rotated, kind) {
        return Ok(());
    }
    let (most, limit) = (launch::LATENT_RANK, launch::LATENT_ROW);
    let problem = format!(
        "is {rank} with {rotated} rotated values, stored as {kind}; the CUDA kernels serve up to {most}, together up \
         to {limit}, and --kv-type q8 for multiples of 32: use --kv-type f16 or --device cpu"
    );
    Err(EngineError::Config { key: "kv_lora_rank", problem })
}

impl CudaBackend {
    /// The rows of each head.
    fn heads_of(&self, rows: &HeadRows) -> HeadMatrix {
        let HeadRows { matrix, stride, first, count } = *rows;
        HeadMatrix { matrix: self.matrix(matrix), stride, first, count }
    }

    /// Appends the rows of every run, then attends to all that each token may see.
    pub(super) fn launch_attend_latent(&mut self, layer: LayerId, weights: &LatentAttention) {
        self.run(|this| {
            let mut runs = this.places().into_iter();
            runs.try_for_each(|run| this.attend_latent_run(layer, weights, run, None))
        });
    }

    /// Appends the rows of a run, then attends. With a `budget`, tokens that may see more rows see those chosen for
    /// them, as many as it is.
    pub(super) fn attend_latent_run(
        &self,
        layer: LayerId,
        weights: &LatentAttention,
        (first, places): (usize, TokenPlaces),
        budget: Option<usize>,
    ) -> Result<(), CudaError> {
        let (Some(shape), Some(config)) = (&self.sizes.latent, &self.config.latent) else {
            return Ok(());
        };
        let (stream, heads, count) = (&self.stream, shape.heads, places.positions.len());
        let (absorb, expand) = (self.heads_of(&weights.absorb), self.heads_of(&weights.expand));
        let cache = LatentCache {
            rows: self.buffers.keys[self.sizes.layout.index(layer)].span(0, self.sizes.cache_layer),
            context: self.options.context,
            kv_type: self.options.kv_type,
        };
        let rotation = self.rotation(layer);
        let rows = |register, first: usize, count: usize, width: usize| {
            self.buffers.registers[register as usize].part(first * width, count * width)
        };
        let norm = (self.vector(weights.norm), config.rms_epsilon);
        let keys = rows(Register::Key, first, count, shape.row());
        launch::append_latent(stream, shape, &places, &cache, keys, norm, rotation)?;
        let all = budget.map_or(count, |budget| seen_whole(&places, budget));
        for start in (0..count).step_by(self.sizes.latent_tokens) {
            let tokens = self.sizes.latent_tokens.min(count - start);
            let part = places.part(start, tokens);
            let (first, width) = (first + start, shape.plain + shape.rotated);
            let query = rows(Register::Query, first, tokens, heads * width);
            let meets = self.buffers.latent_query.part(0, tokens * heads * shape.row());
            let sums = self.buffers.latent_context.part(0, tokens * heads * shape.rank);
            let size = (tokens, heads);
            let to = (meets, shape.row());
            launch::latent_heads(stream, size, &absorb, (query, width), to)?;
            launch::rotate_latent(stream, shape, part.positions, query, meets, rotation)?;
            let whole = all.saturating_sub(start).min(tokens);
            for (range, top) in [(0..whole, None), (whole..tokens, budget)] {
                if range.is_empty() {
                    continue;
                }
                let width = |all: Span<f32>, width: usize| {
                    all.part(range.start * heads * width, range.len() * heads * width)
                };
                let chosen = top.map(|top| {
                    let rows = self.side().chosen(first + range.start, range.len());
                    ChosenRows { rows, top }
                });
                let attention = launch::LatentAttention {
                    query: width(meets, shape.row()),
                    out: width(sums, shape.rank),
                    scratch: self.buffers.attention.all(),
                    scale: config.scale,
                    chosen,
                };
                let seen = part.part(range.start, range.len());
                launch::attend_latent(stream, shape, &seen, &cache, &attention)?;
            }
            let out = rows(Register::Context, first, tokens, heads * shape.values);
            let to = (out, shape.values);
            launch::latent_heads(stream, size, &expand, (sums, shape.rank), to)?;
        }
        Ok(())
    }
}
