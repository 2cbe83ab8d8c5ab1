//! The tokenizer of a GGUF file against tokenizer.json of the same model: equal ids on generated text of every kind
//! of character that the rules know.

use crate::generated;

use std::path::Path;

use generated::{as_gguf, from_gguf, text};
use serde_json::{Value, json};
use store::split_mix::SplitMix64;
use store::synthetic::gguf::GgufValue;
use text::Tokenizer;

const TEXTS: usize = 10_000;

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
