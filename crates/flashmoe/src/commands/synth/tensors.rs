//! Tensors outside the routed experts, under their canonical names: what a configuration says that there is.

use anyhow::Result;
use engine::model::config::{
    AttentionConfig, DeltaConfig, Family, FeedForward, LatentConfig, Mixer, ModelConfig,
    Projections, Sees, Values,
};
use engine::model::hyper_connections::Merge;
use engine::model::index::IndexForm;
use engine::model::router::Score;
use kernels::format::{Encoding, FloatType};
use store::format::deepseek_v4::TABLE;
use store::format::{Element, Integer};
use store::synthetic::GeneratedTensor;

use super::shape::encoding;
use super::{deepseek_v4, flash_next, gemma4, head};
use crate::arguments::{StoredAs, SynthArguments};
use crate::failure::Failure;

/// Where tensors go: name, shape, encoding.
pub(super) type Add<'a> = dyn FnMut(String, &[usize], Encoding) + 'a;

/// How the tensors of a trunk are stored.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    /// Matrices of layers.
    pub(super) matrices: Encoding,
    /// Routers and the head that predicts further tokens.
    pub(super) gates: Encoding,
    /// The embedding and the head.
    ends: Encoding,
    /// Norms and biases.
    pub(super) plain: Encoding,
}

impl Stored {
    fn of(arguments: &SynthArguments) -> Result<Self> {
        if matches!(arguments.trunk, StoredAs::Mxfp4Planes) {
            return Err(Failure::usage("--trunk: mxfp4:planes is for experts".to_owned()).into());
        }
        let matrices = encoding(arguments.trunk, arguments.group)?;
        // Converters keep router gates at 8 bits: a wrong expert costs more than a rough one.
        let gates = match arguments.trunk {
            StoredAs::Bits(_) => encoding(StoredAs::Bits(8), arguments.group)?,
            StoredAs::Blocks(_) => encoding(StoredAs::F32, arguments.group)?,
            StoredAs::Fp8(_) => encoding(StoredAs::Bf16, arguments.group)?,
            _ => matrices,
        };
        // Publishers of 8-bit floats leave both ends in bf16.
        let ends = if matches!(arguments.trunk, StoredAs::Fp8(_)) { gates } else { matrices };
        Ok(Self { matrices, gates, ends, plain: Encoding::Float(FloatType::Bf16) })
    }
}

/// Everything outside the routed experts, in the order of the files.
pub(super) fn of(model: &ModelConfig, arguments: &SynthArguments) -> Result<Vec<GeneratedTensor>> {
    let stored = Stored::of(arguments)?;
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize], encoding: Encoding| {
        let element = match name.ends_with(TABLE) {
            true => Element::Whole(Integer::I64),
            false => encoding.into(),
        };
        all.push(GeneratedTensor { name, shape: shape.to_vec(), element });
    };
    let hidden = model.hidden;
    add("embed_tokens".to_owned(), &[model.vocabulary, hidden], stored.ends);
    for index in 0..model.layers.len() {
        layer(model, index, stored, &mut add);
    }
    if model.head {
        head::tensors(model, stored, &mut add);
    }
    if let Some(hyper) = model.hyper.as_ref().filter(|it| it.merge == Merge::Weighed) {
        deepseek_v4::site(hyper, hidden, "hc_head", [hyper.streams, 1], &mut add);
    }
    match &model.gated {
        Some(gated) => {
            flash_next::site(gated, hidden, "hyper_connection_mixer", stored, &mut add);
        }
        None => add("norm".to_owned(), &[hidden], stored.plain),
    }
    if !model.tied_head {
        add("lm_head".to_owned(), &[model.vocabulary, hidden], stored.ends);
    }
    Ok(all)
}

/// A layer but for its routed experts.
fn layer(model: &ModelConfig, layer: usize, stored: Stored, add: &mut Add<'_>) {
    let (hidden, spec) = (model.hidden, &model.layers[layer]);
    let name = |part: &str| format!("layers.{layer}.{part}");
    flash_next::layer(model, layer, stored, add);
    if model.gated.is_none() {
        add(name("input_layernorm"), &[hidden], stored.plain);
    }
    if let Some(hyper) = &model.hyper {
        for part in ["attn_hc", "ffn_hc"] {
            deepseek_v4::site(hyper, hidden, &name(part), [hyper.outputs(), 3], add);
        }
    }
    if let Some(shape) = &model.compressed {
        deepseek_v4::attention(model, shape, layer, stored, add);
    }
    let attention = model.attention_of(layer);
    match (spec.mixer, &model.delta, &model.latent) {
        (Mixer::Compressed(_), ..) => {}
        (Mixer::Latent, _, Some(latent)) => {
            latent_attention(hidden, attention, latent, stored, &name, add);
            let index = model.index.filter(|_| spec.sees == Sees::Chosen);
            if let (Some(index), Some(rank)) = (index, latent.query_rank) {
                let name = |part: &str| name(&format!("self_attn.indexer.{part}"));
                add(name("wq_b"), &[index.heads * index.dim, rank], stored.matrices);
                add(name("wk"), &[index.dim, hidden], stored.matrices);
                add(name("k_norm"), &[index.dim], stored.plain);
                add(name("k_norm.bias"), &[index.dim], stored.plain);
                add(name("weights_proj"), &[index.heads, hidden], stored.plain);
                if index.form == IndexForm::Pooled {
                    add(name("gate_proj"), &[index.dim, hidden], stored.plain);
                    add(name("position_bias"), &[index.unit, index.dim], stored.plain);
                }
            }
        }
        (Mixer::DeltaNet, Some(delta), _) => delta_rule(model, delta, stored, &name, add),
        _ => plain_attention(hidden, attention, stored, &name, add),
    }
    if model.gated.is_none() {
        add(name("post_attention_layernorm"), &[hidden], stored.plain);
    }
    if let FeedForward::Dense { inner } | FeedForward::Both { inner } = spec.feed_forward {
        add(name("mlp.gate_proj"), &[inner, hidden], stored.matrices);
        add(name("mlp.up_proj"), &[inner, hidden], stored.matrices);
        add(name("mlp.down_proj"), &[hidden, inner], stored.matrices);
    }
    match spec.feed_forward {
        FeedForward::Dense { .. } => return,
        FeedForward::Both { .. } => gemma4::norms(model, layer, stored.plain, add),
        FeedForward::Mixture => {}
    }
    mixture(model, layer, stored, add);
}

/// Attention over latent rows.
fn latent_attention(
    hidden: usize,
    attention: &AttentionConfig,
    latent: &LatentConfig,
    stored: Stored,
    name: &dyn Fn(&str) -> String,
    add: &mut Add<'_>,
) {
    let heads = attention.query_heads;
    let queries = heads * (latent.plain_dim + attention.rope.dims);
    match latent.query_rank {
        None => add(name("self_attn.q_proj"), &[queries, hidden], stored.matrices),
        Some(rank) => {
            add(name("self_attn.q_a_proj"), &[rank, hidden], stored.matrices);
            add(name("self_attn.q_a_layernorm"), &[rank], stored.plain);
            add(name("self_attn.q_b_proj"), &[queries, rank], stored.matrices);
        }
    }
    let row = [attention.head_dim, hidden];
    add(name("self_attn.kv_a_proj_with_mqa"), &row, stored.matrices);
    add(name("self_attn.kv_a_layernorm"), &[latent.rank], stored.plain);
    let both = heads * (latent.plain_dim + latent.value_dim);
    add(name("self_attn.kv_b_proj"), &[both, latent.rank], stored.matrices);
    let values = heads * latent.value_dim;
    add(name("self_attn.o_proj"), &[hidden, values], stored.matrices);
    if latent.head_gates {
        add(name("self_attn.g_proj"), &[heads, hidden], stored.matrices);
    }
}

/// A layer of the delta rule.
fn delta_rule(
    model: &ModelConfig,
    delta: &DeltaConfig,
    stored: Stored,
    name: &dyn Fn(&str) -> String,
    add: &mut Add<'_>,
) {
    let hidden = model.hidden;
    let (heads, width) = (delta.value_heads, delta.value_width());
    if let Projections::Apart { low_rank } = delta.projections {
        return delta_apart(hidden, (delta, low_rank), stored, name, add);
    }
    let taps = [delta.channels(), delta.convolution_kernel];
    let rates = Encoding::Float(FloatType::F32);
    let inputs = match model.family {
        Family::Qwen3Next => &[("qkvz", delta.channels() + width), ("ba", 2 * heads)][..],
        _ => &[("qkv", delta.channels()), ("z", width), ("a", heads), ("b", heads)],
    };
    for (part, rows) in inputs {
        add(name(&format!("linear_attn.in_proj_{part}")), &[*rows, hidden], stored.matrices);
    }
    add(name("linear_attn.conv1d"), &taps, stored.plain);
    add(name("linear_attn.A_log"), &[heads], rates);
    add(name("linear_attn.dt_bias"), &[heads], stored.plain);
    add(name("linear_attn.norm"), &[delta.value_dim], stored.plain);
    add(name("linear_attn.out_proj"), &[hidden, width], stored.matrices);
}

/// A layer of the delta rule whose queries, keys and values have matrices of their own, and decays and gates one each
/// or two.
fn delta_apart(
    hidden: usize,
    (delta, low_rank): (&DeltaConfig, Option<usize>),
    stored: Stored,
    name: &dyn Fn(&str) -> String,
    add: &mut Add<'_>,
) {
    let (keys, width) = (delta.key_heads * delta.key_dim, delta.value_width());
    let name = |part: &str| name(&format!("self_attn.{part}"));
    for (part, rows) in [("q", keys), ("k", keys), ("v", width)] {
        add(name(&format!("{part}_proj")), &[rows, hidden], stored.matrices);
        add(name(&format!("{part}_conv1d")), &[rows, delta.convolution_kernel], stored.plain);
    }
    for (part, rows) in [("f", delta.decays()), ("g", width)] {
        let Some(rank) = low_rank else {
            add(name(&format!("{part}_proj")), &[rows, hidden], stored.matrices);
            continue;
        };
        add(name(&format!("{part}_a_proj")), &[rank, hidden], stored.matrices);
        add(name(&format!("{part}_b_proj")), &[rows, rank], stored.matrices);
    }
    add(name("b_proj"), &[delta.value_heads, hidden], stored.matrices);
    add(name("A_log"), &[delta.value_heads], Encoding::Float(FloatType::F32));
    add(name("dt_bias"), &[delta.decays()], stored.plain);
    add(name("o_norm"), &[delta.value_dim], stored.plain);
    add(name("o_proj"), &[hidden, width], stored.matrices);
}

/// Attention over keys and values.
fn plain_attention(
    hidden: usize,
    attention: &AttentionConfig,
    stored: Stored,
    name: &dyn Fn(&str) -> String,
    add: &mut Add<'_>,
) {
    let (queries, keys) = (attention.query_width(), attention.key_width());
    let query_rows = queries * (1 + usize::from(attention.output_gate));
    add(name("self_attn.q_proj"), &[query_rows, hidden], stored.matrices);
    add(name("self_attn.k_proj"), &[keys, hidden], stored.matrices);
    if attention.values != Values::NormedKeys {
        add(name("self_attn.v_proj"), &[keys, hidden], stored.matrices);
    }
    if attention.head_norms {
        add(name("self_attn.q_norm"), &[attention.head_dim], stored.plain);
        add(name("self_attn.k_norm"), &[attention.head_dim], stored.plain);
    }
    if attention.whole_norms {
        add(name("self_attn.q_norm"), &[queries], stored.plain);
        add(name("self_attn.k_norm"), &[keys], stored.plain);
    }
    if attention.biases {
        let rows = [("q", query_rows), ("k", keys), ("v", keys)];
        for (part, rows) in rows {
            add(name(&format!("self_attn.{part}_proj.bias")), &[rows], stored.plain);
        }
    }
    if attention.output_bias {
        add(name("self_attn.o_proj.bias"), &[hidden], stored.plain);
    }
    if attention.sinks {
        add(name("self_attn.sinks"), &[attention.query_heads], stored.plain);
    }
    add(name("self_attn.o_proj"), &[hidden, queries], stored.matrices);
}

/// A router, biases of experts and what every token passes.
fn mixture(model: &ModelConfig, layer: usize, stored: Stored, add: &mut Add<'_>) {
    let (hidden, moe) = (model.hidden, &model.moe);
    let name = |part: &str| format!("layers.{layer}.{part}");
    if moe.router.score != Score::Softmax {
        let float = Encoding::Float(FloatType::F32);
        add(name("mlp.gate"), &[moe.experts, hidden], stored.gates);
        if layer < moe.hashed_layers {
            add(name(&format!("mlp{TABLE}")), &[model.vocabulary, moe.top_k], float);
        } else {
            add(name("mlp.gate.e_score_correction_bias"), &[moe.experts], float);
        }
    } else if moe.router.bias {
        add(name("mlp.router"), &[moe.experts, hidden], stored.gates);
        add(name("mlp.router.bias"), &[moe.experts], stored.plain);
    } else {
        add(name("mlp.gate"), &[moe.experts, hidden], stored.gates);
    }
    if moe.biases {
        let width = 2 * moe.intermediate;
        add(name("mlp.experts.gate_up_proj_bias"), &[moe.experts, width], stored.plain);
        add(name("mlp.experts.down_proj_bias"), &[moe.experts, hidden], stored.plain);
    }
    if let Some(shared) = moe.shared_intermediate {
        let module = if moe.shared_gate { "shared_expert" } else { "shared_experts" };
        add(name(&format!("mlp.{module}.gate_proj")), &[shared, hidden], stored.matrices);
        add(name(&format!("mlp.{module}.up_proj")), &[shared, hidden], stored.matrices);
        add(name(&format!("mlp.{module}.down_proj")), &[hidden, shared], stored.matrices);
        if moe.shared_gate {
            add(name("mlp.shared_expert_gate"), &[1, hidden], stored.gates);
        }
    }
}
