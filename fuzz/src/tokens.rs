//! Bodies of `/tokenize` and `/detokenize`, answered by a worker: understood or refused as the client's mistake; and
//! a text whose tokens are asked for comes back as it was.

use serde_json::{Value, json};
use server::understanding::tokens as answer;

use crate::mutate;
use crate::net::{Room, worker};
use crate::target::Target;

pub(crate) fn tokens() -> Target {
    let room = Room { context: 256, sequences: 1, snapshots: 0, check_reads: false };
    let worker = worker("qwen3-calm-hf", &room);
    let seeds = [
        json!({"content": "Hello <|im_end|> w\u{f6}rld\n", "with_pieces": true, "add_special": true}),
        json!({"prompt": "a b", "parse_special": false, "return_token_strs": true}),
        json!({"messages": [{"role": "user", "content": "x"}], "model": "net"}),
        json!({"tokens": [0, 1, 300, 511]}),
    ];
    Target {
        seeds: seeds.map(|seed| seed.to_string().into_bytes()).to_vec(),
        mutate: |random, input| {
            let words = [
                "content",
                "prompt",
                "messages",
                "tokens",
                "with_pieces",
                "add_special",
                "add_special_tokens",
                "parse_special",
                "return_token_strs",
                "role",
                "user",
                "model",
                "<|im_start|>",
                "<|im_end|>",
                "<think>",
                "4294967296",
                "\u{fffd}",
                "a\u{301}\u{1f600}",
            ];
            mutate::json(random, input, &words);
        },
        run: Box::new(move |input| {
            for path in ["/tokenize", "/detokenize"] {
                match answer(&worker, path, input) {
                    Err(refused) => {
                        let mistake = (400..500).contains(&refused.status);
                        assert!(mistake && !refused.message.is_empty(), "{refused:?}");
                        assert!(refused.message.len() < 4096, "{} bytes", refused.message.len());
                    }
                    Ok(found) if path == "/tokenize" => {
                        let ids = found["tokens"].as_array().expect("a list");
                        assert_eq!(found["count"], ids.len());
                        let Ok(Value::Object(asked)) = serde_json::from_slice(input) else {
                            return;
                        };
                        let text = asked.get("content").filter(|value| !value.is_null());
                        let text = text.or(asked.get("prompt")).and_then(Value::as_str);
                        let id = |value: &Value| value.get("id").unwrap_or(value).clone();
                        let ids: Vec<Value> = ids.iter().map(id).collect();
                        let body = json!({ "tokens": ids }).to_string();
                        // The vocabulary of the small net ends before that of its tokenizer, which composes letters.
                        let back = answer(&worker, "/detokenize", body.as_bytes());
                        if let (Some(text), Ok(back)) = (text.filter(|text| text.is_ascii()), back)
                        {
                            assert_eq!(back["content"], text);
                        }
                    }
                    Ok(found) => assert!(found["content"].is_string(), "{found}"),
                }
            }
        }),
    }
}
