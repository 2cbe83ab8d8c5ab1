//! How the numbers of each tensor are distributed, so that a random network behaves: activations keep
//! their size from layer to layer, decay rates and router margins lie where trained ones do.

/// A distribution of weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Values {
    /// Normal with this mean and standard deviation.
    Normal { mean: f32, deviation: f32 },
    /// 1 plus a multiple of 1/128 up to a quarter: exact in bf16.
    AroundOne,
    /// Whole numbers below `below`, different ones within a row of `columns`, as words of 32 bits, two for each.
    Ids { columns: usize, below: usize },
    /// Logarithm of a decay rate between 0.05 and 8.
    LogRate,
}

/// Share of a residual branch that reaches the stream: with 1 a deep random network amplifies rounding
/// until its output means nothing.
const BRANCH_GAIN: f32 = 0.25;

impl Values {
    /// The distribution of a tensor by canonical name; `columns` is the width of its input.
    pub(super) fn of(name: &str, columns: usize) -> Self {
        let normal = |deviation: f32| Self::Normal { mean: 0.0, deviation };
        let normal_around = |mean: f32| Self::Normal { mean, deviation: 0.2 * mean };
        let unit = 1.0 / (columns.max(1) as f32).sqrt();
        let last = name.rsplit('.').next().unwrap_or(name);
        match last {
            "A_log" => Self::LogRate,
            "dt_bias" | "sinks" => normal(1.0),
            "fn" => normal(2.0 * unit),
            "base" | "position_bias" => normal(0.5),
            "gain" => Self::AroundOne,
            "norm" if name.contains("linear_attn") => Self::Normal { mean: 1.0, deviation: 0.2 },
            // It is divided by the root of the width when it is loaded.
            "norm" if name.contains("mlp.gate") => normal_around((columns as f32).sqrt()),
            _ if last.ends_with("norm")
                || last.starts_with("norm_")
                || last.contains("layernorm") =>
            {
                Self::AroundOne
            }
            "layer_scalar" | "expert_scale" => Self::AroundOne,
            "conv1d" => normal(0.5),
            "gate" | "router" => normal(3.0 * unit),
            "embed_tokens" => normal(1.0),
            _ if last.starts_with("shard_") => normal(1.0),
            "lm_head" => normal(2.0 * unit),
            "o_proj" | "o_b_proj" | "out_proj" | "down_proj" | "value_proj" => {
                normal(BRANCH_GAIN * unit)
            }
            _ => normal(unit),
        }
    }

    /// Standard deviation of a matrix's values.
    pub(super) fn deviation(self) -> f32 {
        match self {
            Self::Normal { deviation, .. } => deviation,
            Self::AroundOne | Self::Ids { .. } => 0.15,
            Self::LogRate => 1.0,
        }
    }
}
