//! Qwen3.8-Flash-Next from GGUF files: the bits of the release, rows of n-grams in every type whose blocks divide them,
//! and refusals of what is wrong with a table or with the constants of its hash.

use crate::support;

use std::fs;
use std::path::PathBuf;

use kernels::format::{BlockFormat, Encoding, Matrix, decode_row};
use serde_json::Value;
use store::format::{Checkpoint, Extent, Projection, Tensor, open};
use store::io::platform::FileExt;
use store::split_mix::SplitMix64;
use store::synthetic::gguf::{F32, GgufFile, GgufTensor, GgufValue};
use support::{Scored, distance, flashmoe, golden, run};

const CASE: &str = "flash-next-calm-hf";
const TABLE: &str = "per_layer_token_embd.weight";
const BF16: u32 = 30;

fn bytes(source: &Checkpoint, extent: Extent) -> Vec<u8> {
    let file = fs::File::open(&source.files[extent.file.0 as usize].path).unwrap();
    let mut bytes = vec![0; extent.length as usize];
    file.read_exact_at(&mut bytes, extent.offset).unwrap();
    bytes
}

/// A list of 64-bit numbers without sign.
fn u64s(numbers: &[u64]) -> GgufValue {
    let mut raw = [&10_u32.to_le_bytes()[..], &(numbers.len() as u64).to_le_bytes()].concat();
    raw.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    GgufValue::Raw(9, raw)
}

/// The name of a tensor in the file, below its block where it has one.
fn renamed(part: &str) -> String {
    let site = |site: &str, part: &str| {
        let ours =
            ["hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight"];
        let place = ours.iter().position(|it| *it == part).unwrap();
        format!("hc_{site}_{}.weight", ["norm", "down", "up", "inject"][place])
    };
    if let Some(part) = part.strip_prefix("attn_hyper_connection.") {
        return site("attn", part);
    }
    if let Some(part) = part.strip_prefix("mlp_hyper_connection.") {
        return site("ffn", part);
    }
    let name = match part {
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "self_attn.indexer.q_layernorm" => "indexer.q_norm",
        "self_attn.indexer.k_layernorm" => "indexer.k_norm",
        "linear_attn.in_proj_qkv" => "attn_qkv",
        "linear_attn.in_proj_z" => "attn_gate",
        "linear_attn.in_proj_a" => "ssm_alpha",
        "linear_attn.in_proj_b" => "ssm_beta",
        "linear_attn.conv1d" => "ssm_conv1d",
        "linear_attn.A_log" => return "ssm_a".to_owned(),
        "linear_attn.dt_bias" => return "ssm_dt.bias".to_owned(),
        "linear_attn.norm" => "ssm_norm",
        "linear_attn.out_proj" => "ssm_out",
        "mlp.gate" => "ffn_gate_inp",
        "mlp.shared_expert_gate" => "ffn_gate_inp_shexp",
        "mlp.shared_expert.gate_proj" => "ffn_gate_shexp",
        "mlp.shared_expert.up_proj" => "ffn_up_shexp",
        "mlp.shared_expert.down_proj" => "ffn_down_shexp",
        "ple.key_proj" => "ple_key",
        "ple.value_proj" => "ple_value",
        "ple.norm_key" => "ple_norm_key",
        "ple.norm_query" => "ple_norm_query",
        "ple.norm_conv" => "ple_norm_conv",
        "ple.conv1d" => "ple_conv1d",
        other => panic!("{other}"),
    };
    format!("{name}.weight")
}

/// The keys of a file, from config.json.
fn keys(file: &mut GgufFile, config: &Value, constants: &[(&str, Vec<u64>)]) {
    let text = &config["text_config"];
    let size = |name: &str| text[name].as_u64().unwrap() as u32;
    let kinds = text["layer_types"].as_array().unwrap();
    let full = kinds.iter().map(|kind| *kind == "full_attention");
    let rows = (size("ngram_size") - 1) * size("heads_per_ngram");
    for (key, value) in [
        ("block_count", size("num_hidden_layers")),
        ("context_length", size("max_position_embeddings")),
        ("embedding_length", size("hidden_size")),
        ("expert_count", size("num_experts")),
        ("expert_used_count", size("num_experts_per_tok")),
        ("expert_feed_forward_length", size("moe_intermediate_size")),
        ("expert_shared_feed_forward_length", size("shared_expert_intermediate_size")),
        ("attention.head_count", size("num_attention_heads")),
        ("attention.head_count_kv", size("num_key_value_heads")),
        ("attention.key_length", size("head_dim")),
        ("attention.value_length", size("head_dim")),
        ("rope.dimension_count", size("head_dim") / 4),
        ("ssm.conv_kernel", size("linear_conv_kernel_dim")),
        ("ssm.state_size", size("linear_key_head_dim")),
        ("ssm.group_count", size("linear_num_key_heads")),
        ("ssm.time_step_rank", size("linear_num_value_heads")),
        ("ssm.inner_size", size("linear_num_value_heads") * size("linear_value_head_dim")),
        ("hyper_connection.count", size("hc_count")),
        ("hyper_connection.low_rank", size("hc_lowrank")),
        ("attention.indexer.head_count", size("indexer_n_heads")),
        ("attention.indexer.key_length", size("indexer_head_dim")),
        ("attention.indexer.top_k", size("indexer_budget")),
        ("ple.ngram_size", size("ngram_size")),
        ("ple.heads_per_ngram", size("heads_per_ngram")),
        ("ple.conv_kernel", size("ple_conv_kernel_size")),
        ("ple.eos_token_id", size("eos_token_id")),
        ("embedding_length_per_layer_input", size("ple_embed_dim") / rows),
    ] {
        file.set(&format!("qwen4exp.{key}"), GgufValue::U32(value));
    }
    let unit = size("indexer_compress_ratio") as i32;
    let ratios = full.clone().map(|full| if full { unit } else { 0 }).collect();
    let layers = text["ple_layer_ids"].as_array().unwrap();
    let layers = layers.iter().map(|layer| layer.as_i64().unwrap() as i32 - 1).collect();
    let recurrent = full.map(|full| !full).collect();
    file.set("qwen4exp.attention.compress_ratios", GgufValue::I32s(ratios));
    file.set("qwen4exp.attention.recurrent_layers", GgufValue::Bools(recurrent));
    file.set("qwen4exp.ple.layers", GgufValue::I32s(layers));
    file.set("qwen4exp.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-6));
    file.set("qwen4exp.rope.freq_base", GgufValue::F32(1e7));
    for (name, numbers) in constants {
        file.set(&format!("qwen4exp.ple.{name}"), u64s(numbers));
    }
}

/// A tensor of a file.
fn tensor(name: String, shape: &[usize], type_id: u32, data: Vec<u8>) -> GgufTensor {
    let sizes = shape.iter().rev().map(|&size| size as u64).collect();
    GgufTensor { name, sizes, type_id, data, offset: None }
}

/// A tensor outside of tables as the converter writes it: one, or the indexer's queries and its key.
fn dense(source: &Checkpoint, name: &str) -> Vec<GgufTensor> {
    let Tensor { shape, element, weight, .. } = &source.tensors[name];
    let data = bytes(source, *weight);
    let Some(Encoding::Float(float)) = element.encoding() else { panic!("{name}") };
    let values = (0..data.len() / float.bytes()).map(|index| float.decode(&data, index));
    let stored = |values: &mut dyn Iterator<Item = f32>| -> Vec<u8> {
        values.flat_map(f32::to_le_bytes).collect()
    };
    let top = [("embed_tokens", "token_embd"), ("lm_head", "output")];
    if let Some((_, new)) = top.iter().find(|(old, _)| *old == name) {
        return vec![tensor(format!("{new}.weight"), shape, BF16, data)];
    }
    if let Some(part) = name.strip_prefix("hyper_connection_mixer.") {
        let new = renamed(&format!("attn_hyper_connection.{part}")).replace("hc_attn", "output_hc");
        return vec![match part {
            "hc_norm" => tensor(new, shape, F32, stored(&mut values.map(|it| it + 1.0))),
            _ => tensor(new, shape, BF16, data),
        }];
    }
    let (layer, part) = name.strip_prefix("layers.").unwrap().split_once('.').unwrap();
    if part == "self_attn.indexer.index_qk_proj" {
        let key = source.tensors[&name.replace("index_qk_proj", "k_layernorm")].shape[0];
        let [rows, columns] = shape[..] else { panic!("{name}") };
        let (queries, keys) = data.split_at((rows - key) * columns * 2);
        let name = |part: &str| format!("blk.{layer}.indexer.{part}_proj.weight");
        return vec![
            tensor(name("q"), &[rows - key, columns], BF16, queries.to_vec()),
            tensor(name("k"), &[key, columns], BF16, keys.to_vec()),
        ];
    }
    let new = format!("blk.{layer}.{}", renamed(part));
    let shape = match part {
        "mlp.shared_expert_gate" => &shape[1..],
        _ => &shape[..],
    };
    if shape.len() > 1 && !part.ends_with("conv1d") || part == "mlp.shared_expert_gate" {
        return vec![tensor(new, shape, BF16, data)];
    }
    let shifted = part.contains("norm") && part != "linear_attn.norm";
    let mut changed = values.map(|value| match part {
        "linear_attn.A_log" => -value.exp(),
        _ if shifted => value + 1.0,
        _ => value,
    });
    vec![tensor(new, shape, F32, stored(&mut changed))]
}

/// The net in bfloat16 as llama.cpp's converter writes it; it has one key head, whose value heads keep their order.
fn release() -> GgufFile {
    let model = golden().join(CASE).join("model");
    let source = open(&model).unwrap();
    let config = fs::read(model.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let mut file = GgufFile::tiny(F32);
    file.tensors.clear();
    file.keys.retain(|(key, _)| !key.starts_with("qwen3moe."));
    file.set("general.architecture", GgufValue::Text("qwen4exp".to_owned()));
    let mut constants = Vec::new();
    for (name, tensor) in &source.tensors {
        let Some((_, part)) = name.split_once("ple.ple_embedding.") else {
            file.tensors.extend(dense(&source, name));
            continue;
        };
        let data = bytes(&source, tensor.weight);
        let numbers = data.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
        let places = ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"];
        let place = places.iter().position(|it| *it == part).unwrap();
        constants.push((["layer_multipliers", "head_vocab_sizes", "head_offsets"][place], numbers));
    }
    for (layer, experts) in source.experts.iter().enumerate() {
        let experts = experts.as_ref().unwrap();
        for (projection, name) in
            [(Projection::Gate, "gate"), (Projection::Up, "up"), (Projection::Down, "down")]
        {
            let shape = experts.shapes[projection as usize];
            let all = experts.experts.iter();
            let data = all.flat_map(|it| bytes(&source, it.weight[projection as usize])).collect();
            let shape = [experts.experts.len(), shape.rows, shape.columns];
            let name = format!("blk.{layer}.ffn_{name}_exps.weight");
            file.tensors.push(tensor(name, &shape, BF16, data));
        }
    }
    let table = source.row_tables.values().next().unwrap();
    let data = table.parts.iter().flat_map(|part| bytes(&source, part.extent)).collect();
    let shape = [table.rows as usize, table.columns];
    file.tensors.push(tensor(TABLE.to_owned(), &shape, BF16, data));
    keys(&mut file, &config, &constants);
    file
}

fn write(folder: &tempfile::TempDir, file: &GgufFile) -> PathBuf {
    let path = folder.path().join("m.gguf");
    fs::write(&path, file.to_bytes()).unwrap();
    path
}

/// The line of a refusal.
fn refusal(file: &GgufFile) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, file);
    let output = flashmoe(&["inspect", path.to_str().unwrap()]);
    assert!(!output.status.success(), "was accepted");
    String::from_utf8(output.stderr).unwrap()
}

/// Values of a row of [`widened`].
const COLUMNS: usize = 32;

/// The release with rows of [`COLUMNS`] values instead of eight, whose table is of type `type_id`.
fn widened(type_id: u32, table: Vec<u8>) -> GgufFile {
    let mut file = release();
    let rows = file.tensor(TABLE).sizes[1];
    file.set("qwen4exp.embedding_length_per_layer_input", GgufValue::U32(COLUMNS as u32));
    for name in ["blk.1.ple_key.weight", "blk.1.ple_value.weight"] {
        let tensor = file.tensor(name);
        // Each row four times: a quarter of it for each of a row's values.
        let row = tensor.sizes[0] as usize * 2;
        tensor.data = tensor.data.chunks(row).flat_map(|row| row.repeat(4)).collect();
        tensor.sizes[0] *= 4;
    }
    let (name, sizes) = (TABLE.to_owned(), vec![COLUMNS as u64, rows]);
    *file.tensor(TABLE) = GgufTensor { name, sizes, type_id, data: table, offset: None };
    file
}

/// Blocks of noise with scales between 2^-5 and 2^-7, and the floats that they are.
fn noise(format: BlockFormat, blocks: usize) -> [Vec<u8>; 2] {
    let mut random = SplitMix64(7 + u64::from(format.type_id()));
    let size = format.bytes();
    let mut bytes: Vec<u8> = (0..blocks * size).map(|_| random.next_u64() as u8).collect();
    for block in bytes.chunks_mut(size) {
        // Scales, and minima where there are some, are the first numbers of a block in binary16.
        let pair = matches!(format, BlockFormat::Q4_1 | BlockFormat::Q5_1);
        for number in block[..if pair { 4 } else { 2 }].as_chunks_mut::<2>().0 {
            *number = (0x2000 + 0x400 * (random.next_u64() % 3) as u16).to_le_bytes();
        }
    }
    let encoding = Encoding::Block(format);
    let matrix = Matrix::new(encoding, blocks, COLUMNS, &bytes, &[], &[]).unwrap();
    let mut row = [0.0; COLUMNS];
    let values = (0..blocks).flat_map(|index| {
        decode_row(&matrix, index, &mut row);
        row.map(f32::to_le_bytes)
    });
    let floats = values.flatten().collect();
    [bytes, floats]
}

#[test]
fn a_gguf_file_gives_the_bits_of_the_release() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, &release());
    let expected = Scored::with_ids_of(CASE, &golden().join(CASE).join("model"), &[]);
    assert!(Scored::with_ids_of(CASE, &path, &[]) == expected);
}

/// Released files count the draft head as a block, which is left out.
#[test]
fn a_draft_head_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let expected = Scored::with_ids_of(CASE, &write(&folder, &release()), &[]);
    let mut file = release();
    for (key, value) in [
        ("block_count", GgufValue::U32(4)),
        ("nextn_predict_layers", GgufValue::U32(1)),
        ("attention.compress_ratios", GgufValue::I32s(vec![0, 0, 4, 0])),
        ("attention.recurrent_layers", GgufValue::Bools(vec![true, true, false, false])),
    ] {
        file.set(&format!("qwen4exp.{key}"), value);
    }
    for (name, sizes) in [
        ("nextn.eh_proj", &[64_u64, 32][..]),
        ("nextn.enorm", &[32]),
        ("nextn.hnorm", &[64]),
        ("nextn.hc_head_norm", &[64]),
        ("hc_attn_norm", &[64]),
        ("attn_k", &[32, 32]),
    ] {
        file.add(&format!("blk.3.{name}.weight"), sizes, F32);
    }
    let path = write(&folder, &file);
    assert!(Scored::with_ids_of(CASE, &path, &[]) == expected);
    let found = run(&["inspect", path.to_str().unwrap()]);
    assert!(found.contains("6 tensors, such as blk.3."), "{found}");
}

/// A row is decoded when it is looked up: the bits of a table of the same values in binary32, however a prompt is cut
/// and wherever rows and experts are found.
#[test]
fn rows_in_blocks_have_the_bits_of_their_values() {
    use BlockFormat::{Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    let rows = release().tensor(TABLE).sizes[1] as usize;
    let folder = tempfile::tempdir().unwrap();
    let score = |file: &GgufFile, options: &[&str]| {
        Scored::with_ids_of(CASE, &write(&folder, file), options)
    };
    let mut seen: Vec<Scored> = Vec::new();
    for format in [Q4_0, Q4_1, Q5_0, Q5_1, Iq4Nl, Q8_0] {
        let [blocks, floats] = noise(format, rows);
        let expected = score(&widened(F32, floats), &[]);
        let file = widened(format.type_id(), blocks);
        assert!(score(&file, &[]) == expected, "{format:?}");
        if seen.is_empty() {
            for options in [
                &["--prefill-chunk", "1"][..],
                &["--prefill-chunk", "13", "--threads", "1"],
                &["--storage", "mmap", "--threads", "3"],
                &["--storage", "resident", "--prefill-chunk", "7"],
                &["--memory", "300M"],
            ] {
                assert!(score(&file, options) == expected, "{options:?}");
            }
        }
        let apart = seen.iter().all(|other| distance(&expected, other) > 1e-3);
        assert!(apart, "{format:?}: rows of other values have the same answer");
        seen.push(expected);
    }
}

/// Bytes of rows are those of the file's blocks, not of floats.
#[test]
fn rows_count_as_they_lie() {
    let rows = release().tensor(TABLE).sizes[1] as usize;
    let [blocks, _] = noise(BlockFormat::Q4_0, rows);
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, &widened(BlockFormat::Q4_0.type_id(), blocks));
    let path = path.to_str().unwrap();
    let found: Value = serde_json::from_str(&run(&["inspect", path, "--json"])).unwrap();
    assert_eq!(found["row_table_bytes"].as_u64(), Some(18 * rows as u64));
    assert!(run(&["inspect", path]).contains("4 for a token"));
    assert!(run(&["plan", path]).contains("rows of n-grams"));
}

#[test]
fn a_pack_keeps_blocks() {
    let rows = release().tensor(TABLE).sizes[1] as usize;
    let [blocks, _] = noise(BlockFormat::Q4_0, rows);
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, &widened(BlockFormat::Q4_0.type_id(), blocks));
    let pack = folder.path().join("pack");
    let [from, to] = [&path, &pack].map(|path| path.to_str().unwrap());
    run(&["pack", from, to]);
    let expected = Scored::with_ids_of(CASE, &path, &[]);
    assert!(Scored::with_ids_of(CASE, &pack, &["--check-reads"]) == expected);
    assert!(run(&["verify", to]).contains("all intact"));
    let said = run(&["inspect", to]);
    assert!(said.contains("120 of 18 bytes") && said.contains("q4_0"), "{said}");
}

/// Other constants of the hash would find other rows, and a table that was cut has not all.
#[test]
fn tables_and_constants_that_are_wrong_are_refused_by_name() {
    let said = |change: &dyn Fn(&mut GgufFile), words: &[&str]| {
        let mut file = release();
        change(&mut file);
        let line = refusal(&file);
        assert!(words.iter().all(|words| line.contains(words)), "{words:?}: {line}");
    };
    let rows = release().tensor(TABLE).sizes[1];
    let cut = |file: &mut GgufFile, rows: u64| {
        let table = file.tensor(TABLE);
        table.sizes[1] = rows;
        table.data.truncate(2 * (table.sizes[0] * rows) as usize);
    };
    said(&|file| cut(file, rows - 1), &[TABLE, "119 rows", "120"]);
    said(&|file| file.tensors.retain(|it| it.name != TABLE), &[TABLE, "missing"]);
    said(&|file| file.tensor(TABLE).sizes.reverse(), &[TABLE]);
    // Blocks of 32 values do not divide rows of eight, nor blocks of 256 rows of 32.
    let blocks = |file: &mut GgufFile| file.tensor(TABLE).type_id = 2;
    said(&blocks, &[TABLE, "Q4_0"]);
    let mut file = widened(12, vec![0; rows as usize * 144]);
    assert!(refusal(&file).contains(TABLE));
    // Whole numbers are no values.
    file = release();
    file.tensor(TABLE).type_id = 25;
    assert!(refusal(&file).contains(TABLE), "{}", refusal(&file));
    let mut constants: Vec<(String, Vec<u64>)> = Vec::new();
    for (key, value) in release().keys {
        if let (true, GgufValue::Raw(9, raw)) = (key.starts_with("qwen4exp.ple."), value) {
            let numbers = raw[12..].as_chunks().0.iter().map(|it| u64::from_le_bytes(*it));
            constants.push((key, numbers.collect()));
        }
    }
    assert_eq!(constants.len(), 3);
    for (key, numbers) in constants {
        let mut other = numbers.clone();
        other[1] -= 2;
        said(&|file| file.set(&key, u64s(&other)), &[&key]);
        said(&|file| file.set(&key, u64s(&numbers[1..])), &[&key]);
        said(&|file| file.set(&key, GgufValue::I32s(vec![-1; numbers.len()])), &[&key, "below"]);
        said(&|file| file.remove(&key), &[&key, "missing"]);
    }
}

/// The format counts layers from zero, has one layer of n-grams, and says of each block how many tokens a unit has.
#[test]
fn layers_are_refused_by_their_keys() {
    for (key, value, words) in [
        ("ple.layers", GgufValue::I32s(vec![0, 1]), "2 layers of n-grams"),
        ("ple.layers", GgufValue::I32s(vec![]), "0 layers of n-grams"),
        ("ple.layers", GgufValue::I32s(vec![3]), "3 of 3 layers"),
        ("ple.layers", GgufValue::I32s(vec![2]), "has no linear attention"),
        ("ple.layers", GgufValue::I32s(vec![0]), "layers.0.ple"),
        ("attention.compress_ratios", GgufValue::I32s(vec![0, 4]), "has 2 entries for 3 layers"),
        ("attention.compress_ratios", GgufValue::I32s(vec![4, 0, 4]), "4 in layer 0"),
        ("attention.compress_ratios", GgufValue::I32s(vec![0, 0, 0]), "compress_ratios"),
        ("attention.compress_ratios", GgufValue::I32s(vec![0, 0, -4]), "compress_ratios"),
        ("hyper_connection.count", GgufValue::U32(3), "hyper_connection"),
        ("ple.conv_kernel", GgufValue::U32(3), "conv1d"),
        ("expert_weights_scale", GgufValue::F32(2.0), "expert_weights_scale"),
    ] {
        let mut file = release();
        file.set(&format!("qwen4exp.{key}"), value);
        let line = refusal(&file);
        assert!(line.contains(words), "{key}: {line}");
    }
    for key in [
        "hyper_connection.count",
        "hyper_connection.low_rank",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.compress_ratios",
        "ple.layers",
        "ple.ngram_size",
        "ple.heads_per_ngram",
        "ple.conv_kernel",
        "ple.eos_token_id",
        "embedding_length_per_layer_input",
        "rope.dimension_count",
    ] {
        let mut file = release();
        file.remove(&format!("qwen4exp.{key}"));
        let line = refusal(&file);
        assert!(line.contains(key) && line.contains("missing"), "{key}: {line}");
    }
}
