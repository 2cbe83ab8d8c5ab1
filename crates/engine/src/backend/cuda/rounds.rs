//! Rounds: a step's runs of several tokens. The first of them alone may be kept afterwards.
//!
//! Products, experts and attention compute a token by itself, and rows go back by length; of what compressed attention
//! writes over, that of rejected tokens is put back. Delta layers keep state token by token: it stays where a round
//! began, and a ring of each sequence has what the round's tokens were fed. The sequence's next step applies those that
//! were kept ([`crate::sequences::Sequences::lag`]) in the same kernels; launches of their own do
//! ([`CudaBackend::catch_up`]) before anything else happens to the sequence.

use std::ops::Range;

use cuda::Span;
use cuda::launch::{
    self, DeltaShape, DeltaStep, ROUND_PLACES, RoundRing, RunConvolution, StepRuns, TokenPlaces,
};
use store::LayerId;

use super::buffers::Input;
use super::{CudaBackend, CudaOptions, STEP_TOKENS};
use crate::EngineError;
use crate::model::config::{DeltaConfig, HeadOrder, ModelConfig};
use crate::model::program::{Op, Program};
use crate::sequences::SequenceId;
use crate::weights::VectorId;

/// Sizes of what delta layers are fed in rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundSizes {
    /// Values of a position in one layer.
    row: usize,
}

impl RoundSizes {
    /// `None` where there are no rounds, or no delta layers.
    pub(super) fn new(config: &ModelConfig, options: &CudaOptions) -> Option<Self> {
        let delta = config.delta.as_ref().filter(|_| options.round_tokens > 1)?;
        Some(Self { row: launch::round_row(&delta_shape(delta)) })
    }

    /// Values of one layer of one sequence.
    pub(super) fn ring(&self) -> usize {
        ROUND_PLACES * self.row
    }
}

/// The kernels' view of a delta layer.
pub(super) fn delta_shape(delta: &DeltaConfig) -> DeltaShape {
    DeltaShape {
        key_heads: delta.key_heads,
        value_heads: delta.value_heads,
        key_dim: delta.key_dim,
        value_dim: delta.value_dim,
        tiled: delta.order == HeadOrder::Tiled,
        decay: delta.decay,
    }
}

/// What the state of a delta layer is computed with.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeltaWeights {
    layer: LayerId,
    convolution: VectorId,
    /// Rate and bias of the decay.
    decay: [VectorId; 2],
}

/// The delta layers that a device computes.
pub(super) fn delta_layers(program: &Program, computed: &Range<usize>) -> Vec<DeltaWeights> {
    let mut found = Vec::new();
    let layers = program.layers.iter().enumerate();
    for (number, layer) in layers.filter(|(number, _)| computed.contains(number)) {
        let mut convolution = None;
        for op in layer.ops() {
            match *op {
                Op::Convolve { weight } => convolution = Some(weight),
                Op::DeltaRule { decay_rate, decay_bias, .. } => {
                    let convolution = convolution.expect("a convolution before its delta rule");
                    let (layer, decay) = (LayerId(number as u16), [decay_rate, decay_bias]);
                    found.push(DeltaWeights { layer, convolution, decay });
                }
                _ => {}
            }
        }
    }
    found
}

impl CudaBackend {
    /// Most tokens of a run of answers.
    pub(super) fn most_round_tokens(&self) -> usize {
        self.options.round_tokens.min(STEP_TOKENS)
    }

    /// Whether runs of a step may have several tokens.
    pub(super) fn computes_rounds(&self) -> bool {
        self.most_round_tokens() > 1
    }

    /// The rings of a delta layer, where there are rounds.
    pub(super) fn round_ring(&self, layer: LayerId) -> Option<RoundRing> {
        let sizes = self.sizes.rounds.filter(|_| self.computes_rounds())?;
        let stride = self.sizes.delta_layers * sizes.ring();
        let start = self.sizes.layout.index(layer) * sizes.ring();
        let values = self.buffers.rounds.part(start, self.sizes.sequences * stride - start);
        Some(RoundRing { values, stride, row: sizes.row })
    }

    /// Convolution tails of a delta layer, and values from one sequence's to the next one's.
    pub(super) fn layer_tails(&self, layer: LayerId) -> (Span<f32>, usize) {
        let stride = self.sizes.delta_layers * self.sizes.tail;
        let start = self.sizes.layout.index(layer) * self.sizes.tail;
        (self.buffers.tails.part(start, self.sizes.sequences * stride - start), stride)
    }

    /// Recurrent states of a delta layer, and values from one sequence's to the next one's.
    pub(super) fn layer_states(&self, layer: LayerId) -> (Span<f32>, usize) {
        let stride = self.sizes.delta_layers * self.sizes.state;
        let start = self.sizes.layout.index(layer) * self.sizes.state;
        (self.buffers.states.part(start, self.sizes.sequences * stride - start), stride)
    }

    /// Applies what was kept of a sequence's last round to its states.
    ///
    /// # Errors
    /// The device failed, or the step before has.
    pub(super) fn catch_up(&mut self, sequence: SequenceId) -> Result<(), EngineError> {
        let lag = self.sequences.lag(sequence);
        if lag > 0 && self.sizes.rounds.is_some() {
            self.settle()?;
            self.apply_kept(sequence, lag)?;
        }
        self.sequences.caught_up(sequence);
        Ok(())
    }

    fn apply_kept(&self, sequence: SequenceId, lag: usize) -> Result<(), EngineError> {
        let Some(delta) = &self.config.delta else { return Ok(()) };
        let (shape, buffers) = (delta_shape(delta), &self.buffers);
        // Rows of one token; its id is not needed.
        let length = self.sequences.length(sequence) as u32;
        let words = [0, length, sequence.0, 0, lag as u32];
        buffers.pinned.inputs.hand_over(0, words);
        let all = buffers.inputs.span(0, words.len());
        self.stream.copy(buffers.pinned.inputs.span(0, words.len()), all)?;
        let word = |which: Input| buffers.inputs.span(which as usize * size_of::<u32>(), 1);
        let places = TokenPlaces {
            positions: word(Input::Position),
            sequences: word(Input::Sequence),
            single: true,
            runs: Some(StepRuns { starts: word(Input::Start), lags: word(Input::Lag) }),
            end: 0,
        };
        for weights in &self.delta_weights {
            let Some(ring) = self.round_ring(weights.layer) else { continue };
            let ((tails, stride), none) = (self.layer_tails(weights.layer), ring.values.part(0, 0));
            let weight = self.vector(weights.convolution);
            let convolution = RunConvolution { weight, x: none, tails, stride, out: none };
            launch::convolve_runs(&self.stream, &shape, &places, &convolution, &ring, true)?;
            let (states, stride) = self.layer_states(weights.layer);
            let [rate, bias] = weights.decay.map(|id| self.vector(id));
            let (mixed, beta, decay, out) = (none, none, none, none);
            let step = DeltaStep { mixed, beta, decay, rate, bias, states, stride, out };
            launch::delta_runs(&self.stream, &shape, &places, &step, &ring, true)?;
        }
        // The words in pinned memory are the next batch's.
        Ok(self.stream.wait()?)
    }
}
