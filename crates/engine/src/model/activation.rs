//! What an expert computes between its first and its second matrices, and the order of the first matrices' rows.

use kernels::Compute;

/// The function of gate and input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`
    SwiGlu,
    /// `gelu(gate) * up`, the GELU approximated by a hyperbolic tangent (`gelu_pytorch_tanh`).
    GeGlu,
    /// `silu(g) * u` with `g = min(gate, limit)` and `u = up` within `-limit..=limit` (reference: transformers
    /// `DeepseekV4Experts`).
    Limited {
        /// What both are clamped to.
        limit: f32,
    },
    /// `g * sigmoid(alpha g) * (u + 1)` with `g = min(gate, limit)` and `u = up` within `-limit..=limit` (reference:
    /// transformers `GptOssExperts`).
    Clamped {
        /// Factor of the gate within the sigmoid.
        alpha: f32,
        /// What both are clamped to.
        limit: f32,
    },
}

/// Where rows of gate and up lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUpRows {
    /// In matrices of their own.
    Apart,
    /// In turns, gate first, in one matrix: what is read as the gate's is its first half, as up's the second.
    InTurns,
}

impl GateUpRows {
    /// Puts one token's `gate` and `up`, as the matrices gave them, in their own order. `both` has room for the two.
    pub fn part(self, gate: &mut [f32], up: &mut [f32], both: &mut [f32]) {
        let width = gate.len();
        match self {
            Self::Apart => {}
            Self::InTurns => {
                both[..width].copy_from_slice(gate);
                both[width..2 * width].copy_from_slice(up);
                let pairs = both.as_chunks::<2>().0;
                for ((gate, up), pair) in gate.iter_mut().zip(up).zip(pairs) {
                    [*gate, *up] = *pair;
                }
            }
        }
    }
}

impl Activation {
    /// True where [`Activation::prepare`] leaves gates and inputs without biases as they are.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::SwiGlu | Self::GeGlu)
    }

    /// The activation of what [`Activation::prepare`] has left of `gate` and `up`.
    pub fn combine(self, compute: &Compute, gate: &[f32], up: &[f32], out: &mut [f32]) {
        match self {
            Self::GeGlu => compute.geglu(gate, up, out),
            Self::SwiGlu | Self::Limited { .. } | Self::Clamped { .. } => {
                compute.swiglu(gate, up, out);
            }
        }
    }

    /// Adds biases to one token's `gate` and `up` and makes of them what [`Activation::combine`] then computes the
    /// activation of.
    pub fn prepare(
        self,
        compute: &Compute,
        biases: Option<[&[f32]; 2]>,
        gate: &mut [f32],
        up: &mut [f32],
    ) {
        if let Some([of_gate, of_up]) = biases {
            compute.add(gate, of_gate);
            compute.add(up, of_up);
        }
        if let Self::Limited { limit } = self {
            for (gate, up) in gate.iter_mut().zip(up.iter_mut()) {
                *gate = if *gate > limit { limit } else { *gate };
                *up = up.clamp(-limit, limit);
            }
        }
        if let Self::Clamped { alpha, limit } = self {
            for (gate, up) in gate.iter_mut().zip(up) {
                // A number that is none stays one: `clamp` and a comparison keep it.
                *gate = alpha * if *gate > limit { limit } else { *gate };
                *up = (up.clamp(-limit, limit) + 1.0) / alpha;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{Arithmetic, ComputeOptions, Isa};

    #[test]
    fn clamped_pairs_in_turns_are_those_of_the_reference() {
        let (mut gate, mut up) = (vec![1.0, -9.0, 30.0], vec![-20.0, f32::NAN, 0.5]);
        let biases = [&[0.5, 0.0, 0.0][..], &[0.0, 1.0, 0.25]];
        let raw = [1.5_f32, -9.0, 30.0, -19.0, f32::NAN, 0.75];
        let mut both = [0.0; 6];
        let activation = Activation::Clamped { alpha: 1.702, limit: 7.0 };
        GateUpRows::InTurns.part(&mut gate, &mut up, &mut both);
        let arithmetic = Arithmetic::F32;
        let options = ComputeOptions { threads: 1, arithmetic, isa: Isa::Auto };
        let compute = Compute::new(options).unwrap();
        activation.prepare(&compute, Some(biases), &mut gate, &mut up);
        for ((pair, gate), up) in raw.as_chunks::<2>().0.iter().zip(gate).zip(up) {
            let found = gate / (1.0 + (-gate).exp()) * up;
            let (g, u) = (pair[0].min(7.0), pair[1].clamp(-7.0, 7.0));
            let expected = (u + 1.0) * g / (1.0 + (-1.702 * g).exp());
            match pair[0].is_nan() {
                true => assert!(found.is_nan()),
                false => assert!((found - expected).abs() < 1e-4, "{found} {expected}"),
            }
        }
    }
}
