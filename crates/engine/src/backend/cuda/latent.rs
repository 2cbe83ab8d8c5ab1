//! Latent attention on CUDA: queries meet the cached rows themselves, in steps and in prompts.
//!
//! Some tokens of a run go through together, because queries and sums are as wide as a row for every head. Nothing of a
//! token depends on which others go with it.

use cuda::launch::{self, HeadMatrix, LatentCache, LatentShape};
use store::LayerId;

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

    /// Appends the rows of every run, then attends.
    pub(super) fn launch_attend_latent(&mut self, layer: LayerId, weights: &LatentAttention) {
        self.run(|this| {
            let (Some(shape), Some(config)) = (&this.sizes.latent, &this.config.latent) else {
                return Ok(());
            };
            let (stream, heads) = (&this.stream, shape.heads);
            let (absorb, expand) = (this.heads_of(&weights.absorb), this.heads_of(&weights.expand));
            let cache = LatentCache {
                rows: this.buffers.keys[this.sizes.layout.index(layer)]
                    .span(0, this.sizes.cache_layer),
                context: this.options.context,
                kv_type: this.options.kv_type,
            };
            let rotation = this.rotation(layer);
            for (first, places) in this.places() {
                let count = places.positions.len();
                let rows = |register, first: usize, count: usize, width: usize| {
                    this.buffers.registers[register as usize].part(first * width, count * width)
                };
                let norm = (this.vector(weights.norm), config.rms_epsilon);
                let keys = rows(Register::Key, first, count, shape.row());
                launch::append_latent(stream, shape, &places, &cache, keys, norm, rotation)?;
                for start in (0..count).step_by(this.sizes.latent_tokens) {
                    let tokens = this.sizes.latent_tokens.min(count - start);
                    let places = places.part(start, tokens);
                    let (first, width) = (first + start, shape.plain + shape.rotated);
                    let query = rows(Register::Query, first, tokens, heads * width);
                    let meets = this.buffers.latent_query.part(0, tokens * heads * shape.row());
                    let sums = this.buffers.latent_context.part(0, tokens * heads * shape.rank);
                    let size = (tokens, heads);
                    let to = (meets, shape.row());
                    launch::latent_heads(stream, size, &absorb, (query, width), to)?;
                    launch::rotate_latent(stream, shape, places.positions, query, meets, rotation)?;
                    let scratch = this.buffers.attention.all();
                    let scale = config.scale;
                    launch::attend_latent(
                        stream, shape, &places, &cache, meets, sums, scratch, scale,
                    )?;
                    let out = rows(Register::Context, first, tokens, heads * shape.values);
                    let to = (out, shape.values);
                    launch::latent_heads(stream, size, &expand, (sums, shape.rank), to)?;
                }
            }
            Ok(())
        });
    }
}
