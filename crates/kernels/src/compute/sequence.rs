//! The operations of [`Compute`] that carry a recurrent state along a sequence: convolution, delta rule.

use super::{Compute, Parts};
use crate::delta::{DeltaDecay, DeltaForm, DeltaInputs, DeltaShape};
use crate::generic::delta::{DeltaTask, MAX_KEY_DIM};
use crate::generic::elementwise::{ConvolutionTask, STRIP};
use crate::lanes::LANES;

impl Compute {
    /// Depthwise causal convolution, then SiLU: `out[t, c] = silu(sum_j weight[c, j] * u[t + j, c])`
    /// with `u` the rows of `state [kernel - 1, channels]` (raw inputs, oldest first; zeros at the start
    /// of a sequence) followed by `x [tokens, channels]`. Then the state takes the last rows of `u`.
    ///
    /// # Panics
    ///
    /// If lengths do not fit or `kernel` is not within 2..=8.
    pub fn causal_convolution(
        &self,
        state: &mut [f32],
        x: &[f32],
        weight: &[f32],
        kernel: usize,
        out: &mut [f32],
    ) {
        assert!((2..=8).contains(&kernel), "causal_convolution: kernel {kernel} not in 2..=8");
        assert_eq!(weight.len() % kernel, 0, "causal_convolution: weights");
        let channels = weight.len() / kernel;
        assert_eq!(state.len(), (kernel - 1) * channels, "causal_convolution: state");
        assert!(channels > 0 && x.len().is_multiple_of(channels), "causal_convolution: inputs");
        assert_eq!(x.len(), out.len(), "causal_convolution: outputs");
        let tokens = x.len() / channels;
        let (state, out) = (Parts::new(state), Parts::new(out));
        // Whole cache lines of channels; about a microsecond of work at least. Of many tokens a strip, or less where
        // that leaves a worker without one.
        let share = channels.div_ceil(2 * self.pool.workers()).min(STRIP);
        let piece = (512 / tokens.max(1)).max(share).next_multiple_of(LANES);
        self.pool.for_each(channels, piece, |range| {
            let task = ConvolutionTask {
                state: state.pointer(),
                x: x.as_ptr(),
                weight: weight.as_ptr(),
                out: out.pointer(),
                channels,
                tokens,
                kernel,
                first: range.start,
                count: range.len(),
            };
            // SAFETY: lengths checked above; channels of tasks are disjoint; features by `new`.
            unsafe { (self.table.convolution)(&task) };
        });
    }

    /// The gated delta rule over a run of tokens of one sequence: updates `state`
    /// ([`DeltaShape::state_len`] floats) and writes `out [tokens, value_heads, value_dim]`.
    /// q and k are normalised here (`x / sqrt(sum(x^2) + 1e-6)`), and q scaled by `key_dim^-0.5`.
    ///
    /// # Panics
    ///
    /// If lengths do not fit the shape.
    pub fn delta_rule(
        &self,
        shape: &DeltaShape,
        state: &mut [f32],
        inputs: &DeltaInputs<'_>,
        form: DeltaForm,
        out: &mut [f32],
    ) {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim } = *shape;
        let row = value_heads * value_dim;
        assert!(
            row > 0 && out.len().is_multiple_of(row),
            "delta_rule: {} floats in rows of {row}",
            out.len()
        );
        let tokens = out.len() / row;
        assert!(key_dim <= MAX_KEY_DIM, "delta_rule: key_dim {key_dim} above {MAX_KEY_DIM}");
        assert!(key_heads > 0 && value_heads % key_heads == 0, "delta_rule: {shape:?}");
        assert_eq!(state.len(), shape.state_len(), "delta_rule: state");
        let need = |stride: usize, width: usize| {
            assert!(stride >= width, "delta_rule: stride {stride} below {width}");
            if tokens == 0 { 0 } else { (tokens - 1) * stride + width }
        };
        let qk = need(inputs.qk_stride, key_heads * key_dim);
        assert!(inputs.q.len() >= qk && inputs.k.len() >= qk, "delta_rule: q and k, {qk} floats");
        let v = need(inputs.v_stride, row);
        assert!(inputs.v.len() >= v, "delta_rule: v, {v} floats");
        let decays = value_heads * inputs.decays.of_head(key_dim);
        assert_eq!(inputs.a.len(), tokens * decays, "delta_rule: a");
        assert_eq!(inputs.b.len(), tokens * value_heads, "delta_rule: b");
        assert_eq!(inputs.decay.len(), value_heads, "delta_rule: decay");
        assert_eq!(inputs.dt_bias.len(), decays, "delta_rule: dt_bias");
        let kernel = match (form, inputs.decays) {
            (DeltaForm::Chunked, DeltaDecay::Heads) => self.table.delta_chunked,
            _ => self.table.delta_step,
        };
        let per_head = state.len() / value_heads;
        let (state, out) = (Parts::new(state), Parts::new(out));
        let piece = value_heads.div_ceil(8 * self.pool.workers());
        self.pool.for_each(value_heads, piece, |heads| {
            for head in heads {
                // SAFETY: heads are disjoint in state and output; lengths checked above.
                unsafe {
                    kernel(&mut DeltaTask {
                        shape,
                        inputs,
                        head,
                        tokens,
                        state: state.part(head * per_head..(head + 1) * per_head),
                        out: out.pointer(),
                    });
                }
            }
        });
    }
}
