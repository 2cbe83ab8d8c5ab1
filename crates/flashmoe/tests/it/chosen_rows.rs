//! Latent attention to chosen rows from end to end: every part of the indexer of DeepSeek-V3.2, GLM-5 and GLM-5.3-Flash
//! changes the answer, prompts may be cut anywhere, lists of layers that contradict the tensors are refused, and GPUs
//! refuse pools of rows by the operation's name.

use crate::latent::converted;
use crate::support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use store::format::open;
use store::io::platform::FileExt;
use store::synthetic::gguf::{GgufFile, GgufValue};
use support::{Scored, distance, flashmoe, golden, golden_copy, run};

const CASE: &str = "dsv32-calm-hf";
/// Where layers 2 and 3 see what layer 1 chose.
const SHARED: &str = "glm5-calm-hf";
/// Where pools of rows are chosen, and layer 2 sees what layer 1 chose; the others that choose are layers 1 and 4.
const POOLED: &str = "glm-next-calm-hf";
/// Least difference that counts: a hundred times what the cases are held to.
const MATTERS: f64 = 1e-3;

fn config_of(model: &Path) -> Value {
    serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap()
}

fn write_config(model: &Path, config: &Value) {
    fs::write(model.join("config.json"), config.to_string()).unwrap();
}

/// The line of a refusal.
fn refusal(arguments: &[&str]) -> String {
    let output = flashmoe(arguments);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    String::from_utf8(output.stderr).unwrap()
}

/// What the reference has and a slip would leave out: without it the answer is another, so that an answer within 1e-5
/// of the reference has it.
#[test]
fn every_part_of_the_indexer_changes_the_answer() {
    let rows = &["wq_b", "wk", "k_norm", "k_norm.bias", "weights_proj"][..];
    let pools = [rows, &["gate_proj", "position_bias"]].concat();
    for (case, layers, parts) in
        [(CASE, [0, 2], rows), (SHARED, [0, 1], rows), (POOLED, [1, 4], &pools)]
    {
        let (_folder, model) = golden_copy(case);
        let score = || Scored::with_ids_of(case, &model, &[]);
        let reference = score();
        let source = open(&model).unwrap();
        let path = model.join("model.safetensors");
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        for layer in layers {
            for part in parts {
                let name = format!("layers.{layer}.self_attn.indexer.{part}");
                let extent = source.tensors[&name].weight;
                let mut kept = vec![0; extent.length as usize];
                file.read_exact_at(&mut kept, extent.offset).unwrap();
                file.write_all_at(&vec![0; kept.len()], extent.offset).unwrap();
                let found = distance(&score(), &reference);
                assert!(found > MATTERS, "{case}, {name}: {found:e}");
                file.write_all_at(&kept, extent.offset).unwrap();
            }
        }
        assert!(score() == reference, "put back");
    }
}

/// Numbers that no tensor repeats, the pairs of the indexer's rotation among them, which are not those of attention in
/// one of the two.
#[test]
fn every_number_changes_the_answer() {
    for (case, interleaved) in [(CASE, false), (SHARED, true)] {
        let (_folder, model) = golden_copy(case);
        let score = || Scored::with_ids_of(case, &model, &[]);
        let (reference, config) = (score(), config_of(&model));
        for (key, value) in [
            ("index_topk", json!(config["index_topk"].as_u64().unwrap() - 3)),
            ("index_topk", json!(2048)),
            ("indexer_rope_interleave", json!(!interleaved)),
            ("rope_interleave", json!(false)),
        ] {
            let mut changed = config.clone();
            changed[key] = value.clone();
            write_config(&model, &changed);
            let found = distance(&score(), &reference);
            assert!(found > MATTERS, "{case}, {key} = {value}: {found:e}");
        }
    }
}

/// Where attention rotates halves too, what is said of the indexer is another thing than what is said of it.
#[test]
fn a_prompt_may_be_cut_anywhere() {
    for (case, chunks) in [
        (CASE, &[1, 2, 5, 12, 13, 14, 17, 18, 33][..]),
        (SHARED, &[1, 2, 5, 12, 13, 14, 17, 18, 33]),
        // Around a pool of 16.
        (POOLED, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31]),
    ] {
        let whole = Scored::compute(case, &["--prefill-chunk", "70"]);
        for chunk in chunks {
            let chunk = chunk.to_string();
            let found = Scored::compute(case, &["--prefill-chunk", &chunk]);
            assert!(found == whole, "{case}, chunks of {chunk}: the bits differ");
        }
    }
}

/// A budget that is longer than the text is attention to everything, whatever the indexer says.
#[test]
fn short_texts_see_every_row() {
    let (_folder, model) = golden_copy(CASE);
    let mut config = config_of(&model);
    config["index_topk"] = json!(1000);
    write_config(&model, &config);
    let reference = Scored::with_ids_of(CASE, &model, &[]);
    let source = open(&model).unwrap();
    let path = model.join("model.safetensors");
    let file = fs::File::options().write(true).open(path).unwrap();
    for layer in 0..3 {
        let extent = source.tensors[&format!("layers.{layer}.self_attn.indexer.wk")].weight;
        file.write_all_at(&vec![0; extent.length as usize], extent.offset).unwrap();
    }
    assert!(Scored::with_ids_of(CASE, &model, &[]) == reference);
}

/// What says which layers have an indexer, in the three ways of the releases.
#[test]
fn layers_that_share_a_choice_are_listed_in_three_ways() {
    let (_folder, model) = golden_copy(SHARED);
    let config = config_of(&model);
    let reference = Scored::with_ids_of(SHARED, &model, &[]);
    let of = |changes: &[(&str, Value)]| {
        let mut changed = config.clone();
        changed.as_object_mut().unwrap().remove("index_topk_freq");
        for (key, value) in changes {
            changed[*key] = value.clone();
        }
        write_config(&model, &changed);
    };
    let types = json!(["full", "full", "shared", "shared"]);
    for changes in [
        &[("indexer_types", types.clone())][..],
        &[("indexer_types", types.clone()), ("index_topk_freq", json!(1))],
        &[("index_topk_pattern", json!("FFSS"))],
        // The layer that predicts further tokens is listed as well.
        &[("index_topk_pattern", json!("FFSSF")), ("index_topk_freq", json!(1))],
        &[("index_topk_pattern", types.clone())],
        &[("index_topk_pattern", json!(null)), ("index_topk_freq", json!(3))],
        &[("index_topk_freq", json!(3)), ("index_skip_topk_offset", json!(2))],
        &[("index_topk_freq", json!(100))],
    ] {
        of(changes);
        assert!(Scored::with_ids_of(SHARED, &model, &[]) == reference, "{changes:?}");
    }
    for (changes, words) in [
        (&[][..], "layers.2.self_attn.indexer.wq_b"),
        (&[("index_topk_pattern", json!("FFFS"))], "layers.2.self_attn.indexer.wq_b"),
        (&[("index_topk_pattern", json!("FSSS"))], "layers.1.self_attn.indexer"),
        (&[("index_topk_pattern", json!("SFSS"))], "begins with a layer that sees what"),
        (&[("index_topk_pattern", json!("FFS"))], "has 3 entries for 4 layers"),
        (&[("index_topk_pattern", json!("FFSSSS"))], "has 6 entries for 4 layers"),
        (&[("index_topk_pattern", json!("FFXS"))], "letters F and S"),
        (&[("indexer_types", json!(["full", "full", "shared"]))], "has 3 entries for 4 layers"),
        (&[("indexer_types", json!(["full", "half", "full", "full"]))], "full and shared"),
        (&[("index_topk_freq", json!(0))], "index_topk_freq"),
    ] {
        of(changes);
        let line = refusal(&["inspect", model.to_str().unwrap()]);
        assert!(line.contains(words), "{changes:?}: {line}");
    }
}

#[test]
fn contradictions_are_refused_by_their_keys() {
    let (_folder, model) = golden_copy(CASE);
    let config = config_of(&model);
    for (key, value, words) in [
        ("q_lora_rank", json!(null), "q_lora_rank"),
        ("index_head_dim", json!(4), "8 are rotated"),
        ("index_head_dim", json!(24), "indexer"),
        ("index_n_heads", json!(3), "indexer"),
        ("index_topk", json!(0), "index_topk"),
        ("layer_types", json!(["full_attention"]), "not known in this family"),
    ] {
        let mut changed = config.clone();
        changed[key] = value.clone();
        write_config(&model, &changed);
        let line = refusal(&["inspect", model.to_str().unwrap()]);
        assert!(line.contains(words), "{key} {value}: {line}");
    }
    for key in ["index_n_heads", "index_head_dim", "index_topk"] {
        let mut changed = config.clone();
        changed.as_object_mut().unwrap().remove(key);
        write_config(&model, &changed);
        let line = refusal(&["inspect", model.to_str().unwrap()]);
        assert!(line.contains(key) && line.contains("missing"), "{key}: {line}");
    }
}

#[test]
fn packs_give_the_bits_of_the_release() {
    for case in [CASE, SHARED, POOLED] {
        let model = golden().join(case).join("model");
        let folder = tempfile::tempdir().unwrap();
        let pack = folder.path().join("pack");
        let [source, target] = [&model, &pack].map(|path| path.to_str().unwrap());
        run(&["pack", source, target]);
        let expected = Scored::with_ids_of(case, &model, &[]);
        assert!(Scored::with_ids_of(case, &pack, &["--check-reads"]) == expected, "{case}");
        assert!(run(&["verify", target]).contains("all intact"));
    }
}

#[test]
fn a_gguf_file_gives_the_bits_of_the_release() {
    for (case, architecture) in [(CASE, "deepseek32"), (SHARED, "glm-dsa")] {
        let (folder, model) = golden_copy(case);
        let mut config = config_of(&model);
        if config["rope_scaling"].is_object() {
            // GGUF has no key for the other part of the magnitude.
            config["rope_scaling"]["mscale"] = json!(1.0);
        }
        write_config(&model, &config);
        let mut file = converted(&open(&model).unwrap(), &config, architecture);
        let key = |name: &str| format!("{architecture}.attention.indexer.{name}");
        for (name, from) in [
            ("head_count", "index_n_heads"),
            ("key_length", "index_head_dim"),
            ("top_k", "index_topk"),
        ] {
            file.set(&key(name), GgufValue::U32(config[from].as_u64().unwrap() as u32));
        }
        let expected = Scored::with_ids_of(case, &model, &[]);
        let gguf = folder.path().join("m.gguf");
        let gguf_said = |file: &GgufFile| {
            fs::write(&gguf, file.to_bytes()).unwrap();
            refusal(&["inspect", gguf.to_str().unwrap()])
        };
        // Files of before GLM-5.2 do not have the key: tensors say it.
        fs::write(&gguf, file.to_bytes()).unwrap();
        assert!(Scored::with_ids_of(case, &gguf, &[]) == expected, "{case}");
        let own = if case == SHARED { [true, true, false, false] } else { [true; 4] };
        file.set(&key("types"), GgufValue::Bools(own.to_vec()));
        fs::write(&gguf, file.to_bytes()).unwrap();
        assert!(Scored::with_ids_of(case, &gguf, &[]) == expected, "{case}: told");
        file.set(&key("types"), GgufValue::Bools(vec![true; 2]));
        assert!(gguf_said(&file).contains("has 2 entries"));
        file.set(&key("types"), GgufValue::Bools(vec![false, true, true, true]));
        let line = gguf_said(&file);
        assert!(line.contains("begins with a layer that sees what"), "{line}");
    }
}

/// What is said of the models: the choice, the bytes of a token, and the form of the operation that GPUs refuse.
#[test]
fn models_are_described_and_refused_by_name_where_a_device_lacks_them() {
    for (case, said, bytes) in [
        (CASE, "the best 13 by 4 heads of 16", 3 * (40 + 16) * 2),
        (
            SHARED,
            "the best 17 by 3 heads of 20, 2 layers as the one before",
            4 * 40 * 2 + 2 * 20 * 2,
        ),
        (
            POOLED,
            "the best 2 of pools of 16 tokens by 3 heads of 16, 1 layers as the one before",
            // Keys of the indexer are one in sixteen tokens.
            3 * 32 * 2 + 2 * 16 * 2 / 16,
        ),
    ] {
        let model = golden().join(case).join("model");
        let model = model.to_str().unwrap();
        let found = run(&["inspect", model]);
        assert!(found.contains(said), "{found}");
        assert!(found.contains(&format!("{bytes} B in f16")), "{found}");
        let program = run(&["inspect", model, "--program"]);
        assert!(program.contains("latent attention to chosen rows"), "{program}");
        assert_eq!(program.contains("chosen rows, as the layer before"), case != CASE);
        let card = ["--machine", "ram=64G,disk=7,memory=936,vram=24G,bus=25", "--device", "cuda:0"];
        let plan = [&["plan", model][..], &card].concat();
        let refused = program.lines().find(|line| line.contains("any GPU: refused"));
        if case != POOLED {
            assert!(refused.is_none() && !run(&plan).is_empty(), "{refused:?}");
            continue;
        }
        let refused = refused.unwrap();
        assert!(refused.contains("latent attention to chosen rows of pools (layer "), "{refused}");
        let line = refusal(&plan);
        let name = "latent attention to chosen rows of pools (layer ";
        assert!(line.contains(name) && line.contains("use --device cpu"), "{line}");
    }
}

/// A device does not begin with a layer that sees what a layer of another device chose.
#[test]
fn layers_that_share_a_choice_stay_on_one_device() {
    let model = golden().join(SHARED).join("model");
    let model = model.to_str().unwrap();
    let reference = Scored::compute(SHARED, &[]);
    let cut = ["--device", "cpu,cpu", "--split", "1,3"];
    assert!(Scored::compute(SHARED, &cut) == reference);
    for command in ["plan", "run"] {
        let line = refusal(&[command, model, "--device", "cpu,cpu", "--split", "2,2"]);
        assert!(line.contains("layer 2 sees what an earlier layer chose"), "{command}: {line}");
    }
    // An automatic cut lies elsewhere: behind layer 1 with its experts, where that is not shared.
    let line = refusal(&["plan", model, "--device", "cpu,cpu"]);
    assert!(line.contains("the layers make 1 stages"), "{line}");
}
