//! The operations of [`Compute`] that carry state along a sequence: attention, convolution, delta
//! rule.

use super::{Compute, Parts};
use crate::attention::{AttentionShape, BLOCK_TOKENS, KeyValueBlock};
use crate::delta::{DeltaForm, DeltaInputs, DeltaShape};
use crate::generic::attention::{AttentionTask, MAX_HEAD_DIM, TASK_HEADS};
use crate::generic::delta::{DeltaTask, MAX_KEY_DIM};
use crate::generic::elementwise::ConvolutionTask;
use crate::lanes::LANES;

impl Compute {
    /// Causal attention: token `i` of `q [tokens, query_heads, head_dim]` sees the positions
    /// `0..=first_position + i`, which lie in `blocks` (block `b` from position `b * BLOCK_TOKENS`).
    /// `out` has the shape of `q`.
    ///
    /// # Panics
    ///
    /// If lengths do not fit the shape or blocks are missing.
    pub fn attention(
        &self,
        shape: &AttentionShape,
        q: &[f32],
        first_position: usize,
        blocks: &[KeyValueBlock<'_>],
        out: &mut [f32],
    ) {
        let AttentionShape { query_heads, key_value_heads, head_dim, scale } = *shape;
        let row = query_heads * head_dim;
        assert!(
            row > 0 && q.len().is_multiple_of(row),
            "attention: {} floats in rows of {row}",
            q.len()
        );
        assert_eq!(q.len(), out.len(), "attention: outputs");
        assert!(head_dim <= MAX_HEAD_DIM, "attention: head_dim {head_dim} above {MAX_HEAD_DIM}");
        assert!(
            key_value_heads > 0 && query_heads % key_value_heads == 0,
            "attention: {query_heads} query heads over {key_value_heads}"
        );
        let tokens = q.len() / row;
        let needed = (first_position + tokens).div_ceil(BLOCK_TOKENS);
        assert!(needed <= blocks.len(), "attention: {needed} blocks needed, {}", blocks.len());
        let elements = key_value_heads * BLOCK_TOKENS * head_dim;
        for block in &blocks[..needed] {
            assert_eq!(block.keys.len(), elements, "elements of a key block");
            assert_eq!(block.values.len(), elements, "elements of a value block");
        }
        let share = query_heads / key_value_heads;
        // Heads of a task share a key-value head; small enough that every worker has several.
        let mut together = share.min(TASK_HEADS);
        while together > 1 && tokens * query_heads / together < 2 * self.pool.workers() {
            together /= 2;
        }
        let per_share = share.div_ceil(together);
        let per_token = key_value_heads * per_share;
        let out = Parts::new(out);
        let body = |range: std::ops::Range<usize>| {
            for item in range {
                let (token, item) = (item / per_token, item % per_token);
                let (key_value_head, part) = (item / per_share, item % per_share);
                let first = key_value_head * share + part * together;
                let heads = together.min(share - part * together);
                let range =
                    token * row + first * head_dim..token * row + (first + heads) * head_dim;
                // SAFETY: tasks are disjoint heads; `new` has checked the features; sizes above.
                unsafe {
                    (self.table.attend)(&mut AttentionTask {
                        q: &q[range.clone()],
                        out: out.part(range),
                        head_dim,
                        scale,
                        key_value_head,
                        visible: first_position + token + 1,
                        blocks,
                    });
                }
            }
        };
        if first_position + tokens < 16 {
            body(0..tokens * per_token);
        } else {
            self.pool.for_each(tokens * per_token, 1, body);
        }
    }

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
        // Whole cache lines of channels; about a microsecond of work at least.
        let piece = (4096 / tokens.max(1)).next_multiple_of(LANES);
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
        assert_eq!(inputs.a.len(), tokens * value_heads, "delta_rule: a");
        assert_eq!(inputs.b.len(), tokens * value_heads, "delta_rule: b");
        assert_eq!(inputs.decay.len(), value_heads, "delta_rule: decay");
        assert_eq!(inputs.dt_bias.len(), value_heads, "delta_rule: dt_bias");
        let kernel = match form {
            DeltaForm::Step => self.table.delta_step,
            DeltaForm::Chunked => self.table.delta_chunked,
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
