//! Text against the references: token ids of the tokenizers library, prompts of transformers, byte for byte.
//!
//! The golden files are written by tests/reference/text_goldens.py. `FLASHMOE_TEXT_GOLDENS` names another folder of
//! the same form, for a comparison with the templates of releases.

use crate::support;

use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use support::golden;
use text::{
    ChatTemplate, Message, RenderOptions, TemplateHost, TemplateTokens, TextError, Tokenizer,
};

fn folder_file(file: &str) -> PathBuf {
    match std::env::var_os("FLASHMOE_TEXT_GOLDENS") {
        Some(folder) => PathBuf::from(folder).join(file),
        None => golden(file),
    }
}

fn read(file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder_file(file)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn token_ids_are_those_of_the_reference() {
    let tokenizer = Tokenizer::from_file(folder_file("tokenizer.json")).unwrap();
    for case in read("tokens.json").as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let encoded = tokenizer.encode(text).unwrap();
        assert_eq!(encoded, ids(&case["ids"]), "{text:?}");
        // The tokenizer composes characters (NFC), so the decoded text is the composed one.
        let again = tokenizer.encode(&tokenizer.decode(&encoded)).unwrap();
        assert_eq!(again, encoded, "{text:?} does not survive a round trip");
    }
}

#[test]
fn prompts_are_those_of_transformers() {
    let tokenizer = Tokenizer::from_file(folder_file("tokenizer.json")).unwrap();
    let golden = read("conversations.json");
    let config = json!({ "bos_token": "<|endoftext|>", "eos_token": { "content": "<|im_end|>" } });
    let tokens = TemplateTokens::from_config(&config);
    let tools = golden["tools"].as_array().unwrap();
    let (mut compared, mut refused) = (0, 0);
    for case in golden["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let source = golden["templates"][name].as_str().unwrap();
        let controls = Arc::clone(tokenizer.control_tokens());
        let template =
            ChatTemplate::new(source, tokens.clone(), controls, &TemplateHost::here()).unwrap();
        let title = case["conversation"].as_str().unwrap();
        let messages = golden["conversations"][title].as_array().unwrap();
        let messages = Message::from_openai(messages).unwrap();
        let mut options = RenderOptions {
            add_generation_prompt: case["options"]["add_generation_prompt"].as_bool().unwrap(),
            enable_thinking: case["options"].get("enable_thinking").map(|v| v.as_bool().unwrap()),
            ..RenderOptions::default()
        };
        if name == "python" {
            options.extra.insert("extra".into(), golden["extra"].clone());
        }
        let tools = if case["tools"] == true { &tools[..] } else { &[] };
        let rendered = template.render(&messages, tools, &options);
        let label = format!("template {name}, conversation {title}, {options:?}");
        match (case.get("text"), rendered) {
            (Some(text), Ok(rendered)) => {
                assert_eq!(rendered.text(), text.as_str().unwrap(), "{label}");
                if let Some(reference) = case.get("ids") {
                    // The reference makes control tokens of what users write; these conversations
                    // have none, except inside the thinking that the template takes apart.
                    let encoded = tokenizer.encode_rendered(&rendered).unwrap();
                    assert_eq!(encoded, ids(reference), "{label}");
                }
                compared += 1;
            }
            (None, Err(TextError::TemplateRefused { message })) => {
                assert_eq!(Some(message.as_str()), case["refused"].as_str(), "{label}");
                refused += 1;
            }
            (text, result) => panic!("{label}: expected {text:?}, got {result:?}"),
        }
    }
    assert!(compared > 100 && refused > 0, "{compared} compared, {refused} refused");
}
