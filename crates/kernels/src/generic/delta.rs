//! The gated delta rule of one value head, for a run of tokens of one sequence.
//!
//! Per token, with decay `e^g` and strength `beta`: `S *= e^g; d = beta (v - S^T k); S += k d^T;
//! o = S^T q`. Written so that the state is read once and updated once: with `u = S^T k` and
//! `w = S^T q` of the old state, `d = beta (v - e^g u)` and `o = e^g w + (q . k) d`.
//! Sixteen columns of the state at a time: they are independent, and 8 KiB stay in the cache.
//!
//! Where channels of keys have decays of their own, `S *= e^g` is of rows: then `u` and `w` are sums with `e^g k` and
//! `e^g q`, and nothing else is decayed.
//!
//! The chunked form is the same recurrence for 64 tokens at once (WY representation): within a
//! chunk the `d` of all tokens solve a unit lower triangular system.

#![allow(clippy::needless_range_loop, reason = "one index walks several arrays of registers")]

use crate::delta::{DeltaDecay, DeltaInputs, DeltaShape, gates, strength};
use crate::generic::elementwise::{load, store};
use crate::lanes::{LANES, Lanes, exp, sigmoid, softplus};

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

    /// Decays of the channels of a token's key.
    #[inline(always)]
    unsafe fn channel_decays<L: Lanes>(&self, token: usize, decays: &mut [f32]) {
        let (inputs, key_dim) = (self.inputs, self.shape.key_dim);
        let first = (token * self.shape.value_heads + self.head) * key_dim;
        let a = &inputs.a[first..first + key_dim];
        let bias = &inputs.dt_bias[self.head * key_dim..(self.head + 1) * key_dim];
        // SAFETY: all accesses are within the equally long slices.
        unsafe {
            let rate = L::splat(inputs.decay[self.head]);
            for at in (0..key_dim).step_by(LANES) {
                let n = (key_dim - at).min(LANES);
                let a: L = load(a.as_ptr().add(at), n);
                let x = a.add(load(bias.as_ptr().add(at), n));
                let g = match inputs.decays {
                    DeltaDecay::BoundedChannels { bound } => {
                        L::splat(bound).mul(sigmoid(rate.mul(x)))
                    }
                    DeltaDecay::Heads | DeltaDecay::Channels => rate.mul(softplus(x)),
                };
                store(exp(L::splat(0.0).sub(g)), decays.as_mut_ptr().add(at), n);
            }
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

/// `(S^T k, S^T q)` of one block in the making: four sums each to hide latency, row `i` in sum `i % 4`.
#[derive(Clone, Copy)]
struct Sums<L: Lanes> {
    u: [L; 4],
    w: [L; 4],
}

impl<L: Lanes> Sums<L> {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: no memory is touched.
        unsafe { Self { u: [L::splat(0.0); 4], w: [L::splat(0.0); 4] } }
    }

    /// One row of the state, whose elements of k and q are `k` and `q`.
    #[inline(always)]
    unsafe fn row(&mut self, at: usize, row: L, k: L, q: L) {
        // SAFETY: no memory is touched.
        unsafe {
            self.u[at] = row.mul_add(k, self.u[at]);
            self.w[at] = row.mul_add(q, self.w[at]);
        }
    }

    #[inline(always)]
    unsafe fn join(&self) -> (L, L) {
        let Self { u, w } = self;
        // SAFETY: no memory is touched.
        unsafe { (u[0].add(u[1]).add(u[2].add(u[3])), w[0].add(w[1]).add(w[2].add(w[3]))) }
    }
}

/// Runs a block for each row of `0..len` with the sum it belongs to: those beyond the last four are added to the first.
macro_rules! rows {
    ($len:expr, |$row:ident, $sum:ident| $body:block) => {
        let len: usize = $len;
        let whole = len / 4 * 4;
        for four in (0..whole).step_by(4) {
            for $sum in 0..4 {
                let $row = four + $sum;
                $body
            }
        }
        for $row in whole..len {
            let $sum = 0;
            $body
        }
    };
}

/// Sums over the key dimension: `(S^T k, S^T q)` of one block.
#[inline(always)]
unsafe fn read<L: Lanes>(state: *const f32, q: &[f32], k: &[f32]) -> (L, L) {
    // SAFETY: the block holds `k.len()` rows of 16.
    unsafe {
        let mut sums = Sums::<L>::zero();
        rows!(k.len(), |i, sum| {
            sums.row(sum, L::load(state.add(i * LANES)), L::splat(k[i]), L::splat(q[i]));
        });
        sums.join()
    }
}

/// What the tokens of a piece share over all blocks; `C` is [`STEPS`] where channels have decays of their own, else 0.
struct Steps<const C: usize> {
    /// What is summed over the state, times the decays of channels.
    qs: [[f32; MAX_KEY_DIM]; STEPS],
    ks: [[f32; MAX_KEY_DIM]; STEPS],
    /// q . k, decay of the head, beta of each token.
    factors: [[f32; 3]; STEPS],
    /// Decays of channels.
    decays: [[f32; MAX_KEY_DIM]; C],
    /// Keys as they are written.
    written: [[f32; MAX_KEY_DIM]; C],
    first: usize,
    count: usize,
}

impl<const C: usize> Steps<C> {
    /// Sets token `i` of the piece.
    #[inline(always)]
    unsafe fn set<L: Lanes>(&mut self, task: &DeltaTask<'_>, i: usize) {
        let (token, heads) = (self.first + i, task.shape.value_heads);
        let key_dim = task.shape.key_dim;
        let (q, k) = (&mut self.qs[i][..key_dim], &mut self.ks[i][..key_dim]);
        // SAFETY: passed on to the caller; slices have the length of the head.
        unsafe {
            task.query_and_key::<L>(token, q, k);
            let product = dot::<L>(q, k);
            if C == 0 {
                let (g, beta) = gates(task.inputs, heads, token, task.head);
                self.factors[i] = [product, g.exp(), beta];
                return;
            }
            self.factors[i] = [product, 1.0, strength(task.inputs, heads, token, task.head)];
            let (decays, written) = (&mut self.decays[i], &mut self.written[i]);
            task.channel_decays::<L>(token, &mut decays[..key_dim]);
            written[..key_dim].copy_from_slice(k);
            for at in 0..key_dim {
                q[at] *= decays[at];
                k[at] *= decays[at];
            }
        }
    }

    /// What row `at` of the state takes of token `i`: its element of the key, and its decay, `decay` where heads have
    /// one.
    #[inline(always)]
    unsafe fn update<L: Lanes>(&self, i: usize, at: usize, decay: L) -> (L, L) {
        // SAFETY: the caller vouches for `i < STEPS` and `at < MAX_KEY_DIM`; rows by channel are STEPS or not asked.
        unsafe {
            if C == 0 {
                return (L::splat(*self.ks.get_unchecked(i).get_unchecked(at)), decay);
            }
            let written = *self.written.get_unchecked(i).get_unchecked(at);
            (L::splat(written), L::splat(*self.decays.get_unchecked(i).get_unchecked(at)))
        }
    }
}

/// Token by token.
///
/// # Safety
///
/// The instruction set is available, `key_dim <= MAX_KEY_DIM`, slices have the lengths of the shape.
#[inline(always)]
pub(crate) unsafe fn step<L: Lanes>(task: &mut DeltaTask<'_>) {
    // SAFETY: passed on to the caller.
    unsafe {
        match task.inputs.decays {
            DeltaDecay::Heads => step_pieces::<L, 0>(task),
            DeltaDecay::Channels | DeltaDecay::BoundedChannels { .. } => {
                step_pieces::<L, STEPS>(task);
            }
        }
    }
}

/// # Safety
///
/// As for [`step`].
#[inline(always)]
unsafe fn step_pieces<L: Lanes, const C: usize>(task: &mut DeltaTask<'_>) {
    // A few tokens at a time and blocks outside: the block stays in the first-level cache while the
    // tokens pass over it, instead of the whole head being walked once per token.
    let mut steps = Steps::<C> {
        qs: [[0.0; MAX_KEY_DIM]; STEPS],
        ks: [[0.0; MAX_KEY_DIM]; STEPS],
        factors: [[0.0; 3]; STEPS],
        decays: [[0.0; MAX_KEY_DIM]; C],
        written: [[0.0; MAX_KEY_DIM]; C],
        first: 0,
        count: 0,
    };
    for start in (0..task.tokens).step_by(STEPS) {
        (steps.first, steps.count) = (start, (task.tokens - start).min(STEPS));
        for i in 0..steps.count {
            // SAFETY: passed on to the caller.
            unsafe { steps.set::<L>(task, i) };
        }
        let (blocks, mut block) = (task.shape.column_blocks(), 0);
        // SAFETY: passed on to the caller.
        unsafe {
            while L::WIDE && block + 2 <= blocks {
                step_blocks::<L, 2, C>(task, &steps, block);
                block += 2;
            }
            for block in block..blocks {
                step_blocks::<L, 1, C>(task, &steps, block);
            }
        }
    }
}

/// The tokens of a piece over `N` blocks from `block` on.
///
/// # Safety
///
/// As for [`step`].
#[inline(always)]
unsafe fn step_blocks<L: Lanes, const N: usize, const C: usize>(
    task: &mut DeltaTask<'_>,
    steps: &Steps<C>,
    block: usize,
) {
    let (key_dim, n) = (task.shape.key_dim, steps.count);
    // SAFETY: passed on to the caller; pointers stay within the state blocks, the values and the outputs.
    unsafe {
        // No closures and no iterators over lanes: they do not inherit the features of the caller, and what is handed
        // to one lies in memory from then on.
        let mut state = [task.state.as_mut_ptr(); N];
        for b in 0..N {
            state[b] = state[b].add((block + b) * key_dim * LANES);
        }
        // All at once, and outputs likewise: tokens are kilobytes apart, so each of these is a miss that the
        // sums below would wait for.
        let mut rows = [[L::splat(0.0); N]; STEPS];
        for (i, row) in rows.iter_mut().enumerate().take(n) {
            for (b, v) in row.iter_mut().enumerate() {
                let (from, count) = task.value(steps.first + i, block + b);
                *v = load(from, count);
            }
        }
        let mut sums: [(L, L); N] = [(L::splat(0.0), L::splat(0.0)); N];
        for b in 0..N {
            sums[b] = read::<L>(state[b], &steps.qs[0][..key_dim], &steps.ks[0][..key_dim]);
        }
        for i in 0..n {
            let [qk, decay, beta] = steps.factors[i];
            let (qk, decay, beta) = (L::splat(qk), L::splat(decay), L::splat(beta));
            let mut d = [L::splat(0.0); N];
            for b in 0..N {
                let (u, w) = sums[b];
                d[b] = beta.mul(rows[i][b].sub(decay.mul(u)));
                rows[i][b] = qk.mul_add(d[b], decay.mul(w));
            }
            if !L::WIDE || i + 1 == n {
                for b in 0..N {
                    for at in 0..key_dim {
                        let (k, decay) = steps.update(i, at, decay);
                        let row = state[b].add(at * LANES);
                        d[b].mul_add(k, L::load(row).mul(decay)).store(row);
                    }
                }
                if i + 1 == n {
                    break;
                }
                for b in 0..N {
                    let (q, k) = (&steps.qs[i + 1][..key_dim], &steps.ks[i + 1][..key_dim]);
                    sums[b] = read::<L>(state[b], q, k);
                }
                continue;
            }
            // Where registers suffice: the update of this token and the sums of the next in one pass.
            let (next_k, next_q) = (steps.ks[i + 1].as_ptr(), steps.qs[i + 1].as_ptr());
            let mut next = [Sums::<L>::zero(); N];
            rows!(key_dim, |at, sum| {
                let (own, decay) = steps.update(i, at, decay);
                let (k, q) = (L::splat(*next_k.add(at)), L::splat(*next_q.add(at)));
                for b in 0..N {
                    let place = state[b].add(at * LANES);
                    let row = d[b].mul_add(own, L::load(place).mul(decay));
                    row.store(place);
                    next[b].row(sum, row, k, q);
                }
            });
            for b in 0..N {
                sums[b] = next[b].join();
            }
        }
        for (i, row) in rows.iter().enumerate().take(n) {
            for (b, &out) in row.iter().enumerate() {
                let (_, count) = task.value(steps.first + i, block + b);
                store(out, task.output(steps.first + i, block + b), count);
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
