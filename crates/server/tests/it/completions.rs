//! Text completions, tokens and ollama's protocol: what each field does, what streams look like, and that hostile
//! bodies are the client's mistake.

use crate::support;

use serde_json::{Value, json};
use server::work::{Event, FinishReason, Piece};
use support::sse::{Frame, frames};
use support::{Reply, Scripted, Serving, call, finish, logprob, reasoning, say, text};

const COMPLETIONS: &str = "/v1/completions";

fn piece(token: &str) -> Event {
    Event::Text(Piece { text: token.to_owned(), logprobs: vec![logprob(token)] })
}

fn hello() -> Reply {
    Reply::Play(say([text("Hel"), text("lo."), finish(FinishReason::Stop)]))
}

fn data(body: &str) -> Vec<Value> {
    let frames = frames(body);
    assert_eq!(frames.last(), Some(&Frame::Done), "{body}");
    let data = frames.into_iter().filter_map(|frame| match frame {
        Frame::Data { data, .. } => Some(data),
        _ => None,
    });
    data.collect()
}

#[test]
fn a_prompt_is_text_tokens_or_a_list_of_either() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    for (prompt, counts) in [
        (json!("one two three"), vec![3]),
        (json!(["one", "one two"]), vec![1, 2]),
        (json!([5, 6, 7, 8]), vec![4]),
        (json!([[5, 6], [7]]), vec![2, 1]),
        (json!(["one", [5, 6]]), vec![1, 2]),
    ] {
        worker.jobs.lock().unwrap().clear();
        let answer = serving.post(COMPLETIONS, &json!({ "prompt": prompt }));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer = answer.json();
        let choices = answer["choices"].as_array().unwrap();
        let jobs = worker.jobs.lock().unwrap();
        let found: Vec<usize> = jobs.iter().map(|job| job.prompt.tokens.len()).collect();
        assert_eq!(found, counts, "{prompt}");
        assert_eq!(choices.len(), counts.len());
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &json!("Hello.")));
            assert_eq!(choice["finish_reason"], "stop");
        }
        assert!(jobs.iter().all(|job| job.output.raw && job.max_tokens == Some(16)));
        assert_eq!(answer["usage"]["prompt_tokens"], 12 * counts.len(), "the sum of all");
        assert_eq!(answer["object"], "text_completion");
    }
}

#[test]
fn prompts_are_repeated_with_their_probabilities() {
    let steps = [Event::Prompt(vec![logprob("two"), logprob("three")]), piece("x"), piece("y")];
    let steps = steps.into_iter().chain([finish(FinishReason::Length)]);
    let worker = Scripted::new(Reply::Play(say(steps)));
    let serving = Serving::start(worker.clone());
    let mut request =
        json!({ "prompt": "one two three", "echo": true, "logprobs": 1, "max_tokens": 2 });
    let whole = serving.post(COMPLETIONS, &request).json();
    let job = worker.last_job();
    assert!(job.prompt_logprobs && job.top_logprobs == Some(1) && job.max_tokens == Some(2));
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], "w0 w1 w2 xy");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["w0 ", "two", "three", "x", "y"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.25, -0.25, -0.25, -0.25]));
    assert_eq!(logprobs["text_offset"], json!([0, 3, 6, 11, 12]));
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][1], json!({ "b": -1.5, "two": -0.25 }));
    assert_eq!(choice["finish_reason"], "length");
    request["stream"] = true.into();
    request["stream_options"] = json!({ "include_usage": true });
    let chunks = data(&serving.post(COMPLETIONS, &request).body);
    let joined = |field: &str| -> Vec<Value> {
        let lists = chunks.iter().map(|chunk| &chunk["choices"][0]["logprobs"][field]);
        lists.filter_map(Value::as_array).flatten().cloned().collect()
    };
    for field in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
        assert_eq!(json!(joined(field)), logprobs[field], "{field}");
    }
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "w0 w1 w2 xy");
    let last = chunks.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(17)));
}

#[test]
fn a_stream_of_several_prompts_has_each_in_turn() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker);
    let request = json!({ "prompt": ["a", "b b"], "stream": true, "echo": true });
    let chunks = data(&serving.post(COMPLETIONS, &request).body);
    let of = |index: usize| -> String {
        let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let own = choices.filter(|choice| choice["index"] == index);
        own.filter_map(|choice| choice["text"].as_str()).collect()
    };
    assert_eq!((of(0), of(1)), ("w0 Hello.".to_owned(), "w0 w1 Hello.".to_owned()));
    let reasons: Vec<_> =
        chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.iter().filter(|reason| reason.is_string()).count(), 2);
    let seen: Vec<_> = chunks.iter().filter_map(|it| it["choices"][0]["index"].as_u64()).collect();
    assert!(seen.is_sorted(), "{seen:?}");
}

#[test]
fn a_gap_is_filled_where_the_vocabulary_can() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let filled = serving.post(COMPLETIONS, &json!({ "prompt": "a b", "suffix": "c" }));
    assert_eq!(filled.status, 200, "{}", filled.body);
    assert_eq!(worker.last_job().prompt.tokens.len(), 4);
    let refused = serving.post(COMPLETIONS, &json!({ "prompt": "a", "suffix": "NO-TOKENS" }));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("suffix")));
    let raw = json!({ "prompt": "a b", "suffix": "c", "stream": false });
    assert_eq!(serving.post("/api/generate", &raw).json()["response"], "Hello.");
}

#[test]
fn mistakes_name_their_field() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let many: Vec<&str> = vec!["a"; 129];
    let long: Vec<u32> = vec![1; 1001];
    let huge: Vec<u32> = vec![1; 100_001];
    let cases = [
        (json!({}), "prompt"),
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": 5 }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": many }), "prompt"),
        (json!({ "prompt": [1, "a"] }), "prompt[1]"),
        (json!({ "prompt": ["a", 1] }), "prompt"),
        (json!({ "prompt": [-1] }), "prompt[0]"),
        (json!({ "prompt": [1.5] }), "prompt[0]"),
        (json!({ "prompt": [0, 100] }), "prompt[1]"),
        (json!({ "prompt": [[1], [4_294_967_296u64]] }), "prompt[1][0]"),
        (json!({ "prompt": [[[1]]] }), "prompt[0][0]"),
        (json!({ "prompt": "a", "n": 2 }), "n"),
        (json!({ "prompt": "a", "best_of": 3 }), "best_of"),
        (json!({ "prompt": "a", "logprobs": 21 }), "logprobs"),
        (json!({ "prompt": "a", "logprobs": -1 }), "logprobs"),
        (json!({ "prompt": "a", "logprobs": true }), "logprobs"),
        (json!({ "prompt": "a", "max_tokens": -2 }), "max_tokens"),
        (json!({ "prompt": [1], "suffix": "b" }), "suffix"),
        (json!({ "prompt": "a", "suffix": "b", "echo": true }), "suffix"),
        (json!({ "prompt": "a", "prompt_embeds": "AAAA" }), "prompt_embeds"),
    ];
    for (body, field) in cases {
        let refused = serving.post(COMPLETIONS, &body);
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert_eq!(refused.json()["error"]["param"], field, "{body}: {}", refused.body);
    }
    for tokens in [&long, &huge] {
        let refused = serving.post(COMPLETIONS, &json!({ "prompt": tokens }));
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    assert!(worker.jobs.lock().unwrap().is_empty());
    let detokenize = [
        json!({}),
        json!({ "tokens": "a" }),
        json!({ "tokens": [100] }),
        json!({ "tokens": [-1] }),
        json!({ "tokens": [[1]] }),
        json!({ "tokens": huge }),
    ];
    for body in detokenize {
        assert_eq!(serving.post("/detokenize", &body).status, 400);
    }
    let own = [
        json!({ "messages": [{ "role": "user", "content": "a", "images": ["AAAA"] }] }),
        json!({ "messages": [5] }),
        json!({ "messages": [{ "role": "user", "content": "a" }], "format": 5 }),
        json!({ "messages": [{ "role": "user", "content": "a" }], "options": { "top_p": 7 } }),
        json!({ "messages": [{ "role": "user", "content": "a" }], "options": [] }),
        json!({ "messages": [{ "role": "user", "content": "a" }], "think": "often" }),
    ];
    for body in own {
        let refused = serving.post("/api/chat", &body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.json()["error"].is_string(), "{}", refused.body);
    }
}

#[test]
fn tokens_have_the_fields_of_both_servers() {
    let serving = Serving::start(Scripted::new(hello()));
    let answer =
        serving.post("/tokenize", &json!({ "content": "a b", "with_pieces": true })).json();
    assert_eq!(answer["tokens"][1], json!({ "id": 1, "piece": "w1 " }));
    let answer = serving.post("/tokenize", &json!({ "prompt": "a b", "return_token_strs": true }));
    let answer = answer.json();
    assert_eq!((&answer["tokens"], &answer["count"]), (&json!([0, 1]), &json!(2)));
    assert_eq!(answer["max_model_len"], 1000);
    assert_eq!(answer["token_strs"], json!(["w0 ", "w1 "]));
    let messages = json!({ "messages": [{ "role": "user", "content": "a b" }] });
    assert_eq!(serving.post("/tokenize", &messages).json()["count"], 3);
    assert_eq!(serving.post("/tokenize", &json!({ "content": "" })).json()["count"], 0);
    assert_eq!(serving.post("/tokenize", &json!({})).status, 400);
    let text = serving.post("/detokenize", &json!({ "tokens": [3, 1] })).json();
    assert_eq!((&text["content"], &text["prompt"]), (&json!("w3 w1 "), &json!("w3 w1 ")));
    assert_eq!(serving.post("/v1/embeddings", &json!({ "input": "a" })).status, 501);
    assert!(serving.get("/version").json()["version"].is_string());
}

#[test]
fn ollama_s_clients_read_lines() {
    let answer = [reasoning("Hm."), text("It is ")].into_iter();
    let answer = answer.chain([text("fine.")]).chain(call(0, "look", &["{\"at\":", "1}"]));
    let steps = say(answer.chain([finish(FinishReason::ToolCalls)]));
    let worker = Scripted::new(Reply::Play(steps));
    let serving = Serving::start(worker.clone());
    let tool = json!({ "type": "function", "function": { "name": "look", "parameters": {} } });
    let mut request = json!({
        "model": "any",
        "messages": [
            { "role": "system", "content": "Be short." },
            { "role": "user", "content": "Look." },
            { "role": "assistant", "content": "", "thinking": "so",
              "tool_calls": [{ "function": { "name": "look", "arguments": { "at": 2 } } }] },
            { "role": "tool", "tool_name": "look", "content": "nothing" },
        ],
        "tools": [tool],
        "think": true,
        "options": { "temperature": 0.5, "num_predict": 9, "num_ctx": 4096, "stop": ["END"] },
        "keep_alive": "5m",
    });
    let streamed = serving.post("/api/chat", &request);
    assert_eq!(streamed.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> =
        streamed.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts: String =
        lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!(texts, "It is fine.");
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!((&last["eval_count"], &last["prompt_eval_count"]), (&json!(5), &json!(12)));
    assert!(lines[..lines.len() - 1].iter().all(|line| line["done"] == false));
    let job = worker.last_job();
    assert_eq!((job.sampling.temperature, job.max_tokens), (0.5, Some(9)));
    assert_eq!(job.stop, ["END"]);
    let conversation = worker.last_conversation();
    assert_eq!(conversation.messages[2].reasoning.as_deref(), Some("so"));
    assert_eq!(conversation.messages[2].tool_calls[0].arguments["at"], 2);
    assert_eq!(conversation.thinking, Some(true));
    request["stream"] = false.into();
    let whole = serving.post("/api/chat", &request).json();
    let message = &whole["message"];
    assert_eq!((&message["content"], &message["thinking"]), (&json!("It is fine."), &json!("Hm.")));
    let function = json!({ "name": "look", "arguments": { "at": 1 } });
    assert_eq!(message["tool_calls"][0]["function"], function);
    assert_eq!(whole["created_at"], "2027-01-15T08:00:00Z");
    let one = json!({ "model": "any", "prompt": "Look.", "system": "Be short.", "stream": false });
    assert_eq!(serving.post("/api/generate", &one).json()["response"], "It is fine.");
    assert_eq!(worker.last_conversation().messages.len(), 2);
    assert_eq!(serving.get("/api/tags").json()["models"][0]["name"], "scripted");
    assert_eq!(serving.get("/api/ps").json()["models"][0]["context_length"], 1000);
    assert_eq!(serving.post("/api/show", &json!({ "model": "x" })).status, 200);
    for path in ["pull", "push", "create", "copy", "me"] {
        let refused = serving.post(&format!("/api/{path}"), &json!({ "model": "x" }));
        assert_eq!(refused.status, 501, "{path}");
    }
}
