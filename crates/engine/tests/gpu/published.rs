//! Files as publishers' tools quantise them: the portable GPU gives the logits of the values that their descriptions
//! define and the same greedy answer, and the same bits however a text was cut and wherever experts were.

use std::path::Path;
use std::sync::Arc;

use engine::backend::cpu::KvType;
use engine::backend::gpu::{Adapter, Pieces};
use engine::engine::Engine;
use engine::model::config::ModelConfig;
use engine::routing::Routing;
use kernels::format::Encoding;
use serde_json::{Value, json};
use store::cache::{SlotBudget, StorageMode, StoreOptions};
use tempfile::TempDir;

use super::long::part_from;
use super::processor::{Sizes, engine_from};
use super::quantised::{Quantised, WHOLE, convert, fp8_rows, in_tiles, integers, nvfp4};
use super::steps::request;
use super::support::{ALL, CHUNK, adapter, engine_over, limits};
use super::{all_logits, reference};

/// Experts in the shape of DeepSeek-V3 and Kimi-K2, and attention of heads.
const LATENT: &str = "deepseek-calm-hf";
const HEADS: &str = "qwen3-calm-hf";

/// How a tool quantises a matrix: stem, shape and values.
type With = fn(&str, [usize; 2], &[f32]) -> Quantised;

/// A net as a tool writes it.
struct Net {
    case: &'static str,
    /// Parts of names of tensors that stay floats.
    whole: &'static [&'static str],
    config: Value,
    with: With,
    /// The encoding of its experts, as manifests spell it.
    experts: &'static str,
}

/// What compressed-tensors writes in config.json.
fn compressed(format: &str, weights: &Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format,
        "config_groups": {"group_0": {"weights": weights}},
        "ignore": ["re:.*mlp.gate$"],
    })
}

fn packed(symmetric: bool) -> Value {
    let weights = json!({
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
        "symmetric": symmetric,
    });
    compressed("pack-quantized", &weights)
}

fn nets() -> Vec<Net> {
    let kimi = {
        let mut config = packed(true);
        config["ignore"] = json!([
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "re:.*mlp.gate$",
        ]);
        config
    };
    let tiles = json!({
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
    });
    let rows = compressed(
        "float-quantized",
        &json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true}),
    );
    let float4 = compressed(
        "nvfp4-pack-quantized",
        &json!({
            "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
            "symmetric": true,
        }),
    );
    let modelopt = |algorithm: &str| {
        json!({
            "quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head", "*.mlp.gate"],
        })
    };
    let net = |case, config: &Value, experts, with: With| Net {
        case,
        whole: &WHOLE,
        config: config.clone(),
        with,
        experts,
    };
    // Experts alone are integers; the last layer is a draft, which is left out.
    const KIMI: [&str; 8] = [
        WHOLE[0],
        WHOLE[1],
        WHOLE[2],
        "lm_head",
        "self_attn",
        "shared_experts",
        "layers.0.mlp",
        "layers.3.",
    ];
    vec![
        Net {
            whole: &KIMI,
            ..net(LATENT, &kimi, "symmetric:4:32:bf16", |s, n, v| integers(s, n, v, true))
        },
        net(HEADS, &packed(false), "zeroed:4:32:bf16", |s, n, v| integers(s, n, v, false)),
        net(LATENT, &tiles, "fp8:128:f32", |s, n, v| in_tiles(s, n, v, false)),
        net(HEADS, &tiles, "fp8:128:e8m0", |s, n, v| in_tiles(s, n, v, true)),
        net(HEADS, &rows, "fp8:rows:f32", |s, n, v| fp8_rows(s, n, v, false)),
        net(HEADS, &modelopt("FP8"), "fp8:whole:f32", |s, n, v| fp8_rows(s, n, v, true)),
        net(HEADS, &modelopt("NVFP4"), "nvfp4:multiplied", |s, n, v| nvfp4(s, n, v, false)),
        net(HEADS, &float4, "nvfp4:divided", |s, n, v| nvfp4(s, n, v, true)),
    ]
}

/// An engine over a folder, with at most `slots` experts in GPU memory.
fn engine(adapter: &Adapter, net: &Net, model: &Path, slots: usize, chunk: usize) -> Engine {
    let checkpoint = Arc::new(store::format::open(model).unwrap());
    let config = ModelConfig::read(&checkpoint.config).unwrap();
    let mut options = StoreOptions::new(StorageMode::Budget, 3 * config.moe.top_k);
    options.slots = SlotBudget::Steps(1);
    let limits = limits(net.case, KvType::F32, Pieces::Adaptive);
    let model = (checkpoint, config);
    engine_over(adapter, model, slots, limits, options, chunk, Routing::default()).0
}

/// The net in a folder, and the net of its values.
fn made(net: &Net) -> (TempDir, [std::path::PathBuf; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let models = convert((net.case, net.whole), folder.path(), &net.config, net.with);
    (folder, models)
}

pub(crate) fn distance(found: &[u32], expected: &[u32]) -> f64 {
    let value = |bits: &u32| f64::from(f32::from_bits(*bits));
    let apart = found.iter().zip(expected).map(|(a, b)| (value(a) - value(b)).powi(2));
    let whole = expected.iter().map(|it| value(it).powi(2));
    (apart.sum::<f64>() / whole.sum::<f64>()).sqrt()
}

/// The most likely token of each row.
fn most_likely(bits: &[u32], vocabulary: usize) -> Vec<usize> {
    let of = |row: &[u32]| {
        let best = (0..row.len()).max_by(|&a, &b| {
            f32::from_bits(row[a]).total_cmp(&f32::from_bits(row[b])).then(b.cmp(&a))
        });
        best.unwrap()
    };
    bits.chunks_exact(vocabulary).map(of).collect()
}

#[test]
fn published_files_give_the_logits_of_their_values_on_the_processor() {
    let Some(adapter) = adapter() else { return };
    for net in nets() {
        let (_folder, [model, exact]) = made(&net);
        let (ids, original) = reference(net.case);
        let checkpoint = store::format::open(&model).unwrap();
        let shapes = checkpoint.experts.iter().flatten().flat_map(|layer| layer.shapes);
        let encoding = Encoding::parse(net.experts).unwrap();
        assert!(shapes.map(|shape| shape.encoding).all(|it| it == encoding), "{}", net.experts);
        let sizes = Sizes { kv_type: KvType::F32, context: 640, cuts: &[], steps: 1, exact: true };
        let values = store::format::open(&exact).unwrap();
        let config = ModelConfig::read(&values.config).unwrap();
        let vocabulary = config.vocabulary;
        let mut processor = engine_from(&values, config, &sizes);
        let mut gpu = engine(&adapter, &net, &model, ALL, CHUNK);
        let of = |engine: &mut Engine| [all_logits(engine, &ids), request(engine).unwrap()];
        for (found, expected) in of(&mut gpu).iter().zip(&of(&mut processor)) {
            let apart = distance(found, expected);
            assert!(apart < 1e-5, "{}: {apart:e} from the processor", net.experts);
            let tokens = [found, expected].map(|bits| most_likely(bits, vocabulary));
            assert!(tokens[0] == tokens[1], "{}: other tokens", net.experts);
        }
        let original: Vec<u32> = original.iter().map(|value| value.to_bits()).collect();
        let rounded = distance(&all_logits(&mut gpu, &ids), &original);
        assert!(rounded > 1e-3, "{}: nothing was rounded", net.experts);
    }
}

#[test]
fn neither_slots_nor_chunks_show_in_a_bit_of_published_files() {
    let Some(adapter) = adapter() else { return };
    for (number, net) in nets().into_iter().enumerate() {
        let (_folder, [model, _]) = made(&net);
        let (ids, _) = reference(net.case);
        let expected = all_logits(&mut engine(&adapter, &net, &model, ALL, CHUNK), &ids);
        for (slots, chunk) in part_from(number, [(ALL, 5), (4, CHUNK), (1, 7)], 3) {
            let mut other = engine(&adapter, &net, &model, slots, chunk);
            let found = all_logits(&mut other, &ids);
            assert!(found == expected, "{}: {slots} slots, chunks of {chunk}", net.experts);
            let device = other.counters().device;
            assert_eq!(device.copied > 0, slots != ALL, "{}: {device:?}", net.experts);
        }
    }
}
