//! Goal: what clients of other servers send is served under their names, refused where the answer would be another
//! one, or named in `x-warning`; nothing that constrains an answer is passed over in silence. Method: requests to
//! every endpoint against a scripted worker, and the log's lines about them.

use crate::engine_support::served::Served;
use crate::support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::work::{Constraint, FinishReason};
use server::{Level, Line, Log, ServeOptions};
use support::sse::merged;
use support::{Reply, Response, Scripted, Serving, finish, say, text};
use text::sampling::{DryOptions, XtcOptions};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COMPLETIONS: &str = "/v1/completions";
const COMPLETION: &str = "/completion";
const OLLAMA: &str = "/api/chat";
const ALL: [&str; 6] = [CHAT, RESPONSES, MESSAGES, COMPLETIONS, COMPLETION, OLLAMA];

fn hello() -> Reply {
    Reply::Play(say([text("Hello."), finish(FinishReason::Stop)]))
}

/// The plainest request of an endpoint with further fields, which ollama has among its options.
fn body(path: &str, extra: &Value) -> Value {
    let message = json!([{ "role": "user", "content": "Go on." }]);
    let plain = match path {
        RESPONSES => json!({ "input": "Go on." }),
        MESSAGES => json!({ "max_tokens": 100, "messages": message }),
        COMPLETIONS | COMPLETION => json!({ "prompt": "Go on." }),
        OLLAMA => return json!({ "messages": message, "stream": false, "options": extra }),
        _ => json!({ "messages": message }),
    };
    merged(plain, extra.as_object().unwrap())
}

fn error(response: &Response) -> String {
    let error = &response.json()["error"];
    error.as_str().or_else(|| error["message"].as_str()).unwrap().to_owned()
}

#[test]
fn constraints_have_the_names_of_other_servers_everywhere() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let schema = json!({ "type": "object" });
    let (grammar, regex) = ("root ::= \"yes\"", "[a-z]+");
    let as_schema = Constraint::JsonSchema(schema.clone());
    let as_grammar = Constraint::Grammar(grammar.to_owned());
    let as_regex = Constraint::Regex(regex.to_owned());
    let as_one_of = Constraint::OneOf(vec!["a".to_owned(), "b".to_owned()]);
    let cases = [
        (json!({ "grammar": grammar }), &as_grammar),
        (json!({ "guided_grammar": grammar }), &as_grammar),
        (json!({ "ebnf": grammar }), &as_grammar),
        (json!({ "json_schema": schema }), &as_schema),
        (json!({ "json_schema": schema.to_string() }), &as_schema),
        (json!({ "guided_json": schema }), &as_schema),
        (json!({ "guided_regex": regex }), &as_regex),
        (json!({ "regex": regex }), &as_regex),
        (json!({ "guided_choice": ["a", "b"] }), &as_one_of),
        (json!({ "guided_json_object": true }), &Constraint::JsonObject),
        (json!({ "structured_outputs": { "json": schema } }), &as_schema),
        (json!({ "structured_outputs": { "choice": ["a", "b"] } }), &as_one_of),
        (json!({ "structured_outputs": { "grammar": grammar } }), &as_grammar),
    ];
    for path in ALL {
        for (extra, wanted) in &cases {
            let response = serving.post(path, &body(path, extra));
            assert_eq!(response.status, 200, "{path} {extra}: {}", response.body);
            assert_eq!(response.header("x-warning"), None, "{path} {extra}");
            assert_eq!(worker.last_job().constraint.as_ref(), Some(*wanted), "{path} {extra}");
        }
        for (extra, words) in [
            (json!({ "grammar": grammar, "guided_json": schema }), "exclude each other"),
            (json!({ "guided_json": "{" }), "guided_json: is no JSON"),
            (json!({ "grammar": 7 }), "grammar: must be a string"),
            (json!({ "structured_outputs": { "structural_tag": {} } }), "structural_tag"),
        ] {
            let response = serving.post(path, &body(path, &extra));
            assert_eq!(response.status, 400, "{path} {extra}");
            assert!(error(&response).contains(words), "{path}: {}", error(&response));
        }
    }
    // With the protocol's own format as well.
    let both = json!({ "grammar": grammar, "response_format": { "type": "json_object" } });
    assert_eq!(serving.post(CHAT, &body(CHAT, &both)).status, 400);
    // The format of chat completions in text completions, and llama.cpp's way of writing a schema.
    let format = json!({ "response_format": { "type": "json_object", "schema": schema } });
    for path in [CHAT, COMPLETIONS] {
        assert_eq!(serving.post(path, &body(path, &format)).status, 200, "{path}");
        assert_eq!(worker.last_job().constraint, Some(as_schema.clone()), "{path}");
    }
    for path in [RESPONSES, MESSAGES] {
        let response = serving.post(path, &body(path, &format));
        assert_eq!(response.status, 400, "{path}");
        assert!(error(&response).contains("response_format"), "{}", error(&response));
    }
}

#[test]
fn limits_have_the_names_of_other_servers_everywhere() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    for path in ALL {
        let own = path == MESSAGES;
        let ask = |extra: Value| {
            let mut request = body(path, &extra);
            if own {
                request.as_object_mut().unwrap().remove("max_tokens");
            }
            let response = serving.post(path, &request);
            assert_eq!(response.status, 200, "{path} {extra}: {}", response.body);
            assert_eq!(response.header("x-warning"), None, "{path} {extra}");
            worker.last_job()
        };
        assert_eq!(ask(json!({ "n_predict": 3 })).max_tokens, Some(3), "{path}");
        assert_eq!(ask(json!({ "max_new_tokens": 4 })).max_tokens, Some(4), "{path}");
        assert_eq!(ask(json!({ "n_predict": -1 })).max_tokens, None, "{path}");
        assert_eq!(ask(json!({ "n_predict": 0 })).max_tokens, Some(0), "{path}");
        assert_eq!(ask(json!({ "min_tokens": 5 })).min_tokens, 5, "{path}");
        assert_eq!(ask(json!({ "ignore_eos": true })).min_tokens, usize::MAX, "{path}");
        assert_eq!(ask(json!({ "ignore_eos": false })).min_tokens, 0, "{path}");
        assert_eq!(ask(json!({ "stop_token_ids": [7, 9] })).stop_tokens, [7, 9], "{path}");
        let window = |extra| ask(extra).sampling.penalty_window;
        assert_eq!(window(json!({ "repeat_last_n": 64 })), Some(64), "{path}");
        assert_eq!(window(json!({ "penalty_last_n": -1 })), None, "{path}");
        let dry = json!({ "dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 4,
            "dry_penalty_last_n": 100, "dry_sequence_breakers": ["\n", "END"] });
        let dry = ask(dry).sampling.dry;
        assert_eq!((dry.multiplier, dry.base, dry.allowed_length), (0.8, 2.0, 4), "{path}");
        assert_eq!((dry.window, dry.breakers), (Some(100), vec!["\n".into(), "END".into()]));
        assert_eq!(ask(json!({ "dry_penalty_last_n": -1 })).sampling.dry, DryOptions::default());
        let xtc = ask(json!({ "xtc_probability": 0.5, "xtc_threshold": 0.2 })).sampling.xtc;
        assert_eq!(xtc, XtcOptions { probability: 0.5, threshold: 0.2 }, "{path}");
        let biased = ask(json!({ "logit_bias": [[5, -1.5], [6, false]] }));
        assert_eq!(biased.sampling.logit_bias, [(5, -1.5), (6, f32::NEG_INFINITY)], "{path}");
        for wrong in [
            json!({ "min_tokens": -1 }),
            json!({ "stop_token_ids": [1_000_000] }),
            json!({ "logit_bias": [["text", 1]] }),
            json!({ "logit_bias": [5] }),
            json!({ "dry_multiplier": -1 }),
            json!({ "dry_base": 0.5, "dry_multiplier": 1 }),
            json!({ "dry_allowed_length": -1 }),
            json!({ "dry_allowed_length": 2000, "dry_multiplier": 1 }),
            json!({ "dry_penalty_last_n": -2 }),
            json!({ "dry_sequence_breakers": "\n" }),
            json!({ "dry_sequence_breakers": [1] }),
            json!({ "dry_sequence_breakers": [""], "dry_multiplier": 1 }),
            json!({ "xtc_probability": 2 }),
            json!({ "xtc_threshold": 0, "xtc_probability": 1 }),
        ] {
            let response = serving.post(path, &body(path, &wrong));
            assert_eq!(response.status, 400, "{path} {wrong}");
            let name = wrong.as_object().unwrap().keys().next().unwrap().clone();
            assert!(error(&response).contains(&name), "{path}: {}", error(&response));
        }
    }
    // What an endpoint says itself counts before what others call it.
    let both = json!({ "max_tokens": 9, "n_predict": 3 });
    let response = serving.post(CHAT, &body(CHAT, &both));
    assert_eq!(worker.last_job().max_tokens, Some(9));
    assert_eq!(
        response.header("x-warning"),
        Some("n_predict was ignored: max_tokens limits the answer")
    );
    let same = json!({ "max_completion_tokens": 9, "max_tokens": 9, "n_predict": 9 });
    assert_eq!(serving.post(CHAT, &body(CHAT, &same)).header("x-warning"), None);
    for path in ALL {
        let several = json!({ "max_new_tokens": 3, "n_predict": 5 });
        let response = serving.post(path, &body(path, &several));
        let warning = response.header("x-warning").unwrap_or_default();
        assert!(warning.contains("max_new_tokens was ignored"), "{path}: {warning}");
    }
    // Text completions end after 16 tokens by themselves, llama.cpp's own endpoint does not.
    serving.post(COMPLETIONS, &body(COMPLETIONS, &json!({})));
    assert_eq!(worker.last_job().max_tokens, Some(16));
    serving.post(COMPLETION, &body(COMPLETION, &json!({})));
    assert_eq!(worker.last_job().max_tokens, None);
}

#[test]
fn what_would_make_another_answer_is_refused_and_the_rest_is_mentioned() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker);
    for path in ALL {
        for (extra, name) in [
            (json!({ "mirostat": 2 }), "mirostat"),
            (json!({ "best_of": 2 }), "best_of"),
            (json!({ "n": 3 }), "n: "),
            (json!({ "lora": [{ "id": 0, "scale": 1 }] }), "lora"),
            (json!({ "use_beam_search": true }), "use_beam_search"),
            (json!({ "typical_p": 0.5 }), "typical_p"),
            (json!({ "truncate_prompt_tokens": 10 }), "truncate_prompt_tokens"),
        ] {
            let response = serving.post(path, &body(path, &extra));
            assert_eq!(response.status, 400, "{path} {extra}: {}", response.body);
            assert!(error(&response).contains(name), "{path}: {}", error(&response));
        }
        let off = json!({ "mirostat": 0, "mirostat_tau": 5.0, "best_of": 1, "n": 1, "lora": [],
            "use_beam_search": false, "typical_p": 1.0, "top_n_sigma": -1.0, "xtc_threshold": 0, "xtc_probability": 0,
            "dry_multiplier": 0, "dry_allowed_length": 0 });
        let response = serving.post(path, &body(path, &off));
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        assert_eq!(response.header("x-warning"), None, "{path}");
        let ignored = json!({ "n_cache_reuse": 3, "num_gpu": 99 });
        let response = serving.post(path, &body(path, &ignored));
        let warning = response.header("x-warning").unwrap().to_owned();
        assert!(
            warning.contains("n_cache_reuse was ignored: ") && warning.contains("num_gpu"),
            "{warning}"
        );
    }
    // What one endpoint reads is not passed over by another.
    let warning = |path: &str, extra: Value| {
        let response = serving.post(path, &body(path, &extra));
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        response.header("x-warning").unwrap_or_default().to_owned()
    };
    assert!(warning(CHAT, json!({ "system": "Be brief." })).contains("system was ignored"));
    assert!(warning(RESPONSES, json!({ "max_tokens": 3 })).contains("max_tokens was ignored"));
    assert!(warning(MESSAGES, json!({ "stop": "x" })).contains("stop was ignored"));
    assert!(warning(CHAT, json!({ "model": "gpt-4" })).contains("the model is scripted"));
    for name in ["scripted", "scripted:side", "scripted:latest", ""] {
        assert_eq!(warning(CHAT, json!({ "model": name })), "", "{name}");
    }
}

#[test]
fn the_budget_of_thinking_has_many_names() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    for (extra, budget, thinks) in [
        (json!({ "thinking_budget": 100 }), Some(100), None),
        (json!({ "reasoning_budget_tokens": 100 }), Some(100), None),
        (json!({ "thinking_budget_tokens": 100 }), Some(100), None),
        (json!({ "reasoning_budget": -1 }), None, None),
        (json!({ "reasoning_budget": 0 }), None, Some(false)),
        (json!({ "enable_thinking": false }), None, Some(false)),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 50 } }), Some(50), Some(true)),
        (json!({ "reasoning": { "effort": "high", "max_tokens": 70 } }), Some(70), Some(true)),
        (json!({ "reasoning": { "enabled": false } }), None, Some(false)),
    ] {
        let response = serving.post(CHAT, &body(CHAT, &extra));
        assert_eq!(response.status, 200, "{extra}: {}", response.body);
        assert_eq!(response.header("x-warning"), None, "{extra}");
        assert_eq!(worker.last_job().thinking_budget, budget, "{extra}");
        assert_eq!(worker.last_conversation().thinking, thinks, "{extra}");
    }
}

#[test]
fn ollama_s_clients_load_and_unload_and_hear_what_is_not_so() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let cases = [
        ("/api/generate", json!({ "model": "scripted" }), "load", "response"),
        ("/api/generate", json!({ "prompt": "", "keep_alive": "5m" }), "load", "response"),
        ("/api/generate", json!({ "keep_alive": 0 }), "unload", "response"),
        ("/api/chat", json!({ "messages": [] }), "load", "message"),
        ("/api/chat", json!({ "messages": [], "keep_alive": "0s" }), "unload", "message"),
        ("/api/chat", json!({ "stream": true }), "load", "message"),
    ];
    for (path, request, reason, part) in cases {
        let response = serving.post(path, &request);
        assert_eq!(response.status, 200, "{path} {request}: {}", response.body);
        let object = response.json();
        assert_eq!((&object["done"], &object["done_reason"]), (&true.into(), &reason.into()));
        assert!(object.get(part).is_some() && object["created_at"].is_string(), "{object}");
        let stays = response.header("x-warning").is_some_and(|it| it.contains("keep_alive"));
        assert_eq!(stays, reason == "unload", "{path} {request}");
    }
    assert!(worker.jobs.lock().unwrap().is_empty(), "nothing was computed");
    let ask = |options: Value| serving.post("/api/chat", &body(OLLAMA, &options));
    assert_eq!(ask(json!({ "num_ctx": 512 })).header("x-warning"), None);
    let larger = ask(json!({ "num_ctx": 32_768 }));
    assert!(larger.header("x-warning").unwrap().contains("--context 32768"));
    let wrong = serving.post("/api/chat", &json!({ "keep_alive": [] }));
    assert_eq!(wrong.status, 400);
}

#[test]
fn llama_cpp_s_own_endpoints_answer() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let request = json!({ "prompt": "Once upon", "n_predict": 8, "n_probs": 2, "seed": 3 });
    let answer = serving.post("/completion", &request).json();
    assert_eq!((&answer["content"], &answer["stop"]), (&"Hello.".into(), &true.into()));
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&"eos".into(), &false.into()));
    assert_eq!((&answer["tokens_predicted"], &answer["tokens_evaluated"]), (&5.into(), &12.into()));
    assert!(answer["completion_probabilities"].is_array() && answer["timings"]["seed"] == 7);
    let job = worker.last_job();
    assert!(job.output.raw && job.top_logprobs == Some(2) && job.prompt.tokens.len() == 2);
    let streamed = serving.post("/completion", &json!({ "prompt": [1, 2, 3], "stream": true }));
    let pieces: Vec<Value> = streamed
        .body
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    assert_eq!(pieces.len(), 2, "{}", streamed.body);
    assert_eq!((&pieces[0]["content"], &pieces[0]["stop"]), (&"Hello.".into(), &false.into()));
    assert_eq!((&pieces[1]["content"], &pieces[1]["stop"]), (&"".into(), &true.into()));
    assert_eq!(serving.post("/completion", &json!({ "prompt": ["a", "b"] })).status, 400);

    let gap = json!({ "input_prefix": "def f(", "input_suffix": "return x", "prompt": "a b" });
    let answer = serving.post("/infill", &gap).json();
    assert_eq!(answer["content"], "Hello.");
    // The scripted worker writes a word between the two texts.
    assert_eq!(worker.last_job().prompt.tokens.len(), 5 + 2);

    let prompt = serving.post("/apply-template", &body(CHAT, &json!({}))).json();
    assert_eq!(prompt["prompt"], "w0 w1 w2 ");
    let props = serving.get("/props").json();
    for name in ["chat_template", "bos_token", "eos_token"] {
        assert!(props[name].is_string(), "{props}");
    }
    // vLLM's name for what an evaluation needs of a tokenizer.
    let tokenizer = serving.get("/tokenizer_info").json();
    for name in ["eos_token", "bos_token", "pad_token", "chat_template"] {
        assert!(tokenizer[name].is_string() || tokenizer[name].is_null(), "{tokenizer}");
        assert!(tokenizer.as_object().unwrap().contains_key(name), "{tokenizer}");
    }
    assert!(tokenizer["model_max_length"].as_u64().unwrap() > 0, "{tokenizer}");
    let slots = serving.get("/slots").json();
    assert_eq!(slots.as_array().unwrap().len(), 2, "idle ones are listed: {slots}");
    assert_eq!((&slots[1]["id"], &slots[1]["is_processing"]), (&1.into(), &false.into()));
}

#[test]
fn lines_of_the_log_have_the_reason_and_one_id() {
    let lines: Arc<Mutex<Vec<Line>>> = Arc::default();
    let sink = Arc::clone(&lines);
    let log = Log::new(Level::Info, move |line| sink.lock().unwrap().push(line.clone()));
    let worker = Scripted::new(hello());
    let serving =
        Serving::start_with(worker.clone(), ServeOptions { log, ..ServeOptions::default() });
    let line = |response: &Response| {
        let id = response.header("request-id").unwrap().to_owned();
        let began = Instant::now();
        loop {
            let found = lines.lock().unwrap().iter().find(|line| line.text.contains(&id)).cloned();
            if let Some(line) = found {
                return line;
            }
            assert!(began.elapsed() < Duration::from_secs(5), "no line about {id}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let field = |line: &Line, name: &str| {
        line.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    };
    let refused = serving.post(CHAT, &json!({ "temperature": 9 }));
    let told = line(&refused);
    let reason = error(&refused);
    assert!(told.text.ends_with(&format!(" 400 0 ms: {reason}")) || told.text.ends_with(&reason));
    assert_eq!(field(&told, "reason"), Some(reason.into()));
    let missing = serving.get("/nothing");
    assert!(line(&missing).text.ends_with("there is nothing at this path"));
    let warned = serving.post(CHAT, &body(CHAT, &json!({ "temprature": 1 })));
    let told = line(&warned);
    assert!(told.text.contains("warning: unknown field temprature"), "{}", told.text);
    assert_eq!(field(&told, "warning"), warned.header("x-warning").map(Into::into));
    // The job has the request's id, and the answer's ends with the same digits.
    let id = warned.header("request-id").unwrap();
    assert_eq!(worker.last_job().id, id);
    let digits = id.strip_prefix("req_").unwrap();
    assert_eq!(warned.json()["id"], format!("chatcmpl-{digits}"));
}

#[test]
fn the_real_engine_keeps_to_what_was_asked() {
    let served = Served::start(ServeOptions::default());
    let ask = |extra: Value| {
        let plain = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 60,
            "temperature": 0, "enable_thinking": false });
        let response = served.post(CHAT, &merged(plain, extra.as_object().unwrap()));
        assert_eq!(response.status, 200, "{extra}: {}", response.body);
        let answer = response.json();
        let choice = &answer["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap().to_owned();
        let reason = choice["finish_reason"].as_str().unwrap().to_owned();
        (text, reason, answer["usage"]["completion_tokens"].as_u64().unwrap())
    };
    let (said, reason, tokens) = ask(json!({}));
    assert_eq!(reason, "stop", "{said}");
    let (_, reason, all) = ask(json!({ "ignore_eos": true }));
    assert_eq!((reason.as_str(), all), ("length", 60));
    assert!(ask(json!({ "min_tokens": tokens + 4 })).2 >= tokens + 4);
    assert_eq!(ask(json!({ "min_tokens": 2 })), (said.clone(), "stop".to_owned(), tokens));
    let ids = served.post("/tokenize", &json!({ "content": said })).json()["tokens"].clone();
    let (cut, reason, stopped) = ask(json!({ "stop_token_ids": [ids[2]] }));
    assert!(said.starts_with(&cut) && reason == "stop" && stopped <= 3, "{cut}");
    // A rule is kept, also where the answer is asked to go on: what is complete ends.
    for extra in [
        json!({ "grammar": "root ::= \"yes\" | \"no\"" }),
        json!({ "guided_choice": ["yes", "no"], "min_tokens": 20 }),
        json!({ "regex": "yes|no", "ignore_eos": true }),
    ] {
        let (text, reason, _) = ask(extra.clone());
        assert!(["yes", "no"].contains(&text.as_str()) && reason == "stop", "{extra}: {text}");
    }
    let nested = "root ::= \"(\" root \")\" | [0-9]";
    let (text, _, _) = ask(json!({ "grammar": nested, "temperature": 1, "seed": 5 }));
    let depth = text.matches('(').count();
    assert!(text.matches(')').count() <= depth && text.len() <= 2 * depth + 1, "{text}");
    // The same without a template, and mistakes by the field's own name.
    let raw = json!({ "prompt": "Say", "grammar": "root ::= \" yes\" | \" no\"" });
    let answer = served.post("/completion", &raw).json();
    assert!([" yes", " no"].contains(&answer["content"].as_str().unwrap()), "{answer}");
    let message = json!([{ "role": "user", "content": "Hello" }]);
    for (extra, field) in [
        (json!({ "grammar": "root ::= a" }), "grammar"),
        (json!({ "structured_outputs": { "regex": "(" } }), "structured_outputs.regex"),
        (json!({ "guided_json": { "$ref": "#" } }), "guided_json"),
    ] {
        let body = merged(json!({ "messages": message }), extra.as_object().unwrap());
        let response = served.post(CHAT, &body);
        assert_eq!(response.status, 400, "{extra}: {}", response.body);
        assert_eq!(response.json()["error"]["param"], field, "{}", response.body);
        assert!(error(&response).starts_with(field), "{}", error(&response));
    }
    // The demo has no tokens for gaps.
    assert_eq!(served.post("/infill", &json!({ "input_prefix": "a" })).status, 501);
}
