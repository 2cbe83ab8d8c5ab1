//! The shapes that `synth` knows: configuration and encodings of each.
//!
//! Names and shapes are those of the published checkpoints; the tensors (`tensors.rs`) follow from the
//! configuration alone, so any config.json of a supported family will do.

use std::path::Path;

use anyhow::{Context, Result};
use engine::model::config::{Family, LayerSpec, ModelConfig};
use kernels::format::{BlockFormat, Encoding, FloatType};
use serde_json::{Value, json};
use store::format::deepseek_v4::TABLE;
use store::format::{Configuration, Element, Projection, ProjectionShape};
use store::synthetic::{GeneratedExperts, GeneratedModel, GeneratedTensor, Owner};

use super::values::Values;
use super::{deepseek_v4, flash_next, gemma4, glm_next, kimi_linear, latent, ling, plain, sigmoid};
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
        "48B-A3B" => kimi_linear::released(),
        "gpt-oss-20b" => gpt_oss([2880, 24, 64, 8, 64], [32, 4, 2880], 201_088),
        "gpt-oss-120b" => gpt_oss([2880, 36, 64, 8, 64], [128, 4, 2880], 201_088),
        "deepseek-v3" => latent::deepseek_v3(),
        "deepseek-v3.2" => latent::deepseek_v32(),
        "kimi-k2" => latent::kimi_k2(),
        "glm-4.7-flash" => latent::glm_flash(),
        "glm-5" => latent::glm_5(),
        "glm-5.2" => latent::glm_52(),
        "glm-5.3-flash" => glm_next::released(),
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
        "tiny-kimi" => kimi_linear::tiny(),
        "ling-3-flash" => ling::released(),
        "tiny-ling" => ling::tiny(),
        "tiny-glm" => sigmoid::tiny_glm(),
        "tiny-glm-next" => glm_next::tiny(),
        "tiny-minimax" => sigmoid::tiny_minimax(),
        "tiny-latent" => latent::tiny(),
        "tiny-rows" => latent::tiny_rows(),
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
        set_layers(text, layers);
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
    let tensors = super::tensors::of(&model, arguments)?;
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
    Ok(Shape {
        values: tensors.iter().map(|tensor| values(&model, tensor)).collect(),
        expert_values: [
            Values::of("gate_proj", hidden),
            Values::of("up_proj", hidden),
            Values::of("down_proj", inner),
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

/// Another number of layers, of the kinds that there are.
fn set_layers(text: &mut Value, layers: u16) {
    text["num_hidden_layers"] = layers.into();
    if let Some(kinds) = text.get("layer_types").and_then(Value::as_array) {
        let kinds: Vec<Value> = kinds.iter().cycle().take(usize::from(layers)).cloned().collect();
        text["layer_types"] = kinds.into();
    }
    if text.get("linear_attn_config").is_some_and(Value::is_object) {
        kimi_linear::set_layers(text, layers.into());
    }
}

/// The distribution of a tensor outside the routed experts.
fn values(model: &ModelConfig, tensor: &GeneratedTensor) -> Values {
    let columns = *tensor.shape.last().unwrap_or(&1);
    match &*tensor.name {
        name if name.ends_with(TABLE) => Values::Ids { columns, below: model.moe.experts },
        // Embeddings that are the head as well have its values; their factor makes up for it.
        "embed_tokens" if model.tied_head => Values::of("lm_head", columns),
        name => Values::of(name, columns),
    }
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

pub(super) fn encoding(stored: StoredAs, group: u16) -> Result<Encoding> {
    let encoding = match stored {
        StoredAs::Bits(bits) => Encoding::Affine { bits, group, scale: FloatType::Bf16 },
        StoredAs::Bf16 => Encoding::Float(FloatType::Bf16),
        StoredAs::F16 => Encoding::Float(FloatType::F16),
        StoredAs::F32 => Encoding::Float(FloatType::F32),
        StoredAs::Blocks(format) => Encoding::Block(format),
        StoredAs::Mxfp4Planes => Encoding::Mxfp4,
        StoredAs::Nvfp4(global) => Encoding::Nvfp4 { global },
        StoredAs::Int4 => Encoding::Symmetric { bits: 4, group, scale: FloatType::Bf16 },
        StoredAs::Fp8(scale) => Encoding::Fp8 { scale },
    };
    encoding.check(0).map_err(|error| Failure::usage(format!("--group: {error}")))?;
    Ok(encoding)
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
