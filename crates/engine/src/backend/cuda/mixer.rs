//! Attention, convolution and delta rule of the runs of a batch, each with its sequence's state.

use cuda::launch::{
    self, AttentionShape, DeltaStep, KeyValueCache, Rotation, RunConvolution, TokenPlaces, Visible,
};
use cuda::{CudaError, Span};
use store::LayerId;

use super::buffers::Input;
use super::rounds::delta_shape;
use super::{CudaBackend, Register};
use crate::sequences::Part;
use crate::weights::VectorId;

impl CudaBackend {
    /// How heads of a layer are rotated.
    pub(super) fn rotation(&self, layer: LayerId) -> Rotation {
        let windowed = self.config.layers[layer.index()].window.is_some();
        let frequencies = self.windowed_frequencies.filter(|_| windowed);
        let magnitude = self.config.attention_of(layer.index()).rope.magnitude();
        Rotation { frequencies: frequencies.unwrap_or(self.frequencies), magnitude }
    }

    /// The heads of a layer of attention.
    pub(super) fn attention_shape(&self, layer: LayerId) -> AttentionShape {
        let windowed = self.config.layers[layer.index()].window.is_some();
        self.sizes.windowed.filter(|_| windowed).unwrap_or(self.sizes.attention)
    }

    /// How many heads `heads` (`Query`, `Key` or `Value`) has in a layer, and the values of one.
    pub(super) fn heads_in(&self, layer: LayerId, heads: Register) -> (usize, usize) {
        let shape = self.attention_shape(layer);
        let count = match heads {
            Register::Query => shape.query_heads,
            _ => shape.key_value_heads,
        };
        (count, shape.dim)
    }

    /// Rotates heads that have no norm.
    pub(super) fn launch_rotate(&mut self, layer: LayerId, heads: Register) {
        self.run(|this| {
            let (x, positions) =
                (this.register(heads), this.input(Input::Position, 0, this.tokens));
            let (heads, rotation) = (this.heads_in(layer, heads), this.rotation(layer));
            launch::norm_and_rotate(&this.stream, heads, x, None, rotation, positions)
        });
    }

    /// Appends keys and values of every run, then attends.
    pub(super) fn launch_attend(&mut self, layer: LayerId, sinks: Option<VectorId>) {
        let mut marks = self.sequences.take_pending();
        self.run(|this| {
            let visible = Visible {
                window: this.config.layers[layer.index()].window,
                sinks: sinks.map(|sinks| this.vector(sinks)),
            };
            if this.config.layers[layer.index()].kept_window().is_some() {
                return this.attend_window(layer, visible, &mut marks);
            }
            let shape = this.attention_shape(layer);
            if let Some((places, cache)) = this.draft_rows(layer) {
                return this.append_and_attend(&shape, 0, &places, &cache, visible);
            }
            let (cache, mut all) = (this.cache(layer), this.places().into_iter());
            all.try_for_each(|(first, places)| {
                this.append_and_attend(&shape, first, &places, &cache, visible)
            })
        });
        self.sequences.put_pending(marks);
    }

    /// Appends keys and values of the tokens from `first` on to a cache, then attends.
    pub(super) fn append_and_attend(
        &self,
        shape: &AttentionShape,
        first: usize,
        places: &TokenPlaces,
        cache: &KeyValueCache,
        visible: Visible,
    ) -> Result<(), CudaError> {
        let count = places.positions.len();
        let (queries, keys) = (shape.query_heads * shape.dim, shape.key_value_heads * shape.dim);
        let rows = |register, width: usize| {
            self.buffers.registers[register as usize].part(first * width, count * width)
        };
        let (new_keys, values) = (rows(Register::Key, keys), rows(Register::Value, keys));
        launch::append(&self.stream, shape, places, cache, new_keys, values)?;
        let (query, out) = (rows(Register::Query, queries), rows(Register::Context, queries));
        let scratch = self.buffers.attention.all();
        launch::attend(&self.stream, shape, places, cache, query, out, scratch, visible)
    }

    /// The convolution of every run; tails for the places that are to be left.
    pub(super) fn launch_convolve(&mut self, layer: LayerId, weight: VectorId) {
        let mut marks = self.sequences.take_pending();
        self.run(|this| {
            let Some(delta) = &this.config.delta else { return Ok(()) };
            let (channels, (tails, stride)) = (delta.channels(), this.layer_tails(layer));
            if this.step_runs().is_some() {
                let (_, places) = this.places()[0];
                return this.convolve_runs(layer, this.vector(weight), &places);
            }
            for (run, (first, places)) in this.places().into_iter().enumerate() {
                let count = places.positions.len() * channels;
                let rows = |register| {
                    this.buffers.registers[register as usize].part(first * channels, count)
                };
                let (x, out) = (rows(Register::Mixed), rows(Register::Convolved));
                let weight = this.vector(weight);
                launch::convolve(&this.stream, channels, &places, weight, x, tails, stride, out)?;
                let part = (layer, Part::Tail);
                marks.keep(&this.sequences, &mut this.memory(), part, run)?;
            }
            Ok(())
        });
        self.sequences.put_pending(marks);
    }

    /// The convolution of a step's runs, where they may have several tokens.
    pub(super) fn convolve_runs(
        &self,
        layer: LayerId,
        weight: Span<f32>,
        places: &TokenPlaces,
    ) -> Result<(), CudaError> {
        let (Some(delta), Some(ring)) = (&self.config.delta, self.round_ring(layer)) else {
            return Ok(());
        };
        let (tails, stride) = self.layer_tails(layer);
        let (x, out) = (self.register(Register::Mixed), self.register(Register::Convolved));
        let convolution = RunConvolution { weight, x, tails, stride, out };
        let shape = delta_shape(delta);
        launch::convolve_runs(&self.stream, &shape, places, &convolution, &ring, false)
    }

    /// The delta rule of every run; states for the places that are to be left.
    pub(super) fn launch_delta_rule(
        &mut self,
        layer: LayerId,
        decay_rate: VectorId,
        decay_bias: VectorId,
    ) {
        let mut marks = self.sequences.take_pending();
        self.run(|this| {
            let Some(delta) = &this.config.delta else { return Ok(()) };
            let (shape, (states, stride)) = (delta_shape(delta), this.layer_states(layer));
            let ring = this.round_ring(layer).filter(|_| this.single);
            for (run, (first, places)) in this.places().into_iter().enumerate() {
                let count = places.positions.len();
                let rows = |register, width: usize| {
                    this.buffers.registers[register as usize].part(first * width, count * width)
                };
                let step = DeltaStep {
                    mixed: rows(Register::Convolved, delta.channels()),
                    beta: rows(Register::Beta, delta.value_heads),
                    decay: rows(Register::Decay, delta.decays()),
                    rate: this.vector(decay_rate),
                    bias: this.vector(decay_bias),
                    states,
                    stride,
                    out: rows(Register::Context, delta.value_width()),
                };
                match ring {
                    Some(ring) => {
                        launch::delta_runs(&this.stream, &shape, &places, &step, &ring, false)?;
                    }
                    None => launch::delta_rule(&this.stream, &shape, &places, &step)?,
                }
                let part = (layer, Part::State);
                marks.keep(&this.sequences, &mut this.memory(), part, run)?;
            }
            Ok(())
        });
        self.sequences.put_pending(marks);
    }
}
