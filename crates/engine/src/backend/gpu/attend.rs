//! Attention of heads without norms, and of those whose norms are launches of their own: over the cache of all
//! positions, or over a window (`sequences/window_rows.rs`).
//!
//! Kernels count positions from a window's base instead of the sequence's start; blocks of attention begin at
//! multiples of 64 from either, so that bits do not depend on where the base is. Answers append to the place itself. A
//! run of a prompt lies in buffers that all layers share until it is attended.

use gpu::op::heads::HEAD_DIM_LIMIT;
use gpu::op::{attention, attention_wide, plain};
use gpu::{Buffer, Gpu, GpuError};
use kernels::KvType;
use store::LayerId;
use store::cache::Phase;

use super::places::Sides;
use super::{GpuBackend, Register};
use crate::sequences::{Part, Span, WindowRun};
use crate::weights::VectorId;

/// A run as kernels take it.
impl From<&Span> for attention::Run {
    fn from(span: &Span) -> Self {
        Self { first: span.first, tokens: span.tokens, position: span.position }
    }
}

/// Copies rows of `row` bytes of keys and of values: those of `from` from `first` on, `count` of them, to row `at`.
fn copy_rows(
    gpu: &mut Gpu,
    row: usize,
    (from, (first, count)): (&Sides, (usize, usize)),
    (to, at): (&Sides, usize),
) {
    if count == 0 {
        return;
    }
    let [first, at, bytes] = [first, at, count].map(|rows| (rows * row) as u64);
    gpu.copy(&from.0, first, &to.0, at, bytes);
    gpu.copy(&from.1, first, &to.1, at, bytes);
}

/// What the runs of a batch attend with, but their caches.
struct Heads<'a> {
    cache: attention::Cache,
    layer: attention::Layer<'a>,
    /// `Query`, `Key`, `Value`.
    projected: [&'a Buffer; 3],
    /// Of a batch of one token: biases of these, where they have not been added, and heads not been turned.
    biases: Option<[&'a Buffer; 3]>,
    angles: &'a Buffer,
    pairs: usize,
    /// What blocks of a token's attention leave, and `Context`.
    to: attention::Split<'a>,
}

impl Heads<'_> {
    /// Appends the run to a cache whose first row is at position 0 of the run's, and attends.
    fn attend(
        &self,
        gpu: &mut Gpu,
        (keys, values): &Sides,
        run: attention::Run,
    ) -> Result<(), GpuError> {
        let (cache, shape, [query, key, value]) = (self.cache, self.layer.shape, self.projected);
        let places = attention::KeyValue { keys, values };
        if shape.dim > HEAD_DIM_LIMIT {
            let rows = attention::KeyValue { keys: key, values: value };
            attention::launch_append(gpu, cache, rows, places, shape, run)?;
            let wide = attention_wide::Shape {
                query_heads: shape.query_heads,
                key_value_heads: shape.key_value_heads,
                row: shape.dim,
                values: shape.dim,
                scale: self.layer.scale.unwrap_or_else(|| (shape.dim as f32).powf(-0.5)),
            };
            let of = attention_wide::Attended { query, places, y: self.to.y };
            return attention_wide::launch(gpu, cache, of, wide, run);
        }
        let angles = self.angles;
        if let Some(biases) = self.biases
            && !cache.prepares(shape.dim)
        {
            let (side, pairs) = (shape.key_value_heads, self.pairs);
            let heads = [shape.query_heads, side, side];
            for ((x, bias), heads) in self.projected.into_iter().zip(biases).zip(heads) {
                plain::launch_add_bias(gpu, (x, bias), (1, heads * shape.dim))?;
            }
            for (x, heads) in [(query, shape.query_heads), (key, side)] {
                plain::launch_rotate(gpu, (x, angles), (1, heads, shape.dim), pairs)?;
            }
        }
        match self.biases.filter(|_| cache.prepares(shape.dim)) {
            Some(biases) => {
                let of = plain::Prepared { query, key, value, biases, angles, places };
                plain::launch_prepare(gpu, cache, of, shape, run, self.pairs)?;
            }
            None => {
                let rows = attention::KeyValue { keys: key, values: value };
                attention::launch_append(gpu, cache, rows, places, shape, run)?;
            }
        }
        let queries = attention::Queries { query, both: None };
        attention::launch_split(gpu, cache, queries, places, self.to, self.layer, run)
    }
}

impl GpuBackend {
    pub(super) fn cache(&self) -> attention::Cache {
        match self.options.kv_type {
            KvType::F32 => attention::Cache::F32,
            KvType::Q8 => attention::Cache::Q8,
            _ => attention::Cache::F16,
        }
    }

    /// Cosine and sine of the angles by which a layer rotates, and its pairs.
    pub(super) fn angles_of(&self, layer: LayerId) -> (&Buffer, usize) {
        match &self.windowed {
            Some((angles, frequencies)) if self.config.layers[layer.index()].window.is_some() => {
                (angles, frequencies.len())
            }
            _ => (&self.angles, self.frequencies.len()),
        }
    }

    pub(super) fn attention_shape(&self, layer: LayerId) -> attention::Shape {
        let attention = self.config.attention_of(layer.index());
        attention::Shape {
            query_heads: attention.query_heads,
            key_value_heads: attention.key_value_heads,
            dim: attention.head_dim,
        }
    }

    /// Turns each head of `heads` by position.
    pub(super) fn launch_rotate(
        &mut self,
        layer: LayerId,
        heads: Register,
    ) -> Result<(), GpuError> {
        let attention = self.config.attention_of(layer.index());
        let count = match heads {
            Register::Query => attention.query_heads,
            _ => attention.key_value_heads,
        };
        let shape = (self.tokens, count, attention.head_dim);
        let (angles, pairs) = self.angles_of(layer);
        let (x, angles) = (&self.registers[heads as usize], angles.clone());
        let gpu = &mut self.residency.device_mut().gpu;
        plain::launch_rotate(gpu, (x, &angles), shape, pairs)
    }

    /// `register += bias` for every token.
    pub(super) fn launch_add_bias(
        &mut self,
        register: Register,
        bias: VectorId,
    ) -> Result<(), GpuError> {
        let width = Register::widths(&self.config)[register as usize];
        let (x, bias) = (&self.registers[register as usize], &self.vectors[bias.index()]);
        let gpu = &mut self.residency.device_mut().gpu;
        plain::launch_add_bias(gpu, (x, bias), (self.tokens, width))
    }

    /// Appends `Key` and `Value` of every run to the layer's cache; `Context` = attention of `Query`. With `biases`, of
    /// a batch of one token, these are added before and queries and keys are turned.
    pub(super) fn attend_with(
        &mut self,
        layer: LayerId,
        sinks: Option<VectorId>,
        biases: Option<[VectorId; 3]>,
    ) -> Result<(), GpuError> {
        let vector = |id: VectorId| &self.vectors[id.index()];
        let spec = &self.config.layers[layer.index()];
        let no_sinks = self.constants.no_sinks.as_ref();
        let heads = Heads {
            cache: self.cache(),
            layer: attention::Layer {
                shape: self.attention_shape(layer),
                sinks: sinks.map(vector).or(no_sinks.filter(|_| spec.window.is_some())),
                window: spec.window,
                scale: self.config.attention_of(layer.index()).scale,
            },
            projected: [Register::Query, Register::Key, Register::Value]
                .map(|register| &self.registers[register as usize]),
            biases: biases.map(|biases| biases.map(vector)),
            angles: &self.angles,
            pairs: self.frequencies.len(),
            to: attention::Split {
                partial: &self.partial,
                y: &self.registers[Register::Context as usize],
            },
        };
        let layout = self.sequences.layout();
        let (rows, row) = (layout.window_rows(), layout.window_row());
        let gpu = &mut self.residency.device_mut().gpu;
        let Some(rows) = rows.filter(|_| spec.kept_window().is_some()) else {
            return self.spans.iter().try_for_each(|span| {
                heads.attend(gpu, self.places.cache(span.sequence, layer), span.into())
            });
        };
        for (number, span) in self.spans.iter().enumerate() {
            let (held, run) = (self.places.window(span.sequence, layer), span.into());
            if self.phase == Phase::Decode {
                let position = rows.first_row(span, true);
                heads.attend(gpu, held, attention::Run { position, ..run })?;
            } else {
                // The window before the run, the run, and the window at its end.
                let WindowRun { before, after } = rows.run(span);
                let of_run = self.places.run();
                copy_rows(gpu, row, (held, before), (of_run, 0));
                heads.attend(gpu, of_run, attention::Run { position: before.1, ..run })?;
                copy_rows(gpu, row, (of_run, after), (held, 0));
                let part = (layer, Part::Window);
                self.sequences.keep(&mut self.places.memory(gpu), part, number)?;
            }
        }
        Ok(())
    }
}
