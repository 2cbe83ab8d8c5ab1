//! Every key of a configuration that anything here reads: its place, its type, its range.
//!
//! A key can be read only through a constant of this table, and the table lists all its constants. So checks and
//! tests that walk [`all`] meet every key: one that is added here is checked from then on, and one that is not
//! here cannot be read.

use serde_json::Value;

use super::kind::{
    AnyOf, Empty, Flag, Kind, ListOf, Number, Object, Off, OneOf, Only, Size, Sizes, Text, Tokens,
};
use crate::shown::shown;

/// Which object of a model's files holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The top of config.json.
    Root,
    /// The text model's part: `text_config`, or the top where there is none.
    Text,
    /// The text model's part, or else the top.
    TextElseRoot,
    /// `rope_parameters` or `rope_scaling`.
    Rope,
    /// `quantization` or `quantization_config`, and their overrides by module.
    Quantization,
    /// generation_config.json.
    Generation,
}

/// A key that is read.
pub struct Key<K> {
    name: &'static str,
    place: Place,
    nullable: bool,
    kind: K,
}

/// A key without its type, for what concerns all keys.
pub trait AnyKey: Sync {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Its place.
    fn place(&self) -> Place;
    /// True when null is as good as absent, as it is in files that the reference writes.
    fn nullable(&self) -> bool;
    /// What is wrong with a value; `None` for one that can be read.
    fn complaint(&self, value: &Value) -> Option<String>;
}

impl<K> Key<K> {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its place.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl<K: Kind> Key<K> {
    /// Reads a value; `None` for a null that is as good as absent.
    pub(crate) fn read<'a>(&self, value: &'a Value) -> Result<Option<K::Read<'a>>, String> {
        if self.nullable && value.is_null() {
            return Ok(None);
        }
        if value.is_null() {
            return Err(format!("null, as if missing, is not {}", self.kind.expected()));
        }
        self.kind.read(value).map(Some).ok_or_else(|| self.wrong(value))
    }

    fn wrong(&self, value: &Value) -> String {
        let beyond = value.as_u64().zip(self.kind.limit()).filter(|(found, limit)| found > limit);
        if let Some((_, limit)) = beyond {
            return format!("{} exceeds the limit of {limit}", shown(value));
        }
        // The first entry to blame says more than a long list does.
        let blamed =
            |entry: &&Value| self.kind.read(&Value::Array(vec![(*entry).clone()])).is_none();
        let entries = value.as_array().filter(|_| self.kind.has_entries());
        let entry = entries.and_then(|entries| entries.iter().find(blamed));
        format!("{} is not {}", shown(entry.unwrap_or(value)), self.kind.expected())
    }
}

impl<K: Kind + Sync> AnyKey for Key<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn place(&self) -> Place {
        self.place
    }

    fn nullable(&self) -> bool {
        self.nullable
    }

    fn complaint(&self, value: &Value) -> Option<String> {
        self.read(value).err()
    }
}

macro_rules! keys {
    ($($name:ident: $kind:ty = $key:literal, $place:expr, $nullable:literal, $value:expr, $doc:literal;)*) => {
        $(
            #[doc = concat!("`", $key, "`: ", $doc)]
            pub const $name: Key<$kind> =
                Key { name: $key, place: $place, nullable: $nullable, kind: $value };
        )*

        /// Every key that is read.
        pub fn all() -> Vec<Box<dyn AnyKey>> {
            vec![$(Box::new($name)),*]
        }
    };
}

/// Bits of affine weights.
const BITS_KNOWN: &[u64] = &[2, 3, 4, 5, 6, 8];
/// Values that share a scale.
const GROUPS_KNOWN: &[u64] = &[32, 64, 128];
/// Width of any matrix.
const WIDTH_MAX: u64 = 1 << 20;
/// Bases of rotation in use lie between 1e4 and 1e8.
const THETA_MAX: f64 = 1e15;
/// Below this part, no value of any head is rotated.
const FACTOR_MIN: f64 = 1e-4;

keys! {
    TEXT_CONFIG: Object = "text_config", Place::Root, true, Object, "the text model's part.";
    MODEL_TYPE: Text = "model_type", Place::TextElseRoot, false, Text, "name of the family.";
    QUANTIZATION: Object = "quantization", Place::TextElseRoot, true, Object, "MLX's quantisation.";
    QUANTIZATION_CONFIG: Object = "quantization_config", Place::TextElseRoot, true, Object,
        "the same under its other name.";
    MODE: OneOf = "mode", Place::Quantization, false, OneOf(&["affine", "mxfp4"]), "kind of quantisation.";
    BITS: AnyOf = "bits", Place::Quantization, false, AnyOf(BITS_KNOWN), "bits of a weight.";
    GROUP_SIZE: AnyOf = "group_size", Place::Quantization, false, AnyOf(GROUPS_KNOWN),
        "values that share a scale.";
    NUM_HIDDEN_LAYERS: Size = "num_hidden_layers", Place::Text, false, Size(1..=1024), "layers.";
    HIDDEN_SIZE: Size = "hidden_size", Place::Text, false, Size(1..=65_536),
        "width of the residual stream.";
    VOCAB_SIZE: Size = "vocab_size", Place::Text, false, Size(1..=1 << 24),
        "rows of embedding and head.";
    NUM_EXPERTS: Size = "num_experts", Place::Text, false, Size(1..=65_535),
        "routed experts of a layer.";
    NUM_LOCAL_EXPERTS: Size = "num_local_experts", Place::Text, false, Size(1..=65_535),
        "the same, as gpt-oss has it.";
    N_ROUTED_EXPERTS: Size = "n_routed_experts", Place::Text, false, Size(1..=65_535),
        "the same, as DeepSeek has it.";
    N_SHARED_EXPERTS: Size = "n_shared_experts", Place::Text, true, Size(0..=64),
        "widths of a routed expert that the shared expert has.";
    FIRST_K_DENSE_REPLACE: Size = "first_k_dense_replace", Place::Text, true, Size(0..=1024),
        "layers without experts, the first ones.";
    MOE_LAYER_FREQ: Only = "moe_layer_freq", Place::Text, false, Only(1),
        "every so many layers after those is one of experts.";
    MLP_LAYER_TYPES: ListOf = "mlp_layer_types", Place::Text, true, ListOf(&["dense", "sparse"]),
        "which layers have experts.";
    NUM_NEXTN_PREDICT_LAYERS: Size = "num_nextn_predict_layers", Place::Text, true, Size(0..=64),
        "layers after the last that predict further tokens; they are not used.";
    N_GROUP: Size = "n_group", Place::Text, true, Size(1..=1024), "groups of experts.";
    TOPK_GROUP: Size = "topk_group", Place::Text, true, Size(1..=1024),
        "groups that a token's experts are chosen in.";
    TOPK_METHOD: OneOf = "topk_method", Place::Text, false, OneOf(&["noaux_tc"]),
        "how experts are chosen.";
    SCORING_FUNC: OneOf = "scoring_func", Place::Text, false,
        OneOf(&["sigmoid", "sqrtsoftplus"]),
        "what experts are weighed by.";
    ROUTED_SCALING_FACTOR: Number = "routed_scaling_factor", Place::Text, true, Number(1e-3..=1e3),
        "what the weights of experts are multiplied by.";
    Q_LORA_RANK: Size = "q_lora_rank", Place::Text, true, Size(1..=65_536),
        "width of the row from which queries are made.";
    KV_LORA_RANK: Size = "kv_lora_rank", Place::Text, false, Size(1..=512),
        "values of the latent that is cached.";
    QK_NOPE_HEAD_DIM: Size = "qk_nope_head_dim", Place::Text, false, Size(1..=4096),
        "values of a head's key that are not rotated.";
    QK_ROPE_HEAD_DIM: Size = "qk_rope_head_dim", Place::Text, false, Size(2..=128),
        "values of the rotated key that heads share.";
    V_HEAD_DIM: Size = "v_head_dim", Place::Text, true, Size(1..=4096),
        "values of a head's value.";
    ROPE_INTERLEAVE: Flag = "rope_interleave", Place::Text, true, Flag,
        "whether neighbours are rotated together, or halves.";
    NUM_EXPERTS_PER_TOK: Size = "num_experts_per_tok", Place::Text, false, Size(1..=256),
        "experts that a token uses.";
    MOE_INTERMEDIATE_SIZE: Size = "moe_intermediate_size", Place::Text, false, Size(1..=WIDTH_MAX),
        "inner width of a routed expert.";
    INTERMEDIATE_SIZE: Size = "intermediate_size", Place::Text, false, Size(1..=WIDTH_MAX),
        "inner width of an expert in gpt-oss and MiniMax-M2; elsewhere that of layers without experts.";
    SHARED_EXPERT_INTERMEDIATE_SIZE: Size = "shared_expert_intermediate_size", Place::Text, false,
        Size(1..=WIDTH_MAX), "inner width of the shared expert.";
    NORM_TOPK_PROB: Flag = "norm_topk_prob", Place::Text, false, Flag,
        "whether the chosen experts' weights sum to one.";
    LAYER_TYPES: ListOf = "layer_types", Place::Text, false,
        ListOf(&[
            "full_attention",
            "linear_attention",
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
        ]),
        "the mixer of each layer.";
    SLIDING_WINDOW: Size = "sliding_window", Place::Text, true, Size(1..=1 << 30),
        "positions that a layer of sliding attention sees.";
    FULL_ATTENTION_INTERVAL: Size = "full_attention_interval", Place::Text, false, Size(1..=1024),
        "every so many layers is one of attention, where `layer_types` is absent.";
    NUM_ATTENTION_HEADS: Size = "num_attention_heads", Place::Text, false, Size(1..=1024),
        "query heads.";
    NUM_KEY_VALUE_HEADS: Size = "num_key_value_heads", Place::Text, false, Size(1..=1024),
        "key and value heads.";
    HEAD_DIM: Size = "head_dim", Place::Text, false, Size(2..=4096), "values of a head.";
    ATTN_OUTPUT_GATE: Flag = "attn_output_gate", Place::Text, false, Flag,
        "whether queries carry a gate.";
    USE_QK_NORM: Flag = "use_qk_norm", Place::Text, true, Flag,
        "whether heads of queries and keys are normed.";
    ATTENTION_BIAS: Flag = "attention_bias", Place::Text, false, Flag, "projections with biases.";
    USE_SLIDING_WINDOW: Off = "use_sliding_window", Place::Text, false, Off, "attention in windows.";
    DECODER_SPARSE_STEP: Only = "decoder_sparse_step", Place::Text, false, Only(1),
        "every so many layers is one of experts.";
    MLP_ONLY_LAYERS: Empty = "mlp_only_layers", Place::Text, true, Empty, "layers without experts.";
    HIDDEN_ACT: OneOf = "hidden_act", Place::Text, false, OneOf(&["silu", "swish"]),
        "activation of the experts.";
    SWIGLU_ALPHA: Number = "swiglu_alpha", Place::Text, true, Number(1e-3..=1e3),
        "factor of the gate within the sigmoid of an expert.";
    SWIGLU_LIMIT: Number = "swiglu_limit", Place::Text, true, Number(1e-3..=1e6),
        "what gates and inputs of an expert are clamped to.";
    RMS_NORM_EPS: Number = "rms_norm_eps", Place::Text, false, Number(0.0..=1.0),
        "added to the mean square of a norm.";
    LINEAR_NUM_KEY_HEADS: Size = "linear_num_key_heads", Place::Text, false, Size(1..=1024),
        "key heads of the delta rule.";
    LINEAR_NUM_VALUE_HEADS: Size = "linear_num_value_heads", Place::Text, false, Size(1..=4096),
        "value heads of the delta rule.";
    LINEAR_KEY_HEAD_DIM: Size = "linear_key_head_dim", Place::Text, false, Size(1..=4096),
        "values of its key heads.";
    LINEAR_VALUE_HEAD_DIM: Size = "linear_value_head_dim", Place::Text, false, Size(1..=4096),
        "values of its value heads.";
    LINEAR_CONV_KERNEL_DIM: Size = "linear_conv_kernel_dim", Place::Text, false, Size(2..=16),
        "taps of its convolution.";
    O_LORA_RANK: Size = "o_lora_rank", Place::Text, false, Size(1..=WIDTH_MAX),
        "width of a group between the two matrices after attention.";
    O_GROUPS: Size = "o_groups", Place::Text, false, Size(1..=1024), "groups of heads there.";
    INDEX_N_HEADS: Size = "index_n_heads", Place::Text, false, Size(1..=1024),
        "heads that score compressed rows.";
    INDEX_HEAD_DIM: Size = "index_head_dim", Place::Text, false, Size(2..=4096), "values of such a head.";
    INDEX_TOPK: Size = "index_topk", Place::Text, false, Size(1..=1 << 20),
        "compressed rows that a token sees.";
    COMPRESS_RATIOS: Sizes = "compress_ratios", Place::Text, true, Sizes(0..=256),
        "for each layer, tokens of a compressed row; 0 for layers without.";
    COMPRESS_ROPE_THETA: Number = "compress_rope_theta", Place::Text, false, Number(1.0..=THETA_MAX),
        "base of the rotation's frequencies in layers with compressed rows.";
    NUM_HASH_LAYERS: Size = "num_hash_layers", Place::Text, true, Size(0..=1024),
        "first layers, whose experts follow from the token.";
    HC_MULT: Size = "hc_mult", Place::Text, false, Size(1..=8), "residual streams.";
    HC_SINKHORN_ITERS: Size = "hc_sinkhorn_iters", Place::Text, false, Size(1..=1000),
        "passes that balance what streams give each other.";
    HC_EPS: Number = "hc_eps", Place::Text, false, Number(0.0..=1.0), "added where streams are mixed.";
    EXPERT_ROWS: OneOf = "expert_rows", Place::Text, false, OneOf(&["apart", "in_turns"]),
        "rows of gate and up in experts of gpt-oss, in turns if absent; no published configuration has it.";
    LINEAR_VALUE_HEAD_ORDER: OneOf = "linear_value_head_order", Place::Text, false,
        OneOf(&["grouped", "tiled"]),
        "whether value heads of one key head lie side by side, or one of each key head after another (GGUF).";
    ROPE_PARAMETERS: Object = "rope_parameters", Place::Text, false, Object,
        "rotation, as transformers 5 has it.";
    ROPE_SCALING: Object = "rope_scaling", Place::Text, true, Object, "rotation, as before that.";
    ROPE_TYPE: OneOf = "rope_type", Place::Rope, false, OneOf(&["default", "yarn"]),
        "kind of rotation.";
    ROPE_KIND: OneOf = "type", Place::Rope, false, OneOf(&["default", "yarn"]), "its older name.";
    ROPE_FACTOR: Number = "factor", Place::Rope, true, Number(1.0..=1e6),
        "how much longer than trained a context may be.";
    ROPE_ORIGINAL: Size = "original_max_position_embeddings", Place::Rope, true, Size(1..=1 << 30),
        "longest context before that.";
    ROPE_BETA_FAST: Number = "beta_fast", Place::Rope, true, Number(1e-3..=1e6),
        "turns within that context from which on a frequency stays.";
    ROPE_BETA_SLOW: Number = "beta_slow", Place::Rope, true, Number(1e-3..=1e6),
        "turns up to which a frequency is divided by the factor.";
    ROPE_TRUNCATE: Flag = "truncate", Place::Rope, false, Flag,
        "whether the bounds between the two are whole pairs.";
    ROPE_ATTENTION_FACTOR: Number = "attention_factor", Place::Rope, true, Number(1e-3..=1e3),
        "what rotated values are multiplied by; by default a tenth of the factor's logarithm, plus one.";
    ROPE_MSCALE: Number = "mscale", Place::Rope, true, Number(0.0..=1e3),
        "part of that logarithm, to be divided by the next key's.";
    ROPE_MSCALE_ALL: Number = "mscale_all_dim", Place::Rope, true, Number(0.0..=1e3),
        "part of that logarithm for all values of queries and keys, in latent attention.";
    INNER_ROPE_THETA: Number = "rope_theta", Place::Rope, false, Number(1.0..=THETA_MAX),
        "base of the rotation's frequencies.";
    ROPE_THETA: Number = "rope_theta", Place::Text, false, Number(1.0..=THETA_MAX),
        "the same, as before transformers 5.";
    INNER_ROTARY_FACTOR: Number = "partial_rotary_factor", Place::Rope, false,
        Number(FACTOR_MIN..=1.0), "part of a head that is rotated.";
    ROTARY_FACTOR: Number = "partial_rotary_factor", Place::Text, false,
        Number(FACTOR_MIN..=1.0), "the same, as before transformers 5.";
    ROTARY_DIM: Size = "rotary_dim", Place::Text, true, Size(2..=4096),
        "values of a head that are rotated, as MiniMax has it.";
    MAX_POSITION_EMBEDDINGS: Size = "max_position_embeddings", Place::Text, false, Size(1..=1 << 30),
        "longest context of training.";
    TIE_WORD_EMBEDDINGS: Flag = "tie_word_embeddings", Place::TextElseRoot, false, Flag,
        "whether the head is the embedding.";
    EOS_TOKEN_ID: Tokens = "eos_token_id", Place::TextElseRoot, true, Tokens,
        "tokens that end an answer.";
    GENERATION_EOS_TOKEN_ID: Tokens = "eos_token_id", Place::Generation, true, Tokens,
        "tokens that end an answer.";
}
