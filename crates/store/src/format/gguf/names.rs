//! Names of tensors in GGUF files, and the canonical names that they stand for.
//!
//! A name alone does not say everything: `attn_qkv` is the input of the delta rule in one layer and query, key and
//! value together in another. The kinds of layers come from the keys, never from the names that are there.

use crate::format::rows::NGRAM_TABLE;

/// What a tensor is, of a layer or of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A tensor by its canonical name.
    Canonical(String),
    /// Query, key and value of attention in one matrix, rows of one after the other's.
    FusedAttention {
        /// The layer.
        layer: usize,
    },
    /// Knowingly not used: vision, or prediction of further tokens.
    Skipped,
    /// One expert alone, as files of before 2024 have it.
    LoneExpert,
    /// Nothing that the architecture has.
    Unknown,
}

/// Names below `blk.N.` in every architecture that is read, with the canonical ones below `layers.N.`.
const LAYER: [(&str, &str); 23] = [
    ("attn_norm.weight", "input_layernorm"),
    ("attn_q.weight", "self_attn.q_proj"),
    ("attn_k.weight", "self_attn.k_proj"),
    ("attn_v.weight", "self_attn.v_proj"),
    ("attn_output.weight", "self_attn.o_proj"),
    ("attn_q_norm.weight", "self_attn.q_norm"),
    ("attn_k_norm.weight", "self_attn.k_norm"),
    ("ffn_gate_exps.weight", "mlp.switch_mlp.gate_proj"),
    ("ffn_up_exps.weight", "mlp.switch_mlp.up_proj"),
    ("ffn_down_exps.weight", "mlp.switch_mlp.down_proj"),
    ("ffn_gate_inp.weight", "mlp.gate"),
    ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj"),
    ("attn_gate.weight", "linear_attn.in_proj_z"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a"),
    ("ssm_beta.weight", "linear_attn.in_proj_b"),
    ("ssm_conv1d.weight", "linear_attn.conv1d"),
    // Already -exp(A_log), hence another name.
    ("ssm_a", "linear_attn.A"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_norm.weight", "linear_attn.norm"),
];

/// What Qwen3-Next has besides: inputs of the delta rule that lie together by key head.
pub(super) const QWEN3_NEXT: [(&str, &str); 2] = [
    ("ssm_ba.weight", "linear_attn.in_proj_ba"),
    // As files of before December 2025 have queries, keys, values and gates.
    ("ssm_in.weight", "linear_attn.in_proj_qkvz"),
];

/// What gpt-oss has besides, or calls otherwise.
pub(super) const GPT_OSS: [(&str, &str); 10] = [
    ("attn_q.bias", "self_attn.q_proj.bias"),
    ("attn_k.bias", "self_attn.k_proj.bias"),
    ("attn_v.bias", "self_attn.v_proj.bias"),
    ("attn_output.bias", "self_attn.o_proj.bias"),
    ("attn_sinks.weight", "self_attn.sinks"),
    ("ffn_gate_inp.weight", "mlp.router"),
    ("ffn_gate_inp.bias", "mlp.router.bias"),
    ("ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"),
    ("ffn_up_exps.bias", "mlp.experts.up_proj_bias"),
    ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
];

/// What DeepSeek-V3 and its like have besides.
pub(super) const DEEPSEEK: [(&str, &str); 12] = [
    ("attn_q_a.weight", "self_attn.q_a_proj"),
    ("attn_q_a_norm.weight", "self_attn.q_a_layernorm"),
    ("attn_q_b.weight", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm"),
    ("attn_kv_b.weight", "self_attn.kv_b_proj"),
    // Its rows as the converter parts them: keys transposed, and values.
    ("attn_k_b.weight", "self_attn.embed_q"),
    ("attn_v_b.weight", "self_attn.unembed_out"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate.weight", "mlp.gate_proj"),
    ("ffn_up.weight", "mlp.up_proj"),
    ("ffn_down.weight", "mlp.down_proj"),
];

/// What [`DEEPSEEK`] has and what `own` has.
const fn with_deepseek<const N: usize>(
    own: &[(&'static str, &'static str)],
) -> [(&'static str, &'static str); N] {
    assert!(N == DEEPSEEK.len() + own.len());
    let mut all = [DEEPSEEK[0]; N];
    let mut at = 1;
    while at < N {
        all[at] = if at < DEEPSEEK.len() { DEEPSEEK[at] } else { own[at - DEEPSEEK.len()] };
        at += 1;
    }
    all
}

/// The same of DeepSeek-V3.2 and GLM-5, and what their indexer has.
pub(super) const CHOSEN_ROWS: [(&str, &str); 17] = with_deepseek(&[
    ("indexer.attn_q_b.weight", "self_attn.indexer.wq_b"),
    ("indexer.attn_k.weight", "self_attn.indexer.wk"),
    ("indexer.k_norm.weight", "self_attn.indexer.k_norm"),
    ("indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"),
    ("indexer.proj.weight", "self_attn.indexer.weights_proj"),
]);

/// The same of Kimi-Linear, and what its delta rule has.
pub(super) const KIMI_LINEAR: [(&str, &str); 23] = with_deepseek(&[
    ("ssm_conv1d_q.weight", "self_attn.q_conv1d"),
    ("ssm_conv1d_k.weight", "self_attn.k_conv1d"),
    ("ssm_conv1d_v.weight", "self_attn.v_conv1d"),
    ("ssm_f_a.weight", "self_attn.f_a_proj"),
    ("ssm_f_b.weight", "self_attn.f_b_proj"),
    ("ssm_g_a.weight", "self_attn.g_a_proj"),
    ("ssm_g_b.weight", "self_attn.g_b_proj"),
    ("ssm_beta.weight", "self_attn.b_proj"),
    ("ssm_a", "self_attn.A"),
    ("ssm_dt.bias", "self_attn.dt_bias"),
    ("ssm_norm.weight", "self_attn.o_norm"),
]);

/// What GLM-4.5 to GLM-4.7 have besides.
pub(super) const GLM: [(&str, &str); 7] = [
    ("attn_q.bias", "self_attn.q_proj.bias"),
    ("attn_k.bias", "self_attn.k_proj.bias"),
    ("attn_v.bias", "self_attn.v_proj.bias"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate.weight", "mlp.gate_proj"),
    ("ffn_up.weight", "mlp.up_proj"),
    ("ffn_down.weight", "mlp.down_proj"),
];

/// What MiniMax-M2 has besides.
pub(super) const MINIMAX: [(&str, &str); 1] =
    [("exp_probs_b.bias", "mlp.gate.e_score_correction_bias")];

/// What Gemma-4 has besides, or calls otherwise.
pub(super) const GEMMA: [(&str, &str); 12] = [
    ("ffn_norm.weight", "pre_feedforward_layernorm"),
    ("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm.weight", "post_feedforward_layernorm"),
    ("post_ffw_norm_1.weight", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2.weight", "post_feedforward_layernorm_2"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("ffn_gate_inp.scale", "mlp.gate.norm"),
    // Multiplies an expert's output, which is the same as its weight.
    ("ffn_down_exps.scale", "mlp.gate.expert_scale"),
    ("ffn_gate.weight", "mlp.gate_proj"),
    ("ffn_up.weight", "mlp.up_proj"),
    ("ffn_down.weight", "mlp.down_proj"),
    ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
];

/// What DeepSeek-V4 has besides.
pub(super) const DEEPSEEK_V4: [(&str, &str); 26] = [
    ("attn_sinks.weight", "self_attn.sinks"),
    ("attn_q_a.weight", "self_attn.q_a_proj"),
    ("attn_q_a_norm.weight", "self_attn.q_a_norm"),
    ("attn_q_b.weight", "self_attn.q_b_proj"),
    ("attn_kv.weight", "self_attn.kv_proj"),
    ("attn_kv_a_norm.weight", "self_attn.kv_norm"),
    ("attn_output_a.weight", "self_attn.o_a_proj"),
    ("attn_output_b.weight", "self_attn.o_b_proj"),
    ("hc_attn_fn.weight", "attn_hc.fn"),
    ("hc_attn_base.weight", "attn_hc.base"),
    ("hc_attn_scale.weight", "attn_hc.gain"),
    ("hc_ffn_fn.weight", "ffn_hc.fn"),
    ("hc_ffn_base.weight", "ffn_hc.base"),
    ("hc_ffn_scale.weight", "ffn_hc.gain"),
    ("attn_compressor_kv.weight", "self_attn.compressor.kv_proj"),
    ("attn_compressor_gate.weight", "self_attn.compressor.gate_proj"),
    ("attn_compressor_ape.weight", "self_attn.compressor.position_bias"),
    ("attn_compressor_norm.weight", "self_attn.compressor.kv_norm"),
    ("indexer.attn_q_b.weight", "self_attn.indexer.q_b_proj"),
    ("indexer.proj.weight", "self_attn.indexer.weights_proj"),
    ("indexer_compressor_kv.weight", "self_attn.indexer.kv_proj"),
    ("indexer_compressor_gate.weight", "self_attn.indexer.gate_proj"),
    ("indexer_compressor_ape.weight", "self_attn.indexer.position_bias"),
    ("indexer_compressor_norm.weight", "self_attn.indexer.kv_norm"),
    ("ffn_gate_tid2eid.weight", "mlp.gate.tid2eid"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
];

/// What Qwen3.8-Flash-Next has besides.
pub(super) const FLASH_NEXT: [(&str, &str); 18] = [
    ("hc_attn_norm.weight", "attn_hyper_connection.hc_norm"),
    ("hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down"),
    ("hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up"),
    ("hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight"),
    ("hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm"),
    ("hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down"),
    ("hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up"),
    ("hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight"),
    ("indexer.q_proj.weight", "self_attn.indexer.q_proj"),
    ("indexer.k_proj.weight", "self_attn.indexer.k_proj"),
    ("indexer.q_norm.weight", "self_attn.indexer.q_layernorm"),
    ("indexer.k_norm.weight", "self_attn.indexer.k_layernorm"),
    ("ple_key.weight", "ple.key_proj"),
    ("ple_value.weight", "ple.value_proj"),
    ("ple_norm_key.weight", "ple.norm_key"),
    ("ple_norm_query.weight", "ple.norm_query"),
    ("ple_norm_conv.weight", "ple.norm_conv"),
    ("ple_conv1d.weight", "ple.conv1d"),
];

/// The table of rows of n-grams.
pub(super) const NGRAM_ROWS: &str = "per_layer_token_embd.weight";

/// What DeepSeek-V4 and Qwen3.8-Flash-Next have outside of layers: how the streams become one.
const HEAD_OF_STREAMS: [(&str, &str); 6] = [
    ("output_hc_fn.weight", "hc_head.fn"),
    ("output_hc_base.weight", "hc_head.base"),
    ("output_hc_scale.weight", "hc_head.gain"),
    ("output_hc_norm.weight", "hyper_connection_mixer.hc_norm"),
    ("output_hc_down.weight", "hyper_connection_mixer.input_mix_weight_down"),
    ("output_hc_up.weight", "hyper_connection_mixer.input_mix_weight_up"),
];

/// What a block beyond the trunk has besides, where it is a head as an ordinary layer is (`format/head.rs`).
const NEXTN: [(&str, &str); 6] = [
    ("nextn.eh_proj.weight", "eh_proj"),
    ("nextn.enorm.weight", "enorm"),
    ("nextn.hnorm.weight", "hnorm"),
    ("nextn.shared_head_norm.weight", "shared_head.norm"),
    ("nextn.shared_head_head.weight", "shared_head.head"),
    ("nextn.embed_tokens.weight", "embed_tokens"),
];

/// What the layers of a model are, as far as names depend on it.
pub(super) struct Layers<'a> {
    /// Layers of the trunk; blocks beyond them predict further tokens.
    pub(super) trunk: usize,
    /// Blocks beyond the trunk.
    pub(super) further: usize,
    /// Whether those are heads that are computed.
    pub(super) heads: bool,
    /// Name of the norm before the experts.
    pub(super) second_norm: &'a str,
    /// Names that this architecture has besides, or that mean something else in it.
    pub(super) own: &'a [(&'a str, &'a str)],
    /// For each layer of the trunk, whether the delta rule mixes its tokens.
    pub(super) linear: &'a [bool],
    /// The layer that looks rows of n-grams up.
    pub(super) ngrams: Option<usize>,
}

/// The block of a tensor that only a block which predicts further tokens has.
pub(super) fn draft(name: &str) -> Option<usize> {
    let (layer, rest) = layer(name)?;
    rest.starts_with("nextn.").then_some(layer)
}

/// Number of the block that a name belongs to, and what follows.
fn layer(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((super::super::names::number(layer)?, rest))
}

impl Layers<'_> {
    /// The number of the block, where a tensor belongs to one beyond the trunk.
    pub(super) fn beyond(&self, name: &str) -> Option<usize> {
        let (layer, _) = layer(name)?;
        (self.trunk..self.trunk + self.further).contains(&layer).then_some(layer)
    }

    /// The meaning of a file's tensor name.
    pub(super) fn meaning(&self, name: &str) -> Meaning {
        let canonical = |name: &str| Meaning::Canonical(name.to_owned());
        match name {
            "token_embd.weight" => return canonical("embed_tokens"),
            "output_norm.weight" => return canonical("norm"),
            "output.weight" => return canonical("lm_head"),
            _ if name.starts_with("v.") || name.starts_with("mm.") => return Meaning::Skipped,
            _ => {}
        }
        if let Some(layer) = self.ngrams.filter(|_| name == NGRAM_ROWS) {
            return Meaning::Canonical(format!("layers.{layer}.{NGRAM_TABLE}"));
        }
        if let Some((_, ours)) = HEAD_OF_STREAMS.iter().find(|(theirs, _)| *theirs == name) {
            return canonical(ours);
        }
        let Some((layer, rest)) = layer(name) else { return Meaning::Unknown };
        if self.beyond(name).is_some() {
            return if self.heads { self.of_head(layer, rest) } else { Meaning::Skipped };
        }
        if layer >= self.trunk {
            return Meaning::Unknown;
        }
        let linear = self.linear.get(layer).copied().unwrap_or(false);
        let rest = match rest {
            "attn_qkv.weight" if linear => "linear_attn.in_proj_qkv",
            "attn_qkv.weight" => return Meaning::FusedAttention { layer },
            "ssm_out.weight" => "linear_attn.out_proj",
            // The choice of experts for tokens of pictures.
            "exp_probs_b_vl.bias" => return Meaning::Skipped,
            rest if rest == self.second_norm => "post_attention_layernorm",
            rest => match self.own.iter().chain(&LAYER).find(|(known, _)| *known == rest) {
                Some((_, canonical)) => canonical,
                None if lone_expert(rest) => return Meaning::LoneExpert,
                None => return Meaning::Unknown,
            },
        };
        Meaning::Canonical(format!("layers.{layer}.{rest}"))
    }

    /// The meaning of a tensor of a head. A head is no part of any answer: what it is not known to have makes it none
    /// when its tensors are assembled, under a name that says so.
    fn of_head(&self, layer: usize, rest: &str) -> Meaning {
        let known = NEXTN.iter().chain(self.own).chain(&LAYER);
        let rest = match rest {
            "attn_qkv.weight" => return Meaning::FusedAttention { layer },
            rest if rest == self.second_norm => "post_attention_layernorm",
            rest => known.clone().find(|it| it.0 == rest).map_or(rest, |it| it.1),
        };
        Meaning::Canonical(format!("layers.{layer}.{rest}"))
    }
}

/// `ffn_gate.7.weight`
fn lone_expert(rest: &str) -> bool {
    let mut parts = rest.split('.');
    let matrix = matches!(parts.next(), Some("ffn_gate" | "ffn_up" | "ffn_down"));
    matrix && parts.next().is_some_and(|part| super::super::names::number(part).is_some())
}

#[cfg(test)]
mod tests {
    use super::{DEEPSEEK_V4, GPT_OSS, Layers, Meaning, NGRAM_ROWS, NGRAM_TABLE};

    #[test]
    fn one_name_means_what_the_kind_of_its_layer_says() {
        let layers = Layers {
            trunk: 2,
            further: 1,
            heads: false,
            second_norm: "post_attention_norm.weight",
            own: &[],
            linear: &[true, false],
            ngrams: Some(1),
        };
        let canonical = |name: &str| Meaning::Canonical(name.to_owned());
        for (name, expected) in [
            ("blk.0.attn_qkv.weight", canonical("layers.0.linear_attn.in_proj_qkv")),
            ("blk.1.attn_qkv.weight", Meaning::FusedAttention { layer: 1 }),
            ("blk.1.post_attention_norm.weight", canonical("layers.1.post_attention_layernorm")),
            ("blk.1.ffn_norm.weight", Meaning::Unknown),
            ("blk.0.ssm_ba.weight", Meaning::Unknown),
            ("blk.2.nextn.eh_proj.weight", Meaning::Skipped),
            ("blk.3.attn_q.weight", Meaning::Unknown),
            ("blk.01.attn_q.weight", Meaning::Unknown),
            ("blk.1.ffn_up.12.weight", Meaning::LoneExpert),
            ("blk.1.attn_q.bias", Meaning::Unknown),
            ("blk.1.ffn_gate_inp.weight", canonical("layers.1.mlp.gate")),
            ("v.blk.0.attn_q.weight", Meaning::Skipped),
            ("rope_freqs.weight", Meaning::Unknown),
            (NGRAM_ROWS, canonical(&format!("layers.1.{NGRAM_TABLE}"))),
        ] {
            assert_eq!(layers.meaning(name), expected, "{name}");
        }
        let of_heads = Layers { heads: true, ..layers };
        for (name, expected) in [
            ("blk.2.nextn.eh_proj.weight", canonical("layers.2.eh_proj")),
            ("blk.2.nextn.shared_head_norm.weight", canonical("layers.2.shared_head.norm")),
            ("blk.2.post_attention_norm.weight", canonical("layers.2.post_attention_layernorm")),
            ("blk.2.ffn_up_exps.weight", canonical("layers.2.mlp.switch_mlp.up_proj")),
            ("blk.2.attn_qkv.weight", Meaning::FusedAttention { layer: 2 }),
            ("blk.2.nextn.other.weight", canonical("layers.2.nextn.other.weight")),
            ("blk.3.attn_q.weight", Meaning::Unknown),
        ] {
            assert_eq!(of_heads.meaning(name), expected, "{name}");
        }
        let layers = Layers { own: &GPT_OSS, linear: &[false, false], ..layers };
        for (name, expected) in [
            ("blk.1.attn_q.bias", canonical("layers.1.self_attn.q_proj.bias")),
            ("blk.1.ffn_gate_inp.weight", canonical("layers.1.mlp.router")),
            ("blk.1.attn_norm.weight", canonical("layers.1.input_layernorm")),
            ("blk.1.attn_qkv.bias", Meaning::Unknown),
        ] {
            assert_eq!(layers.meaning(name), expected, "{name}");
        }
        let layers = Layers { own: &DEEPSEEK_V4, ..layers };
        for (name, expected) in [
            ("output_hc_scale.weight", canonical("hc_head.gain")),
            ("blk.0.indexer.proj.weight", canonical("layers.0.self_attn.indexer.weights_proj")),
            ("blk.0.exp_probs_b_vl.bias", Meaning::Skipped),
            ("blk.2.nextn.eh_proj.weight", Meaning::Skipped),
            ("blk.0.hc_attn_norm.weight", Meaning::Unknown),
        ] {
            assert_eq!(layers.meaning(name), expected, "{name}");
        }
    }
}
