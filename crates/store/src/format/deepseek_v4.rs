//! What checkpoints of DeepSeek-V4 have of their own: names of tensors (`layers.N.attn.wq_a`), which are brought to
//! canonical names before anything else looks at them, and prompts that a program in their folder writes.

use std::borrow::Cow;

/// What writes prompts where a folder has no chat template: the release has none.
pub const TEMPLATE: &str = include_str!("deepseek_v4.jinja");

/// What follows `layers.N.` in a canonical name of this family alone.
pub(crate) const LAYER_TENSORS: [&str; 22] = [
    "attn_hc.fn",
    "attn_hc.base",
    "attn_hc.gain",
    "ffn_hc.fn",
    "ffn_hc.base",
    "ffn_hc.gain",
    "self_attn.q_a_proj",
    "self_attn.q_a_norm",
    "self_attn.q_b_proj",
    "self_attn.kv_proj",
    "self_attn.kv_norm",
    "self_attn.o_a_proj",
    "self_attn.o_b_proj",
    "self_attn.compressor.kv_proj",
    "self_attn.compressor.gate_proj",
    "self_attn.compressor.position_bias",
    "self_attn.compressor.kv_norm",
    "self_attn.indexer.q_b_proj",
    "self_attn.indexer.weights_proj",
    "self_attn.indexer.kv_proj",
    "self_attn.indexer.gate_proj",
    "mlp.gate.e_score_correction_bias",
];

/// The same of the indexer's compressor, whose parts are small.
pub(crate) const INDEXER_TENSORS: [&str; 2] =
    ["self_attn.indexer.position_bias", "self_attn.indexer.kv_norm"];

/// What lies outside of layers.
pub(crate) const MODEL_TENSORS: [&str; 3] = ["hc_head.fn", "hc_head.base", "hc_head.gain"];

/// The end of the name of a table of experts by token.
pub const TABLE: &str = ".gate.tid2eid";

/// Names outside of layers: in files, here.
const MODEL: [(&str, &str); 9] = [
    ("embed.weight", "embed_tokens.weight"),
    ("head.weight", "lm_head.weight"),
    ("hc_head_fn", "hc_head.fn"),
    ("hc_head_base", "hc_head.base"),
    ("hc_head_scale", "hc_head.gain"),
    // As transformers 5 saves them.
    ("hc_head.hc_fn", "hc_head.fn"),
    ("hc_head.hc_base", "hc_head.base"),
    ("hc_head.hc_scale", "hc_head.gain"),
    ("norm.weight", "norm.weight"),
];

/// What follows `layers.N.`, without what follows a matrix's own name: in files, here.
const LAYER: [(&str, &str); 33] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("hc_attn_fn", "attn_hc.fn"),
    ("hc_attn_base", "attn_hc.base"),
    ("hc_attn_scale", "attn_hc.gain"),
    ("hc_ffn_fn", "ffn_hc.fn"),
    ("hc_ffn_base", "ffn_hc.base"),
    ("hc_ffn_scale", "ffn_hc.gain"),
    ("attn.wq_a", "self_attn.q_a_proj"),
    ("attn.q_norm", "self_attn.q_a_norm"),
    ("attn.wq_b", "self_attn.q_b_proj"),
    ("attn.wkv", "self_attn.kv_proj"),
    ("attn.kv_norm", "self_attn.kv_norm"),
    // As transformers 5 saves it.
    ("attn.norm", "self_attn.kv_norm"),
    ("attn.wo_a", "self_attn.o_a_proj"),
    ("attn.wo_b", "self_attn.o_b_proj"),
    ("attn.attn_sink", "self_attn.sinks"),
    ("attn.compressor.wkv", "self_attn.compressor.kv_proj"),
    ("attn.compressor.wgate", "self_attn.compressor.gate_proj"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    ("attn.compressor.norm", "self_attn.compressor.kv_norm"),
    ("attn.indexer.wq_b", "self_attn.indexer.q_b_proj"),
    ("attn.indexer.weights_proj", "self_attn.indexer.weights_proj"),
    ("attn.indexer.compressor.wkv", "self_attn.indexer.kv_proj"),
    ("attn.indexer.compressor.wgate", "self_attn.indexer.gate_proj"),
    ("attn.indexer.compressor.ape", "self_attn.indexer.position_bias"),
    ("attn.indexer.compressor.norm", "self_attn.indexer.kv_norm"),
    ("ffn.gate", "mlp.gate"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.gate.tid2eid", "mlp.gate.tid2eid"),
    ("ffn.shared_experts.w1", "mlp.shared_expert.gate_proj"),
    ("ffn.shared_experts.w2", "mlp.shared_expert.down_proj"),
    ("ffn.shared_experts.w3", "mlp.shared_expert.up_proj"),
];

/// Matrices of a routed expert: in files, here.
const EXPERT: [(&str, &str); 3] = [("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")];

/// A tensor's name as other families would have it. What is not known stays as it is.
pub(crate) fn renamed(name: &str) -> Cow<'_, str> {
    let inner = name.strip_prefix("model.").unwrap_or(name);
    if let Some((_, ours)) = MODEL.iter().find(|(theirs, _)| *theirs == inner) {
        return Cow::Borrowed(ours);
    }
    let layer = inner.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, rest)) = layer else { return Cow::Borrowed(inner) };
    let (stem, part) = match rest.rsplit_once('.') {
        Some((stem, "weight")) => (stem, ".weight"),
        Some((stem, "scale")) => (stem, ".scale"),
        _ => (rest, ""),
    };
    if let Some((_, ours)) = LAYER.iter().find(|(theirs, _)| *theirs == stem) {
        return Cow::Owned(format!("layers.{layer}.{ours}{part}"));
    }
    let expert = stem.strip_prefix("ffn.experts.").and_then(|rest| rest.split_once('.'));
    let known = expert.and_then(|(expert, matrix)| {
        let (_, ours) = EXPERT.iter().find(|(theirs, _)| *theirs == matrix)?;
        Some((expert, ours))
    });
    match known {
        Some((expert, ours)) => {
            Cow::Owned(format!("layers.{layer}.mlp.experts.{expert}.{ours}{part}"))
        }
        None => Cow::Borrowed(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_names_become_canonical_ones() {
        for (theirs, ours) in [
            ("embed.weight", "embed_tokens.weight"),
            ("model.embed_tokens.weight", "embed_tokens.weight"),
            ("norm.weight", "norm.weight"),
            ("hc_head_fn", "hc_head.fn"),
            ("layers.3.attn.wq_a.weight", "layers.3.self_attn.q_a_proj.weight"),
            ("layers.3.attn.wq_a.scale", "layers.3.self_attn.q_a_proj.scale"),
            ("layers.3.hc_attn_scale", "layers.3.attn_hc.gain"),
            ("layers.0.ffn.gate.tid2eid", "layers.0.mlp.gate.tid2eid"),
            ("layers.4.ffn.gate.bias", "layers.4.mlp.gate.e_score_correction_bias"),
            ("layers.4.attn.indexer.compressor.ape", "layers.4.self_attn.indexer.position_bias"),
            ("layers.42.ffn.experts.255.w2.weight", "layers.42.mlp.experts.255.down_proj.weight"),
            ("mtp.0.attn.wq_a.weight", "mtp.0.attn.wq_a.weight"),
            ("layers.1.ffn.experts.0.w4.weight", "layers.1.ffn.experts.0.w4.weight"),
        ] {
            assert_eq!(renamed(theirs), ours);
        }
    }
}
