//! Delta layers of a sequence after a round: what is needed to apply the tokens that were kept.
//!
//! A recurrent state cannot be rolled back, so a round leaves it at the last token before. The round runs on a copy,
//! one layer's at a time, and what it fed to the rule lies here; the next batch of the sequence applies the tokens that
//! were kept before its own, by the same call and so with the same bits. A round reads and writes a state once,
//! whatever its tokens are; 35B-A3B takes 66 KB a token and layer for it.

use kernels::{DeltaDecay, DeltaInputs};
use store::LayerId;

use super::CpuOptions;
use super::state::HostSequences;
use crate::model::config::{DeltaConfig, ModelConfig};
use crate::sequences::{Kept, Part, SequenceId};

/// Sizes of what a layer has.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayShape {
    /// Most tokens of a round.
    tokens: usize,
    channels: usize,
    /// Rows of a convolution tail.
    tail: usize,
    key_width: usize,
    value_heads: usize,
    /// Decays of a token, and what they are of.
    decays: usize,
    decay: DeltaDecay,
}

impl ReplayShape {
    /// `None` where there are no rounds, or no recurrent state.
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let delta: &DeltaConfig = config.delta.as_ref().filter(|_| options.round_tokens > 1)?;
        Some(Self {
            tokens: options.round_tokens,
            channels: delta.channels(),
            tail: delta.convolution_kernel - 1,
            key_width: delta.key_heads * delta.key_dim,
            value_heads: delta.value_heads,
            decays: delta.decays(),
            decay: delta.decay,
        })
    }

    /// Values of a layer.
    pub(super) fn values(&self) -> usize {
        let gates = self.decays + self.value_heads;
        (self.tail + 2 * self.tokens) * self.channels + self.tokens * gates
    }

    /// The rows of one of `layers` delta layers, by its number among them; `all` is empty until a place's first round.
    pub(super) fn of_layer<'a>(
        &self,
        all: &'a mut Vec<f32>,
        layers: usize,
        index: usize,
    ) -> ReplayRows<'a> {
        all.resize(layers * self.values(), 0.0);
        self.rows(&mut all[index * self.values()..][..self.values()])
    }

    /// The rows of a layer in its values.
    fn rows<'a>(&self, values: &'a mut [f32]) -> ReplayRows<'a> {
        let (raw, rest) = values.split_at_mut((self.tail + self.tokens) * self.channels);
        let (convolved, rest) = rest.split_at_mut(self.tokens * self.channels);
        let (decay, beta) = rest.split_at_mut(self.tokens * self.decays);
        ReplayRows { shape: *self, raw, convolved, decay, beta }
    }
}

impl HostSequences {
    /// Sets the convolution tails of a sequence to those behind the first `tokens` of its last round.
    pub(super) fn cut_tails(&mut self, sequence: SequenceId, tokens: usize) {
        for layer in (0..self.layout().layers()).map(|layer| LayerId(layer as u16)) {
            if self.layout().kept(layer) == Kept::State
                && let (tail, Some(rows)) = self.delta(sequence, layer, Part::Tail)
            {
                rows.set_tail(tokens, tail);
            }
        }
    }
}

/// What a layer was fed in the last round of a sequence.
pub(super) struct ReplayRows<'a> {
    shape: ReplayShape,
    /// `[kernel - 1 + tokens, channels]`: the convolution's tail before the round, then its inputs.
    raw: &'a mut [f32],
    /// `[tokens, channels]`
    convolved: &'a mut [f32],
    /// `[tokens, decays]`
    decay: &'a mut [f32],
    /// `[tokens, value_heads]`
    beta: &'a mut [f32],
}

impl ReplayRows<'_> {
    /// Notes the inputs of a round's convolution, whose tail is still the one before.
    pub(super) fn note_convolution(&mut self, tail: &[f32], inputs: &[f32]) {
        self.raw[..tail.len()].copy_from_slice(tail);
        self.raw[tail.len()..tail.len() + inputs.len()].copy_from_slice(inputs);
    }

    /// Sets a convolution tail to the one behind the first `tokens` of the round.
    pub(super) fn set_tail(&self, tokens: usize, tail: &mut [f32]) {
        tail.copy_from_slice(&self.raw[tokens * self.shape.channels..][..tail.len()]);
    }

    /// Notes the inputs of a round's rule, rows as of [`DeltaInputs`].
    pub(super) fn note_rule(&mut self, convolved: &[f32], decay: &[f32], beta: &[f32]) {
        self.convolved[..convolved.len()].copy_from_slice(convolved);
        self.decay[..decay.len()].copy_from_slice(decay);
        self.beta[..beta.len()].copy_from_slice(beta);
    }

    /// The inputs of the first `tokens` of the round, with the layer's weights.
    pub(super) fn rule<'s>(
        &'s self,
        tokens: usize,
        decay: &'s [f32],
        dt_bias: &'s [f32],
    ) -> DeltaInputs<'s> {
        let ReplayShape { channels, key_width, value_heads, decays, .. } = self.shape;
        DeltaInputs {
            q: self.convolved,
            k: &self.convolved[key_width..],
            v: &self.convolved[2 * key_width..],
            qk_stride: channels,
            v_stride: channels,
            decays: self.shape.decay,
            a: &self.decay[..tokens * decays],
            b: &self.beta[..tokens * value_heads],
            decay,
            dt_bias,
        }
    }
}

/// Where rounds of delta layers run.
pub(super) struct RoundScratch {
    /// One layer's state of one sequence.
    pub(super) state: Vec<f32>,
    /// Outputs of tokens that are applied again, `[tokens, value_heads, value_dim]`: no operation reads them.
    pub(super) out: Vec<f32>,
}

impl RoundScratch {
    /// `None` as [`ReplayShape::new`].
    pub(super) fn new(config: &ModelConfig, options: &CpuOptions) -> Option<Self> {
        let [state, out] = Self::values(config, options)?;
        Some(Self { state: vec![0.0; state], out: vec![0.0; out] })
    }

    fn values(config: &ModelConfig, options: &CpuOptions) -> Option<[usize; 2]> {
        let delta = config.delta.as_ref().filter(|_| options.round_tokens > 1)?;
        Some([super::delta_shape(delta).state_len(), options.round_tokens * delta.value_width()])
    }

    /// Bytes that [`RoundScratch::new`] will hold.
    pub(super) fn bytes(config: &ModelConfig, options: &CpuOptions) -> usize {
        let values = Self::values(config, options).unwrap_or_default();
        values.iter().sum::<usize>() * size_of::<f32>()
    }
}
