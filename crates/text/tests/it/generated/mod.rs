//! What the tests of tokenizers share: generated texts, and a GGUF file that holds a tokenizer.

use serde_json::Value;
use store::format::{TokenizerSource, open};
use store::split_mix::SplitMix64;
use store::synthetic::gguf::{F32, GgufFile, GgufValue};
use text::Tokenizer;

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

pub(crate) fn text(random: &mut SplitMix64) -> String {
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
pub(crate) fn as_gguf(whole: &Value, pre: &str) -> GgufFile {
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

pub(crate) fn from_gguf(file: &GgufFile) -> Tokenizer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, file.to_bytes()).unwrap();
    let Some(TokenizerSource::Gguf(vocabulary)) = open(&path).unwrap().tokenizer else {
        panic!("the tokenizer is in the file");
    };
    Tokenizer::from_bytes(&vocabulary.tokenizer_json().unwrap()).unwrap()
}
