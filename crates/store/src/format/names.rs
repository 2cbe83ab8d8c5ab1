//! Tensor names: from the names of each layout to the canonical ones.
//!
//! Canonical names are described at [`super::Checkpoint`]. Here is decided what a name means: a part
//! of the trunk, a routed expert, something knowingly skipped (vision tower, multi-token prediction),
//! or unknown. Shapes and encodings are other files' business.

use std::borrow::Cow;

use super::{Projection, deepseek_v4, rows};

/// Prefixes of the text model, longest first.
const PREFIXES: [&str; 4] =
    ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// The decays of the delta rule as GGUF has them: already `-exp(A_log)`.
pub(crate) const DECAY: &str = "linear_attn.A";

/// The router as gpt-oss calls it.
pub(crate) const ROUTER: &str = "mlp.router";

/// What follows `layers.N.` in a trunk tensor's canonical name, over all families that are read.
const LAYER_TENSORS: [&str; 84] = [
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",
    "self_attn.o_proj.bias",
    "self_attn.sinks",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "self_attn.q_a_proj",
    "self_attn.q_a_layernorm",
    "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_a_layernorm",
    "self_attn.kv_b_proj",
    // The rows of `kv_b_proj` as mlx-lm parts them: keys transposed, and values.
    "self_attn.embed_q",
    "self_attn.unembed_out",
    // What chooses latent rows; the weights of its heads have the name that DeepSeek-V4 has (`deepseek_v4.rs`).
    "self_attn.indexer.wq_b",
    "self_attn.indexer.wk",
    "self_attn.indexer.k_norm",
    "self_attn.indexer.k_norm.bias",
    "linear_attn.in_proj_qkv",
    "linear_attn.in_proj_z",
    "linear_attn.in_proj_a",
    "linear_attn.in_proj_b",
    "linear_attn.in_proj_qkvz",
    "linear_attn.in_proj_ba",
    "linear_attn.conv1d",
    "linear_attn.A_log",
    DECAY,
    "linear_attn.dt_bias",
    "linear_attn.norm",
    "linear_attn.out_proj",
    // The delta rule as Kimi-Linear has it, in which queries, keys and values have the names of attention.
    "self_attn.q_conv1d",
    "self_attn.k_conv1d",
    "self_attn.v_conv1d",
    "self_attn.f_a_proj",
    "self_attn.f_b_proj",
    "self_attn.g_a_proj",
    "self_attn.g_b_proj",
    // As Ling-3 has these two; in its latent attention the second is of heads.
    "self_attn.f_proj",
    "self_attn.g_proj",
    "self_attn.b_proj",
    "self_attn.A_log",
    "self_attn.A",
    "self_attn.dt_bias",
    "self_attn.o_norm",
    "mlp.gate",
    "mlp.gate.e_score_correction_bias",
    ROUTER,
    "mlp.router.bias",
    "mlp.experts.gate_up_proj_bias",
    "mlp.experts.gate_proj_bias",
    "mlp.experts.up_proj_bias",
    "mlp.experts.down_proj_bias",
    "mlp.shared_expert.gate_proj",
    "mlp.shared_expert.up_proj",
    "mlp.shared_expert.down_proj",
    "mlp.shared_expert_gate",
    "mlp.shared_experts.gate_proj",
    "mlp.shared_experts.up_proj",
    "mlp.shared_experts.down_proj",
    // Dense layers (`first_k_dense_replace`).
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "mlp.gate_up_proj",
    // Gemma-4: norms before and after each network, the layer's factor, norm and factors of the router.
    "pre_feedforward_layernorm",
    "pre_feedforward_layernorm_2",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "layer_scalar",
    "mlp.gate.norm",
    "mlp.gate.expert_scale",
    // Of a head (`head.rs`).
    "eh_proj",
    "enorm",
    "hnorm",
    "shared_head.norm",
    "shared_head.head",
    "embed_tokens",
];

/// What Gemma-4 calls the parts of a mixture, after `layers.N.`, and their canonical names.
const GEMMA: [(&str, &str); 5] = [
    ("router.proj", "mlp.gate"),
    // Not the scales of a quantised matrix.
    ("router.scale", "mlp.gate.norm"),
    ("router.per_expert_scale", "mlp.gate.expert_scale"),
    ("experts.switch_glu", "mlp.switch_mlp"),
    ("experts", "mlp.experts"),
];

/// What some families and converters call parts of layers, with the canonical names; those that end with a point are
/// modules, whose names go on.
const MIXTURES: [(&str, &str); 19] = [
    (".mlp.router.gate", ".mlp.gate"),
    (".mlp.expert_bias", ".mlp.gate.e_score_correction_bias"),
    (".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    (".mlp.moe_statics.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    (".mlp.shared_mlp.", ".mlp.shared_experts."),
    // As mlx-lm has Kimi-Linear.
    (".self_attn.q_conv.conv", ".self_attn.q_conv1d"),
    (".self_attn.k_conv.conv", ".self_attn.k_conv1d"),
    (".self_attn.v_conv.conv", ".self_attn.v_conv1d"),
    // As Ling-3 has them.
    (".mlp.gate.expert_bias", ".mlp.gate.e_score_correction_bias"),
    (".attention.dense", ".self_attn.o_proj"),
    (".attention.", ".self_attn."),
    // As GLM-5.3-Flash has streams and pools.
    (".hc_attn_fn", ".attn_hc.fn"),
    (".hc_attn_base", ".attn_hc.base"),
    (".hc_attn_scale", ".attn_hc.gain"),
    (".hc_ffn_fn", ".ffn_hc.fn"),
    (".hc_ffn_base", ".ffn_hc.base"),
    (".hc_ffn_scale", ".ffn_hc.gain"),
    (".indexer.index_kpool_compress_gate", ".indexer.gate_proj"),
    (".indexer.index_kpool_compress_ape", ".indexer.position_bias"),
];

/// What a layer has that predicts further tokens, after its number.
pub(crate) const DRAFT: [&str; 3] = ["eh_proj", "enorm", "hnorm"];

/// The number that all scales of a matrix are multiplied with, as ModelOpt calls it.
pub(crate) const GLOBAL_FACTOR: &str = "weight_scale_2";
/// The number that they are divided by, as compressed-tensors calls it.
pub(crate) const GLOBAL_DIVISOR: &str = "weight_global_scale";

/// The zero points of a matrix, as compressed-tensors calls them.
pub(crate) const ZERO_POINT: &str = "weight_zero_point";

/// Which of the up to five tensors of a quantised matrix a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Weight,
    Scales,
    /// Biases, zero points, or the number that all scales of the matrix share.
    Biases,
    /// The group of each input.
    Order,
    /// Rows and columns as two numbers, which the shapes of the others say as well.
    Shape,
}

/// A routed expert's matrix as a file stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertMatrix {
    One(Projection),
    /// Rows of gate, then rows of up.
    GateUp,
}

/// What a canonical name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Trunk,
    /// `expert` is `None` where all experts are stacked in one tensor.
    Expert {
        layer: usize,
        expert: Option<usize>,
        matrix: ExpertMatrix,
    },
    /// Rows of the layer's table of n-grams: all of them, or a numbered part.
    Rows {
        layer: usize,
        part: Option<usize>,
    },
    Skipped,
    Unknown,
}

/// A file's tensor name without prefix and part suffix, and the part.
pub(crate) fn canonical(name: &str) -> (Cow<'_, str>, Part) {
    let (name, part) = match name.rsplit_once('.') {
        _ if name.ends_with(".router.scale") => (name, Part::Weight),
        Some((stem, "weight")) => (stem, Part::Weight),
        Some((stem, "scales" | "scale" | "weight_scale_inv" | "weight_scale")) => {
            (stem, Part::Scales)
        }
        Some((stem, "weight_packed" | "qweight")) => (stem, Part::Weight),
        Some((stem, "g_idx")) => (stem, Part::Order),
        Some((stem, "weight_shape")) => (stem, Part::Shape),
        Some((stem, "biases" | "qzeros" | GLOBAL_FACTOR | GLOBAL_DIVISOR | ZERO_POINT)) => {
            (stem, Part::Biases)
        }
        Some((_, last)) if last.ends_with("_proj_blocks") => {
            (&name[..name.len() - "_blocks".len()], Part::Weight)
        }
        Some((_, last)) if last.ends_with("_proj_scales") => {
            (&name[..name.len() - "_scales".len()], Part::Scales)
        }
        Some((_, last)) if last.ends_with("_proj_scale_inv") => {
            (&name[..name.len() - "_scale_inv".len()], Part::Scales)
        }
        _ => (name, Part::Weight),
    };
    (module(name), part)
}

/// The canonical name of a module path: without the text model's prefix, and mixtures as most families call them.
pub(crate) fn module(name: &str) -> Cow<'_, str> {
    let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    for (theirs, ours) in MIXTURES {
        match name.split_once(theirs) {
            Some((layer, rest)) if rest.is_empty() != theirs.ends_with('.') => {
                return Cow::Owned(format!("{layer}{ours}{rest}"));
            }
            _ => {}
        }
    }
    if name == "word_embeddings" {
        return Cow::Borrowed("embed_tokens");
    }
    if let Some(name) = gemma(name) {
        return Cow::Owned(name);
    }
    let Some((layer, rest)) = name.split_once(".block_sparse_moe.") else {
        return Cow::Borrowed(name);
    };
    let rest = match rest.rsplit_once('.') {
        None if rest == "e_score_correction_bias" => "gate.e_score_correction_bias".to_owned(),
        Some((expert, "w1")) => format!("{expert}.gate_proj"),
        Some((expert, "w2")) => format!("{expert}.down_proj"),
        Some((expert, "w3")) => format!("{expert}.up_proj"),
        _ => rest.to_owned(),
    };
    Cow::Owned(format!("{layer}.mlp.{rest}"))
}

/// The canonical name of a part of a mixture that Gemma-4 has in the layer itself.
fn gemma(name: &str) -> Option<String> {
    let (number, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    GEMMA.into_iter().find_map(|(theirs, ours)| {
        let part = rest.strip_prefix(theirs)?;
        let whole = part.is_empty() || part.starts_with('.');
        whole.then(|| format!("layers.{number}.{ours}{part}"))
    })
}

/// What a canonical name stands for in a model of `layers` layers, after which `drafts` more lie that predict further
/// tokens (`num_nextn_predict_layers`) and are not used.
pub(crate) fn meaning(name: &str, layers: usize, drafts: usize) -> Meaning {
    let others = [
        "visual.",
        "vision_tower.",
        "mm_projector.",
        "embed_vision.",
        "audio_tower.",
        "embed_audio.",
        "mtp.",
        "mtp_",
    ];
    // Frequencies follow from the configuration.
    if others.iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with(".rotary_emb.inv_freq")
    {
        return Meaning::Skipped;
    }
    if matches!(name, "embed_tokens" | "lm_head" | "norm")
        || deepseek_v4::MODEL_TENSORS.contains(&name)
        || rows::MODEL_TENSORS.contains(&name)
    {
        return Meaning::Trunk;
    }
    let Some((layer, rest)) = layer(name).filter(|(layer, _)| *layer < layers + drafts) else {
        return Meaning::Unknown;
    };
    if layer >= layers {
        return Meaning::Skipped;
    }
    if let Some(part) = rows::part(rest) {
        return Meaning::Rows { layer, part };
    }
    let others = deepseek_v4::LAYER_TENSORS.iter().chain(&deepseek_v4::INDEXER_TENSORS);
    let mut others = others.chain(&rows::LAYER_TENSORS);
    if LAYER_TENSORS.contains(&rest)
        || others.any(|known| *known == rest)
        || rest.strip_prefix("mlp") == Some(deepseek_v4::TABLE)
    {
        return Meaning::Trunk;
    }
    expert(rest).map_or(Meaning::Unknown, |(expert, matrix)| Meaning::Expert {
        layer,
        expert,
        matrix,
    })
}

/// Number of the layer that a canonical name belongs to, and what follows.
pub(crate) fn layer(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    Some((number(layer)?, rest))
}

fn expert(rest: &str) -> Option<(Option<usize>, ExpertMatrix)> {
    let rest = rest.strip_prefix("mlp.")?;
    if let Some(matrix) = rest.strip_prefix("switch_mlp.") {
        return Some((None, expert_matrix(matrix)?));
    }
    let rest = rest.strip_prefix("experts.")?;
    match rest.split_once('.') {
        Some((expert, matrix)) => Some((Some(number(expert)?), expert_matrix(matrix)?)),
        None => Some((None, expert_matrix(rest)?)),
    }
}

fn expert_matrix(name: &str) -> Option<ExpertMatrix> {
    match name {
        "gate_proj" => Some(ExpertMatrix::One(Projection::Gate)),
        "up_proj" => Some(ExpertMatrix::One(Projection::Up)),
        "down_proj" => Some(ExpertMatrix::One(Projection::Down)),
        "gate_up_proj" => Some(ExpertMatrix::GateUp),
        _ => None,
    }
}

/// A decimal index without sign or leading zeros, so that one tensor has one name.
pub(crate) fn number(text: &str) -> Option<usize> {
    let canonical = text == "0" || !text.starts_with('0');
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if canonical && digits { text.parse().ok() } else { None }
}

/// Whether a name means how publishers' kernels round activations, or keys and values: no part of a weight.
pub(crate) fn of_activations(name: &str) -> bool {
    let last = name.rsplit_once('.').map_or(name, |(_, last)| last);
    matches!(last, "input_scale" | "input_global_scale" | "k_scale" | "v_scale")
}

/// The scheme of a name that belongs to a quantisation which is not read.
pub(crate) fn foreign_quantisation(name: &str) -> Option<&'static str> {
    match name.rsplit_once('.').map_or(name, |(_, last)| last) {
        "input_scale" | "activation_scale" => Some("fp8 quantisation"),
        "pre_quant_scale" => Some("quantisation with scales of activations (AWQ)"),
        "svdquant_lora_a" | "svdquant_lora_b" => {
            Some("quantisation with parts of low rank (SVDQuant)")
        }
        ZERO_POINT => Some("compressed-tensors quantisation with zero points"),
        "qweight" | "qzeros" | "g_idx" => {
            Some("GPTQ or AWQ quantisation of a matrix without a known name")
        }
        "weight_g_idx" => Some("compressed-tensors quantisation with columns in another order"),
        last if last.ends_with("_blocks") => Some("mxfp4 quantisation"),
        _ => None,
    }
}
