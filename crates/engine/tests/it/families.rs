//! Families that are known parts under keys of their own: what each is read as. A key that is missing, or that asks for
//! what is not computed, is refused by its name.

use std::path::Path;

use engine::model::activation::Activation;
use engine::model::config::{Family, FeedForward, Mixer, ModelConfig, Projections, Sees};
use engine::model::rope::Pairs;
use engine::model::router::{Groups, Score};
use kernels::DeltaDecay;
use serde_json::{Value, json};
use store::format::Configuration;

fn read(config: &Value) -> Result<ModelConfig, String> {
    let known = Configuration::new(Path::new("config.json"), config.clone());
    ModelConfig::read(&known.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

/// The keys that every model has, and those of a family.
fn with(own: Value) -> Value {
    let mut all = json!({
        "vocab_size": 320,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    });
    all.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    all
}

/// Reads `config`; then each of the keys `needed` must be named when it is missing, and each of `refused` with its
/// value.
fn check(config: &Value, needed: &[&str], refused: &[(&str, Value)]) -> ModelConfig {
    let common = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"];
    for key in needed.iter().chain(&common) {
        let mut without = config.clone();
        assert!(without.as_object_mut().unwrap().shift_remove(*key).is_some(), "{key}");
        let found = read(&without).unwrap_err();
        assert!(found.contains(key) && found.contains("missing"), "{key}: {found}");
    }
    for (key, value) in refused {
        let mut other = config.clone();
        other[*key] = value.clone();
        let found = read(&other).unwrap_err();
        assert!(found.contains(key), "{key} = {value}: {found}");
    }
    read(config).unwrap()
}

fn dense_layers(model: &ModelConfig) -> Vec<bool> {
    model.layers.iter().map(|it| it.feed_forward != FeedForward::Mixture).collect()
}

#[test]
fn olmoe_keeps_the_weights_of_the_softmax() {
    let config = with(json!({
        "model_type": "olmoe", "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3,
        "clip_qkv": null,
    }));
    let needed = ["num_key_value_heads", "intermediate_size", "num_experts", "num_experts_per_tok"];
    let refused = [
        ("clip_qkv", json!(8.0)),
        ("attention_bias", json!(true)),
        ("num_experts_per_tok", json!(9)),
        ("layer_types", json!(["sliding_attention", "sliding_attention", "sliding_attention"])),
        ("partial_rotary_factor", json!(0.5)),
    ];
    let model = check(&config, &needed, &refused);
    assert!(model.attention.whole_norms && !model.attention.head_norms);
    assert_eq!((model.attention.head_dim, model.moe.intermediate), (16, 32));
    assert_eq!((model.moe.router.score, model.moe.router.normalise), (Score::Softmax, false));
    assert_eq!((model.rms_epsilon, model.moe.shared_intermediate), (1e-5, None));
}

#[test]
fn dots1_has_two_shared_experts_and_dense_layers_first() {
    let config = with(json!({
        "model_type": "dots1", "intermediate_size": 96, "moe_intermediate_size": 32,
        "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
        "scoring_func": "noaux_tc", "sliding_window": null, "max_window_layers": 3,
    }));
    let needed = [
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
    ];
    let refused = [
        ("attention_bias", json!(true)),
        ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        ("scoring_func", json!("softmax")),
        ("first_k_dense_replace", json!(3)),
    ];
    let model = check(&config, &needed, &refused);
    assert!(model.attention.head_norms && !model.attention.biases);
    assert_eq!(dense_layers(&model), [true, false, false]);
    assert_eq!(model.moe.shared_intermediate, Some(64));
    let groups = Groups { count: 1, kept: 1 };
    assert_eq!(model.moe.router.score, Score::Sigmoid { groups, scale: 2.5 });
    // The last layers have a window where nothing says that they have none.
    let mut windowed = config.clone();
    windowed["sliding_window"] = json!(16);
    assert!(read(&windowed).is_ok());
    windowed["max_window_layers"] = json!(2);
    assert!(read(&windowed).unwrap_err().contains("max_window_layers"));
}

#[test]
fn hy3_has_its_own_keys_of_the_router() {
    let config = with(json!({
        "model_type": "hy_v3", "head_dim": 32, "intermediate_size": 96, "moe_intermediate_size": 32,
        "num_experts": 8, "num_experts_per_tok": 3, "route_norm": true, "norm_topk_prob": false,
    }));
    let needed = [
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_tok",
    ];
    let refused = [
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("route_norm", json!(false)),
        ("router_scaling_factor", json!(0)),
        ("mlp_layer_types", json!(["dense", "sparse"])),
    ];
    let model = check(&config, &needed, &refused);
    assert!(model.attention.head_norms);
    assert_eq!(dense_layers(&model), [true, false, false]);
    let groups = Groups { count: 1, kept: 1 };
    assert_eq!(model.moe.router.score, Score::Sigmoid { groups, scale: 2.826 });
    assert!(model.moe.router.normalise);
    assert_eq!(model.moe.shared_intermediate, Some(32));
    assert_eq!(model.attention.rope.theta, 11_158_840.0);
}

#[test]
fn the_text_of_qwen3_vl_is_qwen3() {
    let text = with(json!({
        "model_type": "qwen3_vl_moe_text", "head_dim": 32, "moe_intermediate_size": 32,
        "num_experts": 8, "num_experts_per_tok": 3, "mlp_only_layers": [], "decoder_sparse_step": 1,
        "rope_theta": 5e6,
        "rope_scaling": { "rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": true },
    }));
    let needed =
        ["num_key_value_heads", "moe_intermediate_size", "num_experts", "num_experts_per_tok"];
    let refused = [
        ("norm_topk_prob", json!(false)),
        ("attention_bias", json!(true)),
        ("mlp_only_layers", json!([1])),
    ];
    let model = check(&text, &needed, &refused);
    assert!(model.attention.head_norms && model.moe.router.normalise);
    let whole = json!({ "model_type": "qwen3_vl_moe", "text_config": text, "vision_config": {} });
    assert_eq!(read(&whole).unwrap(), model);
    let mut plain = text.clone();
    plain["model_type"] = "qwen3_moe".into();
    plain["norm_topk_prob"] = true.into();
    plain["max_position_embeddings"] = 128_000.into();
    assert_eq!(read(&plain).unwrap(), ModelConfig { family: Family::Qwen3Moe, ..model });
}

#[test]
fn ernie_has_experts_between_two_layers() {
    let config = with(json!({
        "model_type": "ernie4_5_moe", "intermediate_size": 96, "moe_intermediate_size": 32,
        "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
        "moe_layer_end_index": -1, "use_bias": false, "tie_word_embeddings": true,
    }));
    let needed = [
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
        "moe_num_experts",
        "moe_k",
        "moe_num_shared_experts",
        "moe_layer_start_index",
        "tie_word_embeddings",
    ];
    let refused = [
        ("use_bias", json!(true)),
        ("attention_bias", json!(true)),
        ("moe_k", json!(9)),
        ("moe_gate_act", json!("sigmoid")),
        ("moe_layer_end_index", json!(-2)),
        ("moe_layer_start_index", json!([1, 1])),
    ];
    let model = check(&config, &needed, &refused);
    assert_eq!(dense_layers(&model), [true, false, false]);
    assert_eq!(model.attention.rope.pairs, Pairs::Neighbours);
    assert_eq!(model.moe.router.score, Score::BalancedSoftmax { least_sum: 1e-12 });
    assert_eq!(model.moe.shared_intermediate, Some(64));
    assert!(model.tied_head);
    let mut other = config.clone();
    other["moe_layer_end_index"] = json!(1);
    assert_eq!(dense_layers(&read(&other).unwrap()), [true, false, true]);
    other["moe_layer_interval"] = json!(3);
    assert!(read(&other).is_err(), "no layer is left");
    other["moe_layer_end_index"] = json!(2);
    assert_eq!(dense_layers(&read(&other).unwrap()), [true, true, false]);
}

#[test]
fn k_exaone_rotates_in_windows_alone() {
    let config = with(json!({
        "model_type": "exaone_moe", "head_dim": 32, "intermediate_size": 96, "moe_intermediate_size": 32,
        "num_experts": 8, "num_experts_per_tok": 3, "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    }));
    let needed = [
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_tok",
        "sliding_window",
        "layer_types",
    ];
    let refused = [
        ("attention_bias", json!(true)),
        ("layer_types", json!(["full_attention"])),
        ("layer_types", json!(["full_attention", "linear_attention", "full_attention"])),
        ("sliding_window", Value::Null),
    ];
    let model = check(&config, &needed, &refused);
    assert!(model.attention.head_norms);
    let layers: Vec<_> = model.layers.iter().map(|it| (it.window, it.rotates)).collect();
    assert_eq!(layers, [(Some(16), true), (Some(16), true), (None, false)]);
    assert_eq!(dense_layers(&model), [true, false, false]);
    let groups = Groups { count: 1, kept: 1 };
    assert_eq!(model.moe.router.score, Score::Sigmoid { groups, scale: 2.5 });
    assert_eq!(model.moe.shared_intermediate, Some(32));
}

#[test]
fn solar_open_rotates_whole_heads_and_ignores_the_key_of_norms() {
    let config = with(json!({
        "model_type": "solar_open", "head_dim": 32, "moe_intermediate_size": 32,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "use_qk_norm": true,
        "rope_scaling": { "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64 },
    }));
    let needed =
        ["num_key_value_heads", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"];
    let model = check(&config, &needed, &[("n_group", json!(3)), ("topk_group", json!(2))]);
    assert!(!model.attention.head_norms && !model.attention.biases);
    assert_eq!((model.attention.head_dim, model.attention.rope.dims), (32, 32));
    assert!(model.attention.rope.yarn.is_some());
    assert_eq!(dense_layers(&model), [false; 3]);
    assert_eq!((model.moe.shared_intermediate, model.moe.router.normalise), (Some(32), true));
}

#[test]
fn kimi_linear_lists_its_layers_from_one() {
    let lists = |delta: Value, attention: Value| {
        json!({
            "kda_layers": delta, "full_attn_layers": attention, "num_heads": 3, "head_dim": 16,
            "short_conv_kernel_size": 4,
        })
    };
    let config = with(json!({
        "model_type": "kimi_linear", "intermediate_size": 96, "moe_intermediate_size": 32,
        "num_experts": 8, "num_experts_per_token": 3, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "linear_attn_config": lists(json!([1, 2]), json!([3])),
    }));
    let needed = [
        "intermediate_size",
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_token",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "linear_attn_config",
    ];
    let refused = [
        ("mla_use_nope", json!(false)),
        ("moe_router_activation_func", json!("softmax")),
        ("attention_bias", json!(true)),
        ("qk_rope_head_dim", json!(7)),
        ("layer_types", json!(["full_attention", "linear_attention", "linear_attention"])),
        ("max_position_embeddings", json!(null)),
    ];
    let model = check(&config, &needed, &refused);
    let mixers: Vec<Mixer> = model.layers.iter().map(|layer| layer.mixer).collect();
    assert_eq!(mixers, [Mixer::DeltaNet, Mixer::DeltaNet, Mixer::Latent]);
    assert_eq!(dense_layers(&model), [true, false, false]);
    let delta = model.delta.unwrap();
    let projections = Projections::Apart { low_rank: Some(16) };
    assert_eq!((delta.decays(), delta.projections, delta.channels()), (48, projections, 144));
    assert_eq!(model.attention.rope.inverse_frequencies(), [0.0; 4]);
    assert_eq!((model.max_positions, model.moe.shared_intermediate), (1 << 20, Some(32)));
    let groups = Groups { count: 1, kept: 1 };
    assert_eq!(model.moe.router.score, Score::Sigmoid { groups, scale: 2.446 });
    for (delta, attention, key) in [
        (json!([1, 2]), json!([4]), "full_attn_layers"),
        (json!([1, 2]), json!([2, 3]), "full_attn_layers"),
        (json!([1]), json!([3]), "kda_layers"),
        (json!([0, 1, 2]), json!([3]), "kda_layers"),
    ] {
        let mut other = config.clone();
        other["linear_attn_config"] = lists(delta, attention);
        assert!(read(&other).unwrap_err().contains(key), "{key}");
    }
    let mut longer = config.clone();
    longer["model_max_length"] = json!(4096);
    assert_eq!(read(&longer).unwrap().max_positions, 4096);
    longer["max_position_embeddings"] = json!(8192);
    assert!(read(&longer).unwrap_err().contains("model_max_length"));
}

#[test]
fn glm_5_3_flash_has_its_keys_in_an_object_or_next_to_the_others() {
    let published = json!({"num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 4});
    let config = with(json!({
        "model_type": "glm5_next", "intermediate_size": 96, "moe_intermediate_size": 32,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "kv_lora_rank": 32, "q_lora_rank": 24,
        "qk_nope_head_dim": 16, "v_head_dim": 16, "index_n_heads": 4, "index_head_dim": 16,
        "index_topk": 64, "linear_num_heads": 3, "linear_head_dim": 16, "head_dim": 0,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["linear_attention", "indexed_attention", "full_attention"],
        "indexer_types": ["shared", "full", "shared"],
    }));
    let needed = [
        "intermediate_size",
        "moe_intermediate_size",
        "n_routed_experts",
        "num_experts_per_tok",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_nope_head_dim",
        "v_head_dim",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "linear_num_heads",
        "linear_head_dim",
    ];
    let refused = [
        ("qk_rope_head_dim", json!(8)),
        ("index_topk", json!(40)),
        ("index_kpool", json!(1)),
        ("index_kpool", json!(24)),
        ("index_kpool_always_select_tail", json!(false)),
        ("linear_lower_bound", json!(null)),
        ("linear_lower_bound", json!(0.0)),
        ("layer_types", json!(["linear_attention", "indexed_attention"])),
        ("layer_types", json!(["linear_attention", "indexed_attention", "sliding_attention"])),
        ("indexer_types", json!(["full", "shared", "full"])),
        ("attention_bias", json!(true)),
    ];
    let model = check(&config, &needed, &refused);
    let mixers: Vec<Mixer> = model.layers.iter().map(|layer| layer.mixer).collect();
    assert_eq!(mixers, [Mixer::DeltaNet, Mixer::Latent, Mixer::Latent]);
    let sees: Vec<Sees> = model.layers.iter().map(|layer| layer.sees).collect();
    assert_eq!(sees, [Sees::All, Sees::Chosen, Sees::AsBefore]);
    assert_eq!(dense_layers(&model), [true, false, false]);
    let delta = model.delta.unwrap();
    assert_eq!(delta.decay, DeltaDecay::BoundedChannels { bound: 5.0 });
    let projections = Projections::Apart { low_rank: Some(16) };
    assert_eq!((delta.decays(), delta.projections, delta.convolution_kernel), (48, projections, 4));
    let index = model.index.unwrap();
    assert_eq!((index.unit, index.budget, index.tokens()), (16, 4, 79));
    assert_eq!((model.attention.head_dim, model.attention.rope.dims, model.streams()), (32, 0, 4));
    assert_eq!(model.moe.activation, Activation::Limited { limit: 10.0 });
    // As every network has it, latents too.
    assert_eq!((model.rms_epsilon, model.latent.unwrap().rms_epsilon), (1e-5, 1e-5));
    let mut other = config.clone();
    other["linear_attn_config"] = published;
    other["linear_attn_config"]["gate_lower_bound"] = json!(-2.5);
    other["linear_num_heads"] = json!(null);
    let object = read(&other).unwrap().delta.unwrap();
    assert_eq!(object.decay, DeltaDecay::BoundedChannels { bound: 2.5 });
    other["linear_attn_config"]["gate_lower_bound"] = json!(null);
    assert_eq!(read(&other).unwrap().delta.unwrap(), delta);
    other["linear_attn_config"]["safe_gate"] = json!(false);
    assert!(read(&other).unwrap_err().contains("linear_attn_config.safe_gate"));
    // By the interval, the first three layers without experts.
    for key in ["layer_types", "mlp_layer_types", "indexer_types"] {
        other.as_object_mut().unwrap().shift_remove(key);
    }
    other["linear_attn_config"]["safe_gate"] = json!(true);
    other["num_hidden_layers"] = json!(8);
    let model = read(&other).unwrap();
    let latent = |layer: usize| model.layers[layer].mixer == Mixer::Latent;
    assert!((0..8).all(|layer| latent(layer) == (layer % 4 == 3)));
    assert_eq!(dense_layers(&model).iter().filter(|dense| **dense).count(), 3);
}

#[test]
fn ling_3_attends_in_the_last_layer_of_each_group() {
    let config = with(json!({
        "model_type": "bailing_hybrid", "intermediate_size": 96, "moe_intermediate_size": 32,
        "num_experts": 16, "num_experts_per_token": 3, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 12, "head_dim": 16, "layer_group_size": 3,
    }));
    let needed = [
        "intermediate_size",
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_token",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ];
    let refused = [
        ("q_lora_rank", json!(24)),
        ("qk_rope_head_dim", json!(0)),
        ("kda_lower_bound", json!(0)),
        ("layer_types", json!(["linear_attention", "full_attention"])),
        ("layer_types", json!(["linear_attention", "full_attention", "indexed_attention"])),
        ("attention_bias", json!(true)),
    ];
    let model = check(&config, &needed, &refused);
    let mixers: Vec<Mixer> = model.layers.iter().map(|layer| layer.mixer).collect();
    assert_eq!(mixers, [Mixer::DeltaNet, Mixer::DeltaNet, Mixer::Latent]);
    assert_eq!(dense_layers(&model), [true, true, false]);
    let delta = model.delta.unwrap();
    assert_eq!(delta.decay, DeltaDecay::BoundedChannels { bound: 5.0 });
    let projections = Projections::Apart { low_rank: None };
    assert_eq!((delta.decays(), delta.projections, delta.convolution_kernel), (64, projections, 4));
    let rope = model.attention.rope;
    assert_eq!((rope.pairs, rope.dims, rope.theta), (Pairs::Neighbours, 8, 6e6));
    assert!(model.latent.unwrap().head_gates);
    let groups = |count, kept| Score::Sigmoid { groups: Groups { count, kept }, scale: 2.5 };
    assert_eq!(model.moe.router.score, groups(8, 4));
    assert_eq!((model.max_positions, model.moe.shared_intermediate), (262_144, Some(32)));
    let mut other = config.clone();
    other["kda_safe_gate"] = json!(false);
    // As transformers names them; what is published goes before.
    other["n_group"] = json!(2);
    other["topk_group"] = json!(1);
    other["norm_topk_prob"] = json!(false);
    // As transformers saves it: the first is what is rotated.
    other["head_dim"] = json!(8);
    other["linear_head_dim"] = json!(16);
    let model = read(&other).unwrap();
    assert_eq!(model.moe.router.score, groups(2, 1));
    assert!(!model.moe.router.normalise);
    let delta = model.delta.unwrap();
    assert_eq!((delta.key_dim, delta.decay), (16, DeltaDecay::Channels));
    other["num_expert_group"] = json!(4);
    assert_eq!(read(&other).unwrap().moe.router.score, groups(4, 1));
    other["num_expert_group"] = json!(3);
    assert!(read(&other).unwrap_err().contains("3 groups of 16 experts"));
}
