//! What a pack changes of its source: nothing, or the precision of experts and trunk.
//!
//! Routed experts take the precision asked for, whatever they had. In the trunk only matrices whose rows
//! are whole groups do: norms, convolutions, decays and other vectors stay as they are, and routers (of the
//! experts and of the shared expert) keep at least [`ROUTER_BITS`], because a wrong choice of experts costs
//! more than the bytes (newer MLX recipes do the same).

use kernels::format::{Encoding, FloatType};
use kernels::quantize::Method;

/// Fewest bits of a router.
const ROUTER_BITS: u8 = 8;

/// Precision of some weights in the pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As in the source, bit for bit.
    #[default]
    Keep,
    /// Affine groups of this many bits (2, 3, 4, 5, 6 or 8) a value.
    Bits(u8),
}

/// How a pack differs from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Routed experts.
    pub experts: Precision,
    /// Matrices of the trunk.
    pub trunk: Precision,
    /// Values that share scale and bias where precision changes: 32, 64 or 128.
    pub group: u16,
    /// How scales and biases are found where precision changes.
    pub method: Method,
}

impl Default for Recipe {
    fn default() -> Self {
        Self { experts: Precision::Keep, trunk: Precision::Keep, group: 64, method: Method::Search }
    }
}

impl Recipe {
    /// True when the pack holds the source's bits.
    pub fn keeps_all(&self) -> bool {
        self.experts == Precision::Keep && self.trunk == Precision::Keep
    }

    /// Encoding of an expert's projection.
    pub(super) fn expert(&self, source: Encoding) -> Encoding {
        match self.experts {
            Precision::Keep => source,
            Precision::Bits(bits) => self.affine(bits, source),
        }
    }

    /// Encoding of a trunk tensor.
    pub(super) fn trunk(&self, name: &str, shape: &[usize], source: Encoding) -> Encoding {
        let (Precision::Bits(bits), &[_, columns]) = (self.trunk, shape) else { return source };
        // Weights of streams decide about everything that follows; the others are no matrices.
        let kept = [".position_bias", "_hc.fn", "hc_head.fn"];
        if kept.iter().any(|kept| name.ends_with(kept)) {
            return source;
        }
        let router = name.ends_with(".mlp.gate") || name.ends_with(".mlp.shared_expert_gate");
        let bits = if router { bits.max(ROUTER_BITS) } else { bits };
        let target = self.affine(bits, source);
        if target.check(columns).is_ok() { target } else { source }
    }

    /// Scales keep the source's type; a source without scales gets bf16, as MLX writes, or its own f16 (that of its
    /// blocks).
    fn affine(&self, bits: u8, source: Encoding) -> Encoding {
        let scale = match source {
            Encoding::Affine { scale, .. }
            | Encoding::Symmetric { scale, .. }
            | Encoding::Zeroed { scale, .. } => scale,
            Encoding::Float(FloatType::F16) => FloatType::F16,
            Encoding::Float(FloatType::Bf16 | FloatType::F32)
            | Encoding::Fp8 { .. }
            | Encoding::Fp8Rows { .. }
            | Encoding::Nvfp4 { .. } => FloatType::Bf16,
            Encoding::Block(_) | Encoding::Mxfp4 => FloatType::F16,
        };
        Encoding::Affine { bits, group: self.group, scale }
    }

    /// The manifest's `recipe`.
    pub(super) fn to_json(self) -> serde_json::Value {
        let name = |precision| match precision {
            Precision::Keep => "keep".to_owned(),
            Precision::Bits(bits) => format!("{bits}bit"),
        };
        let mut recipe =
            serde_json::json!({"experts": name(self.experts), "trunk": name(self.trunk)});
        if !self.keeps_all() {
            recipe["group"] = self.group.into();
            recipe["method"] = method_name(self.method).into();
        }
        recipe
    }
}

/// The method as manifests and the command line spell it.
fn method_name(method: Method) -> &'static str {
    match method {
        Method::MinMax => "min-max",
        Method::SeedMinMax => "seed",
        Method::Search => "search",
    }
}
