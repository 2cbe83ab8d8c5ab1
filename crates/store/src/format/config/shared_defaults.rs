//! Lists of families for which an absent key means the same; `keys.rs` says what.

use super::Family;

/// Families of latent attention as DeepSeek-V3 is published.
pub(super) const DEEPSEEK: &[Family] = &[Family::DeepseekV3, Family::KimiK2, Family::DeepseekV32];
/// Families in which an indexer chooses latent rows.
pub(super) const CHOSEN_ROWS: &[Family] =
    &[Family::DeepseekV32, Family::GlmMoeDsa, Family::Glm5Next];
/// Families of the same router, whose experts are in no groups.
pub(super) const UNGROUPED: &[Family] = &[
    Family::Glm4Moe,
    Family::Glm4MoeLite,
    Family::GlmMoeDsa,
    Family::Glm5Next,
    Family::Dots1,
    Family::SolarOpen,
    Family::ExaoneMoe,
];
/// Families whose first layer alone has no experts.
pub(super) const ONE_DENSE: &[Family] =
    &[Family::Glm4Moe, Family::Glm4MoeLite, Family::HyV3, Family::ExaoneMoe, Family::KimiLinear];
/// Families that have experts in every layer unless a key says otherwise.
pub(super) const NO_DENSE: &[Family] = &[Family::Dots1, Family::SolarOpen];
/// Families with one shared expert unless a key says otherwise.
pub(super) const ONE_SHARED: &[Family] = &[
    Family::DeepseekV32,
    Family::GlmMoeDsa,
    Family::Glm5Next,
    Family::DeepseekV3,
    Family::DeepseekV4,
    Family::KimiK2,
    Family::Glm4Moe,
    Family::Glm4MoeLite,
    Family::SolarOpen,
];
/// Families with the delta rule.
pub(super) const DELTA: &[Family] = &[Family::Qwen35Moe, Family::Qwen3Next];
/// Families whose chosen experts' weights sum to one.
pub(super) const SCALED: &[Family] = &[
    Family::DeepseekV32,
    Family::GlmMoeDsa,
    Family::Glm5Next,
    Family::DeepseekV3,
    Family::KimiK2,
    Family::Glm4Moe,
    Family::Glm4MoeLite,
    Family::DeepseekV4,
    Family::Qwen3Next,
    Family::SolarOpen,
    Family::Qwen3VlMoe,
    Family::ExaoneMoe,
    Family::BailingHybrid,
];
/// Families whose chosen experts keep their weights.
pub(super) const UNSCALED: &[Family] = &[Family::Qwen3Moe, Family::Olmoe, Family::Dots1];
/// Families that rotate whole heads.
pub(super) const WHOLE_HEADS: &[Family] = &[
    Family::DeepseekV32,
    Family::GlmMoeDsa,
    Family::DeepseekV3,
    Family::KimiK2,
    Family::Glm4MoeLite,
    Family::GptOss,
    Family::Qwen3Moe,
    Family::MinimaxM2,
    Family::Olmoe,
    Family::Dots1,
    Family::SolarOpen,
    Family::HyV3,
    Family::Qwen3VlMoe,
    Family::Ernie45Moe,
    Family::ExaoneMoe,
];
/// Ling-3.
pub(super) const LING: &[Family] = &[Family::BailingHybrid];
/// Families with Gemma-4's parts.
pub(super) const GEMMA: &[Family] = &[Family::Gemma4];
/// Families whose rotation has the base 1e4.
pub(super) const THETA_4: &[Family] = &[
    Family::DeepseekV32,
    Family::GlmMoeDsa,
    Family::DeepseekV3,
    Family::KimiK2,
    Family::Glm4Moe,
    Family::Glm4MoeLite,
    Family::DeepseekV4,
    Family::Qwen3Moe,
    Family::Qwen3Next,
    Family::Olmoe,
    Family::Dots1,
    Family::ExaoneMoe,
];
/// Families whose norms add 1e-5.
pub(super) const EPSILON_5: &[Family] = &[
    Family::GlmMoeDsa,
    Family::Glm5Next,
    Family::Glm4Moe,
    Family::Glm4MoeLite,
    Family::GptOss,
    Family::Olmoe,
    Family::SolarOpen,
    Family::HyV3,
    Family::Ernie45Moe,
    Family::ExaoneMoe,
    Family::KimiLinear,
];
/// Families whose norms add 1e-6.
pub(super) const EPSILON_6: &[Family] = &[
    Family::DeepseekV32,
    Family::DeepseekV3,
    Family::KimiK2,
    Family::DeepseekV4,
    Family::MinimaxM2,
    Family::Qwen35Moe,
    Family::Qwen3Moe,
    Family::Qwen3Next,
    Family::Dots1,
    Family::Qwen3VlMoe,
    Family::Gemma4,
    Family::BailingHybrid,
];
/// Families but gpt-oss.
pub(super) const OTHERS: &[Family] = &[
    Family::DeepseekV32,
    Family::GlmMoeDsa,
    Family::Glm5Next,
    Family::DeepseekV3,
    Family::KimiK2,
    Family::Glm4Moe,
    Family::Glm4MoeLite,
    Family::DeepseekV4,
    Family::MinimaxM2,
    Family::Qwen35Moe,
    Family::Qwen3Moe,
    Family::Qwen3Next,
    Family::Olmoe,
    Family::Dots1,
    Family::SolarOpen,
    Family::HyV3,
    Family::Qwen3VlMoe,
    Family::Ernie45Moe,
    Family::ExaoneMoe,
    Family::Qwen4Exp,
    Family::Gemma4,
    Family::KimiLinear,
    Family::BailingHybrid,
];
/// Families trained on 131,072 tokens.
pub(super) const CONTEXT_128K: &[Family] =
    &[Family::Glm4Moe, Family::GptOss, Family::SolarOpen, Family::HyV3, Family::Ernie45Moe];
/// Families whose head is not the embedding unless they say so.
pub(super) const UNTIED: &[Family] = &[
    Family::DeepseekV32,
    Family::GlmMoeDsa,
    Family::Glm5Next,
    Family::DeepseekV3,
    Family::KimiK2,
    Family::Glm4Moe,
    Family::Glm4MoeLite,
    Family::DeepseekV4,
    Family::GptOss,
    Family::MinimaxM2,
    Family::Qwen35Moe,
    Family::Qwen3Moe,
    Family::Qwen3Next,
    Family::Olmoe,
    Family::Dots1,
    Family::SolarOpen,
    Family::HyV3,
    Family::Qwen3VlMoe,
    Family::Ernie45Moe,
    Family::ExaoneMoe,
    Family::Qwen4Exp,
    Family::KimiLinear,
    Family::BailingHybrid,
];
