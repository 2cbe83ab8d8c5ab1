//! GGUF files that are wrong: each refused in one line that names the file and the field.

use std::fs;

use crate::common::{Folder, Noise};
use store::format::{SourceKind, TokenizerSource, open};
use store::synthetic::gguf::{F32, GgufFile, GgufTensor, GgufValue, Q8_0};

/// A change to a good file.
type Change = fn(&mut GgufFile);

/// Opens the bytes as a file; the error's text, or nothing.
fn opened(bytes: &[u8]) -> Result<(), String> {
    let folder = Folder::new();
    folder.write("m.gguf", bytes);
    let found = open(&folder.path().join("m.gguf")).map_err(|error| error.to_string())?;
    if let Some(TokenizerSource::Gguf(vocabulary)) = found.tokenizer {
        vocabulary.tokenizer_json().map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn refused(case: &str, bytes: &[u8], words: &[&str]) {
    let message = opened(bytes).expect_err(case);
    assert_eq!(message.lines().count(), 1, "{case}: {message}");
    assert!(message.contains("m.gguf"), "{case}: {message}");
    for word in words {
        assert!(message.contains(word), "{case}: {word:?} is not in {message}");
    }
}

fn u32_key(file: &mut GgufFile, key: &str, value: u32) {
    file.set(key, GgufValue::U32(value));
}

/// The bytes of a list: its element type, its count, and what follows.
fn list(element: u32, count: u64, rest: &[u8]) -> GgufValue {
    let mut bytes = element.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(rest);
    GgufValue::Raw(9, bytes)
}

#[test]
fn good_files_open() {
    for type_id in [F32, Q8_0] {
        let mut file = GgufFile::tiny(type_id);
        opened(&file.to_bytes()).unwrap();
        file.version = 2;
        opened(&file.to_bytes()).unwrap();
        file.alignment = 256;
        u32_key(&mut file, "general.alignment", 256);
        opened(&file.to_bytes()).unwrap();
        // Without the padding behind the last tensor.
        let data = file.tensors.last().unwrap().data.len();
        let bytes = file.to_bytes();
        opened(&bytes[..bytes.len() - (data.next_multiple_of(256) - data)]).unwrap();
    }
}

#[test]
fn a_file_is_known_by_its_first_bytes_and_a_folder_by_its_file() {
    let folder = Folder::new();
    let bytes = GgufFile::tiny(F32).to_bytes();
    folder.write("sha256-0123", &bytes);
    assert_eq!(open(&folder.path().join("sha256-0123")).unwrap().kind, SourceKind::Gguf);
    folder.write("a.gguf", &bytes);
    folder.write("mmproj-a.gguf", b"GGUF");
    // The original's configuration says nothing about these files.
    folder.write("config.json", "{}");
    let found = open(folder.path()).unwrap();
    assert_eq!((found.kind, found.files.len()), (SourceKind::Gguf, 1));
    folder.write("b.gguf", &bytes);
    let message = open(folder.path()).unwrap_err().to_string();
    assert!(message.contains("2 models here (a.gguf, b.gguf); name one"), "{message}");
}

/// What predicts further tokens or sees is left aside, and counted.
#[test]
fn further_blocks_and_vision_are_skipped() {
    let mut file = GgufFile::tiny(F32);
    u32_key(&mut file, "qwen3moe.block_count", 3);
    u32_key(&mut file, "qwen3moe.nextn_predict_layers", 1);
    file.add("blk.2.nextn.eh_proj.weight", &[128, 64], Q8_0);
    file.add("blk.2.attn_q.weight", &[64, 64], F32);
    file.add("v.patch_embd.weight", &[16, 16, 3], F32);
    let folder = Folder::new();
    folder.write("m.gguf", file.to_bytes());
    let found = open(folder.path()).unwrap();
    assert_eq!((found.experts.len(), found.skipped.len()), (2, 3));
}

/// The files that the format's reference implementation refuses in its own test, and their like.
#[test]
fn headers() {
    let good = GgufFile::tiny(F32).to_bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    for (case, bytes, words) in [
        ("another magic", with(0, b"FUGU"), &["magic", "FUGU"][..]),
        ("version 0", with(4, &0_u32.to_le_bytes()), &["version: 0 is not supported"]),
        ("version 1", with(4, &1_u32.to_le_bytes()), &["version: 1 is not supported"]),
        ("a later version", with(4, &4_u32.to_le_bytes()), &["version: 4 is not supported"]),
        ("big-endian", with(4, &3_u32.to_be_bytes()), &["version: 3 in the byte order"]),
        ("tensors -1", with(8, &(-1_i64).to_le_bytes()), &["number of tensors", "-1"]),
        ("tensors 2^63-1", with(8, &i64::MAX.to_le_bytes()), &["number of tensors", "limit"]),
        ("one tensor more", with(8, &30_u64.to_le_bytes()), &["m.gguf"]),
        ("keys -1", with(16, &(-1_i64).to_le_bytes()), &["number of keys", "-1"]),
        ("keys 2^62", with(16, &(1_u64 << 62).to_le_bytes()), &["number of keys", "limit"]),
        ("first key of 2^63 bytes", with(24, &(1_u64 << 63).to_le_bytes()), &["key 0", "limit"]),
        ("first key of none", with(24, &0_u64.to_le_bytes()), &["key 0", "no name"]),
        ("first key not UTF-8", with(32, &[0xff]), &["key 0", "UTF-8"]),
        ("nothing", Vec::new(), &["not a file of a checkpoint"]),
        ("magic alone", b"GGUF".to_vec(), &["version", "needs a file of 8 bytes, found 4"]),
    ] {
        if bytes.is_empty() || !bytes.starts_with(b"GGUF") {
            // Named .gguf, so it is one.
            opened(&bytes).expect_err(case);
            continue;
        }
        refused(case, &bytes, words);
    }
}

#[test]
fn keys() {
    let cases: &[(&str, Change, &[&str])] = &[
        ("twice", |f| f.keys.push(f.keys[3].clone()), &["embedding_length", "occurs twice"]),
        ("unknown type", |f| f.set("x", GgufValue::Raw(13, vec![0; 8])), &["x: type", "13"]),
        ("type 2^32-1", |f| f.set("x", GgufValue::Raw(u32::MAX, vec![0; 8])), &["x: type"]),
        ("array of arrays", |f| f.set("x", list(9, 1, &[0; 32])), &["x: type", "array of arrays"]),
        ("array of unknown", |f| f.set("x", list(77, 1, &[0; 32])), &["x: type", "77"]),
        ("array of 2^62", |f| f.set("x", list(4, 1 << 62, &[])), &["x: count", "limit"]),
        ("array too long", |f| f.set("x", list(10, 4 << 20, &[])), &["x", "needs a file of"]),
        ("texts too many", |f| f.set("x", list(8, 4 << 20, &[])), &["x", "needs a file of"]),
        (
            "text of 2^40",
            |f| f.set("x", GgufValue::Raw(8, (1_u64 << 40).to_le_bytes().to_vec())),
            &["x: length", "limit"],
        ),
        (
            "text too long",
            |f| f.set("x", GgufValue::Raw(8, (1_u64 << 23).to_le_bytes().to_vec())),
            &["x", "needs a file of"],
        ),
        (
            "alignment 0",
            |f| u32_key(f, "general.alignment", 0),
            &["general.alignment", "power of two"],
        ),
        (
            "alignment 3",
            |f| u32_key(f, "general.alignment", 3),
            &["general.alignment", "power of two"],
        ),
        (
            "alignment u64",
            |f| f.set("general.alignment", GgufValue::U64(32)),
            &["general.alignment", "u32"],
        ),
        ("alignment 2^31", |f| u32_key(f, "general.alignment", 1 << 31), &["m.gguf"]),
        (
            "no architecture",
            |f| f.remove("general.architecture"),
            &["general.architecture", "missing"],
        ),
        (
            "architecture a number",
            |f| u32_key(f, "general.architecture", 1),
            &["general.architecture", "text"],
        ),
        (
            "another architecture",
            |f| f.set("general.architecture", GgufValue::Text("llama".into())),
            &[
                "general.architecture: \"llama\" is not supported; supported are qwen35moe",
                "qwen3moe",
            ],
        ),
        (
            "keys of another architecture",
            |f| f.set("general.architecture", GgufValue::Text("qwen3next".into())),
            &["qwen3next.block_count: missing"],
        ),
        ("no layers", |f| u32_key(f, "qwen3moe.block_count", 0), &["qwen3moe.block_count"]),
        (
            "2^32-1 layers",
            |f| u32_key(f, "qwen3moe.block_count", u32::MAX),
            &["qwen3moe.block_count", "limit"],
        ),
        (
            "all layers further",
            |f| u32_key(f, "qwen3moe.nextn_predict_layers", 2),
            &["block_count"],
        ),
        (
            "count below zero",
            |f| f.set("qwen3moe.expert_count", GgufValue::I32(-4)),
            &["expert_count", "-4"],
        ),
        (
            "count a text",
            |f| f.set("qwen3moe.expert_count", GgufValue::Text("4".into())),
            &["expert_count", "text"],
        ),
        (
            "count a float",
            |f| f.set("qwen3moe.expert_count", GgufValue::F32(4.0)),
            &["expert_count"],
        ),
        (
            "counts that differ",
            |f| f.set("qwen3moe.attention.head_count", GgufValue::I32s(vec![2, 4])),
            &["attention.head_count", "differs by layer"],
        ),
        (
            "an empty list",
            |f| f.set("qwen3moe.attention.head_count", GgufValue::I32s(vec![])),
            &["head_count", "empty"],
        ),
        ("experts 0", |f| u32_key(f, "qwen3moe.expert_count", 0), &["qwen3moe.expert_count: 0"]),
        (
            "experts 2^31",
            |f| u32_key(f, "qwen3moe.expert_count", 1 << 31),
            &["qwen3moe.expert_count", "limit"],
        ),
        (
            "more used than there are",
            |f| u32_key(f, "qwen3moe.expert_used_count", 5),
            &["qwen3moe.expert_used_count"],
        ),
        (
            "width 0",
            |f| u32_key(f, "qwen3moe.embedding_length", 0),
            &["qwen3moe.embedding_length: 0"],
        ),
        (
            "no width",
            |f| f.remove("qwen3moe.embedding_length"),
            &["qwen3moe.embedding_length: missing"],
        ),
        (
            "epsilon not a number",
            |f| f.set("qwen3moe.attention.layer_norm_rms_epsilon", GgufValue::F32(f32::NAN)),
            &["layer_norm_rms_epsilon", "NaN"],
        ),
        (
            "base infinite",
            |f| f.set("qwen3moe.rope.freq_base", GgufValue::F32(f32::INFINITY)),
            &["rope.freq_base"],
        ),
        (
            "base 0",
            |f| f.set("qwen3moe.rope.freq_base", GgufValue::F32(0.0)),
            &["qwen3moe.rope.freq_base: 0"],
        ),
        (
            "scaled rotation",
            |f| f.set("qwen3moe.rope.scaling.type", GgufValue::Text("yarn".into())),
            &["qwen3moe.rope.scaling.type", "yarn"],
        ),
        (
            "scaled rotation by its older name",
            |f| f.set("qwen3moe.rope.scale_linear", GgufValue::F32(4.0)),
            &["qwen3moe.rope.scale_linear: 4"],
        ),
        (
            "an adapter",
            |f| f.set("general.type", GgufValue::Text("adapter".into())),
            &["general.type", "adapter"],
        ),
        (
            "a vision tower",
            |f| f.set("general.type", GgufValue::Text("mmproj".into())),
            &["general.type", "mmproj"],
        ),
        (
            "a low-rank adapter",
            |f| f.set("adapter.type", GgufValue::Text("lora".into())),
            &["adapter.type", "lora"],
        ),
        (
            "attention to both sides",
            |f| f.set("qwen3moe.attention.causal", GgufValue::Bool(false)),
            &["attention.causal"],
        ),
        (
            "a trunk layer in the place of a draft",
            |f| u32_key(f, "qwen3moe.nextn_predict_layers", 1),
            &["blk", "nextn"],
        ),
        ("windows", |f| u32_key(f, "qwen3moe.attention.sliding_window", 128), &["sliding_window"]),
        ("sigmoid", |f| u32_key(f, "qwen3moe.expert_gating_func", 2), &["expert_gating_func"]),
        (
            "values of another length",
            |f| u32_key(f, "qwen3moe.attention.value_length", 16),
            &["value_length"],
        ),
        (
            "rotation of part",
            |f| u32_key(f, "qwen3moe.rope.dimension_count", 64),
            &["rope.dimension_count"],
        ),
        (
            "another vocabulary",
            |f| u32_key(f, "qwen3moe.vocab_size", 100),
            &["vocab_size", "264 rows"],
        ),
        (
            "end beyond tokens",
            |f| u32_key(f, "tokenizer.ggml.eos_token_id", 264),
            &["eos_token_id", "264"],
        ),
        (
            "more tokens than rows",
            |f| f.set("tokenizer.ggml.tokens", GgufValue::Texts(vec![String::new(); 265])),
            &["tokenizer.ggml.tokens", "265"],
        ),
        ("a part of nothing", |f| f.set("split.count", GgufValue::U16(3)), &["split.count", "3"]),
        ("the second part", |f| f.set("split.no", GgufValue::U16(1)), &["split.no"]),
    ];
    for (case, change, words) in cases {
        let mut file = GgufFile::tiny(F32);
        change(&mut file);
        refused(case, &file.to_bytes(), words);
    }
}

#[test]
fn tensors() {
    let cases: &[(&str, Change, &[&str])] = &[
        ("name of 64 bytes", |f| f.tensors[3].name = "n".repeat(64), &["tensor 3", "limit"]),
        ("no name", |f| f.tensors[3].name.clear(), &["tensor 3", "plain"]),
        ("a name with a space", |f| f.tensors[3].name = "a b".into(), &["tensor 3", "plain"]),
        (
            "twice",
            |f| f.tensors[3] = GgufTensor { offset: None, ..f.tensors[1].clone() },
            &["output_norm.weight"],
        ),
        ("no dimension", |f| f.tensors[0].sizes.clear(), &["token_embd.weight: dimensions: 0"]),
        ("five dimensions", |f| f.tensors[0].sizes = vec![1; 5], &["dimensions: 5"]),
        ("size 0", |f| f.tensors[0].sizes = vec![64, 0], &["token_embd.weight: shape", "0"]),
        ("size -1", |f| f.tensors[0].sizes = vec![64, u64::MAX], &["shape", "-1"]),
        ("product 2^64", |f| f.tensors[0].sizes = vec![1 << 32, 1 << 32], &["shape", "overflows"]),
        ("product 2^63", |f| f.tensors[0].sizes = vec![1 << 31, 1 << 32], &["shape", "overflows"]),
        ("bytes 2^64", |f| f.tensors[0].sizes = vec![1 << 62], &["shape", "overflows"]),
        (
            "bytes 2^63 - 32",
            |f| {
                f.tensors[0].sizes = vec![(1 << 61) - 8];
            },
            &["overflows"],
        ),
        (
            "beyond the file",
            |f| f.tensors[0].sizes = vec![64, 1 << 20],
            &["output_norm.weight: offset", "the tensor before it ends at 268435456"],
        ),
        ("removed type 4", |f| f.tensors[0].type_id = 4, &["token_embd.weight: type", "number 4"]),
        ("type 43", |f| f.tensors[0].type_id = 43, &["type", "number 43"]),
        ("type 9", |f| f.tensors[0].type_id = 9, &["type", "number 9"]),
        ("type 2^32-1", |f| f.tensors[0].type_id = u32::MAX, &["type"]),
        (
            "half a block",
            |f| {
                f.tensors[0].type_id = 12;
            },
            &["token_embd.weight", "blocks of Q4_K"],
        ),
        ("integers", |f| f.tensors[0].type_id = 26, &["type I32 is not supported"]),
        ("offset not aligned", |f| f.tensors[1].offset = Some(3), &["offset: 3"]),
        ("offset of another", |f| f.tensors[2].offset = Some(0), &["offset: 0"]),
        ("a gap", |f| f.tensors[1].offset = Some(1 << 20), &["offset: 1048576"]),
        ("offset 2^64-32", |f| f.tensors[1].offset = Some(u64::MAX - 31), &["offset"]),
        ("a bias", |f| f.add("blk.0.attn_q.bias", &[64], F32), &["blk.0.attn_q.bias"]),
        // What NVFP4 blocks of a matrix are multiplied with: passed over it would be another model.
        (
            "scales of matrices",
            |f| f.add("blk.0.ffn_down_exps.scale", &[4], F32),
            &["blk.0.ffn_down_exps.scale", "not known to have"],
        ),
        (
            "one expert alone",
            |f| f.add("blk.0.ffn_gate.3.weight", &[64, 32], F32),
            &["ffn_gate.3", "stacks"],
        ),
        ("a third layer", |f| f.add("blk.2.attn_norm.weight", &[64], F32), &["blk.2.attn_norm"]),
        ("frequencies", |f| f.add("rope_freqs.weight", &[16], F32), &["rope_freqs.weight"]),
        (
            "no embedding",
            |f| {
                f.tensors.remove(0);
            },
            &["token_embd.weight", "missing"],
        ),
        (
            "fewer experts",
            |f| {
                f.tensor("blk.1.ffn_up_exps.weight").sizes = vec![64, 32, 2];
                f.tensor("blk.1.ffn_up_exps.weight").data.truncate(64 * 32 * 2 * 4);
            },
            &["up_proj", "4 experts"],
        ),
        (
            "no projection",
            |f| f.tensors.retain(|t| t.name != "blk.1.ffn_up_exps.weight"),
            &["layers.1.mlp.experts", "missing"],
        ),
    ];
    for (case, change, words) in cases {
        let mut file = GgufFile::tiny(F32);
        change(&mut file);
        refused(case, &file.to_bytes(), words);
    }
}

#[test]
fn tokenizers() {
    let cases: &[(&str, Change, &[&str])] = &[
        (
            "sentencepiece",
            |f| f.set("tokenizer.ggml.model", GgufValue::Text("llama".into())),
            &["ggml.model", "llama"],
        ),
        (
            "unknown rule",
            |f| f.set("tokenizer.ggml.pre", GgufValue::Text("default".into())),
            &["tokenizer.ggml.pre: \"default\" is not supported; known are qwen2"],
        ),
        ("no rule", |f| f.remove("tokenizer.ggml.pre"), &["tokenizer.ggml.pre: missing"]),
        ("no tokens", |f| f.remove("tokenizer.ggml.tokens"), &["tokenizer.ggml.tokens"]),
        ("no merges", |f| f.remove("tokenizer.ggml.merges"), &["tokenizer.ggml.merges"]),
        (
            "types of others",
            |f| f.set("tokenizer.ggml.token_type", GgufValue::I32s(vec![1])),
            &["token_type", "1 entries"],
        ),
        (
            "type 7",
            |f| f.set("tokenizer.ggml.token_type", GgufValue::I32s(vec![7; 264])),
            &["token_type", "7"],
        ),
        (
            "a merge of one",
            |f| f.set("tokenizer.ggml.merges", GgufValue::Texts(vec!["he".into()])),
            &["merges", "entry 0"],
        ),
        (
            "two of one text",
            |f| f.set("tokenizer.ggml.tokens", GgufValue::Texts(vec!["a".into(); 264])),
            &["ggml.tokens"],
        ),
        (
            "a token added",
            |f| f.set("tokenizer.ggml.add_bos_token", GgufValue::Bool(true)),
            &["add_bos_token: true"],
        ),
    ];
    for (case, change, words) in cases {
        let mut file = GgufFile::tiny(F32);
        change(&mut file);
        refused(case, &file.to_bytes(), words);
    }
}

/// Before weights are read a command asks for what a few short keys say of the tokenizer.
#[test]
fn tokenizers_that_are_not_read_are_known_by_their_keys() {
    let change: Change = |f| f.set("tokenizer.ggml.pre", GgufValue::Text("default".into()));
    for (change, known) in [((|_| {}) as Change, true), (change, false)] {
        let mut file = GgufFile::tiny(F32);
        change(&mut file);
        let folder = Folder::new();
        let checkpoint = open(&folder.write("m.gguf", file.to_bytes())).unwrap();
        let checked = checkpoint.tokenizer.unwrap().check();
        assert_eq!(checked.is_ok(), known, "{checked:?}");
    }
}

/// The model of one file in several, the keys of the model in the first.
pub(crate) fn split(parts: usize) -> Vec<Vec<u8>> {
    let whole = GgufFile::tiny(F32);
    let each = whole.tensors.len().div_ceil(parts - 1);
    let part = |number: usize| {
        let mut file = if number == 0 { whole.clone() } else { GgufFile::new() };
        let tensors = whole.tensors.chunks(each).nth(number.wrapping_sub(1));
        file.tensors = tensors.unwrap_or_default().to_vec();
        file.set("split.no", GgufValue::U16(number as u16));
        file.set("split.count", GgufValue::U16(parts as u16));
        file.set("split.tensors.count", GgufValue::I32(whole.tensors.len() as i32));
        file.to_bytes()
    };
    (0..parts).map(part).collect()
}

#[test]
fn any_part_of_a_set_finds_the_others() {
    let folder = Folder::new();
    let name = |part: usize| format!("m-{part:05}-of-00003.gguf");
    for (index, bytes) in split(3).iter().enumerate() {
        folder.write(&name(index + 1), bytes);
    }
    let whole = open(folder.path()).unwrap();
    assert_eq!(whole.files.len(), 3);
    for part in 1..=3 {
        let found = open(&folder.path().join(name(part))).unwrap();
        assert_eq!((found.fingerprint(), &found.tensors), (whole.fingerprint(), &whole.tensors));
    }
    let wrong = |words: &[&str]| {
        let message = open(folder.path()).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    let third = folder.path().join(name(3));
    fs::copy(folder.path().join(name(2)), &third).unwrap();
    wrong(&["00003-of-00003", "split.no: 1"]);
    fs::remove_file(&third).unwrap();
    wrong(&["m-00003-of-00003.gguf", "part 3 of 3 is missing"]);
    folder.write(&name(3), &split(4)[3]);
    wrong(&["split.count: 4"]);
    folder.write(&name(3), {
        let mut file = GgufFile::tiny(F32);
        file.set("split.no", GgufValue::U16(2));
        file.set("split.count", GgufValue::U16(3));
        file.to_bytes()
    });
    wrong(&["is also in"]);
}

#[test]
fn a_file_cut_anywhere_does_not_open() {
    let folder = Folder::new();
    let path = folder.path().join("m.gguf");
    let bytes = GgufFile::tiny(Q8_0).to_bytes();
    let header = GgufFile::tiny(Q8_0).header().len();
    let last = bytes.len() - 64;
    let data = GgufFile::tiny(Q8_0).tensors.last().unwrap().data.len();
    let whole = bytes.len() - (data.next_multiple_of(32) - data);
    fs::write(&path, &bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in (0..bytes.len()).rev() {
        if at <= header || at > last || at % 997 == 0 {
            file.set_len(at as u64).unwrap();
            let message =
                open(&path).err().unwrap_or_else(|| panic!("cut at {at}: accepted")).to_string();
            assert!(message.contains("m.gguf") && message.lines().count() == 1, "{message}");
            // What the file should have, not where the first missing tensor ends.
            let size = format!("needs a file of {whole} bytes, found {at}");
            assert!(at < header || message.contains(&size), "{message}");
        }
    }
    let mut longer = bytes.clone();
    longer.extend([0; 33]);
    refused("goes on", &longer, &["end of the last tensor", "33 bytes"]);
}

/// Fields of the header overwritten with numbers that mean something: opened or refused in one line, never more
/// memory than the file could ask for, no promise broken.
#[test]
fn damage_by_structure() {
    let mut noise = Noise(0x6767_7566);
    let good = GgufFile::tiny(F32);
    let header = good.header().len();
    let bytes = good.to_bytes();
    let numbers =
        [0, 1, 2, 8, 31, 33, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 62, u64::MAX >> 1, u64::MAX];
    let folder = Folder::new();
    let path = folder.path().join("m.gguf");
    for round in 0..600 {
        let mut file = bytes.clone();
        for _ in 0..1 + noise.below(3) {
            let at = noise.below(header - 8);
            let number = numbers[noise.below(numbers.len())].to_le_bytes();
            let width = [1, 2, 4, 8][noise.below(4)];
            file[at..at + width].copy_from_slice(&number[..width]);
        }
        fs::write(&path, &file).unwrap();
        match open(&path) {
            Ok(found) => {
                for tensor in found.tensors.values() {
                    let end = tensor.weight.offset + tensor.weight.length;
                    assert!(end <= found.files[0].length, "round {round}");
                }
                if let Some(TokenizerSource::Gguf(vocabulary)) = &found.tokenizer {
                    let _ = vocabulary.tokenizer_json();
                }
            }
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.lines().count() == 1 && message.len() < 4096,
                    "round {round}: {message}"
                );
            }
        }
    }
}
