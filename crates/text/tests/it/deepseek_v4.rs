//! Prompts of DeepSeek-V4, whose folder has an encoder in Python and no template, against that encoder, byte for byte.
//!
//! The golden file is written by tests/reference/deepseek_v4_prompts.py.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};
use store::format::deepseek_v4::TEMPLATE;
use text::{
    ChatTemplate, Dialect, Message, RenderOptions, TemplateHost, TemplateTokens, Tokenizer,
};

fn read(file: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/text-dialects");
    std::fs::read(folder.join(file)).unwrap()
}

#[test]
fn prompts_are_those_of_the_encoder_of_the_release() {
    let tokenizer = Tokenizer::from_bytes(&read("tokenizer.json")).unwrap();
    let golden: Value = serde_json::from_slice(&read("deepseek_v4.json")).unwrap();
    let controls = Arc::clone(tokenizer.control_tokens());
    let tokens = TemplateTokens::default();
    assert_eq!(Dialect::of(TEMPLATE).name(), "dsml");
    let template = ChatTemplate::new(TEMPLATE, tokens, controls, &TemplateHost::here()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 80, "{} cases", cases.len());
    for case in cases {
        let title = case["conversation"].as_str().unwrap();
        let messages = golden["conversations"][title].as_array().unwrap();
        let messages = Message::from_openai(messages).unwrap();
        let mut extra = Map::new();
        if case["effort"].is_string() {
            extra.insert("reasoning_effort".to_owned(), case["effort"].clone());
        }
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: Some(case["mode"] == "thinking"),
            extra,
            ..RenderOptions::default()
        };
        let none = Vec::new();
        let tools = if case["tools"] == true { golden["tools"].as_array().unwrap() } else { &none };
        let rendered = template.render(&messages, tools, &options).unwrap();
        assert_eq!(rendered.text(), case["text"].as_str().unwrap(), "{title} {options:?}");
        assert_eq!(rendered.opens_reasoning(), case["mode"] == "thinking", "{title}");
    }
}
