//! Elementwise operations, norms, rotation and routing of [`Compute`].

use super::{Compute, Parts};

/// Elements below which an elementwise operation stays on the calling thread: they are done before
/// the others would have started.
const ELEMENTS_EACH: usize = 16384;

fn check_rows(what: &str, elements: usize, width: usize) {
    assert!(
        width > 0 && elements.is_multiple_of(width),
        "{what}: {elements} elements in rows of {width}"
    );
}

impl Compute {
    /// `out = x / sqrt(mean(x^2) + eps) * weight` for each row of `x [n, width]`.
    ///
    /// # Panics
    ///
    /// If lengths do not fit (as for all methods below).
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let width = weight.len();
        check_rows("rms_norm", x.len(), width);
        assert_eq!(x.len(), out.len(), "rms_norm: outputs");
        let out = Parts::new(out);
        self.pool.for_each(x.len() / width, ELEMENTS_EACH / width, |rows| {
            for row in rows {
                let range = row * width..(row + 1) * width;
                // SAFETY: rows are disjoint; `new` has checked the features.
                unsafe {
                    (self.table.rms_norm)(&x[range.clone()], weight, eps, out.part(range));
                }
            }
        });
    }

    /// As [`Compute::each_row`], with rows shared out in pieces of `piece`: for what computes more.
    pub fn for_rows(
        &self,
        out: &mut [f32],
        width: usize,
        piece: usize,
        body: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        check_rows("for_rows", out.len(), width);
        let count = out.len() / width;
        let out = Parts::new(out);
        self.pool.for_each(count, piece, |rows| {
            for row in rows {
                // SAFETY: rows are disjoint.
                body(row, unsafe { out.part(row * width..(row + 1) * width) });
            }
        });
    }

    /// `out = o / sqrt(mean(o^2) + eps) * weight * silu(gate)` for each row of `o [n, width]`.
    pub fn gated_rms_norm(
        &self,
        o: &[f32],
        weight: &[f32],
        gate: &[f32],
        eps: f32,
        out: &mut [f32],
    ) {
        let width = weight.len();
        check_rows("gated_rms_norm", o.len(), width);
        assert_eq!(o.len(), gate.len(), "gated_rms_norm: gates");
        assert_eq!(o.len(), out.len(), "gated_rms_norm: outputs");
        let out = Parts::new(out);
        self.pool.for_each(o.len() / width, ELEMENTS_EACH / 4 / width, |rows| {
            for row in rows {
                let range = row * width..(row + 1) * width;
                let (x, gate) = (&o[range.clone()], &gate[range.clone()]);
                // SAFETY: rows are disjoint; `new` has checked the features.
                unsafe { (self.table.gated_rms_norm)(x, weight, gate, eps, out.part(range)) };
            }
        });
    }

    /// `out = silu(gate) * up`
    pub fn swiglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.gated(self.table.swiglu, gate, up, out);
    }

    /// `out = gelu(gate) * up`, with the approximation by a hyperbolic tangent (`gelu_pytorch_tanh`).
    pub fn geglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        self.gated(self.table.geglu, gate, up, out);
    }

    /// An activation of the gate times `up`.
    fn gated(
        &self,
        kernel: unsafe fn(&[f32], &[f32], &mut [f32]),
        gate: &[f32],
        up: &[f32],
        out: &mut [f32],
    ) {
        assert_eq!(gate.len(), up.len(), "activation: inputs");
        assert_eq!(gate.len(), out.len(), "activation: outputs");
        let out = Parts::new(out);
        self.pool.for_each(gate.len(), ELEMENTS_EACH / 4, |range| {
            let (gate, up) = (&gate[range.clone()], &up[range.clone()]);
            // SAFETY: ranges are disjoint; `new` has checked the features.
            unsafe { kernel(gate, up, out.part(range)) };
        });
    }

    /// `x *= sigmoid(gate)`, elementwise.
    pub fn scale_by_sigmoid(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len(), "scale_by_sigmoid: gates");
        let x = Parts::new(x);
        self.pool.for_each(gate.len(), ELEMENTS_EACH / 4, |range| {
            // SAFETY: ranges are disjoint; `new` has checked the features.
            unsafe { (self.table.scale_by_sigmoid)(x.part(range.clone()), &gate[range]) };
        });
    }

    /// `x += y`
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        self.add_scaled(x, y, 1.0);
    }

    /// `row += y` for each row of `x`, a bias.
    pub fn add_to_rows(&self, x: &mut [f32], y: &[f32]) {
        // SAFETY: equal lengths; `new` has checked the features.
        self.each_row(x, y.len(), |_, row| unsafe { (self.table.add_scaled)(row, y, 1.0) });
    }

    /// `x[i] += y[i] * factors[i]` for each row `i` of `x` and `y [n, width]`.
    pub fn add_scaled_rows(&self, x: &mut [f32], y: &[f32], factors: &[f32]) {
        assert_eq!(x.len(), y.len(), "add_scaled_rows: terms");
        assert!(y.len().is_multiple_of(factors.len()), "add_scaled_rows: factors");
        let width = y.len() / factors.len();
        self.each_row(x, width, |i, row| {
            let term = &y[i * width..(i + 1) * width];
            // SAFETY: equal lengths; `new` has checked the features.
            unsafe { (self.table.add_scaled)(row, term, factors[i]) };
        });
    }

    /// Calls `body` with the number and the place of each row of `out [n, width]`, on all workers: for what moves
    /// values and computes little. `body` must not use the [`Compute`]: regions do not nest.
    pub fn each_row(&self, out: &mut [f32], width: usize, body: impl Fn(usize, &mut [f32]) + Sync) {
        self.for_rows(out, width, ELEMENTS_EACH / width.max(1), body);
    }

    /// `x += y * factor`, with one rounding per element.
    pub fn add_scaled(&self, x: &mut [f32], y: &[f32], factor: f32) {
        assert_eq!(x.len(), y.len(), "add_scaled: terms");
        let x = Parts::new(x);
        self.pool.for_each(y.len(), ELEMENTS_EACH, |range| {
            // SAFETY: ranges are disjoint; `new` has checked the features.
            unsafe { (self.table.add_scaled)(x.part(range.clone()), &y[range], factor) };
        });
    }

    /// Rotary position embedding of `x [tokens, heads, head_dim]` in place: within the first
    /// `rotary_dim` dimensions of each head, pair `(j, j + rotary_dim / 2)` turns by
    /// `positions[token] * inverse_frequencies[j]` (the product rounded to binary32, as the reference
    /// implementation does; sine and cosine of it are exact to the last bit).
    pub fn rope(
        &self,
        x: &mut [f32],
        heads: usize,
        head_dim: usize,
        rotary_dim: usize,
        positions: &[u32],
        inverse_frequencies: &[f32],
    ) {
        /// Pairs whose angles live on the stack.
        const MAX_PAIRS: usize = 256;
        let (pairs, row) = (rotary_dim / 2, heads * head_dim);
        assert_eq!(x.len(), positions.len() * row, "rope: positions x heads x head_dim");
        assert_eq!(
            inverse_frequencies.len(),
            pairs,
            "rope: frequencies of {rotary_dim} dimensions"
        );
        assert!(
            rotary_dim <= head_dim && rotary_dim.is_multiple_of(2),
            "rope: {rotary_dim} of {head_dim}"
        );
        assert!(pairs <= MAX_PAIRS, "rope: at most {MAX_PAIRS} pairs, not {pairs}");
        let x = Parts::new(x);
        self.pool.for_each(positions.len(), (ELEMENTS_EACH / 4 / row.max(1)).max(1), |tokens| {
            let (mut cos, mut sin) = ([0.0; MAX_PAIRS], [0.0; MAX_PAIRS]);
            for token in tokens {
                for (j, frequency) in inverse_frequencies.iter().enumerate() {
                    let angle = f64::from(positions[token] as f32 * frequency);
                    (sin[j], cos[j]) = (angle.sin() as f32, angle.cos() as f32);
                }
                for head in 0..heads {
                    let start = token * row + head * head_dim;
                    // SAFETY: heads are disjoint; `new` has checked the features.
                    unsafe {
                        let head = x.part(start..start + head_dim);
                        (self.table.rotate)(head, &cos[..pairs], &sin[..pairs]);
                    }
                }
            }
        });
    }

    /// For each token: the `k` largest of `softmax(logits [tokens, experts])`, in descending order
    /// (ties: the lower id first), as `ids` and `weights [tokens, k]`. With `normalise` the weights of a
    /// token sum to 1; otherwise they are the probabilities over all experts.
    ///
    /// NaN logits rank below all others, so the ids are always distinct and in range; the weights
    /// of such a token are all NaN, so that the fault stays visible.
    pub fn softmax_top_k(
        &self,
        logits: &[f32],
        experts: usize,
        k: usize,
        normalise: bool,
        ids: &mut [u16],
        weights: &mut [f32],
    ) {
        check_rows("softmax_top_k", logits.len(), experts);
        let tokens = logits.len() / experts;
        assert!(k >= 1 && k <= experts && experts <= 65536, "top {k} of {experts} experts");
        assert_eq!(ids.len(), tokens * k, "softmax_top_k: ids");
        assert_eq!(weights.len(), tokens * k, "softmax_top_k: weights");
        let (ids, weights) = (Parts::new(ids), Parts::new(weights));
        self.pool.for_each(tokens, (ELEMENTS_EACH / experts).max(1), |range| {
            for t in range {
                // SAFETY: tokens are disjoint.
                let (ids, weights) =
                    unsafe { (ids.part(t * k..(t + 1) * k), weights.part(t * k..(t + 1) * k)) };
                let logits = &logits[t * experts..(t + 1) * experts];
                self.top_k(logits, normalise, ids, weights);
            }
        });
    }

    /// One token of [`Self::softmax_top_k`].
    fn top_k(&self, logits: &[f32], normalise: bool, ids: &mut [u16], weights: &mut [f32]) {
        /// Logits exponentiated at a time.
        const PIECE: usize = 256;
        let k = ids.len();
        let mut have = 0;
        let mut nan = false;
        for (id, &logit) in logits.iter().enumerate() {
            nan |= logit.is_nan();
            let key = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
            if have == k && key <= weights[k - 1] {
                continue;
            }
            // Insertion behind all that are larger or equal: earlier ids win ties.
            let mut place = have.min(k - 1);
            while place > 0 && weights[place - 1] < key {
                weights[place] = weights[place - 1];
                ids[place] = ids[place - 1];
                place -= 1;
            }
            (weights[place], ids[place]) = (key, id as u16);
            have = (have + 1).min(k);
        }
        if nan {
            weights.fill(f32::NAN);
            return;
        }
        let largest = weights[0];
        let mut total = 0.0;
        let mut exps = [0.0; PIECE];
        if !normalise {
            for piece in logits.chunks(PIECE) {
                // SAFETY: equal lengths; `new` has checked the features.
                total +=
                    unsafe { (self.table.exp_shifted)(piece, largest, &mut exps[..piece.len()]) };
            }
        }
        let mut chosen = 0.0;
        for piece in weights.chunks_mut(PIECE) {
            let exps = &mut exps[..piece.len()];
            // SAFETY: as above.
            chosen += unsafe { (self.table.exp_shifted)(piece, largest, exps) };
            piece.copy_from_slice(exps);
        }
        let inverse = 1.0 / if normalise { chosen } else { total };
        for weight in weights {
            *weight *= inverse;
        }
    }
}
