//! The architectures of GGUF files that are read, one row each, and their keys as a model's configuration.
//!
//! The keys become the JSON object that config.json of the same model would be, and are checked as that is: one
//! reader for every layout. Which key an entry comes from is kept, so that errors name what the file has. A key
//! whose effect no configuration of ours has must say that it has none.

mod compressed;
mod delta;
mod flash_next;
pub(super) mod gemma;
mod kimi;
mod latent;
mod sigmoid;

use serde_json::{Map, Value, json};

use super::metadata::Metadata;
use super::names::{
    CHOSEN_ROWS, DEEPSEEK, DEEPSEEK_V4, FLASH_NEXT, GEMMA, GLM, GPT_OSS, KIMI_LINEAR, MINIMAX,
    QWEN3_NEXT,
};
use crate::format::config::keys::{self, Key};
use crate::format::error::FormatError;
use crate::format::{Configuration, Family};
use crate::shown::quoted;

/// The key that names the architecture.
const ARCHITECTURE: &str = "general.architecture";
/// The key that says what a file is, a model where it is absent.
const KIND: &str = "general.type";
/// The key that an adapter has.
const ADAPTER: &str = "adapter.type";
/// Longest text among the keys of an architecture.
const TEXT_BYTES_MAX: u64 = 4096;
/// Layers of any model, those that predict further tokens included.
const LAYERS_MAX: u64 = 1024;

/// An architecture that is read.
pub(super) struct Architecture {
    /// As in `general.architecture`.
    pub(super) name: &'static str,
    family: Family,
    /// Name of the norm before the experts.
    pub(super) second_norm: &'static str,
    /// Names of tensors that it has besides, or that mean something else in it.
    pub(super) own: &'static [(&'static str, &'static str)],
    /// How value heads of the delta rule are ordered, if it has any.
    heads: ValueHeads,
}

/// How value heads of the delta rule are ordered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueHeads {
    /// There are none.
    None,
    /// Those that share a key head lie together.
    Grouped,
    /// By their place among those that share a key head.
    Tiled,
}

/// Every architecture that is read.
const ARCHITECTURES: [Architecture; 13] = [
    Architecture {
        name: "qwen3moe",
        family: Family::Qwen3Moe,
        second_norm: "ffn_norm.weight",
        own: &[],
        heads: ValueHeads::None,
    },
    Architecture {
        name: "qwen3next",
        family: Family::Qwen3Next,
        second_norm: "post_attention_norm.weight",
        own: &QWEN3_NEXT,
        heads: ValueHeads::Grouped,
    },
    Architecture {
        name: "qwen35moe",
        family: Family::Qwen35Moe,
        second_norm: "post_attention_norm.weight",
        own: &[],
        heads: ValueHeads::Tiled,
    },
    Architecture {
        name: "gpt-oss",
        family: Family::GptOss,
        second_norm: "post_attention_norm.weight",
        own: &GPT_OSS,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "deepseek2",
        family: Family::DeepseekV3,
        second_norm: "ffn_norm.weight",
        own: &DEEPSEEK,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "deepseek32",
        family: Family::DeepseekV32,
        second_norm: "ffn_norm.weight",
        own: &CHOSEN_ROWS,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "glm-dsa",
        family: Family::GlmMoeDsa,
        second_norm: "ffn_norm.weight",
        own: &CHOSEN_ROWS,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "deepseek4",
        family: Family::DeepseekV4,
        second_norm: "ffn_norm.weight",
        own: &DEEPSEEK_V4,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "glm4moe",
        family: Family::Glm4Moe,
        second_norm: "post_attention_norm.weight",
        own: &GLM,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "minimax-m2",
        family: Family::MinimaxM2,
        second_norm: "ffn_norm.weight",
        own: &MINIMAX,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "gemma4",
        family: Family::Gemma4,
        second_norm: "post_attention_norm.weight",
        own: &GEMMA,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "kimi-linear",
        family: Family::KimiLinear,
        second_norm: "ffn_norm.weight",
        own: &KIMI_LINEAR,
        heads: ValueHeads::None,
    },
    Architecture {
        name: "qwen4exp",
        family: Family::Qwen4Exp,
        second_norm: "post_attention_norm.weight",
        own: &FLASH_NEXT,
        heads: ValueHeads::Tiled,
    },
];
const SUPPORTED: &str = "supported are qwen35moe (Qwen3.5-MoE, Qwen3.6-MoE), qwen3next (Qwen3-Next), qwen3moe \
     (Qwen3-MoE), gpt-oss, deepseek2 (DeepSeek-V3, Kimi-K2, GLM-4.7-Flash), deepseek32 (DeepSeek-V3.2), glm-dsa \
     (GLM-5), deepseek4 (DeepSeek-V4), glm4moe (GLM-4.5 to GLM-4.7), minimax-m2 (MiniMax-M2), gemma4 (Gemma-4 \
     26B-A4B), kimi-linear (Kimi-Linear) and qwen4exp (Qwen3.8-Flash-Next)";

/// Families of latent attention.
const LATENT: [Family; 4] =
    [Family::DeepseekV3, Family::DeepseekV32, Family::GlmMoeDsa, Family::KimiLinear];

/// Families whose queries have gates, and a quarter of whose heads is rotated.
const GATED: [Family; 3] = [Family::Qwen35Moe, Family::Qwen3Next, Family::Qwen4Exp];

/// Families whose blocks beyond the trunk are ordinary layers of attention and experts.
const HEADS: [Family; 3] = [Family::Qwen35Moe, Family::Qwen3Next, Family::Glm4Moe];

/// Keys below the architecture's name that change the computation, and the values that do not.
const WITHOUT_EFFECT: [(&str, &[f64]); 13] = [
    // The older name of `rope.scaling.factor`.
    ("rope.scale_linear", &[0.0, 1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("interleave_moe_layer_step", &[0.0, 1.0]),
    ("rope.scaling.attn_factor", &[0.0, 1.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
    ("rope.scaling.yarn_ext_factor", &[1.0, -1.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
];

/// The same of architectures with experts in every layer, in no groups.
const WITHOUT_EFFECT_IN_EVERY_LAYER: [(&str, &[f64]); 4] = [
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
];

/// The same of architectures without windows whose router weighs experts before it chooses them.
const WITHOUT_EFFECT_ON_QWEN: [(&str, &[f64]); 3] = [
    ("attention.sliding_window", &[0.0]),
    ("expert_gating_func", &[0.0, 1.0]),
    ("rope.scaling.factor", &[0.0, 1.0]),
];

/// The same of gpt-oss: every other layer has a window, and experts are weighed after they are chosen.
const WITHOUT_EFFECT_ON_GPT_OSS: [(&str, &[f64]); 2] =
    [("attention.sliding_window_pattern", &[2.0]), ("expert_gating_func", &[0.0, 3.0])];

/// The same of DeepSeek-V3 and its like: experts are weighed by sigmoids.
const WITHOUT_EFFECT_ON_SIGMOIDS: [(&str, &[f64]); 3] = [
    ("attention.sliding_window", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("expert_gating_func", &[2.0]),
];

/// The same of DeepSeek-V4: experts in no groups are weighed by roots of softplus.
const WITHOUT_EFFECT_ON_DEEPSEEK_V4: [(&str, &[f64]); 3] = [
    ("attention.head_count_kv", &[1.0]),
    ("expert_gating_func", &[4.0]),
    ("expert_group_count", &[0.0, 1.0]),
];

/// The same of Gemma-4: its window and its cap of logits have keys of a configuration.
const WITHOUT_EFFECT_ON_GEMMA: [(&str, &[f64]); 2] =
    [("expert_gating_func", &[0.0, 1.0]), ("rope.scaling.factor", &[0.0, 1.0])];

/// What the keys of a file say about its model.
pub(super) struct Described {
    pub(super) config: Configuration,
    /// The architecture.
    pub(super) known: Architecture,
    /// Layers of the trunk.
    pub(super) trunk: usize,
    /// Blocks beyond the trunk.
    pub(super) further: usize,
    /// Whether those are heads that are computed.
    pub(super) heads: bool,
    /// For each layer of the trunk, whether the delta rule mixes its tokens.
    pub(super) linear: Vec<bool>,
    /// Rows of query, key and value in one matrix of attention.
    pub(super) fused_rows: [usize; 3],
    /// Whether factors of frequencies were read with the keys.
    pub(super) factors: bool,
    /// The layer that looks rows of n-grams up.
    pub(super) ngrams: Option<usize>,
}

/// Entries of the configuration while they are gathered.
struct Entries<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
    json: Map<String, Value>,
    /// Which key an entry was taken from.
    names: Vec<(&'static str, String)>,
}

impl Entries<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn size(&self, name: &str) -> Result<Option<u64>, FormatError> {
        self.metadata.unsigned(&self.key(name))
    }

    /// Takes a count, which must be there if it is `required`.
    fn count<K>(&mut self, key: &Key<K>, name: &str, required: bool) -> Result<(), FormatError> {
        let full = self.key(name);
        let found = match required {
            true => Some(self.metadata.required(&full, Metadata::unsigned)?),
            false => self.metadata.unsigned(&full)?,
        };
        if let Some(found) = found {
            self.enter(key, full, found.into());
        }
        Ok(())
    }

    /// Takes a number that must be there. What was written as binary32 is its shortest decimal form.
    fn number<K>(&mut self, key: &Key<K>, name: &str) -> Result<(), FormatError> {
        let full = self.key(name);
        let found = self.metadata.required(&full, Metadata::number)?;
        let short = (found as f32).to_string().parse().unwrap_or(found);
        let same = f64::from(found as f32) == found;
        self.enter(key, full, json!(if same { short } else { found }));
        Ok(())
    }

    fn enter<K>(&mut self, key: &Key<K>, from: String, value: Value) {
        self.names.push((key.name(), from));
        self.json.insert(key.name().to_owned(), value);
    }
}

/// What tensors say where the format has no key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found<'a> {
    /// Rows of the embedding.
    pub(super) rows: Option<usize>,
    /// Whether there is a head beside it.
    pub(super) own_head: bool,
    /// Whether attention has norms of heads.
    pub(super) head_norms: bool,
    /// Whether its projections have biases.
    pub(super) biases: bool,
    /// Whether every layer has a projection of values.
    pub(super) full_values: bool,
    /// Pairs of heads that turn by the factors of frequencies, and of how many.
    pub(super) turning: Option<(usize, usize)>,
    /// The blocks with an indexer over latent rows.
    pub(super) indexed: &'a [usize],
    /// Rows of the table of n-grams.
    pub(super) ngram_rows: Option<usize>,
}

/// Reads the keys.
pub(super) fn describe(metadata: &Metadata, found: Found<'_>) -> Result<Described, FormatError> {
    refuse_parts(metadata)?;
    let name = metadata.required(ARCHITECTURE, |m, key| m.text(key, TEXT_BYTES_MAX))?;
    let Some(known) = ARCHITECTURES.into_iter().find(|known| known.name == name) else {
        let found = quoted(&name).to_string();
        return Err(metadata.unsupported(ARCHITECTURE, found, SUPPORTED));
    };
    let (json, names) = (Map::new(), Vec::new());
    let mut entries = Entries { metadata, architecture: known.name, json, names };
    refuse_effects(&entries, known.family)?;
    entries.json.insert(keys::MODEL_TYPE.name().to_owned(), known.family.model_type().into());
    let (trunk, further) = layers(&mut entries)?;
    let heads = HEADS.contains(&known.family);
    if heads && further > 0 {
        let key = entries.key("nextn_predict_layers");
        entries.enter(&keys::NUM_NEXTN_PREDICT_LAYERS, key, further.into());
    }
    entries.count(&keys::HIDDEN_SIZE, "embedding_length", true)?;
    vocabulary(&mut entries, found.rows)?;
    let names = known.family.expert_keys();
    entries.count(names.routed, "expert_count", true)?;
    entries.count(names.per_token, "expert_used_count", true)?;
    entries.count(names.width, "expert_feed_forward_length", true)?;
    entries.count(&keys::NUM_ATTENTION_HEADS, "attention.head_count", true)?;
    entries.count(&keys::MAX_POSITION_EMBEDDINGS, "context_length", false)?;
    entries.number(&keys::RMS_NORM_EPS, "attention.layer_norm_rms_epsilon")?;
    if !matches!(known.family, Family::Gemma4 | Family::KimiLinear) {
        entries.count(&keys::NUM_KEY_VALUE_HEADS, "attention.head_count_kv", true)?;
        entries.count(&keys::HEAD_DIM, "attention.key_length", true)?;
        entries.number(&keys::ROPE_THETA, "rope.freq_base")?;
    }
    entries.json.insert(keys::TIE_WORD_EMBEDDINGS.name().to_owned(), (!found.own_head).into());
    if matches!(known.family, Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen4Exp) {
        // The runtime of this format divides whether the key is there or not.
        let key = entries.key("expert_weights_norm");
        let normalised = entries.metadata.flag(&key)?.unwrap_or(true);
        entries.enter(&keys::NORM_TOPK_PROB, key, normalised.into());
    }
    match known.family {
        Family::GptOss => gpt_oss(&mut entries)?,
        Family::DeepseekV3 => latent::enter_told_apart(&mut entries)?,
        Family::DeepseekV32 | Family::GlmMoeDsa => {
            latent::enter_chosen_rows(&mut entries, trunk, found)?
        }
        Family::DeepseekV4 => compressed::enter(&mut entries)?,
        Family::Glm4Moe => sigmoid::glm(&mut entries, found)?,
        Family::MinimaxM2 => sigmoid::minimax(&mut entries)?,
        Family::Gemma4 => gemma::enter(&mut entries, found)?,
        Family::KimiLinear => kimi::enter(&mut entries, trunk)?,
        _ => {}
    }
    let linear = match known.heads {
        ValueHeads::None => vec![false; trunk],
        heads => delta::enter(&mut entries, heads, trunk, trunk + further)?,
    };
    let ngrams = match known.family {
        Family::Qwen4Exp => Some(flash_next::enter(&mut entries, found, &linear, trunk + further)?),
        _ => None,
    };
    let own = [Family::DeepseekV4, Family::Glm4Moe, Family::MinimaxM2, Family::Gemma4];
    if !own.contains(&known.family) && !LATENT.contains(&known.family) {
        rotation(&mut entries, known.family)?;
    }
    let Entries { json, names, .. } = entries;
    let config = Configuration::from_keys(metadata.path(), json.into(), names)?;
    let fused_rows = fused_rows(&config, known.family)?;
    let factors = found.turning.is_some();
    Ok(Described { config, known, trunk, further, heads, linear, fused_rows, factors, ngrams })
}

/// Whether a file says that it is of Gemma-4.
pub(super) fn is_gemma(metadata: &Metadata) -> bool {
    let name = metadata.text(ARCHITECTURE, TEXT_BYTES_MAX).ok().flatten();
    name.as_deref() == Some("gemma4")
}

/// Refuses files that are no model by themselves, as adapters and vision towers.
fn refuse_parts(metadata: &Metadata) -> Result<(), FormatError> {
    let kind = metadata.text(KIND, TEXT_BYTES_MAX)?.filter(|kind| kind != "model");
    let adapter = metadata.text(ADAPTER, TEXT_BYTES_MAX)?;
    for (key, found) in [(KIND, kind), (ADAPTER, adapter)] {
        if let Some(found) = found {
            let remedy = "give the file of the model itself";
            return Err(metadata.unsupported(key, quoted(&found).to_string(), remedy));
        }
    }
    Ok(())
}

/// Refuses keys that change the computation in a way that is not computed.
fn refuse_effects(entries: &Entries<'_>, family: Family) -> Result<(), FormatError> {
    let scaling = entries.key("rope.scaling.type");
    let kind = entries.metadata.text(&scaling, TEXT_BYTES_MAX)?;
    let stretched = match family {
        Family::GptOss | Family::DeepseekV3 | Family::DeepseekV32 | Family::DeepseekV4 => "yarn",
        _ => "none",
    };
    let factor = entries.key("rope.scaling.factor");
    let found = entries.metadata.number(&factor)?;
    if let Some(found) = found.filter(|&found| kind.is_none() && ![0.0, 1.0].contains(&found)) {
        let remedy = "a factor without rope.scaling.type stretches linearly, which is not read";
        return Err(entries.metadata.unsupported(&factor, found.to_string(), remedy));
    }
    if let Some(kind) = kind.filter(|kind| kind != "none" && kind != stretched) {
        let remedy = "models with their own, unscaled rotation are read";
        return Err(entries.metadata.unsupported(&scaling, quoted(&kind).to_string(), remedy));
    }
    for (name, harmless) in [("attention.causal", true), ("use_parallel_residual", false)] {
        let key = entries.key(name);
        if let Some(found) = entries.metadata.flag(&key)?.filter(|&found| found != harmless) {
            let remedy = "no model of this architecture that is read has it";
            return Err(entries.metadata.unsupported(&key, found.to_string(), remedy));
        }
    }
    let more: &[(&str, &[f64])] = match family {
        Family::GptOss => &WITHOUT_EFFECT_ON_GPT_OSS,
        family if LATENT.contains(&family) => &WITHOUT_EFFECT_ON_SIGMOIDS,
        Family::Glm4Moe | Family::MinimaxM2 => &WITHOUT_EFFECT_ON_SIGMOIDS,
        Family::DeepseekV4 => &WITHOUT_EFFECT_ON_DEEPSEEK_V4,
        Family::Gemma4 => &WITHOUT_EFFECT_ON_GEMMA,
        _ => &WITHOUT_EFFECT_ON_QWEN,
    };
    let everywhere = match family {
        family if LATENT.contains(&family) => &[][..],
        Family::DeepseekV4 | Family::Glm4Moe => &[][..],
        _ => &WITHOUT_EFFECT_IN_EVERY_LAYER,
    };
    let capped = |name: &str| family == Family::Gemma4 && name == "final_logit_softcapping";
    for &(name, harmless) in WITHOUT_EFFECT.iter().chain(everywhere).chain(more) {
        if capped(name) {
            continue;
        }
        let key = entries.key(name);
        let Some(found) = entries.metadata.number(&key)? else { continue };
        if !harmless.contains(&found) {
            let remedy = "no model of this architecture that is read has it";
            return Err(entries.metadata.unsupported(&key, found.to_string(), remedy));
        }
    }
    let (keys, values) =
        (entries.size("attention.key_length")?, entries.size("attention.value_length")?);
    // Those of latent attention are those of its row.
    if let (Some(keys), Some(values)) = (keys, values)
        && keys != values
        && !LATENT.contains(&family)
    {
        let found = format!("{values} for keys of {keys}");
        let key = entries.key("attention.value_length");
        return Err(entries.metadata.unsupported(
            &key,
            found,
            "keys and values of one length are read",
        ));
    }
    Ok(())
}

/// Layers of the trunk and blocks beyond it.
fn layers(entries: &mut Entries<'_>) -> Result<(usize, usize), FormatError> {
    let key = entries.key("block_count");
    let blocks = entries.metadata.required(&key, Metadata::unsigned)?;
    if blocks > LAYERS_MAX {
        return Err(FormatError::limit(entries.metadata.path(), key, blocks, LAYERS_MAX));
    }
    let further = entries.size("nextn_predict_layers")?.unwrap_or(0);
    let Some(trunk) = blocks.checked_sub(further).filter(|&trunk| trunk > 0) else {
        let found = format!("{blocks}, {further} of them beyond the trunk");
        return Err(entries.metadata.invalid(&key, found));
    };
    entries.enter(&keys::NUM_HIDDEN_LAYERS, key, trunk.into());
    Ok((trunk as usize, further as usize))
}

/// The size of the vocabulary: as the key says, or the rows of the embedding.
fn vocabulary(entries: &mut Entries<'_>, rows: Option<usize>) -> Result<(), FormatError> {
    let key = entries.key("vocab_size");
    let told = entries.metadata.unsigned(&key)?;
    if let (Some(told), Some(rows)) = (told, rows)
        && told != rows as u64
    {
        let found = format!("{told}, but token_embd.weight has {rows} rows");
        return Err(entries.metadata.invalid(&key, found));
    }
    match told.or(rows.map(|rows| rows as u64)) {
        Some(size) => entries.enter(&keys::VOCAB_SIZE, key, size.into()),
        None => return Err(entries.metadata.invalid("token_embd.weight", "is missing")),
    }
    Ok(())
}

/// How much of a head is rotated. Sections by axis are those of pictures: for text all axes have one position.
fn rotation(entries: &mut Entries<'_>, family: Family) -> Result<(), FormatError> {
    let head =
        entries.metadata.required(&entries.key("attention.key_length"), Metadata::unsigned)?;
    let key = entries.key("rope.dimension_count");
    let Some(rotated) = entries.metadata.unsigned(&key)? else {
        // The format rotates whole heads then, and config.json of these families a quarter of them.
        let in_part = GATED.contains(&family);
        return if in_part { Err(entries.metadata.invalid(&key, "missing")) } else { Ok(()) };
    };
    let factor = rotated as f64 / head.max(1) as f64;
    if rotated == 0 || rotated > head || (head as f64 * factor) as u64 != rotated {
        return Err(entries.metadata.invalid(&key, format!("{rotated} of heads of {head}")));
    }
    entries.enter(&keys::ROTARY_FACTOR, key, json!(factor));
    Ok(())
}

/// The window, the stretched rotation, and the order of rows that the converter made.
///
/// The format has no key for whether the bounds of the rotation are whole pairs: the released models say no.
fn gpt_oss(entries: &mut Entries<'_>) -> Result<(), FormatError> {
    entries.count(&keys::SLIDING_WINDOW, "attention.sliding_window", true)?;
    entries.json.insert(keys::EXPERT_ROWS.name().to_owned(), "apart".into());
    let (all, windowed) = (entries.key("rope.freq_base"), entries.key("rope.freq_base_swa"));
    let base = entries.metadata.number(&all)?;
    if let Some(other) = entries.metadata.number(&windowed)?.filter(|&it| Some(it) != base) {
        let remedy = "one rotation for all layers is read";
        return Err(entries.metadata.unsupported(&windowed, other.to_string(), remedy));
    }
    let mut rope = Map::new();
    rope.insert(keys::ROPE_TRUNCATE.name().to_owned(), false.into());
    stretched(entries, rope)
}

/// The stretched rotation, where there is one, with what `rope` says of it already.
fn stretched(entries: &mut Entries<'_>, mut rope: Map<String, Value>) -> Result<(), FormatError> {
    let kind = entries.metadata.text(&entries.key("rope.scaling.type"), TEXT_BYTES_MAX)?;
    if kind.as_deref() != Some("yarn") {
        return Ok(());
    }
    rope.insert(keys::ROPE_TYPE.name().to_owned(), "yarn".into());
    let mut enter = |ours: &'static str, name: &str, required: bool| {
        let full = entries.key(name);
        let found = match required {
            true => Some(entries.metadata.required(&full, Metadata::number)?),
            false => entries.metadata.number(&full)?,
        };
        if let Some(found) = found {
            let whole = found.fract() == 0.0 && (0.0..1e15).contains(&found);
            let value = if whole { json!(found as u64) } else { json!(found) };
            rope.insert(ours.to_owned(), value);
            entries.names.push((ours, full));
        }
        Ok(())
    };
    enter(keys::ROPE_FACTOR.name(), "rope.scaling.factor", true)?;
    enter(keys::ROPE_ORIGINAL.name(), "rope.scaling.original_context_length", true)?;
    enter(keys::ROPE_BETA_FAST.name(), "rope.scaling.yarn_beta_fast", false)?;
    enter(keys::ROPE_BETA_SLOW.name(), "rope.scaling.yarn_beta_slow", false)?;
    entries.json.insert(keys::ROPE_SCALING.name().to_owned(), rope.into());
    Ok(())
}

/// Rows of query (with its gate), key and value.
fn fused_rows(config: &Configuration, family: Family) -> Result<[usize; 3], FormatError> {
    let apart = matches!(family, Family::DeepseekV4 | Family::Gemma4);
    if config.get(&keys::KV_LORA_RANK)?.is_some() || apart {
        return Ok([0; 3]);
    }
    let head = config.required(&keys::HEAD_DIM)?;
    let gates = if GATED.contains(&family) { 2 } else { 1 };
    let queries = config.required(&keys::NUM_ATTENTION_HEADS)? * head * gates;
    let others = config.required(&keys::NUM_KEY_VALUE_HEADS)? * head;
    Ok([queries, others, others])
}
