//! Every key of a configuration that anything here reads: its place, its type, its range, what null and absence mean,
//! and whether a value decides what nothing else says.
//!
//! A key can be read only through a constant of this table, and the table lists all its constants. So checks and
//! tests that walk [`all`] meet every key: one that is added here is checked from then on, and one that is not
//! here cannot be read.

use super::Family;
pub use super::groups::twins;
pub use super::key::{Absent, AnyKey, Effect, Key, Null, Place};
use super::kind::{
    AnyOf, Empty, Flag, Last, ListOf, Nothing, Number, Object, Off, On, OneOf, Only, Owners, Size,
    Sizes, Text, Tokens,
};
use super::shared_defaults::{
    CHOSEN_ROWS, CONTEXT_128K, DEEPSEEK, DELTA, EPSILON_5, EPSILON_6, GEMMA, LING, NO_DENSE,
    ONE_DENSE, ONE_SHARED, OTHERS, SCALED, THETA_4, UNGROUPED, UNSCALED, UNTIED, WHOLE_HEADS,
};

macro_rules! keys {
    ($($name:ident: $kind:ty = $key:literal, $place:expr, $null:expr, $effect:expr, $absent:expr, $value:expr,
        $doc:literal;)*) => {
        $(
            #[doc = concat!("`", $key, "`: ", $doc)]
            pub const $name: Key<$kind> = Key {
                name: $key,
                place: $place,
                null: $null,
                absent: $absent,
                effect: $effect,
                kind: $value,
            };
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
/// No model has less added to a mean square; from there on it would be as if nothing were.
const EPSILON_MIN: f64 = 1e-12;

/// Below this part, no value of any head is rotated.
const FACTOR_MIN: f64 = 1e-4;

keys! {
    TEXT_CONFIG: Object = "text_config", Place::Root, Null::Absent, Effect::Tensors,
        Absent::Means("all keys are at the top"), Object,
        "the text model's part.";
    MODEL_TYPE: Text = "model_type", Place::TextElseRoot, Null::Refused, Effect::Answer,
        Absent::Refused, Text,
        "name of the family.";
    QUANTIZATION: Object = "quantization", Place::TextElseRoot, Null::Absent, Effect::Tensors,
        Absent::Means("as quantization_config"), Object,
        "MLX's quantisation.";
    QUANTIZATION_CONFIG: Object = "quantization_config", Place::TextElseRoot, Null::Absent, Effect::Tensors,
        Absent::Means("not quantised"), Object,
        "the same under its other name.";
    MODE: OneOf = "mode", Place::Quantization, Null::Refused, Effect::Tensors,
        Absent::Means("affine"), OneOf(&["affine", "mxfp4"]),
        "kind of quantisation.";
    BITS: AnyOf = "bits", Place::Quantization, Null::Refused, Effect::Tensors,
        Absent::Refused, AnyOf(BITS_KNOWN),
        "bits of a weight.";
    GROUP_SIZE: AnyOf = "group_size", Place::Quantization, Null::Refused, Effect::Tensors,
        Absent::Refused, AnyOf(GROUPS_KNOWN),
        "values that share a scale.";
    NUM_HIDDEN_LAYERS: Size = "num_hidden_layers", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=1024),
        "layers.";
    HIDDEN_SIZE: Size = "hidden_size", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=65_536),
        "width of the residual stream.";
    VOCAB_SIZE: Size = "vocab_size", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=1 << 24),
        "rows of embedding and head.";
    NUM_EXPERTS: Size = "num_experts", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=65_535),
        "routed experts of a layer.";
    NUM_LOCAL_EXPERTS: Size = "num_local_experts", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=65_535),
        "the same, as gpt-oss has it.";
    N_ROUTED_EXPERTS: Size = "n_routed_experts", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=65_535),
        "the same, as DeepSeek has it.";
    MOE_NUM_EXPERTS: Size = "moe_num_experts", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=65_535),
        "the same, as ERNIE has it.";
    MOE_NUM_SHARED_EXPERTS: Size = "moe_num_shared_experts", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(0..=64),
        "as n_shared_experts, in ERNIE.";
    MOE_LAYER_START_INDEX: Size = "moe_layer_start_index", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(0..=1024),
        "the first layer that may have experts, in ERNIE.";
    MOE_LAYER_END_INDEX: Last = "moe_layer_end_index", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("-1"), Last(1023),
        "the last layer that may have experts, in ERNIE; -1 is the model's last.";
    MOE_LAYER_INTERVAL: Size = "moe_layer_interval", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("1"), Size(1..=1024),
        "every so many layers between those two has experts.";
    MOE_GATE_ACT: OneOf = "moe_gate_act", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), OneOf(&["softmax"]),
        "what experts are weighed by, in ERNIE.";
    MOE_NORM_MIN: Number = "moe_norm_min", Place::Text, Null::Refused, Effect::Answer,
        Absent::Is("1e-12"), Number(0.0..=1.0),
        "the least sum that the weights of the chosen experts are divided by, in ERNIE.";
    N_SHARED_EXPERTS: Size = "n_shared_experts", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(ONE_SHARED, "1")]), Size(0..=64),
        "widths of a routed expert that the shared expert has.";
    NUM_SHARED_EXPERTS: Size = "num_shared_experts", Place::Text, Null::Unread, Effect::Tensors,
        Absent::In(&[(&[Family::HyV3, Family::ExaoneMoe, Family::KimiLinear, Family::BailingHybrid], "1")]),
        Size(0..=64),
        "the same, as Hy3, K-EXAONE and Kimi-Linear have it.";
    FIRST_K_DENSE_REPLACE: Size = "first_k_dense_replace", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(DEEPSEEK, "3"), (CHOSEN_ROWS, "3"), (LING, "2"), (ONE_DENSE, "1"), (NO_DENSE, "0")]),
        Size(0..=1024),
        "layers without experts, the first ones.";
    MOE_LAYER_FREQ: Only = "moe_layer_freq", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Only(1),
        "every so many layers after those is one of experts.";
    MLP_LAYER_TYPES: ListOf = "mlp_layer_types", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("as first_k_dense_replace"), ListOf(&["dense", "sparse"]),
        "which layers have experts.";
    NUM_NEXTN_PREDICT_LAYERS: Size = "num_nextn_predict_layers", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("0"), Size(0..=64),
        "layers after the last that predict further tokens, used for drafts where they are computed.";
    N_GROUP: Size = "n_group", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(DEEPSEEK, "8"), (LING, "8"), (UNGROUPED, "1")]), Size(1..=1024),
        "groups of experts.";
    TOPK_GROUP: Size = "topk_group", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(DEEPSEEK, "4"), (LING, "4"), (UNGROUPED, "1"), (&[Family::KimiLinear], "1")]), Size(1..=1024),
        "groups that a token's experts are chosen in.";
    NUM_EXPERT_GROUP: Size = "num_expert_group", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::KimiLinear], "1"), (LING, "8")]), Size(1..=1024),
        "groups of experts, as Kimi-Linear and Ling-3 have it; in the second absent as n_group.";
    MOE_RENORMALIZE: Flag = "moe_renormalize", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::KimiLinear, Family::BailingHybrid], "true")]), Flag,
        "whether the chosen experts' weights sum to one, as Kimi-Linear and Ling-3 have it.";
    MOE_ROUTER_ACTIVATION_FUNC: OneOf = "moe_router_activation_func", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), OneOf(&["sigmoid"]),
        "what experts are weighed by, in Kimi-Linear.";
    TOPK_METHOD: OneOf = "topk_method", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), OneOf(&["noaux_tc"]),
        "how experts are chosen.";
    SCORING_FUNC: OneOf = "scoring_func", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("the family's own"), OneOf(&["sigmoid", "sqrtsoftplus", "noaux_tc"]),
        "what experts are weighed by; in dots.llm1 the name of the choice stands for sigmoids.";
    ROUTED_SCALING_FACTOR: Number = "routed_scaling_factor", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[
            (DEEPSEEK, "2.5"),
            (&[Family::GlmMoeDsa, Family::Glm5Next, Family::ExaoneMoe, Family::BailingHybrid], "2.5"),
            (&[Family::Glm4Moe, Family::Dots1, Family::SolarOpen], "1.0"),
            (&[Family::Glm4MoeLite], "1.8"),
            (&[Family::DeepseekV4], "1.5"),
            (&[Family::KimiLinear], "2.446"),
        ]),
        Number(1e-3..=1e3),
        "what the weights of experts are multiplied by.";
    ROUTER_SCALING_FACTOR: Number = "router_scaling_factor", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::HyV3], "2.826")]), Number(1e-3..=1e3),
        "the same, as Hy3 has it.";
    ROUTE_NORM: On = "route_norm", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), On,
        "whether the chosen experts' weights sum to one, as Hy3 has it.";
    Q_LORA_RANK: Size = "q_lora_rank", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("queries are made of the stream, where the family allows it"), Size(1..=65_536),
        "width of the row from which queries are made.";
    KV_LORA_RANK: Size = "kv_lora_rank", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=512),
        "values of the latent that is cached.";
    QK_NOPE_HEAD_DIM: Size = "qk_nope_head_dim", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=4096),
        "values of a head's key that are not rotated.";
    QK_ROPE_HEAD_DIM: Size = "qk_rope_head_dim", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::Glm5Next], "0")]), Size(0..=128),
        "values of the rotated key that heads share; in DeepSeek-V4 no tensor says how many are rotated.";
    V_HEAD_DIM: Size = "v_head_dim", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=4096),
        "values of a head's value.";
    ROPE_INTERLEAVE: Flag = "rope_interleave", Place::Text, Null::Refused, Effect::Answer,
        Absent::Is("true"), Flag,
        "whether neighbours are rotated together, or halves.";
    NUM_EXPERTS_PER_TOK: Size = "num_experts_per_tok", Place::Text, Null::Refused, Effect::Answer,
        Absent::Refused, Size(1..=256),
        "experts that a token uses.";
    MOE_K: Size = "moe_k", Place::Text, Null::Refused, Effect::Answer,
        Absent::Refused, Size(1..=256),
        "the same, as ERNIE has it.";
    EXPERTS_PER_TOKEN: Size = "experts_per_token", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as num_experts_per_tok"), Size(1..=256), "the same, as gpt-oss has it besides.";
    NUM_EXPERTS_PER_TOKEN: Size = "num_experts_per_token", Place::Text, Null::Refused, Effect::Answer,
        Absent::Refused, Size(1..=256), "experts that a token uses, as Kimi-Linear has it.";
    TOP_K_EXPERTS: Size = "top_k_experts", Place::Text, Null::Unread, Effect::Answer,
        Absent::Refused, Size(1..=256),
        "experts that a token uses, as Gemma-4 has it.";
    ENABLE_MOE_BLOCK: Flag = "enable_moe_block", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(GEMMA, "false")]), Flag,
        "whether layers of Gemma-4 have experts.";
    HIDDEN_SIZE_PER_LAYER_INPUT: Only = "hidden_size_per_layer_input", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Only(0),
        "width of inputs of each layer; the reference's default is not zero.";
    NUM_KV_SHARED_LAYERS: Only = "num_kv_shared_layers", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(GEMMA, "0")]), Only(0),
        "last layers, which use keys and values of earlier ones.";
    ATTENTION_K_EQ_V: Flag = "attention_k_eq_v", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(GEMMA, "false")]), Flag,
        "whether layers without a window make values of their keys' projection.";
    GLOBAL_HEAD_DIM: Size = "global_head_dim", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(GEMMA, "512")]), Size(2..=512),
        "values of a head in layers without a window.";
    NUM_GLOBAL_KEY_VALUE_HEADS: Size = "num_global_key_value_heads", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("as num_key_value_heads"), Size(1..=1024),
        "key and value heads in layers without a window, where keys are values.";
    HIDDEN_ACTIVATION: OneOf = "hidden_activation", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), OneOf(&["gelu_pytorch_tanh"]),
        "activation of networks and experts, as Gemma-4 has it.";
    FINAL_LOGIT_SOFTCAPPING: Number = "final_logit_softcapping", Place::Text, Null::Absent, Effect::Answer,
        Absent::Means("logits are not capped"), Number(1e-3..=1e6),
        "what the magnitude of logits stays below.";
    USE_BIDIRECTIONAL_ATTENTION: OneOf = "use_bidirectional_attention", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("as the only one that is supported"), OneOf(&["vision"]),
        "which tokens see later ones; those of images alone, which are not computed.";
    MOE_INTERMEDIATE_SIZE: Size = "moe_intermediate_size", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=WIDTH_MAX),
        "inner width of a routed expert.";
    INTERMEDIATE_SIZE: Size = "intermediate_size", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=WIDTH_MAX),
        "inner width of an expert in gpt-oss, MiniMax-M2 and OLMoE; elsewhere that of layers without experts.";
    SHARED_EXPERT_INTERMEDIATE_SIZE: Size = "shared_expert_intermediate_size", Place::Text, Null::Refused,
        Effect::Tensors, Absent::Refused, Size(1..=WIDTH_MAX),
        "inner width of the shared expert.";
    NORM_TOPK_PROB: Flag = "norm_topk_prob", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(UNSCALED, "false"), (SCALED, "true")]), Flag,
        "whether the chosen experts' weights sum to one.";
    LAYER_TYPES: ListOf = "layer_types", Place::Text, Null::Refused, Effect::Answer,
        Absent::Means("as the family orders its layers"),
        ListOf(&[
            "full_attention",
            "linear_attention",
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
            "indexed_attention",
            "qwen_sparse_attention",
        ]),
        "the mixer of each layer.";
    SLIDING_WINDOW: Size = "sliding_window", Place::Text, Null::Unread, Effect::Answer,
        Absent::In(&[(&[Family::GptOss], "128"), (GEMMA, "512")]), Size(1..=1 << 30),
        "positions that a layer of sliding attention sees.";
    FULL_ATTENTION_INTERVAL: Size = "full_attention_interval", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("4"), Size(1..=1024),
        "every so many layers is one of attention, where `layer_types` is absent.";
    NUM_ATTENTION_HEADS: Size = "num_attention_heads", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=1024),
        "query heads.";
    NUM_KEY_VALUE_HEADS: Size = "num_key_value_heads", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(&[Family::DeepseekV4], "1")]), Size(1..=1024),
        "key and value heads.";
    HEAD_DIM: Size = "head_dim", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[
            (&[Family::GptOss], "64"),
            (DELTA, "256"),
            (&[Family::MinimaxM2, Family::SolarOpen, Family::HyV3], "128"),
            (GEMMA, "256"),
            (LING, "128"),
        ]),
        Size(0..=4096),
        "values of a head, in GLM-5.3-Flash the rotated ones; elsewhere hidden_size / num_attention_heads if absent.";
    ATTN_OUTPUT_GATE: Flag = "attn_output_gate", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("true"), Flag,
        "whether queries carry a gate.";
    USE_QK_NORM: Flag = "use_qk_norm", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("false"), Flag,
        "whether heads of queries and keys are normed.";
    ATTENTION_BIAS: Flag = "attention_bias", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(&[Family::GptOss], "true"), (OTHERS, "false")]), Flag,
        "projections with biases.";
    CLIP_QKV: Nothing = "clip_qkv", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Nothing,
        "what queries, keys and values are clamped to.";
    MAX_WINDOW_LAYERS: Size = "max_window_layers", Place::Text, Null::Unread, Effect::Tensors,
        Absent::In(&[(&[Family::Dots1], "62")]), Size(0..=1024),
        "first layers, which have no window, where `layer_types` is absent.";
    USE_BIAS: Off = "use_bias", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Off,
        "biases of every projection, as ERNIE has it.";
    MLP_BIAS: Off = "mlp_bias", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Off,
        "dense networks with biases.";
    USE_SLIDING_WINDOW: Off = "use_sliding_window", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Off,
        "attention in windows.";
    DECODER_SPARSE_STEP: Only = "decoder_sparse_step", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Only(1),
        "every so many layers is one of experts.";
    MLP_ONLY_LAYERS: Empty = "mlp_only_layers", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Empty,
        "layers without experts.";
    HIDDEN_ACT: OneOf = "hidden_act", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), OneOf(&["silu", "swish"]),
        "activation of the experts.";
    SWIGLU_ALPHA: Number = "swiglu_alpha", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::GptOss], "1.702")]), Number(1e-3..=1e3),
        "factor of the gate within the sigmoid of an expert.";
    SWIGLU_LIMIT: Number = "swiglu_limit", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::GptOss], "7.0"), (&[Family::DeepseekV4, Family::Glm5Next], "10.0")]),
        Number(1e-3..=1e6),
        "what gates and inputs of an expert are clamped to.";
    RMS_NORM_EPS: Number = "rms_norm_eps", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(EPSILON_5, "1e-5"), (EPSILON_6, "1e-6")]), Number(EPSILON_MIN..=1.0),
        "added to the mean square of a norm.";
    LINEAR_NUM_KEY_HEADS: Size = "linear_num_key_heads", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=1024), "key heads of the delta rule.";
    LINEAR_NUM_VALUE_HEADS: Size = "linear_num_value_heads", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=4096), "value heads of the delta rule.";
    LINEAR_KEY_HEAD_DIM: Size = "linear_key_head_dim", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=4096), "values of its key heads.";
    LINEAR_VALUE_HEAD_DIM: Size = "linear_value_head_dim", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=4096), "values of its value heads.";
    LINEAR_CONV_KERNEL_DIM: Size = "linear_conv_kernel_dim", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("4"), Size(2..=16), "taps of its convolution.";
    LINEAR_ATTN_CONFIG: Object = "linear_attn_config", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Object,
        "the delta rule of Kimi-Linear, whose keys the next ones are.";
    KDA_LAYERS: Sizes = "kda_layers", Place::Linear, Null::Refused, Effect::Tensors,
        Absent::Refused, Sizes(1..=1024), "layers of the delta rule; the first layer is 1.";
    FULL_ATTN_LAYERS: Sizes = "full_attn_layers", Place::Linear, Null::Refused, Effect::Tensors,
        Absent::Refused, Sizes(1..=1024), "layers of latent attention; the first layer is 1.";
    LINEAR_HEADS: Size = "num_heads", Place::Linear, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=1024), "heads of the delta rule.";
    LINEAR_HEAD_DIM: Size = "head_dim", Place::Linear, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=256),
        "values of its heads, and of the rows from which decays and gates are made.";
    SHORT_CONV_KERNEL_SIZE: Size = "short_conv_kernel_size", Place::Linear, Null::Refused, Effect::Tensors,
        Absent::In(&[(&[Family::KimiLinear], "4")]), Size(2..=8), "taps of its convolutions.";
    GATE_LOWER_BOUND: Number = "gate_lower_bound", Place::Linear, Null::Absent, Effect::Answer,
        Absent::Means("not bounded in Kimi-Linear, in GLM-5.3-Flash as linear_lower_bound"), Number(-20.0..=-0.01),
        "the least logarithm of a decay, where decays are bounded.";
    SAFE_GATE: On = "safe_gate", Place::Linear, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), On, "whether decays are bounded.";
    LINEAR_NUM_HEADS: Size = "linear_num_heads", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=1024), "heads of the delta rule, as transformers saves GLM-5.3-Flash.";
    LINEAR_HEAD_WIDTH: Size = "linear_head_dim", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=256), "values of its heads there.";
    LINEAR_LOWER_BOUND: Number = "linear_lower_bound", Place::Text, Null::Unread, Effect::Answer,
        Absent::In(&[(&[Family::Glm5Next], "-5.0")]), Number(-20.0..=-0.01), "as gate_lower_bound there.";
    KDA_SAFE_GATE: Flag = "kda_safe_gate", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(LING, "true")]), Flag, "whether decays of Ling-3 are bounded.";
    KDA_LOWER_BOUND: Number = "kda_lower_bound", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(LING, "-5.0")]), Number(-20.0..=-0.01), "as gate_lower_bound, in Ling-3.";
    SHORT_CONV_TAPS: Size = "short_conv_kernel_size", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(LING, "4")]), Size(2..=8), "taps of its convolutions.";
    LAYER_GROUP_SIZE: Size = "layer_group_size", Place::Text, Null::Refused, Effect::Tensors,
        Absent::In(&[(LING, "6")]), Size(1..=1024), "every so many layers of Ling-3 attends, without `layer_types`.";
    MLA_USE_NOPE: On = "mla_use_nope", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), On,
        "whether latent attention of Kimi-Linear leaves queries and keys unrotated.";
    MODEL_MAX_LENGTH: Size = "model_max_length", Place::Text, Null::Unread, Effect::Answer,
        Absent::Means("as max_position_embeddings"), Size(1..=1 << 30),
        "longest context of training, as Kimi-Linear has it.";
    O_LORA_RANK: Size = "o_lora_rank", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=WIDTH_MAX),
        "width of a group between the two matrices after attention.";
    O_GROUPS: Size = "o_groups", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=1024),
        "groups of heads there.";
    INDEX_N_HEADS: Size = "index_n_heads", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(1..=1024), "heads that score rows.";
    INDEX_HEAD_DIM: Size = "index_head_dim", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Size(2..=4096), "values of such a head.";
    INDEX_TOPK: Size = "index_topk", Place::Text, Null::Refused, Effect::Answer,
        Absent::Refused, Size(1..=1 << 20),
        "rows that a token sees at most.";
    INDEX_KPOOL: Size = "index_kpool", Place::Text, Null::Unread, Effect::Tensors,
        Absent::In(&[(&[Family::Glm5Next], "16")]), Size(2..=256), "tokens of a pool of rows, seen together.";
    INDEX_KPOOL_TAIL: On = "index_kpool_always_select_tail", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Means("as the only one that is supported"), On, "whether tokens behind pools are seen.";
    INDEXER_TYPES: ListOf = "indexer_types", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("as index_topk_pattern"), ListOf(&["full", "shared"]),
        "which layers choose rows, and which see what the one before them does.";
    INDEX_TOPK_PATTERN: Owners = "index_topk_pattern", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("as index_topk_freq"), Owners,
        "the same, as letters.";
    INDEX_TOPK_FREQ: Size = "index_topk_freq", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("1"), Size(1..=1024),
        "every so many layers chooses rows.";
    INDEX_SKIP_TOPK_OFFSET: Size = "index_skip_topk_offset", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("2"), Size(0..=1024),
        "first layers, which all do; the last of them is the first that is counted.";
    INDEXER_ROPE_INTERLEAVE: Flag = "indexer_rope_interleave", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::DeepseekV32], "false"), (&[Family::GlmMoeDsa], "true")]), Flag,
        "whether neighbours are rotated together in what scores rows, or halves.";
    COMPRESS_RATIOS: Sizes = "compress_ratios", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Refused, Sizes(0..=256),
        "for each layer, tokens of a compressed row; 0 for layers without.";
    COMPRESS_ROPE_THETA: Number = "compress_rope_theta", Place::Text, Null::Refused, Effect::Answer,
        Absent::Is("160000"), Number(1.0..=THETA_MAX),
        "base of the rotation's frequencies in layers with compressed rows.";
    NUM_HASH_LAYERS: Size = "num_hash_layers", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("3"), Size(0..=1024),
        "first layers, whose experts follow from the token.";
    HC_MULT: Size = "hc_mult", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Is("4"), Size(1..=8),
        "residual streams.";
    HC_SINKHORN_ITERS: Size = "hc_sinkhorn_iters", Place::Text, Null::Refused, Effect::Answer,
        Absent::Is("20"), Size(1..=1000),
        "passes that balance what streams give each other.";
    HC_EPS: Number = "hc_eps", Place::Text, Null::Refused, Effect::Answer,
        Absent::Is("1e-6"), Number(EPSILON_MIN..=1.0),
        "added where streams are mixed.";
    HC_COUNT: Size = "hc_count", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(2..=8),
        "residual streams, as Qwen3.8-Flash-Next has it.";
    HC_LOWRANK: Size = "hc_lowrank", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=WIDTH_MAX),
        "width between the two matrices of a gate of streams.";
    OUTPUT_GATE_TYPE: OneOf = "output_gate_type", Place::Text, Null::Unread, Effect::Answer,
        Absent::Refused, OneOf(&["sigmoid", "silu"]),
        "function of the output gate of the delta rule, in Qwen3.8-Flash-Next.";
    INDEXER_N_HEADS: Size = "indexer_n_heads", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=1024),
        "query heads of what chooses keys.";
    INDEXER_KV_HEADS: Only = "indexer_kv_heads", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Only(1),
        "its key heads.";
    INDEXER_HEAD_DIM: Size = "indexer_head_dim", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(2..=4096),
        "values of its heads.";
    INDEXER_BUDGET: Size = "indexer_budget", Place::Text, Null::Unread, Effect::Answer,
        Absent::Refused, Size(1..=1 << 20),
        "tokens of whole units that a token sees at most.";
    INDEXER_COMPRESS_RATIO: Size = "indexer_compress_ratio", Place::Text, Null::Unread, Effect::Answer,
        Absent::Refused, Size(1..=256),
        "tokens of a unit.";
    PLE_LAYER_IDS: Sizes = "ple_layer_ids", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Sizes(1..=1024),
        "layers that add rows of hashed n-grams; the first layer is 1.";
    PLE_EMBED_DIM: Size = "ple_embed_dim", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=WIDTH_MAX),
        "values of all rows of a token together.";
    PLE_CONV_KERNEL_SIZE: Size = "ple_conv_kernel_size", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Means("as ple_conv_kernel"), Size(2..=16),
        "taps of the convolution behind those rows.";
    PLE_CONV_KERNEL: Size = "ple_conv_kernel", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Means("as ple_conv_kernel_size"), Size(2..=16),
        "the same under its other name.";
    NGRAM_SIZE: Size = "ngram_size", Place::Text, Null::Unread, Effect::Answer,
        Absent::Refused, Size(2..=8),
        "tokens of the longest n-gram; also the distance of the taps.";
    HEADS_PER_NGRAM: Size = "heads_per_ngram", Place::Text, Null::Unread, Effect::Answer,
        Absent::Refused, Size(1..=64),
        "rows of a token for each length of n-grams.";
    NGRAM_VOCAB_SIZE_BASE: Size = "ngram_vocab_size_base", Place::Text, Null::Unread, Effect::Answer,
        Absent::Refused, Size(2..=1 << 30),
        "what the sizes of the tables of n-grams, which are primes, are not below.";
    NGRAM_VOCAB_DIVISOR: Size = "make_ngram_vocab_size_divisible_by", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=1 << 20),
        "what the rows of all tables together are a multiple of.";
    SPLIT_NGRAM_PARTS: Size = "split_ngram_parts", Place::Text, Null::Unread, Effect::Tensors,
        Absent::Refused, Size(1..=65_536),
        "tensors that hold those rows.";
    NGRAM_SEED: Size = "seed", Place::Text, Null::Absent, Effect::Answer,
        Absent::Is("1234"), Size(0..=1 << 62),
        "seed of the hash of n-grams; published configurations do not have it.";
    NGRAM_MULTIPLIERS: Sizes = "ngram_multipliers", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("computed"), Sizes(1..=u64::MAX),
        "what the hash of n-grams multiplies tokens with (GGUF); other numbers than the computed ones are refused.";
    NGRAM_HEAD_SIZES: Sizes = "ngram_head_sizes", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("computed"), Sizes(1..=u64::MAX),
        "the same of the rows of each head (GGUF).";
    NGRAM_HEAD_OFFSETS: Sizes = "ngram_head_offsets", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("computed"), Sizes(0..=u64::MAX),
        "the same of the number of each head's first row (GGUF).";
    NGRAM_EOS_TOKEN_ID: Tokens = "eos_token_id", Place::Text, Null::Absent, Effect::Answer,
        Absent::Means("refused where n-grams are hashed"), Tokens,
        "the token before which the hash of n-grams does not look.";
    EXPERT_ROWS: OneOf = "expert_rows", Place::Text, Null::Refused, Effect::Answer,
        Absent::Is("\"in_turns\""), OneOf(&["apart", "in_turns"]),
        "rows of gate and up in experts of gpt-oss, in turns if absent; no published configuration has it.";
    LINEAR_VALUE_HEAD_ORDER: OneOf = "linear_value_head_order", Place::Text, Null::Refused, Effect::Answer,
        Absent::Is("\"grouped\""), OneOf(&["grouped", "tiled"]),
        "whether value heads of one key head lie side by side, or one of each key head after another (GGUF).";
    ROPE_PARAMETERS: Object = "rope_parameters", Place::Text, Null::Refused, Effect::Tensors,
        Absent::Means("rotation is in other keys"), Object,
        "rotation, as transformers 5 has it.";
    ROPE_SCALING: Object = "rope_scaling", Place::Text, Null::Absent, Effect::Tensors,
        Absent::Means("rotation is not stretched"), Object,
        "rotation, as before that.";
    ROPE_TYPE: OneOf = "rope_type", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Means("as type; an object that stretches must have one"), OneOf(&["default", "yarn"]),
        "kind of rotation.";
    ROPE_KIND: OneOf = "type", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Means("as rope_type; an object that stretches must have one"), OneOf(&["default", "yarn"]),
        "its older name.";
    ROPE_FACTOR: Number = "factor", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Refused, Number(1.0..=1e6),
        "how much longer than trained a context may be.";
    ROPE_ORIGINAL: Size = "original_max_position_embeddings", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Means("as max_position_embeddings"), Size(1..=1 << 30),
        "longest context before that.";
    ROPE_BETA_FAST: Number = "beta_fast", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Is("32"), Number(1e-3..=1e6),
        "turns within that context from which on a frequency stays.";
    ROPE_BETA_SLOW: Number = "beta_slow", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Is("1"), Number(1e-3..=1e6),
        "turns up to which a frequency is divided by the factor.";
    ROPE_TRUNCATE: Flag = "truncate", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Is("true"), Flag,
        "whether the bounds between the two are whole pairs.";
    ROPE_ATTENTION_FACTOR: Number = "attention_factor", Place::Rope, Null::Absent, Effect::Answer,
        Absent::Means("a tenth of the factor's logarithm, plus one; one in DeepSeek-V4"), Number(1e-3..=1e3),
        "what rotated values are multiplied by; by default a tenth of the factor's logarithm, plus one.";
    ROPE_MSCALE: Number = "mscale", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Means("one"), Number(0.0..=1e3),
        "part of that logarithm, to be divided by the next key's.";
    ROPE_MSCALE_ALL: Number = "mscale_all_dim", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Means("scores keep their scale"), Number(0.0..=1e3),
        "part of that logarithm for all values of queries and keys, in latent attention.";
    INNER_ROPE_THETA: Number = "rope_theta", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Means("as outside"), Number(1.0..=THETA_MAX),
        "base of the rotation's frequencies.";
    ROPE_THETA: Number = "rope_theta", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[
            (THETA_4, "1e4"),
            (&[Family::GptOss], "150000"),
            (&[Family::MinimaxM2], "5e6"),
            (LING, "6e6"),
            (&[Family::SolarOpen], "1e6"),
            (&[Family::HyV3], "11158840"),
            (&[Family::Qwen3VlMoe, Family::Ernie45Moe], "500000"),
            (&[Family::Qwen35Moe], "1e7"),
        ]),
        Number(1.0..=THETA_MAX),
        "the same, as before transformers 5.";
    INNER_ROTARY_FACTOR: Number = "partial_rotary_factor", Place::Rope, Null::Refused, Effect::Answer,
        Absent::Means("as outside"), Number(FACTOR_MIN..=1.0),
        "part of a head that is rotated.";
    ROTARY_FACTOR: Number = "partial_rotary_factor", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[(&[Family::Glm4Moe], "0.5"), (DELTA, "0.25"), (WHOLE_HEADS, "1.0")]), Number(FACTOR_MIN..=1.0),
        "the same, as before transformers 5.";
    ROTARY_DIM: Size = "rotary_dim", Place::Text, Null::Refused, Effect::Answer,
        Absent::Means("as partial_rotary_factor"), Size(2..=4096),
        "values of a head that are rotated, as MiniMax has it.";
    FULL_ROPE_TYPE: OneOf = "rope_type", Place::FullRope, Null::Refused, Effect::Answer,
        Absent::In(&[(GEMMA, "\"proportional\"")]), OneOf(&["proportional", "default"]),
        "kind of rotation in layers without a window.";
    FULL_ROPE_THETA: Number = "rope_theta", Place::FullRope, Null::Refused, Effect::Answer,
        Absent::In(&[(GEMMA, "1e6")]), Number(1.0..=THETA_MAX),
        "base of the frequencies there.";
    FULL_ROTARY_FACTOR: Number = "partial_rotary_factor", Place::FullRope, Null::Refused, Effect::Answer,
        Absent::In(&[(GEMMA, "0.25")]), Number(FACTOR_MIN..=1.0),
        "part of a head's pairs that turn there.";
    FULL_ROPE_FACTOR: Number = "factor", Place::FullRope, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), Number(1.0..=1.0),
        "what frequencies are divided by there.";
    WINDOW_ROPE_TYPE: OneOf = "rope_type", Place::WindowRope, Null::Refused, Effect::Tensors,
        Absent::Means("as the only one that is supported"), OneOf(&["default"]),
        "kind of rotation in layers with a window.";
    WINDOW_ROPE_THETA: Number = "rope_theta", Place::WindowRope, Null::Refused, Effect::Answer,
        Absent::In(&[(GEMMA, "1e4")]), Number(1.0..=THETA_MAX),
        "base of the frequencies there.";
    MAX_POSITION_EMBEDDINGS: Size = "max_position_embeddings", Place::Text, Null::Refused, Effect::Answer,
        Absent::In(&[
            (&[Family::DeepseekV32], "163840"),
            (DEEPSEEK, "4096"),
            (&[Family::Olmoe], "4096"),
            (&[Family::Dots1, Family::ExaoneMoe], "2048"),
            (&[Family::Qwen3VlMoe], "128000"),
            (CONTEXT_128K, "131072"),
            (GEMMA, "131072"),
            (&[Family::Glm4MoeLite, Family::GlmMoeDsa], "202752"),
            (&[Family::DeepseekV4, Family::KimiLinear, Family::Glm5Next], "1048576"),
            (&[Family::MinimaxM2], "196608"),
            (&[Family::Qwen35Moe, Family::BailingHybrid], "262144"),
            (&[Family::Qwen3Moe, Family::Qwen3Next], "32768"),
        ]),
        Size(1..=1 << 30),
        "longest context of training.";
    TIE_WORD_EMBEDDINGS: Flag = "tie_word_embeddings", Place::TextElseRoot, Null::Refused, Effect::Answer,
        Absent::In(&[(GEMMA, "true"), (UNTIED, "false")]), Flag,
        "whether the head is the embedding.";
    EOS_TOKEN_ID: Tokens = "eos_token_id", Place::TextElseRoot, Null::Absent, Effect::Answer,
        Absent::Means("no token of config.json ends an answer"), Tokens,
        "tokens that end an answer.";
    GENERATION_EOS_TOKEN_ID: Tokens = "eos_token_id", Place::Generation, Null::Absent, Effect::Answer,
        Absent::Means("as config.json"), Tokens,
        "tokens that end an answer.";
}
