//! The gated delta rule of one value head, for a run of tokens of one sequence.
//!
//! Per token, with decay `e^g` and strength `beta`: `S *= e^g; d = beta (v - S^T k); S += k d^T;
//! o = S^T q`. Written so that the state is read once and updated once: with `u = S^T k` and
//! `w = S^T q` of the old state, `d = beta (v - e^g u)` and `o = e^g w + (q . k) d`.
//! Sixteen columns of the state at a time: they are independent, and 8 KiB stay in the cache.
//!
//! The chunked form is the same recurrence for 64 tokens at once (WY representation): within a
//! chunk the `d` of all tokens solve a unit lower triangular system.

use crate::delta::{DeltaInputs, DeltaShape, gates};
use crate::generic::elementwise::{load, store};
use crate::lanes::{LANES, Lanes};

/// Largest dimension of a key head: one normalised q and k live on the stack.
pub(crate) const MAX_KEY_DIM: usize = 256;

/// Tokens of one chunk of the chunked form.
pub(crate) const CHUNK: usize = 64;

/// Tokens of the step form that pass over one block of the state together.
const STEPS: usize = 16;

/// Added under the root when q and k are normalised.
const NORM_EPSILON: f32 = 1e-6;

/// One value head.
pub(crate) struct DeltaTask<'a> {
    pub(crate) shape: &'a DeltaShape,
    pub(crate) inputs: &'a DeltaInputs<'a>,
    pub(crate) head: usize,
    pub(crate) tokens: usize,
    /// The state of this head, `[blocks, key_dim, 16]`.
    pub(crate) state: &'a mut [f32],
    /// `[tokens, value_heads, value_dim]`; only this head is written.
    pub(crate) out: *mut f32,
}

impl DeltaTask<'_> {
    /// Normalised q (scaled by `key_dim^-0.5`) and k of a token.
    #[inline(always)]
    unsafe fn query_and_key<L: Lanes>(&self, token: usize, q: &mut [f32], k: &mut [f32]) {
        let DeltaShape { key_heads, value_heads, key_dim, .. } = *self.shape;
        let head = self.head / (value_heads / key_heads);
        let at = token * self.inputs.qk_stride + head * key_dim;
        // SAFETY: the slices have the length of the head.
        unsafe {
            normalise::<L>(&self.inputs.q[at..at + key_dim], (key_dim as f32).sqrt().recip(), q);
            normalise::<L>(&self.inputs.k[at..at + key_dim], 1.0, k);
        }
    }

    #[inline(always)]
    fn value(&self, token: usize, block: usize) -> (*const f32, usize) {
        let DeltaShape { value_dim, .. } = *self.shape;
        let first = block * LANES;
        let at = token * self.inputs.v_stride + self.head * value_dim + first;
        let count = (value_dim - first).min(LANES);
        (self.inputs.v[at..at + count].as_ptr(), count)
    }

    #[inline(always)]
    fn output(&self, token: usize, block: usize) -> *mut f32 {
        let DeltaShape { value_heads, value_dim, .. } = *self.shape;
        let at = (token * value_heads + self.head) * value_dim + block * LANES;
        // Within the output: the caller of the task has checked its length.
        self.out.wrapping_add(at)
    }
}

/// `out = x * factor / sqrt(sum(x^2) + eps)`
#[inline(always)]
unsafe fn normalise<L: Lanes>(x: &[f32], factor: f32, out: &mut [f32]) {
    // SAFETY: all accesses are within `x` and `out`, which are equally long.
    unsafe {
        let mut squares = L::splat(0.0);
        for at in (0..x.len()).step_by(LANES) {
            let v: L = load(x.as_ptr().add(at), (x.len() - at).min(LANES));
            squares = v.mul_add(v, squares);
        }
        let scale = L::splat(factor / (squares.sum() + NORM_EPSILON).sqrt());
        for at in (0..x.len()).step_by(LANES) {
            let n = (x.len() - at).min(LANES);
            let v: L = load(x.as_ptr().add(at), n);
            store(v.mul(scale), out.as_mut_ptr().add(at), n);
        }
    }
}

#[inline(always)]
unsafe fn dot<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    // SAFETY: all accesses are within the equally long slices.
    unsafe {
        let mut sum = L::splat(0.0);
        for at in (0..a.len()).step_by(LANES) {
            let n = (a.len() - at).min(LANES);
            let x: L = load(a.as_ptr().add(at), n);
            let y: L = load(b.as_ptr().add(at), n);
            sum = x.mul_add(y, sum);
        }
        sum.sum()
    }
}

/// Sums over the key dimension, four at a time to hide latency: `(S^T k, S^T q)` of one block.
#[inline(always)]
unsafe fn read<L: Lanes>(state: *const f32, q: &[f32], k: &[f32]) -> (L, L) {
    // SAFETY: the block holds `k.len()` rows of 16.
    unsafe {
        let mut u = [L::splat(0.0); 4];
        let mut w = [L::splat(0.0); 4];
        let whole = k.len() / 4 * 4;
        for i in (0..whole).step_by(4) {
            for j in 0..4 {
                let row = L::load(state.add((i + j) * LANES));
                u[j] = row.mul_add(L::splat(k[i + j]), u[j]);
                w[j] = row.mul_add(L::splat(q[i + j]), w[j]);
            }
        }
        for i in whole..k.len() {
            let row = L::load(state.add(i * LANES));
            u[0] = row.mul_add(L::splat(k[i]), u[0]);
            w[0] = row.mul_add(L::splat(q[i]), w[0]);
        }
        (u[0].add(u[1]).add(u[2].add(u[3])), w[0].add(w[1]).add(w[2].add(w[3])))
    }
}

/// Token by token.
///
/// # Safety
///
/// The instruction set is available, `key_dim <= MAX_KEY_DIM`, slices have the lengths of the shape.
#[inline(always)]
pub(crate) unsafe fn step<L: Lanes>(task: &mut DeltaTask<'_>) {
    let key_dim = task.shape.key_dim;
    // A few tokens at a time and blocks outside: the block stays in the first-level cache while the
    // tokens pass over it, instead of the whole head being walked once per token.
    let mut qs = [[0.0f32; MAX_KEY_DIM]; STEPS];
    let mut ks = [[0.0f32; MAX_KEY_DIM]; STEPS];
    // q . k, decay, beta of each token.
    let mut factors = [[0.0f32; 3]; STEPS];
    for start in (0..task.tokens).step_by(STEPS) {
        let n = (task.tokens - start).min(STEPS);
        for i in 0..n {
            let (g, beta) = gates(task.inputs, task.shape.value_heads, start + i, task.head);
            let (q, k) = (&mut qs[i][..key_dim], &mut ks[i][..key_dim]);
            // SAFETY: passed on to the caller; slices have the length of the head.
            unsafe {
                task.query_and_key::<L>(start + i, q, k);
                factors[i] = [dot::<L>(q, k), g.exp(), beta];
            }
        }
        for block in 0..task.shape.column_blocks() {
            for i in 0..n {
                let (q, k) = (&qs[i][..key_dim], &ks[i][..key_dim]);
                // SAFETY: passed on to the caller; pointers stay within the state block and the
                // outputs.
                unsafe {
                    let [qk, decay, beta] = factors[i];
                    let (qk, decay, beta) = (L::splat(qk), L::splat(decay), L::splat(beta));
                    let state = task.state.as_mut_ptr().add(block * key_dim * LANES);
                    let (u, w) = read::<L>(state, q, k);
                    let (v, count) = task.value(start + i, block);
                    let v: L = load(v, count);
                    let d = beta.mul(v.sub(decay.mul(u)));
                    let out = task.output(start + i, block);
                    store(qk.mul_add(d, decay.mul(w)), out, count);
                    for (i, &k) in k.iter().enumerate() {
                        let row = state.add(i * LANES);
                        d.mul_add(L::splat(k), L::load(row).mul(decay)).store(row);
                    }
                }
            }
        }
    }
}

/// Chunks of [`CHUNK`] tokens.
///
/// # Safety
///
/// As for [`step`].
#[inline(always)]
pub(crate) unsafe fn chunked<L: Lanes>(task: &mut DeltaTask<'_>) {
    let key_dim = task.shape.key_dim;
    let mut qs = [[0.0f32; MAX_KEY_DIM]; CHUNK];
    let mut ks = [[0.0f32; MAX_KEY_DIM]; CHUNK];
    // Strictly lower part: beta_i (k_i . k_j) e^(G_i - G_j); lower part: (q_i . k_j) e^(G_i - G_j).
    let mut solve = [[0.0f32; CHUNK]; CHUNK];
    let mut mix = [[0.0f32; CHUNK]; CHUNK];
    let mut total = [0.0f32; CHUNK];
    let mut beta = [0.0f32; CHUNK];
    for start in (0..task.tokens).step_by(CHUNK) {
        let n = (task.tokens - start).min(CHUNK);
        let mut sum = 0.0;
        for i in 0..n {
            let (g, b) = gates(task.inputs, task.shape.value_heads, start + i, task.head);
            sum += g;
            (total[i], beta[i]) = (sum, b);
            // SAFETY: passed on to the caller.
            unsafe {
                let (q, k) = (&mut qs[i][..key_dim], &mut ks[i][..key_dim]);
                task.query_and_key::<L>(start + i, q, k);
                for j in 0..=i {
                    let decay = (total[i] - total[j]).exp();
                    let key = &ks[j][..key_dim];
                    mix[i][j] = dot::<L>(&qs[i][..key_dim], key) * decay;
                    solve[i][j] = beta[i] * dot::<L>(&ks[i][..key_dim], key) * decay;
                }
            }
        }
        for block in 0..task.shape.column_blocks() {
            // SAFETY: passed on to the caller; pointers stay within the state block and outputs.
            unsafe {
                let state = task.state.as_mut_ptr().add(block * key_dim * LANES);
                let mut d = [L::splat(0.0); CHUNK];
                for i in 0..n {
                    let (u, w) = read::<L>(state, &qs[i][..key_dim], &ks[i][..key_dim]);
                    let (v, count) = task.value(start + i, block);
                    let decay = L::splat(total[i].exp());
                    let v: L = load(v, count);
                    let mut own = L::splat(beta[i]).mul(v.sub(decay.mul(u)));
                    let mut o = decay.mul(w);
                    for j in 0..i {
                        own = own.sub(L::splat(solve[i][j]).mul(d[j]));
                        o = L::splat(mix[i][j]).mul_add(d[j], o);
                    }
                    d[i] = own;
                    o = L::splat(mix[i][i]).mul_add(own, o);
                    store(o, task.output(start + i, block), count);
                }
                let decay = L::splat(sum.exp());
                for (i, d) in d.iter_mut().enumerate().take(n) {
                    *d = d.mul(L::splat((sum - total[i]).exp()));
                }
                for row_index in 0..key_dim {
                    let row = state.add(row_index * LANES);
                    let mut value = L::load(row).mul(decay);
                    for (d, k) in d.iter().zip(&ks).take(n) {
                        value = d.mul_add(L::splat(k[row_index]), value);
                    }
                    value.store(row);
                }
            }
        }
    }
}
