//! Log-probabilities of a prompt's tokens by the real engine: those of the tokens as the model itself draws them, the
//! same whatever was kept before and however the prompt is cut.

use crate::engine_support;
use crate::engine_support::served;

use engine_support::Setting;
use serde_json::{Value, json};
use served::Served;
use server::ServeOptions;

fn ask(served: &Served, body: Value) -> Value {
    let answer = served.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0].clone()
}

#[test]
fn what_was_drawn_is_found_as_likely_when_it_is_given() {
    let served =
        Served::start_with(ServeOptions::default(), &Setting { chunk: 16, ..Setting::default() });
    let prompt =
        "<|im_start|>user\nWhat is 255 factored?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    let drawn = ask(
        &served,
        json!({ "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 2 }),
    );
    let text = drawn["text"].as_str().unwrap();
    let drawn = drawn["logprobs"]["token_logprobs"].as_array().unwrap();
    let whole = format!("{prompt}{text}");
    let given = json!({ "prompt": whole, "max_tokens": 0, "echo": true, "logprobs": 2 });
    let first = ask(&served, given.clone());
    assert_eq!(first["text"], whole.as_str());
    let found = first["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(found[0].is_null() && found[1..].iter().all(Value::is_number));
    assert_eq!(found.len(), first["logprobs"]["top_logprobs"].as_array().unwrap().len());
    let end = &found[found.len() - drawn.len().min(20)..];
    let same = drawn.len() - end.len();
    for (drawn, given) in drawn[same..].iter().zip(end) {
        let (drawn, given) = (drawn.as_f64().unwrap(), given.as_f64().unwrap());
        assert!((drawn - given).abs() < 1e-3, "{drawn} was drawn, {given} is given");
    }
    // What is kept by now changes nothing.
    assert_eq!(ask(&served, given), first);
    let tokens = served.post("/tokenize", &json!({ "content": whole })).json()["tokens"].clone();
    let by_id = json!({ "prompt": tokens, "max_tokens": 0, "echo": true, "logprobs": 2 });
    assert_eq!(ask(&served, by_id), first);
    let back = served.post("/detokenize", &json!({ "tokens": tokens })).json();
    assert_eq!(back["content"], whole.as_str());
    // The demo's vocabulary has no tokens for gaps.
    let refused = served.post("/v1/completions", &json!({ "prompt": "a", "suffix": "b" }));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("suffix")));
    assert!(refused.body.contains("fim_prefix"), "{}", refused.body);
}
