//! The shapes that `synth` knows: configuration, tensors and encodings of each.
//!
//! Names and shapes are those of the published checkpoints; the tensor list follows from the
//! configuration alone, so any config.json of a supported family will do.

use std::path::Path;

use anyhow::{Context, Result};
use engine::model::config::{Family, FeedForward, LayerSpec, Mixer, ModelConfig};
use engine::model::router::Score;
use kernels::format::{BlockFormat, Encoding, FloatType};
use serde_json::{Value, json};
use store::format::deepseek_v4::TABLE;
use store::format::{Configuration, Element, Integer, Projection, ProjectionShape};
use store::synthetic::{GeneratedExperts, GeneratedModel, GeneratedTensor, Owner};

use super::values::Values;
use super::{deepseek_v4, flash_next, gemma4, latent, plain, sigmoid};
use crate::arguments::{LayoutChoice, StoredAs, SynthArguments};
use crate::failure::Failure;

/// A model to be made, with the distribution of every tensor.
pub(super) struct Shape {
    pub(super) model: GeneratedModel,
    /// By index into the model's tensors.
    values: Vec<Values>,
    /// Gate, up, down of every expert.
    expert_values: [Values; 3],
}

impl Shape {
    /// Every block encoding of the model.
    pub(super) fn block_formats(&self) -> Vec<BlockFormat> {
        let experts = self.model.layers.iter().flatten().flat_map(|layer| layer.shapes);
        let experts = experts.map(|shape| shape.encoding);
        let tensors = self.model.tensors.iter().filter_map(|tensor| tensor.element.encoding());
        let mut formats = Vec::new();
        for encoding in tensors.chain(experts) {
            if let Encoding::Block(format) = encoding
                && !formats.contains(&format)
            {
                formats.push(format);
            }
        }
        formats
    }

    /// Encoding and distribution of a matrix.
    pub(super) fn matrix(&self, owner: Owner) -> (Encoding, Values) {
        match owner {
            Owner::Tensor(index) => {
                // Whole numbers are written as words of 32 bits.
                let words = Encoding::Float(FloatType::F32);
                let element = self.model.tensors[index].element;
                (element.encoding().unwrap_or(words), self.values[index])
            }
            Owner::Expert { layer, projection, .. } => {
                let which = projection as usize;
                let experts = self.model.layers[layer].as_ref();
                let shape = &experts.expect("a layer with experts").shapes[which];
                (shape.encoding, self.expert_values[which])
            }
        }
    }
}

/// Refuses what a layout has no files for: blocks, and layers that share one.
fn check_layout(arguments: &SynthArguments) -> Result<()> {
    if arguments.distinct.is_some() && arguments.layout == LayoutChoice::Mlx {
        let problem = "--distinct: files of safetensors hold several layers; use --layout native";
        return Err(Failure::usage(problem.to_owned()).into());
    }
    for (option, stored) in [("--experts", arguments.experts), ("--trunk", arguments.trunk)] {
        let StoredAs::Blocks(format) = stored else { continue };
        let name = format.name();
        if arguments.layout == LayoutChoice::Mlx {
            let problem =
                format!("{option} {name}: safetensors hold no blocks; use --layout native");
            return Err(Failure::usage(problem).into());
        }
        if super::blocks::numbers(format).is_none() {
            let problem = format!("{option} {name}: not among the encodings that synth can fill");
            return Err(Failure::usage(problem).into());
        }
    }
    Ok(())
}

/// The configuration of a shape by its name.
pub(super) fn named(name: &str) -> Option<Value> {
    Some(match name {
        "30B-A3B" => qwen3([2048, 48, 32, 4, 128], [128, 8, 768]),
        "235B-A22B" => qwen3([4096, 94, 64, 4, 128], [128, 8, 1536]),
        "35B-A3B" => published([2048, 40, 16, 2, 256], [16, 32, 128], [256, 8, 512], 248_320),
        "122B-A10B" => published([3072, 48, 32, 2, 256], [16, 64, 128], [256, 8, 1024], 248_320),
        "397B-A17B" => published([4096, 60, 32, 2, 256], [16, 64, 128], [512, 10, 1024], 248_320),
        "80B-A3B" => {
            next(published([2048, 48, 16, 2, 256], [16, 32, 128], [512, 10, 512], 151_936))
        }
        "gpt-oss-20b" => gpt_oss([2880, 24, 64, 8, 64], [32, 4, 2880], 201_088),
        "gpt-oss-120b" => gpt_oss([2880, 36, 64, 8, 64], [128, 4, 2880], 201_088),
        "deepseek-v3" => latent::deepseek_v3(),
        "kimi-k2" => latent::kimi_k2(),
        "glm-4.7-flash" => latent::glm_flash(),
        "glm-4.5-air" => sigmoid::air(),
        "glm-4.6" | "glm-4.7" => sigmoid::large(),
        "minimax-m2" => sigmoid::m2(),
        "olmoe" => plain::olmoe(),
        "dots1" => plain::dots1(),
        "vl-30B-A3B" => plain::qwen3_vl(qwen3([2048, 48, 32, 4, 128], [128, 8, 768])),
        "vl-235B-A22B" => plain::qwen3_vl(qwen3([4096, 94, 64, 4, 128], [128, 8, 1536])),
        "ernie-4.5-21b" => plain::ernie_small(),
        "ernie-4.5-300b" => plain::ernie_large(),
        "k-exaone" => plain::exaone(),
        "hy3" => plain::hy3(),
        "solar-open" => plain::solar_open(),
        "tiny-glm" => sigmoid::tiny_glm(),
        "tiny-minimax" => sigmoid::tiny_minimax(),
        "tiny-latent" => latent::tiny(),
        "deepseek-v4-flash" => deepseek_v4::flash(),
        "tiny-v4" => deepseek_v4::tiny(),
        "gemma-4-26b-a4b" => gemma4::a4b(),
        "tiny-gemma" => gemma4::tiny(),
        "flash-next" => flash_next::released(),
        "tiny-flash-next" => flash_next::tiny(),
        "tiny-oss" => gpt_oss([160, 4, 4, 2, 32], [8, 3, 96], 512),
        "tiny" => published([256, 4, 4, 2, 64], [2, 4, 64], [16, 4, 128], 512),
        "tiny-next" => next(published([256, 4, 4, 2, 64], [2, 4, 64], [16, 4, 128], 512)),
        _ => return None,
    })
}

/// What the arguments ask for.
pub(super) fn resolve(arguments: &SynthArguments) -> Result<Shape> {
    check_layout(arguments)?;
    let mut config = match named(&arguments.shape) {
        Some(config) => config,
        None => read_config(Path::new(&arguments.shape))?,
    };
    let text = if config.get("text_config").is_some_and(Value::is_object) {
        &mut config["text_config"]
    } else {
        &mut config
    };
    if let Some(layers) = arguments.layers {
        text["num_hidden_layers"] = layers.into();
        if let Some(kinds) = text.get("layer_types").and_then(Value::as_array) {
            let kinds: Vec<Value> =
                kinds.iter().cycle().take(usize::from(layers)).cloned().collect();
            text["layer_types"] = kinds.into();
        }
    }
    for stale in ["quantization", "quantization_config"] {
        config.as_object_mut().map(|object| object.shift_remove(stale));
    }
    let known = Configuration::new(Path::new(&arguments.shape), config.clone());
    let known = known.map_err(|error| Failure::model(error.into()))?;
    let model = ModelConfig::read(&known).map_err(Failure::engine)?;
    let model = super::head::asked(arguments, model, &mut config)?;
    if model.ngrams.is_some() && arguments.layout == LayoutChoice::Native {
        let reason = "--layout native: packs have no place for rows of n-grams; use --layout mlx";
        return Err(Failure::usage(reason.to_owned()).into());
    }
    let tensors = tensors(&model, arguments)?;
    let encoding = encoding(arguments.experts, arguments.group)?;
    let (inner, hidden) = (model.moe.intermediate, model.hidden);
    let wide = ProjectionShape { rows: inner, columns: hidden, encoding };
    let tall = ProjectionShape { rows: hidden, columns: inner, encoding };
    let experts = GeneratedExperts { shapes: [wide, wide, tall], experts: model.moe.experts };
    let has_experts = |spec: &LayerSpec| spec.feed_forward.has_mixture();
    let layers: Vec<_> =
        model.layers.iter().map(|spec| has_experts(spec).then_some(experts)).collect();
    let prefix = match model.family {
        Family::Qwen35Moe | Family::Qwen4Exp => "language_model.",
        _ => "",
    };
    if let Some(quantization) = quantization(arguments, prefix, &tensors, &layers) {
        config["quantization"] = quantization.clone();
        config["quantization_config"] = quantization;
    }
    let expert = |name, columns| Values::of(name, columns);
    Ok(Shape {
        values: tensors
            .iter()
            .map(|tensor| {
                let columns = *tensor.shape.last().unwrap_or(&1);
                match &*tensor.name {
                    name if name.ends_with(TABLE) => {
                        Values::Ids { columns, below: model.moe.experts }
                    }
                    // Embeddings that are the head as well have its values; their factor makes up for it.
                    "embed_tokens" if model.tied_head => Values::of("lm_head", columns),
                    name => Values::of(name, columns),
                }
            })
            .collect(),
        expert_values: [
            expert("gate_proj", hidden),
            expert("up_proj", hidden),
            expert("down_proj", inner),
        ],
        model: GeneratedModel {
            config,
            prefix,
            tensors,
            layers,
            recipe: super::recipe(arguments),
            tokenizer: arguments.tokenizer.clone(),
            distinct: arguments.distinct.map(usize::from),
        },
    })
}

fn read_config(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).map_err(Failure::io).with_context(|| {
        format!(
            "{}: neither a shape (`flashmoe synth --help` names them) nor a readable config.json",
            path.display()
        )
    })?;
    let value = serde_json::from_slice(&text).map_err(|error| Failure::model(error.into()));
    value.with_context(|| format!("{} is no JSON", path.display()))
}

/// The configuration of a Qwen3-MoE: `[hidden, layers, heads, kv heads, head size]`, `[experts, top-k, width]`.
fn qwen3(
    [hidden, layers, heads, kv_heads, head_dim]: [usize; 5],
    [experts, top_k, width]: [usize; 3],
) -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151_936,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": width,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": false,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": false,
    })
}

/// The configuration of a Qwen3.5-MoE: `[hidden, layers, heads, kv heads, head size]`, `[key heads, value
/// heads, head size]` of the delta layers, `[experts, top-k, width]`, vocabulary.
fn published(
    [hidden, layers, heads, kv_heads, head_dim]: [usize; 5],
    [key_heads, value_heads, delta_dim]: [usize; 3],
    [experts, top_k, width]: [usize; 3],
    vocabulary: usize,
) -> Value {
    let full = |layer: usize| (layer + 1).is_multiple_of(4);
    let kinds: Vec<&str> = (0..layers)
        .map(|layer| if full(layer) { "full_attention" } else { "linear_attention" })
        .collect();
    // Interleaved sections of a quarter of the head, in pairs: 11, 11, 10 of 32.
    let pairs = head_dim / 8;
    let third = pairs.div_ceil(3);
    json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "tie_word_embeddings": false,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "dtype": "bfloat16",
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": value_heads,
            "linear_key_head_dim": delta_dim,
            "linear_value_head_dim": delta_dim,
            "linear_conv_kernel_dim": 4,
            "moe_intermediate_size": width,
            "shared_expert_intermediate_size": width,
            "num_experts": experts,
            "num_experts_per_tok": top_k,
            "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": false,
            "full_attention_interval": 4,
            "layer_types": kinds,
            "attention_bias": false,
            "attn_output_gate": true,
            "hidden_act": "silu",
            "mamba_ssm_dtype": "float32",
            "mlp_only_layers": [],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": true,
                "mrope_section": [third, third, pairs - 2 * third],
            },
        },
    })
}

/// The same sizes as a Qwen3-Next has them: no part for pictures, and the rotation's keys outside.
fn next(mut published: Value) -> Value {
    let mut config = published["text_config"].take();
    config["architectures"] = json!(["Qwen3NextForCausalLM"]);
    config["model_type"] = "qwen3_next".into();
    config["norm_topk_prob"] = true.into();
    config["decoder_sparse_step"] = 1.into();
    config["rope_theta"] = 10_000_000.into();
    config["partial_rotary_factor"] = 0.25.into();
    for other in ["rope_parameters", "attn_output_gate", "mamba_ssm_dtype"] {
        config.as_object_mut().map(|object| object.shift_remove(other));
    }
    config
}

/// The configuration of a gpt-oss: as [`published`], without delta layers.
fn gpt_oss(
    [hidden, layers, heads, kv_heads, head_dim]: [usize; 5],
    [experts, top_k, width]: [usize; 3],
    vocabulary: usize,
) -> Value {
    let kinds = ["sliding_attention", "full_attention"].into_iter().cycle().take(layers);
    json!({
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_local_experts": experts,
        "num_experts_per_tok": top_k,
        "sliding_window": 128,
        "layer_types": kinds.collect::<Vec<_>>(),
        "attention_bias": true,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 150_000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": false,
        },
        "tie_word_embeddings": false,
    })
}

fn encoding(stored: StoredAs, group: u16) -> Result<Encoding> {
    let encoding = match stored {
        StoredAs::Bits(bits) => Encoding::Affine { bits, group, scale: FloatType::Bf16 },
        StoredAs::Bf16 => Encoding::Float(FloatType::Bf16),
        StoredAs::F16 => Encoding::Float(FloatType::F16),
        StoredAs::F32 => Encoding::Float(FloatType::F32),
        StoredAs::Blocks(format) => Encoding::Block(format),
        StoredAs::Mxfp4Planes => Encoding::Mxfp4,
        StoredAs::Int4 => Encoding::Symmetric { bits: 4, group, scale: FloatType::Bf16 },
        StoredAs::Fp8(scale) => Encoding::Fp8 { scale },
    };
    encoding.check(0).map_err(|error| Failure::usage(format!("--group: {error}")))?;
    Ok(encoding)
}

/// Everything outside the routed experts.
fn tensors(model: &ModelConfig, arguments: &SynthArguments) -> Result<Vec<GeneratedTensor>> {
    if matches!(arguments.trunk, StoredAs::Mxfp4Planes) {
        return Err(Failure::usage("--trunk: mxfp4:planes is for experts".to_owned()).into());
    }
    let trunk = encoding(arguments.trunk, arguments.group)?;
    // Converters keep router gates at 8 bits: a wrong expert costs more than a rough one.
    let gates = match arguments.trunk {
        StoredAs::Bits(_) => encoding(StoredAs::Bits(8), arguments.group)?,
        StoredAs::Blocks(_) => encoding(StoredAs::F32, arguments.group)?,
        StoredAs::Fp8(_) => encoding(StoredAs::Bf16, arguments.group)?,
        _ => trunk,
    };
    // Publishers of 8-bit floats leave both ends in bf16.
    let ends = if matches!(arguments.trunk, StoredAs::Fp8(_)) { gates } else { trunk };
    let plain = Encoding::Float(FloatType::Bf16);
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize], encoding: Encoding| {
        let element = match name.ends_with(TABLE) {
            true => Element::Whole(Integer::I64),
            false => encoding.into(),
        };
        all.push(GeneratedTensor { name, shape: shape.to_vec(), element });
    };
    let (hidden, moe) = (model.hidden, &model.moe);
    add("embed_tokens".to_owned(), &[model.vocabulary, hidden], ends);
    for (layer, spec) in model.layers.iter().enumerate() {
        let (name, attention) =
            (|part: &str| format!("layers.{layer}.{part}"), model.attention_of(layer));
        flash_next::layer(model, layer, (trunk, plain), &mut add);
        if model.gated.is_none() {
            add(name("input_layernorm"), &[hidden], plain);
        }
        if let Some(hyper) = &model.hyper {
            for part in ["attn_hc", "ffn_hc"] {
                let outputs = (hyper.outputs(), 3);
                deepseek_v4::site(hyper, hidden, &name(part), outputs, &mut add);
            }
        }
        if let Some(shape) = &model.compressed {
            deepseek_v4::attention(model, shape, layer, (trunk, plain), &mut add);
        }
        match (spec.mixer, &model.delta, &model.latent) {
            (Mixer::Compressed(_), ..) => {}
            (Mixer::Latent, _, Some(latent)) => {
                let heads = attention.query_heads;
                let queries = heads * (latent.plain_dim + attention.rope.dims);
                match latent.query_rank {
                    None => add(name("self_attn.q_proj"), &[queries, hidden], trunk),
                    Some(rank) => {
                        add(name("self_attn.q_a_proj"), &[rank, hidden], trunk);
                        add(name("self_attn.q_a_layernorm"), &[rank], plain);
                        add(name("self_attn.q_b_proj"), &[queries, rank], trunk);
                    }
                }
                let row = [attention.head_dim, hidden];
                add(name("self_attn.kv_a_proj_with_mqa"), &row, trunk);
                add(name("self_attn.kv_a_layernorm"), &[latent.rank], plain);
                let both = heads * (latent.plain_dim + latent.value_dim);
                add(name("self_attn.kv_b_proj"), &[both, latent.rank], trunk);
                let values = heads * latent.value_dim;
                add(name("self_attn.o_proj"), &[hidden, values], trunk);
            }
            (Mixer::DeltaNet, Some(delta), _) => {
                let (heads, width) = (delta.value_heads, delta.value_width());
                let taps = [delta.channels(), delta.convolution_kernel];
                let rates = Encoding::Float(FloatType::F32);
                let inputs = match model.family {
                    Family::Qwen3Next => {
                        &[("qkvz", delta.channels() + width), ("ba", 2 * heads)][..]
                    }
                    _ => &[("qkv", delta.channels()), ("z", width), ("a", heads), ("b", heads)],
                };
                for (part, rows) in inputs {
                    add(name(&format!("linear_attn.in_proj_{part}")), &[*rows, hidden], trunk);
                }
                add(name("linear_attn.conv1d"), &taps, plain);
                add(name("linear_attn.A_log"), &[heads], rates);
                add(name("linear_attn.dt_bias"), &[heads], plain);
                add(name("linear_attn.norm"), &[delta.value_dim], plain);
                add(name("linear_attn.out_proj"), &[hidden, width], trunk);
            }
            _ => {
                let (queries, keys) = (attention.query_width(), attention.key_width());
                let query_rows = queries * (1 + usize::from(attention.output_gate));
                add(name("self_attn.q_proj"), &[query_rows, hidden], trunk);
                add(name("self_attn.k_proj"), &[keys, hidden], trunk);
                if attention.values != engine::model::config::Values::NormedKeys {
                    add(name("self_attn.v_proj"), &[keys, hidden], trunk);
                }
                if attention.head_norms {
                    add(name("self_attn.q_norm"), &[attention.head_dim], plain);
                    add(name("self_attn.k_norm"), &[attention.head_dim], plain);
                }
                if attention.whole_norms {
                    add(name("self_attn.q_norm"), &[queries], plain);
                    add(name("self_attn.k_norm"), &[keys], plain);
                }
                if attention.biases {
                    let rows = [("q", query_rows), ("k", keys), ("v", keys)];
                    for (part, rows) in rows {
                        add(name(&format!("self_attn.{part}_proj.bias")), &[rows], plain);
                    }
                }
                if attention.output_bias {
                    add(name("self_attn.o_proj.bias"), &[hidden], plain);
                }
                if attention.sinks {
                    add(name("self_attn.sinks"), &[attention.query_heads], plain);
                }
                add(name("self_attn.o_proj"), &[hidden, queries], trunk);
            }
        }
        if model.gated.is_none() {
            add(name("post_attention_layernorm"), &[hidden], plain);
        }
        if let FeedForward::Dense { inner } | FeedForward::Both { inner } = spec.feed_forward {
            add(name("mlp.gate_proj"), &[inner, hidden], trunk);
            add(name("mlp.up_proj"), &[inner, hidden], trunk);
            add(name("mlp.down_proj"), &[hidden, inner], trunk);
        }
        match spec.feed_forward {
            FeedForward::Dense { .. } => continue,
            FeedForward::Both { .. } => gemma4::norms(model, layer, plain, &mut add),
            FeedForward::Mixture => {}
        }
        if moe.router.score != Score::Softmax {
            let float = Encoding::Float(FloatType::F32);
            add(name("mlp.gate"), &[moe.experts, hidden], gates);
            if layer < moe.hashed_layers {
                add(name(&format!("mlp{TABLE}")), &[model.vocabulary, moe.top_k], float);
            } else {
                add(name("mlp.gate.e_score_correction_bias"), &[moe.experts], float);
            }
        } else if moe.router.bias {
            add(name("mlp.router"), &[moe.experts, hidden], gates);
            add(name("mlp.router.bias"), &[moe.experts], plain);
        } else {
            add(name("mlp.gate"), &[moe.experts, hidden], gates);
        }
        if moe.biases {
            let width = 2 * moe.intermediate;
            add(name("mlp.experts.gate_up_proj_bias"), &[moe.experts, width], plain);
            add(name("mlp.experts.down_proj_bias"), &[moe.experts, hidden], plain);
        }
        if let Some(shared) = moe.shared_intermediate {
            let module = if moe.shared_gate { "shared_expert" } else { "shared_experts" };
            add(name(&format!("mlp.{module}.gate_proj")), &[shared, hidden], trunk);
            add(name(&format!("mlp.{module}.up_proj")), &[shared, hidden], trunk);
            add(name(&format!("mlp.{module}.down_proj")), &[hidden, shared], trunk);
            if moe.shared_gate {
                add(name("mlp.shared_expert_gate"), &[1, hidden], gates);
            }
        }
    }
    if model.head {
        super::head::tensors(model, (gates, plain), &mut add);
    }
    if let Some(hyper) = &model.hyper {
        deepseek_v4::site(hyper, hidden, "hc_head", (hyper.streams, 1), &mut add);
    }
    match &model.gated {
        Some(gated) => {
            let encodings = (trunk, plain);
            flash_next::site(gated, hidden, "hyper_connection_mixer", encodings, &mut add);
        }
        None => add("norm".to_owned(), &[hidden], plain),
    }
    if !model.tied_head {
        add("lm_head".to_owned(), &[model.vocabulary, hidden], ends);
    }
    Ok(all)
}

/// `quantization` of config.json: the trunk's scheme (or the experts', where the trunk has none), and
/// every module that differs.
fn quantization(
    arguments: &SynthArguments,
    prefix: &str,
    tensors: &[GeneratedTensor],
    layers: &[Option<GeneratedExperts>],
) -> Option<Value> {
    let bits = |stored| match stored {
        StoredAs::Bits(bits) => Some(bits),
        _ => None,
    };
    let default = bits(arguments.trunk).or(bits(arguments.experts))?;
    let group = arguments.group;
    let mut all = json!({ "group_size": group, "bits": default, "mode": "affine" });
    let mut differ = |path: String, encoding: Option<u8>| {
        if encoding != Some(default) {
            all[path] = match encoding {
                Some(bits) => json!({ "group_size": group, "bits": bits }),
                None => Value::Bool(false),
            };
        }
    };
    for tensor in tensors.iter().filter(|tensor| tensor.shape.len() == 2) {
        if tensor.name.ends_with("conv1d") {
            continue;
        }
        let model = if tensor.name == "lm_head" { "" } else { "model." };
        let bits = match tensor.element {
            Element::Value(Encoding::Affine { bits, .. }) => Some(bits),
            _ => None,
        };
        differ(format!("{prefix}{model}{}", tensor.name), bits);
    }
    for (layer, _) in layers.iter().enumerate().filter(|(_, experts)| experts.is_some()) {
        for projection in [Projection::Gate, Projection::Up, Projection::Down] {
            let name = ["gate_proj", "up_proj", "down_proj"][projection as usize];
            let path = format!("{prefix}model.layers.{layer}.mlp.switch_mlp.{name}");
            differ(path, bits(arguments.experts));
        }
    }
    Some(all)
}
