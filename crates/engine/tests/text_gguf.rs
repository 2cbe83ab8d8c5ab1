//! The tokenizer of a GGUF file against tokenizer.json of the same model: equal ids on generated text of every kind
//! of character that the rules know.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use engine::text::Tokenizer;
use serde_json::{Value, json};
use store::format::{TokenizerSource, open};
use store::split_mix::SplitMix64;
use store::synthetic::gguf::{F32, GgufFile, GgufValue};

const TEXTS: usize = 10_000;

/// Spans of characters, and texts that rules or control tokens care about.
const RANGES: [(u32, u32); 17] = [
    (0x20, 0x7e),
    (0x61, 0x7a),
    (0x30, 0x39),
    (0xa0, 0x17f),
    (0x300, 0x36f),
    (0x391, 0x3c9),
    (0x410, 0x44f),
    (0x5d0, 0x5ea),
    (0x620, 0x669),
    (0x904, 0x97f),
    (0xe01, 0xe5b),
    (0x1100, 0x11ff),
    (0x2000, 0x206f),
    (0x3000, 0x30ff),
    (0x4e00, 0x9fff),
    (0x1f1e6, 0x1f64f),
    (0x10330, 0x1034a),
];
const TEXTS_OF_RULES: [&str; 14] = [
    "'s",
    "'LL",
    "'T",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u{3000}",
    "don't",
    "<|im_end|>",
    "<think>",
    "e\u{301}",
    "2\u{2075}",
];

fn text(random: &mut SplitMix64) -> String {
    let mut text = String::new();
    for _ in 0..1 + random.next_u64() % 24 {
        let kind = (random.next_u64() % 24) as usize;
        match RANGES.get(kind) {
            Some(&(first, last)) => {
                for _ in 0..1 + random.next_u64() % 5 {
                    let code = first + (random.next_u64() % u64::from(last - first + 1)) as u32;
                    text.extend(char::from_u32(code));
                }
            }
            None => text.push_str(TEXTS_OF_RULES[(random.next_u64() % 14) as usize]),
        }
    }
    text
}

/// The tokens of tokenizer.json as a GGUF file holds them.
fn as_gguf(whole: &Value, pre: &str) -> GgufFile {
    let mut tokens: Vec<(u64, String, i32)> = Vec::new();
    for (text, id) in whole["model"]["vocab"].as_object().unwrap() {
        tokens.push((id.as_u64().unwrap(), text.clone(), 1));
    }
    for token in whole["added_tokens"].as_array().unwrap() {
        let kind = if token["special"].as_bool().unwrap() { 3 } else { 4 };
        tokens.push((
            token["id"].as_u64().unwrap(),
            token["content"].as_str().unwrap().to_owned(),
            kind,
        ));
    }
    tokens.sort();
    let merges = whole["model"]["merges"].as_array().unwrap().iter().map(|merge| match merge {
        Value::String(text) => text.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    let mut file = GgufFile::tiny(F32);
    file.set("tokenizer.ggml.merges", GgufValue::Texts(merges.collect()));
    file.set("tokenizer.ggml.pre", GgufValue::Text(pre.to_owned()));
    file.set("tokenizer.ggml.token_type", GgufValue::I32s(tokens.iter().map(|t| t.2).collect()));
    let count = tokens.len() as u64;
    file.set("tokenizer.ggml.tokens", GgufValue::Texts(tokens.into_iter().map(|t| t.1).collect()));
    file.set("tokenizer.ggml.eos_token_id", GgufValue::U32(0));
    file.tensors.retain(|tensor| !["token_embd.weight", "output.weight"].contains(&&*tensor.name));
    file.add("token_embd.weight", &[64, count], F32);
    file
}

fn from_gguf(file: &GgufFile) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, file.to_bytes()).unwrap();
    let Some(TokenizerSource::Gguf(vocabulary)) = open(&path).unwrap().tokenizer else {
        panic!("the tokenizer is in the file");
    };
    Tokenizer::from_bytes(&vocabulary.tokenizer_json().unwrap()).unwrap()
}

#[test]
fn ids_are_those_of_the_models_own_file() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
    let original: Value = serde_json::from_slice(&std::fs::read(demo).unwrap()).unwrap();
    let mut qwen2 = original.clone();
    // As the released tokenizer.json of Qwen3 has it.
    qwen2["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ));
    let mut llama = original.clone();
    // As that of Llama 3.
    llama["normalizer"] = Value::Null;
    llama["model"]["ignore_merges"] = json!(true);
    llama["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ));
    let mut differing = [0; 3];
    let plain = Tokenizer::from_bytes(original.to_string().as_bytes()).unwrap();
    for (rule, (pre, whole)) in
        [("qwen35", &original), ("qwen2", &qwen2), ("llama-bpe", &llama)].into_iter().enumerate()
    {
        let expected = Tokenizer::from_bytes(whole.to_string().as_bytes()).unwrap();
        let found = from_gguf(&as_gguf(whole, pre));
        assert_eq!(found.vocabulary_size(), expected.vocabulary_size());
        let mut random = SplitMix64(rule as u64);
        for _ in 0..TEXTS {
            let text = text(&mut random);
            let ids = expected.encode(&text).unwrap();
            assert_eq!(found.encode(&text).unwrap(), ids, "{pre}: {text:?}");
            differing[rule] += usize::from(plain.encode(&text).unwrap() != ids);
        }
        for control in expected.control_tokens().tokens() {
            assert_eq!(found.token_id(&control.text), Some(control.id), "{}", control.text);
            assert!(found.is_control(control.id));
        }
    }
    // The texts tell the rules apart.
    assert!(differing[0] == 0 && differing[1] > 100 && differing[2] > 100, "{differing:?}");
}

#[test]
fn a_tokenizer_that_a_file_carries_whole_is_taken() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
    let text = std::fs::read_to_string(demo).unwrap();
    let mut file = as_gguf(&serde_json::from_str(&text).unwrap(), "never heard of");
    file.set("tokenizer.huggingface.json", GgufValue::Text(text.clone()));
    let expected = Tokenizer::from_bytes(text.as_bytes()).unwrap();
    let words = "The router's experts, 25 of them.";
    assert_eq!(from_gguf(&file).encode(words).unwrap(), expected.encode(words).unwrap());
}
