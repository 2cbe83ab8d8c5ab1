//! The model families: which `model_type` means which, and what is said of those that are not computed.

/// A model architecture that is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Qwen3.5-MoE and Qwen3.6-MoE: GatedDeltaNet and gated attention, shared expert.
    Qwen35Moe,
    /// Qwen3-MoE: attention in every layer, no shared expert.
    Qwen3Moe,
    /// Qwen3-Next: as Qwen3.5-MoE, with the input projections of the delta rule in one matrix.
    Qwen3Next,
    /// gpt-oss: windows in every other layer, sinks, biases, experts in 4-bit floats.
    GptOss,
    /// DeepSeek-V4: several residual streams, compressed attention, experts of the first layers by token.
    DeepseekV4,
    /// DeepSeek-V3 and R1: latent attention, a router of sigmoids over groups, dense layers first.
    DeepseekV3,
    /// Kimi-K2: the parts of DeepSeek-V3.
    KimiK2,
    /// GLM-4.5 to GLM-4.7: plain attention, the router and the dense layers of DeepSeek-V3.
    Glm4Moe,
    /// GLM-4.7-Flash: the parts of DeepSeek-V3.
    Glm4MoeLite,
    /// MiniMax-M2: attention with norms of whole projections, a router of sigmoids.
    MinimaxM2,
    /// Gemma-4 with experts: attention of two shapes, dense network and mixture next to each other, norms after blocks.
    Gemma4,
    /// Qwen3.8-Flash-Next: gated residual streams, the delta rule, attention to chosen keys, rows of hashed n-grams.
    Qwen4Exp,
}

/// What is known of a family before its other keys are read.
struct Row {
    family: Family,
    /// The name users know.
    name: &'static str,
    /// The name in configurations; the first is the one that is written.
    model_types: &'static [&'static str],
    /// Whether norms are trained around zero (`1 + w`).
    zero_centred_norms: bool,
}

const ROWS: [Row; 12] = [
    Row {
        family: Family::Qwen35Moe,
        name: "Qwen3.5-MoE",
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        zero_centred_norms: true,
    },
    Row {
        family: Family::Qwen3Moe,
        name: "Qwen3-MoE",
        model_types: &["qwen3_moe"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::Qwen3Next,
        name: "Qwen3-Next",
        model_types: &["qwen3_next"],
        zero_centred_norms: true,
    },
    Row {
        family: Family::GptOss,
        name: "gpt-oss",
        model_types: &["gpt_oss"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::DeepseekV4,
        name: "DeepSeek-V4",
        model_types: &["deepseek_v4"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::DeepseekV3,
        name: "DeepSeek-V3",
        model_types: &["deepseek_v3"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::KimiK2,
        name: "Kimi-K2",
        model_types: &["kimi_k2", "kimi_k25"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::Glm4Moe,
        name: "GLM-4.5",
        model_types: &["glm4_moe"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::Glm4MoeLite,
        name: "GLM-4.7-Flash",
        model_types: &["glm4_moe_lite"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::MinimaxM2,
        name: "MiniMax-M2",
        model_types: &["minimax_m2"],
        zero_centred_norms: false,
    },
    Row {
        family: Family::Qwen4Exp,
        name: "Qwen3.8-Flash-Next",
        model_types: &["qwen4_exp", "qwen4_exp_text"],
        zero_centred_norms: true,
    },
    Row {
        family: Family::Gemma4,
        name: "Gemma-4",
        model_types: &["gemma4", "gemma4_text"],
        zero_centred_norms: false,
    },
];

/// The families that work, for error messages.
pub(super) const SUPPORTED: &str = "supported families: qwen3_5_moe (Qwen3.5-MoE, Qwen3.6-MoE), \
     qwen3_moe (Qwen3-MoE), qwen3_next (Qwen3-Next), gpt_oss (gpt-oss), \
     deepseek_v3 (DeepSeek-V3, R1), deepseek_v4 (DeepSeek-V4), kimi_k2 (Kimi-K2), \
     glm4_moe (GLM-4.5 to GLM-4.7), glm4_moe_lite (GLM-4.7-Flash), \
     minimax_m2 (MiniMax-M2), qwen4_exp (Qwen3.8-Flash-Next), gemma4 (Gemma-4 26B-A4B)";

/// Names that users know of families that are not computed.
const OTHERS: [(&str, &str); 10] = [
    ("deepseek_v2", "DeepSeek-V2"),
    ("deepseek_v32", "DeepSeek-V3.2"),
    ("ernie4_5_moe", "ERNIE 4.5"),
    ("glm_moe_dsa", "GLM-5"),
    ("hunyuan_v1_moe", "Hunyuan"),
    ("kimi_linear", "Kimi-Linear"),
    ("llama4", "Llama 4"),
    ("mixtral", "Mixtral"),
    ("qwen2_moe", "Qwen2-MoE"),
    ("qwen3_vl_moe", "Qwen3-VL-MoE"),
];

impl Family {
    /// Every family.
    pub const ALL: [Self; ROWS.len()] = {
        let mut all = [ROWS[0].family; ROWS.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = ROWS[index].family;
            index += 1;
        }
        all
    };

    fn row(self) -> &'static Row {
        let row = ROWS.iter().find(|row| row.family == self);
        row.expect("every family has a row")
    }

    /// The name users know.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The name in configurations.
    pub fn model_type(self) -> &'static str {
        self.row().model_types[0]
    }

    /// True for the families whose norms are trained around zero (`1 + w`): only they have the question whether a
    /// file holds `w` or `1 + w`.
    pub fn has_zero_centred_norms(self) -> bool {
        self.row().zero_centred_norms
    }

    /// By the value of `model_type`.
    pub(super) fn of(model_type: &str) -> Option<Self> {
        let row = ROWS.iter().find(|row| row.model_types.contains(&model_type));
        row.map(|row| row.family)
    }
}

/// What users call a family that is not computed.
pub(super) fn other(model_type: &str) -> Option<&'static str> {
    let known = OTHERS.iter().find(|(known, _)| *known == model_type);
    known.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_row_and_is_named_among_the_supported() {
        for row in &ROWS {
            assert_eq!(Family::of(row.family.model_type()), Some(row.family));
            assert!(SUPPORTED.contains(row.family.model_type()), "{}", row.name);
            assert!(SUPPORTED.contains(row.family.name()), "{}", row.name);
            assert!(row.model_types.iter().all(|name| other(name).is_none()), "{}", row.name);
        }
    }
}
