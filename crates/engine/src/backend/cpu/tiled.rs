//! The delta rule over value heads in tiled order, as GGUF files store them.
//!
//! The kernel shares a key head among neighbouring value heads. In tiled order value head `h` uses key head
//! `h % key_heads`, so queries and keys are laid out once more with a head for each value head, for a few tokens at a
//! time: 2 to 4 MiB, a hundredth of what the rule itself reads. Neither values nor state move.

use kernels::{Compute, DeltaForm, DeltaInputs, DeltaShape};

/// Tokens at a time: those of a chunk of the kernel, so that both of its forms give the bits of one whole run.
const TOKENS: usize = 64;

/// Room for the queries and keys of some tokens.
pub(super) struct Tiled {
    key_heads: usize,
    /// With a key head for each value head.
    shape: DeltaShape,
    /// Queries of all heads, then keys, of each token.
    pairs: Vec<f32>,
}

impl Tiled {
    pub(super) fn new(shape: &DeltaShape) -> Self {
        let pairs = vec![0.0; Self::bytes(shape) / size_of::<f32>()];
        let one_each = DeltaShape { key_heads: shape.value_heads, ..*shape };
        Self { key_heads: shape.key_heads, shape: one_each, pairs }
    }

    /// Bytes that [`Tiled::new`] takes.
    pub(super) fn bytes(shape: &DeltaShape) -> usize {
        TOKENS * 2 * shape.value_heads * shape.key_dim * size_of::<f32>()
    }

    /// As [`Compute::delta_rule`], with the value heads of `inputs` in tiled order.
    pub(super) fn delta_rule(
        &mut self,
        compute: &Compute,
        state: &mut [f32],
        inputs: &DeltaInputs<'_>,
        form: DeltaForm,
        out: &mut [f32],
    ) {
        let DeltaShape { value_heads, key_dim, value_dim, .. } = self.shape;
        let (keys, width) = (self.key_heads * key_dim, value_heads * key_dim);
        for (part, out) in out.chunks_mut(TOKENS * value_heads * value_dim).enumerate() {
            let first = part * TOKENS;
            let tokens = out.len() / (value_heads * value_dim);
            compute.each_row(&mut self.pairs[..tokens * 2 * width], 2 * width, |token, pair| {
                let at = (first + token) * inputs.qk_stride;
                let (queries, all_keys) = pair.split_at_mut(width);
                for (from, to) in [(inputs.q, queries), (inputs.k, all_keys)] {
                    let heads = &from[at..at + keys];
                    to.chunks_mut(keys).for_each(|round| round.copy_from_slice(heads));
                }
            });
            let gates = first * value_heads..(first + tokens) * value_heads;
            let few = DeltaInputs {
                q: &self.pairs,
                k: &self.pairs[width..],
                v: &inputs.v[first * inputs.v_stride..],
                qk_stride: 2 * width,
                v_stride: inputs.v_stride,
                decays: inputs.decays,
                a: &inputs.a[gates.clone()],
                b: &inputs.b[gates],
                decay: inputs.decay,
                dt_bias: inputs.dt_bias,
            };
            compute.delta_rule(&self.shape, state, &few, form, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use kernels::{
        Arithmetic, Compute, ComputeOptions, DeltaDecay, DeltaForm, DeltaInputs, DeltaShape, Isa,
    };

    use super::Tiled;

    /// Value heads in tiled order give the bits that the same heads give in grouped order.
    #[test]
    fn the_order_of_value_heads_changes_no_bit() {
        let (nk, nv, dk, dv, tokens) = (2, 6, 8, 16, 150);
        let shape = DeltaShape { key_heads: nk, value_heads: nv, key_dim: dk, value_dim: dv };
        let mut random = store::split_mix::SplitMix64(7);
        let mut floats = |count: usize| (0..count).map(|_| random.normal()).collect::<Vec<_>>();
        let pairs = floats(tokens * 2 * nk * dk);
        let (v, a, b) = (floats(tokens * nv * dv), floats(tokens * nv), floats(tokens * nv));
        let (decay, bias) = (floats(nv).iter().map(|x| x.abs()).collect::<Vec<_>>(), floats(nv));
        // Grouped head `g * share + r` is head `r * nk + g` of the tiled order.
        let share = nv / nk;
        let tile = |rows: &[f32], width: usize| -> Vec<f32> {
            let rows = rows.chunks(nv * width).flat_map(|row| {
                (0..nv).flat_map(move |head| {
                    let from = (head % nk) * share + head / nk;
                    row[from * width..(from + 1) * width].to_vec()
                })
            });
            rows.collect()
        };
        let arithmetic = Arithmetic::Int16;
        let options = ComputeOptions { threads: 2, arithmetic, isa: Isa::Auto };
        let compute = Compute::new(options).unwrap();
        for form in [DeltaForm::Step, DeltaForm::Chunked] {
            let mut state = vec![0.0; shape.state_len()];
            let mut expected = vec![0.0; tokens * nv * dv];
            let inputs = DeltaInputs {
                q: &pairs,
                k: &pairs[nk * dk..],
                v: &v,
                qk_stride: 2 * nk * dk,
                v_stride: nv * dv,
                decays: DeltaDecay::Heads,
                a: &a,
                b: &b,
                decay: &decay,
                dt_bias: &bias,
            };
            compute.delta_rule(&shape, &mut state, &inputs, form, &mut expected);
            let (tv, ta, tb) = (tile(&v, dv), tile(&a, 1), tile(&b, 1));
            let (td, tbias) = (tile(&decay, 1), tile(&bias, 1));
            let tiled =
                DeltaInputs { v: &tv, a: &ta, b: &tb, decay: &td, dt_bias: &tbias, ..inputs };
            let mut state = vec![0.0; shape.state_len()];
            let mut found = vec![0.0; tokens * nv * dv];
            Tiled::new(&shape).delta_rule(&compute, &mut state, &tiled, form, &mut found);
            assert!(tile(&expected, dv) == found, "{form:?}");
        }
    }
}
