//! The model families: which `model_type` means which, by which keys each describes its experts, and what is said of
//! those that are not computed.

use super::keys::{self, Key};
use super::kind::Size;

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
    /// DeepSeek-V3.2: the parts of DeepSeek-V3, and an indexer that chooses the rows which a token sees.
    DeepseekV32,
    /// GLM-5 to GLM-5.3: the parts of DeepSeek-V3.2; some layers see what an earlier one chose.
    GlmMoeDsa,
    /// GLM-5.3-Flash: the delta rule of Kimi-Linear, latent attention to chosen pools of rows, streams of DeepSeek-V4.
    Glm5Next,
    /// Kimi-K2: the parts of DeepSeek-V3.
    KimiK2,
    /// GLM-4.5 to GLM-4.7: plain attention, the router and the dense layers of DeepSeek-V3.
    Glm4Moe,
    /// GLM-4.7-Flash: the parts of DeepSeek-V3.
    Glm4MoeLite,
    /// MiniMax-M2: attention with norms of whole projections, a router of sigmoids.
    MinimaxM2,
    /// OLMoE: attention with norms of whole projections, a softmax that is not scaled to sum to one.
    Olmoe,
    /// dots.llm1: attention with norms of heads, the router and the dense layers of DeepSeek-V3.
    Dots1,
    /// Solar-Open: plain attention, the router of DeepSeek-V3.
    SolarOpen,
    /// Hy3: attention with norms of heads, the router of DeepSeek-V3 under keys and names of its own.
    HyV3,
    /// Qwen3-VL-MoE: its text is Qwen3-MoE.
    Qwen3VlMoe,
    /// ERNIE 4.5: neighbours are rotated together, a softmax with a bias of the choice, dense layers first.
    Ernie45Moe,
    /// K-EXAONE: windows in three layers of four, no rotation in the fourth, the router of DeepSeek-V3.
    ExaoneMoe,
    /// Gemma-4 with experts: attention of two shapes, dense network and mixture next to each other, norms after blocks.
    Gemma4,
    /// Kimi-Linear: the delta rule with decays by channel, latent attention without rotation, DeepSeek-V3's router.
    KimiLinear,
    /// Ling-3: the delta rule of Kimi-Linear, latent attention with a gate of each head, DeepSeek-V3's router.
    BailingHybrid,
    /// Qwen3.8-Flash-Next: gated residual streams, the delta rule, attention to chosen keys, rows of hashed n-grams.
    Qwen4Exp,
}

/// The keys by which a family describes its experts.
#[derive(Clone, Copy)]
pub struct ExpertKeys {
    /// Routed experts of a layer.
    pub routed: &'static Key<Size>,
    /// Experts that a token uses.
    pub per_token: &'static Key<Size>,
    /// Inner width of a routed expert.
    pub width: &'static Key<Size>,
    /// Widths of a routed expert that the shared expert has, in families that count it so.
    pub shared: &'static Key<Size>,
}

/// As Qwen has them.
const QWEN: ExpertKeys = ExpertKeys {
    routed: &keys::NUM_EXPERTS,
    per_token: &keys::NUM_EXPERTS_PER_TOK,
    width: &keys::MOE_INTERMEDIATE_SIZE,
    shared: &keys::N_SHARED_EXPERTS,
};
/// As DeepSeek has them.
const DEEPSEEK: ExpertKeys = ExpertKeys { routed: &keys::N_ROUTED_EXPERTS, ..QWEN };
/// As gpt-oss and MiniMax have them.
const LOCAL: ExpertKeys =
    ExpertKeys { routed: &keys::NUM_LOCAL_EXPERTS, width: &keys::INTERMEDIATE_SIZE, ..QWEN };
/// As Hy3 and K-EXAONE have them.
const COUNTED: ExpertKeys = ExpertKeys { shared: &keys::NUM_SHARED_EXPERTS, ..QWEN };
/// As ERNIE has them.
const ERNIE: ExpertKeys = ExpertKeys {
    routed: &keys::MOE_NUM_EXPERTS,
    per_token: &keys::MOE_K,
    width: &keys::MOE_INTERMEDIATE_SIZE,
    shared: &keys::MOE_NUM_SHARED_EXPERTS,
};
/// As Kimi-Linear and Ling-3 have them.
const KIMI_LINEAR: ExpertKeys = ExpertKeys {
    per_token: &keys::NUM_EXPERTS_PER_TOKEN,
    shared: &keys::NUM_SHARED_EXPERTS,
    ..QWEN
};
/// As Gemma-4 has them.
const GEMMA: ExpertKeys = ExpertKeys { per_token: &keys::TOP_K_EXPERTS, ..QWEN };
/// As OLMoE has them.
const OLMOE: ExpertKeys = ExpertKeys { width: &keys::INTERMEDIATE_SIZE, ..QWEN };

/// What is known of a family before its other keys are read.
struct Row {
    family: Family,
    /// The name users know.
    name: &'static str,
    /// The name in configurations; the first is the one that is written.
    model_types: &'static [&'static str],
    /// Whether norms are trained around zero (`1 + w`).
    zero_centred_norms: bool,
    /// How it describes its experts.
    experts: ExpertKeys,
}

const ROWS: [Row; 24] = [
    Row {
        family: Family::Qwen35Moe,
        name: "Qwen3.5-MoE",
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        zero_centred_norms: true,
        experts: QWEN,
    },
    Row {
        family: Family::Qwen3Moe,
        name: "Qwen3-MoE",
        model_types: &["qwen3_moe"],
        zero_centred_norms: false,
        experts: QWEN,
    },
    Row {
        family: Family::Qwen3Next,
        name: "Qwen3-Next",
        model_types: &["qwen3_next"],
        zero_centred_norms: true,
        experts: QWEN,
    },
    Row {
        family: Family::GptOss,
        name: "gpt-oss",
        model_types: &["gpt_oss"],
        zero_centred_norms: false,
        experts: LOCAL,
    },
    Row {
        family: Family::DeepseekV4,
        name: "DeepSeek-V4",
        model_types: &["deepseek_v4"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::DeepseekV3,
        name: "DeepSeek-V3",
        model_types: &["deepseek_v3"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::DeepseekV32,
        name: "DeepSeek-V3.2",
        model_types: &["deepseek_v32"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::GlmMoeDsa,
        name: "GLM-5",
        model_types: &["glm_moe_dsa"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::Glm5Next,
        name: "GLM-5.3-Flash",
        model_types: &["glm5_next", "glm5_next_text"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::KimiK2,
        name: "Kimi-K2",
        model_types: &["kimi_k2", "kimi_k25"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::Glm4Moe,
        name: "GLM-4.5",
        model_types: &["glm4_moe"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::Glm4MoeLite,
        name: "GLM-4.7-Flash",
        model_types: &["glm4_moe_lite"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::MinimaxM2,
        name: "MiniMax-M2",
        model_types: &["minimax_m2"],
        zero_centred_norms: false,
        experts: LOCAL,
    },
    Row {
        family: Family::Olmoe,
        name: "OLMoE",
        model_types: &["olmoe"],
        zero_centred_norms: false,
        experts: OLMOE,
    },
    Row {
        family: Family::Dots1,
        name: "dots.llm1",
        model_types: &["dots1"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::SolarOpen,
        name: "Solar-Open",
        model_types: &["solar_open"],
        zero_centred_norms: false,
        experts: DEEPSEEK,
    },
    Row {
        family: Family::HyV3,
        name: "Hy3",
        model_types: &["hy_v3"],
        zero_centred_norms: false,
        experts: COUNTED,
    },
    Row {
        family: Family::Qwen3VlMoe,
        name: "Qwen3-VL-MoE",
        model_types: &["qwen3_vl_moe", "qwen3_vl_moe_text"],
        zero_centred_norms: false,
        experts: QWEN,
    },
    Row {
        family: Family::Ernie45Moe,
        name: "ERNIE 4.5",
        model_types: &["ernie4_5_moe"],
        zero_centred_norms: false,
        experts: ERNIE,
    },
    Row {
        family: Family::ExaoneMoe,
        name: "K-EXAONE",
        model_types: &["exaone_moe"],
        zero_centred_norms: false,
        experts: COUNTED,
    },
    Row {
        family: Family::Qwen4Exp,
        name: "Qwen3.8-Flash-Next",
        model_types: &["qwen4_exp", "qwen4_exp_text"],
        zero_centred_norms: true,
        experts: QWEN,
    },
    Row {
        family: Family::KimiLinear,
        name: "Kimi-Linear",
        model_types: &["kimi_linear"],
        zero_centred_norms: false,
        experts: KIMI_LINEAR,
    },
    Row {
        family: Family::BailingHybrid,
        name: "Ling-3",
        model_types: &["bailing_hybrid"],
        zero_centred_norms: false,
        experts: KIMI_LINEAR,
    },
    Row {
        family: Family::Gemma4,
        name: "Gemma-4",
        model_types: &["gemma4", "gemma4_text"],
        zero_centred_norms: false,
        experts: GEMMA,
    },
];

/// The families that work, for error messages.
pub(super) const SUPPORTED: &str = "supported families: qwen3_5_moe (Qwen3.5-MoE, Qwen3.6-MoE), \
     qwen3_moe (Qwen3-MoE), qwen3_next (Qwen3-Next), gpt_oss (gpt-oss), \
     deepseek_v3 (DeepSeek-V3), deepseek_v32 (DeepSeek-V3.2), deepseek_v4 (DeepSeek-V4), kimi_k2 (Kimi-K2), \
     glm4_moe (GLM-4.5 to 4.7), glm4_moe_lite (GLM-4.7-Flash), glm_moe_dsa (GLM-5 to 5.3), glm5_next (GLM-5.3-Flash), \
     minimax_m2 (MiniMax-M2), qwen4_exp (Qwen3.8-Flash-Next), gemma4 (Gemma-4), olmoe (OLMoE), \
     dots1 (dots.llm1), solar_open (Solar-Open), hy_v3 (Hy3), qwen3_vl_moe (Qwen3-VL-MoE), \
     ernie4_5_moe (ERNIE 4.5), exaone_moe (K-EXAONE), kimi_linear (Kimi-Linear), bailing_hybrid (Ling-3)";

/// Names that users know of families that are not computed.
const OTHERS: [(&str, &str); 5] = [
    ("deepseek_v2", "DeepSeek-V2"),
    ("hunyuan_v1_moe", "Hunyuan"),
    ("llama4", "Llama 4"),
    ("mixtral", "Mixtral"),
    ("qwen2_moe", "Qwen2-MoE"),
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

    /// The keys by which it describes its experts.
    pub fn expert_keys(self) -> ExpertKeys {
        self.row().experts
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
