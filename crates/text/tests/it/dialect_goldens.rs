//! Prompts of further families against transformers, byte for byte, and their rules for words against the tokenizers
//! library over 10,000 texts each.
//!
//! The golden files are written by tests/reference/dialect_goldens.py. `FLASHMOE_DIALECT_GOLDENS` names another folder
//! of the same form, for a comparison with the templates of releases.

use crate::generated;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use generated::{as_gguf, from_gguf, text};
use serde_json::{Value, json};
use store::split_mix::SplitMix64;
use text::{
    ChatTemplate, Dialect, Message, RenderOptions, TemplateHost, TemplateTokens, TextError,
    Tokenizer,
};

const TEXTS: usize = 10_000;

fn read(file: &str) -> Vec<u8> {
    let folder = match std::env::var_os("FLASHMOE_DIALECT_GOLDENS") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/text-dialects"),
    };
    std::fs::read(folder.join(file)).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn prompts_are_those_of_transformers() {
    let tokenizer = Tokenizer::from_bytes(&read("tokenizer.json")).unwrap();
    let golden: Value = serde_json::from_slice(&read("conversations.json")).unwrap();
    let config = json!({ "bos_token": "<|endoftext|>", "eos_token": { "content": "<|im_end|>" } });
    let tokens = TemplateTokens::from_config(&config);
    let controls = || Arc::clone(tokenizer.control_tokens());
    let (mut compared, mut different) = (0, Vec::new());
    for case in golden["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let source = golden["templates"][name].as_str().unwrap();
        let template =
            ChatTemplate::new(source, tokens.clone(), controls(), &TemplateHost::here()).unwrap();
        assert_eq!(Dialect::of(source).name(), name);
        let title = case["conversation"].as_str().unwrap();
        let messages =
            Message::from_openai(golden["conversations"][title].as_array().unwrap()).unwrap();
        let options = RenderOptions {
            add_generation_prompt: case["options"]["add_generation_prompt"].as_bool().unwrap(),
            enable_thinking: case["options"].get("enable_thinking").map(|v| v.as_bool().unwrap()),
            ..RenderOptions::default()
        };
        let tools =
            if case["tools"] == true { golden["tools"].as_array().unwrap() } else { &vec![] };
        let label = format!("{name}, {title}, tools {}, {options:?}", case["tools"]);
        match (case.get("text"), template.render(&messages, tools, &options)) {
            (Some(text), Ok(rendered)) => {
                if rendered.text() != text.as_str().unwrap() {
                    different.push(format!("{label}:\n{:?}\n{text:?}", rendered.text()));
                } else if let Some(reference) = case.get("ids") {
                    let encoded = tokenizer.encode_rendered(&rendered).unwrap();
                    assert_eq!(encoded, ids(reference), "{label}");
                }
                compared += 1;
            }
            (None, Err(TextError::TemplateRefused { message })) => {
                assert_eq!(Some(message.as_str()), case["refused"].as_str(), "{label}");
            }
            (text, result) => panic!("{label}: expected {text:?}, got {result:?}"),
        }
    }
    let count = different.len();
    assert!(different.is_empty(), "{count} of {compared} differ, such as {}", different[0]);
    assert!(compared > 150, "{compared} compared");
}

#[test]
fn words_are_those_of_the_library() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/tokenizer.json");
    let original: Value = serde_json::from_slice(&std::fs::read(demo).unwrap()).unwrap();
    let rules: Vec<Value> = serde_json::from_slice(&read("words.json")).unwrap();
    assert!(rules.len() >= 7);
    for rule in rules {
        let pre = rule["pre"].as_str().unwrap();
        let tokenizer = from_gguf(&as_gguf(&original, pre));
        let mut random = SplitMix64(rule["seed"].as_u64().unwrap());
        let (mut digest, mut count) = (0xcbf2_9ce4_8422_2325_u64, 0);
        for _ in 0..TEXTS {
            let ids = tokenizer.encode(&text(&mut random)).unwrap();
            count += ids.len() as u64;
            for byte in ids.into_iter().chain([u32::MAX]).flat_map(u32::to_le_bytes) {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        assert_eq!(Some(count), rule["tokens"].as_u64(), "{pre}");
        assert_eq!(Some(format!("{digest:016x}").as_str()), rule["digest"].as_str(), "{pre}");
    }
}
