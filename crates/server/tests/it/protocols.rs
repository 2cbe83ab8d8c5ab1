//! Requests: what each field does to the job, and how what cannot be served is refused.

use crate::support;

use std::time::Duration;

use serde_json::{Value, json};
use server::work::{CallConstraint, Constraint, FinishReason, JobError, Priority, Refusal};
use support::sse::{merged, messages_whole};
use support::{Reply, Scripted, Serving, finish, say, text};
use text::{OnFull, Role};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn hello() -> Reply {
    Reply::Play(say([text("Hello."), finish(FinishReason::Stop)]))
}

fn user() -> Value {
    json!([{ "role": "user", "content": "Go on." }])
}

/// The plainest request of a protocol with further fields.
fn body(path: &str, extra: Value) -> Value {
    let plain = match path {
        RESPONSES => json!({ "model": "m", "input": "Go on." }),
        _ => json!({ "model": "m", "messages": user() }),
    };
    merged(plain, extra.as_object().unwrap())
}

fn tool(path: &str, name: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    match path {
        CHAT => json!({ "type": "function", "function": { "name": name, "parameters": schema } }),
        RESPONSES => json!({ "type": "function", "name": name, "parameters": schema }),
        _ => json!({ "name": name, "input_schema": schema }),
    }
}

#[test]
fn sampling_and_limits_reach_the_job() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let common = json!({ "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 11,
        "presence_penalty": 0.25, "frequency_penalty": -0.5, "repetition_penalty": 1.5,
        "prompt_cache_key": "session", "cache_prompt": false, "model": "m:side", "unknown": [1] });
    let own = [
        (CHAT, json!({ "max_completion_tokens": 30, "max_tokens": 3, "stop": "END" })),
        (RESPONSES, json!({ "max_output_tokens": 30 })),
        (MESSAGES, json!({ "max_tokens": 30, "stop_sequences": ["END"] })),
    ];
    for (path, extra) in own {
        let request = merged(body(path, common.clone()), extra.as_object().unwrap());
        let response = serving.post(path, &request);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        assert_eq!(response.json()["model"], "m:side");
        let job = worker.last_job();
        let sampling = &job.sampling;
        assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.9, 20));
        assert_eq!((sampling.min_p, sampling.presence_penalty), (0.1, 0.25));
        assert_eq!((sampling.frequency_penalty, sampling.repetition_penalty), (-0.5, 1.5));
        assert_eq!((sampling.seed, job.max_tokens), (11, Some(30)));
        assert_eq!(job.session.as_deref(), Some("session"));
        assert_eq!((job.priority, job.cache_prompt), (Priority::Side, false));
        let stop: &[&str] = if path == RESPONSES { &[] } else { &["END"] };
        assert_eq!(job.stop, stop);
    }
    let bias = json!({ "logit_bias": { "5": -100, "6": 2 }, "max_tokens": null, "seed": -1 });
    serving.post(CHAT, &body(CHAT, bias));
    let job = worker.last_job();
    assert_eq!(job.sampling.logit_bias, [(5, f32::NEG_INFINITY), (6, 2.0)]);
    assert_eq!((job.max_tokens, job.sampling.seed, job.priority), (None, 7, Priority::Normal));
    worker.assert_idle_within(Duration::from_secs(1));
}

#[test]
fn a_seed_that_was_printed_can_be_sent_back_to_every_protocol() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let ollama = |seed: &Value| json!({ "options": { "seed": seed }, "stream": false });
    for (sent, used) in [
        (json!(0), 0),
        (json!((1_u64 << 53) - 1), (1 << 53) - 1),
        (json!(11_157_719_627_784_747_226_u64), 11_157_719_627_784_747_226),
        (json!(u64::MAX), u64::MAX),
        (json!(-2), u64::MAX - 1),
        (json!(-1), 7),
        (json!(null), 7),
    ] {
        let plain = json!({ "seed": sent });
        let chat = json!({ "messages": [{ "role": "user", "content": "Go on." }] });
        let ours = ollama(&sent);
        let requests = [
            (CHAT, body(CHAT, plain.clone())),
            (RESPONSES, body(RESPONSES, plain.clone())),
            (MESSAGES, body(MESSAGES, plain.clone())),
            ("/v1/completions", merged(plain, json!({ "prompt": "a" }).as_object().unwrap())),
            ("/api/chat", merged(chat, ours.as_object().unwrap())),
            ("/api/generate", merged(json!({ "prompt": "a" }), ours.as_object().unwrap())),
        ];
        for (path, request) in requests {
            let response = serving.post(path, &request);
            assert_eq!(response.status, 200, "{path} {sent}: {}", response.body);
            assert_eq!(worker.last_job().sampling.seed, used, "{path} {sent}");
        }
    }
    let response = serving.post(CHAT, &body(CHAT, json!({ "seed": 1e30 })));
    assert_eq!(response.status, 400);
    assert_eq!(response.json()["error"]["param"], "seed");
}

#[test]
fn tools_and_choices_mean_the_same_in_every_protocol() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let any = Some(Constraint::Tool(CallConstraint::Any));
    let named = Some(Constraint::Tool(CallConstraint::Named("b".to_owned())));
    for path in [CHAT, RESPONSES, MESSAGES] {
        let choices = match path {
            MESSAGES => [
                json!({ "type": "auto", "disable_parallel_tool_use": true }),
                json!({ "type": "any" }),
                json!({ "type": "tool", "name": "b" }),
                json!({ "type": "none" }),
            ],
            CHAT => [
                json!("auto"),
                json!("required"),
                json!({ "type": "function", "function": { "name": "b" } }),
                json!("none"),
            ],
            _ => [
                json!("auto"),
                json!("required"),
                json!({ "type": "function", "name": "b" }),
                json!("none"),
            ],
        };
        let expected = [(None, 2), (any.clone(), 2), (named.clone(), 2), (None, 0)];
        for (index, (choice, (constraint, offered))) in
            choices.into_iter().zip(expected).enumerate()
        {
            let mut extra =
                json!({ "tools": [tool(path, "a"), tool(path, "b")], "tool_choice": choice });
            if path != MESSAGES {
                extra["parallel_tool_calls"] = (index != 0).into();
            }
            let response = serving.post(path, &body(path, extra));
            assert_eq!(response.status, 200, "{path}: {}", response.body);
            let job = worker.last_job();
            assert_eq!(job.constraint, constraint, "{path} {index}");
            assert_eq!(job.output.parallel_tool_calls, index != 0, "{path} {index}");
            let conversation = worker.last_conversation();
            assert_eq!((job.output.tools.len(), conversation.tools.len()), (offered, offered));
            if offered > 0 {
                assert_eq!(conversation.tools[1], tool(CHAT, "b"), "{path}: one form for all");
            }
        }
        let wrong = match path {
            MESSAGES => json!({ "type": "tool", "name": "c" }),
            CHAT => json!({ "type": "function", "function": { "name": "c" } }),
            _ => json!({ "type": "function", "name": "c" }),
        };
        let extra = json!({ "tools": [tool(path, "a")], "tool_choice": wrong });
        assert_eq!(serving.post(path, &body(path, extra)).status, 400, "{path}");
    }
}

#[test]
fn formats_become_constraints() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let wanted = Some(Constraint::JsonSchema(schema.clone()));
    let format = json!({ "type": "json_schema", "name": "n", "schema": schema });
    let nested = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let cases = [
        (CHAT, json!({ "response_format": { "type": "text" } }), None),
        (
            CHAT,
            json!({ "response_format": { "type": "json_object" } }),
            Some(Constraint::JsonObject),
        ),
        (CHAT, json!({ "response_format": nested }), wanted.clone()),
        (
            RESPONSES,
            json!({ "text": { "format": { "type": "json_object" } } }),
            Some(Constraint::JsonObject),
        ),
        (RESPONSES, json!({ "text": { "format": format, "verbosity": "low" } }), wanted.clone()),
        (MESSAGES, json!({ "output_config": { "format": format } }), wanted.clone()),
        (MESSAGES, json!({ "output_format": format }), wanted),
    ];
    for (path, extra, constraint) in cases {
        let response = serving.post(path, &body(path, extra.clone()));
        assert_eq!(response.status, 200, "{path} {extra}: {}", response.body);
        assert_eq!(worker.last_job().constraint, constraint, "{path} {extra}");
    }
}

#[test]
fn thinking_is_asked_for_in_each_protocols_words() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let cases = [
        (CHAT, json!({}), None),
        (CHAT, json!({ "reasoning_effort": "none" }), Some(false)),
        (CHAT, json!({ "reasoning_effort": "high" }), Some(true)),
        (CHAT, json!({ "chat_template_kwargs": { "enable_thinking": false } }), Some(false)),
        (RESPONSES, json!({}), None),
        (RESPONSES, json!({ "reasoning": { "effort": "none" } }), Some(false)),
        (RESPONSES, json!({ "reasoning": { "effort": "low" } }), Some(true)),
        (MESSAGES, json!({}), Some(false)),
        (MESSAGES, json!({ "thinking": { "type": "disabled" } }), Some(false)),
        (MESSAGES, json!({ "thinking": { "type": "adaptive" } }), Some(true)),
        (MESSAGES, json!({ "thinking": { "type": "enabled", "budget_tokens": 99 } }), Some(true)),
    ];
    for (path, extra, thinking) in cases {
        assert_eq!(serving.post(path, &body(path, extra.clone())).status, 200, "{path} {extra}");
        assert_eq!(worker.last_conversation().thinking, thinking, "{path} {extra}");
    }
    let budgets = [
        (CHAT, json!({ "thinking_budget": 300 }), Some(300)),
        (CHAT, json!({ "thinking_budget": -1 }), None),
        (MESSAGES, json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } }), Some(1024)),
        (MESSAGES, json!({ "thinking": { "type": "adaptive" } }), None),
    ];
    for (path, extra, budget) in budgets {
        serving.post(path, &body(path, extra.clone()));
        assert_eq!(worker.last_job().thinking_budget, budget, "{path} {extra}");
    }
    for wrong in [json!(0), json!(-5), json!("x"), json!(1.5)] {
        let thinking = json!({ "thinking": { "type": "enabled", "budget_tokens": wrong } });
        let refused = serving.post(MESSAGES, &body(MESSAGES, thinking));
        assert_eq!(refused.status, 400);
        assert!(refused.body.contains("thinking.budget_tokens"), "{}", refused.body);
    }
    let kwargs = json!({ "chat_template_kwargs": { "preserve_thinking": true } });
    serving.post(CHAT, &body(CHAT, kwargs));
    assert_eq!(worker.last_conversation().template_variables["preserve_thinking"], true);
}

#[test]
fn mistakes_are_refused_by_name() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let chat = [
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "wizard", "content": "x" }] }), "messages[0].role"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0]",
        ),
        (
            json!({ "messages": [{ "role": "assistant",
                "tool_calls": [{ "function": { "name": "f", "arguments": "[" } }] }] }),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!({ "n": 2 }), "n"),
        (json!({ "audio": {} }), "audio"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "functions": [{}] }), "functions"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "top_p": 0 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "min_p": 2 }), "min_p"),
        (json!({ "presence_penalty": 1e300 }), "presence_penalty"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": -5 }), "max_tokens"),
        (json!({ "max_tokens": 9_223_372_036_854_775_808_u64 }), "max_tokens"),
        (json!({ "max_tokens": 1.5 }), "max_tokens"),
        (json!({ "stop": "" }), "stop"),
        (json!({ "stop": vec!["x"; 17] }), "stop"),
        (json!({ "stop": [1] }), "stop"),
        (json!({ "logit_bias": { "100": 1 } }), "logit_bias.100"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias.x"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias.1"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "tools": {} }), "tools"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tools": [{ "type": "function", "function": {} }] }), "tools[0].function.name"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [tool(CHAT, "a><tool_call>")] }), "tools[0].function.name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": "sometimes" }), "tool_choice"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "reasoning_format": "none" }), "reasoning_format"),
        (json!({ "stream": 1 }), "stream"),
        (
            json!({ "tools": [tool(CHAT, "a")], "tool_choice": "required",
                "response_format": { "type": "json_object" } }),
            "tool_choice",
        ),
        (json!({ "messages": [{ "role": "user", "content": "TEMPLATE-REFUSES" }] }), "messages"),
    ];
    for (extra, param) in chat {
        let response = serving.post(CHAT, &body(CHAT, extra.clone()));
        assert_eq!(response.status, 400, "{extra}");
        let error = &response.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["param"], param, "{extra}: {error}");
        assert_eq!(response.header("x-should-retry"), Some("false"));
    }
    for (extra, param) in [
        (json!({ "input": null }), "input"),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "background": true }), "background"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (json!({ "reasoning": { "effort": 3 } }), "reasoning.effort"),
    ] {
        let response = serving.post(RESPONSES, &body(RESPONSES, extra.clone()));
        assert_eq!(
            (response.status, &response.json()["error"]["param"]),
            (400, &json!(param)),
            "{extra}"
        );
    }
    for extra in [
        json!({ "messages": [] }),
        json!({ "thinking": { "type": "deep" } }),
        json!({ "stop_sequences": [""] }),
        json!({ "tool_choice": { "type": "any" } }),
    ] {
        let response = serving.post(MESSAGES, &body(MESSAGES, extra.clone()));
        let error = response.json();
        assert_eq!(
            (response.status, &error["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{extra}"
        );
        assert_eq!(error["request_id"], response.header("request-id").unwrap());
    }
    assert!(worker.jobs.lock().unwrap().is_empty(), "nothing refused was submitted");
}

#[test]
fn an_overflow_has_the_words_that_clients_wait_for() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let long = "word ".repeat(2000);
    let prompt = json!([{ "role": "user", "content": long }]);
    let chat = serving.post(CHAT, &body(CHAT, json!({ "messages": prompt, "stream": true })));
    let error = &chat.json()["error"];
    assert_eq!((chat.status, &error["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(2001), &json!(1000)));
    let messages = serving.post(MESSAGES, &body(MESSAGES, json!({ "messages": prompt })));
    assert_eq!(messages.status, 400);
    let words = "prompt is too long: 2001 tokens > 1000 maximum";
    assert_eq!(messages.json()["error"]["message"], words);
    let counted =
        serving.post("/v1/messages/count_tokens", &body(MESSAGES, json!({ "messages": prompt })));
    assert_eq!(counted.json(), json!({ "input_tokens": 2001 }));
    worker.set(Reply::Refuse(Refusal::TooLong { prompt: 999, context: 1000 }));
    let late = serving.post(MESSAGES, &body(MESSAGES, json!({})));
    assert_eq!(late.json()["error"]["message"], "prompt is too long: 999 tokens > 1000 maximum");
}

#[test]
fn refusals_have_their_statuses() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let full = Refusal::QueueFull { waiting: 8, retry_after: Duration::from_secs(30) };
    worker.set(Reply::Refuse(full));
    let chat = serving.post(CHAT, &body(CHAT, json!({})));
    assert_eq!((chat.status, chat.header("retry-after")), (429, Some("30")));
    assert_eq!(chat.header("x-should-retry"), None);
    let messages = serving.post(MESSAGES, &body(MESSAGES, json!({})));
    assert_eq!((messages.status, messages.header("retry-after")), (529, Some("30")));
    assert_eq!(messages.json()["error"]["type"], "overloaded_error");
    worker.set(Reply::Refuse(Refusal::BadConstraint {
        field: "pattern".to_owned(),
        problem: "pattern: not supported".to_owned(),
    }));
    assert_eq!(serving.post(CHAT, &body(CHAT, json!({}))).status, 400);
    worker.set(Reply::Refuse(Refusal::ShuttingDown));
    assert_eq!(serving.post(RESPONSES, &body(RESPONSES, json!({}))).status, 503);
    worker.set(Reply::Play(say([
        support::text("a"),
        server::work::Event::Failed(JobError::Engine("x".into())),
    ])));
    assert_eq!(serving.post(RESPONSES, &body(RESPONSES, json!({}))).status, 500);
    // Before the answer has begun: the next read may do better.
    let unread = server::work::Event::Failed(JobError::Unread("x".into()));
    worker.set(Reply::Play(say([unread])));
    for path in [CHAT, MESSAGES, RESPONSES] {
        let answer = serving.post(path, &body(path, json!({})));
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")), "{path}");
        assert_eq!(answer.header("x-should-retry"), None, "{path}");
        let error = &answer.json()["error"];
        let code = if path == MESSAGES { &error["type"] } else { &error["code"] };
        let wanted = if path == MESSAGES { "api_error" } else { "weights_unread" };
        assert_eq!(code, wanted, "{path}: {error}");
    }
}

#[test]
fn other_endpoints_answer() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let models = serving.get("/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["context_length"]),
        (&json!("scripted"), &json!(1000))
    );
    assert_eq!(serving.get("/v1/models/scripted").json()["meta"]["n_ctx"], 1000);
    assert_eq!(serving.get("/v1/models/other").status, 404);
    assert_eq!(serving.get("/health").json()["status"], "ok");
    assert_eq!(serving.get("/props").json()["default_generation_settings"]["n_ctx"], 1000);
    assert_eq!(serving.get("/slots").json()[1]["is_processing"], false);
    assert_eq!(serving.get("/status").json()["expert_heat"][1], json!([1, 2, 3, 4]));
    assert_eq!(
        serving.post("/tokenize", &json!({ "content": "a b c" })).json()["tokens"],
        json!([0, 1, 2])
    );
    let page = serving.get("/");
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert_eq!(serving.send("HEAD", "/", &[], "").status, 200);
    for path in
        ["/v1/embeddings", "/embedding", "/embeddings", "/api/embed", "/reranking", "/v1/rerank"]
    {
        assert_eq!(serving.post(path, &json!({})).status, 501, "{path}");
    }
    let wrong = serving.get(CHAT);
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    let count = serving.post("/v1/messages/count_tokens?beta=true", &body(MESSAGES, json!({})));
    assert_eq!(count.json(), json!({ "input_tokens": 3 }));
    assert!(worker.jobs.lock().unwrap().is_empty(), "counting submits nothing");
}

#[test]
fn metrics_are_prometheus_text() {
    let serving = Serving::start(Scripted::new(hello()));
    let response = serving.get("/metrics");
    assert_eq!(response.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut families = std::collections::HashSet::new();
    for line in response.body.lines() {
        if let Some(help) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(help.split(' ').next().unwrap()), "{line} is declared twice");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let name = name.split('{').next().unwrap();
        let bare = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let declared = families.contains(name) || bare.is_some_and(|name| families.contains(name));
        let own = name.starts_with("flashmoe_") || name.starts_with("vllm:");
        assert!(own && declared, "{line}");
    }
    assert!(families.len() > 40, "{} families", families.len());
}

#[test]
fn a_session_is_known_by_header_field_or_user() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let json_type = "Content-Type: application/json";
    let plain = body(CHAT, json!({})).to_string();
    serving.send("POST", CHAT, &[json_type, "X-Session-Id: from-header"], &plain);
    assert_eq!(worker.last_job().session.as_deref(), Some("from-header"));
    let claude = body(MESSAGES, json!({ "metadata": { "user_id": "user_1_session_2" } }));
    serving.post(MESSAGES, &claude);
    assert_eq!(worker.last_job().session.as_deref(), Some("user_1_session_2"));
    serving.send("POST", CHAT, &[json_type, "User-Agent: agent/1"], &plain);
    assert_eq!(worker.last_job().client, "127.0.0.1 agent/1");
}

#[test]
fn the_billing_header_is_not_part_of_the_prompt() {
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let mut seen = Vec::new();
    for nonce in ["1f", "2e"] {
        let header = format!("x-anthropic-billing-header: cc_version=2.1; cch={nonce};");
        let system =
            json!([{ "type": "text", "text": header }, { "type": "text", "text": "Be brief." }]);
        let response = serving.post(MESSAGES, &body(MESSAGES, json!({ "system": system })));
        assert_eq!(messages_whole(&response.json())[1], "end_turn");
        seen.push(worker.last_conversation().messages);
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!((seen[0][0].role, seen[0][0].content.as_str()), (Role::System, "Be brief."));
}

#[test]
fn a_request_says_what_happens_at_a_full_context() {
    use OnFull::{DropOldest, Stop};
    let worker = Scripted::new(hello());
    let serving = Serving::start(worker.clone());
    let own = |field: &str, value: Value| json!({ field: value });
    for (path, extra, expected) in [
        (CHAT, json!({}), None),
        (CHAT, own("on_full", json!("stop")), Some(Stop)),
        (CHAT, own("on_full", json!("drop-oldest")), Some(DropOldest)),
        (MESSAGES, own("on_full", json!("drop-oldest")), Some(DropOldest)),
        (RESPONSES, own("on_full", json!("drop-oldest")), Some(DropOldest)),
        (RESPONSES, own("truncation", json!("auto")), Some(DropOldest)),
        (RESPONSES, own("truncation", json!("disabled")), Some(Stop)),
        (RESPONSES, json!({ "truncation": "auto", "on_full": "stop" }), Some(Stop)),
        ("/api/chat", own("truncate", json!(true)), Some(DropOldest)),
        ("/api/chat", own("truncate", json!(false)), Some(Stop)),
        ("/api/chat", json!({ "truncate": false, "on_full": "drop-oldest" }), Some(DropOldest)),
    ] {
        let mut more = json!({ "model": "scripted" });
        match path {
            RESPONSES => more["max_output_tokens"] = json!(30),
            "/api/chat" => {}
            _ => more["max_tokens"] = json!(30),
        }
        let extra = merged(extra, more.as_object().unwrap());
        let response = serving.post(path, &body(path, extra.clone()));
        assert_eq!(response.status, 200, "{path} {extra}: {}", response.body);
        let conversation = worker.last_conversation();
        assert_eq!(conversation.on_full, expected, "{path} {extra}");
        if path != "/api/chat" {
            assert_eq!(conversation.answer_tokens, Some(30), "{path}");
        }
        let told = response.header("x-warning");
        let dropped = "the context is full: 3 oldest turns were left out";
        assert_eq!(told, (expected == Some(DropOldest)).then_some(dropped), "{path} {extra}");
        assert_eq!(worker.last_job().prompt.dropped_turns, 3 * usize::from(told.is_some()));
    }
    // Both things are said in one header.
    let both = json!({ "model": "scripted", "on_full": "drop-oldest", "temprature": 1 });
    let response = serving.post(CHAT, &body(CHAT, both));
    let told = response.header("x-warning").unwrap();
    assert!(told.contains("temperature?; the context is full"), "{told}");
    for (path, extra, words) in [
        (
            CHAT,
            own("on_full", json!("shift")),
            "on_full: \"shift\" is not one of stop, drop-oldest",
        ),
        (CHAT, own("on_full", json!(true)), "on_full: must be a string"),
        (RESPONSES, own("truncation", json!("first")), "truncation: \"first\" is not one of"),
        ("/api/chat", own("truncate", json!("yes")), "truncate: must be true or false"),
        (
            "/v1/completions",
            json!({ "prompt": "a", "messages": null, "on_full": "drop-oldest" }),
            "no turns",
        ),
    ] {
        let response = serving.post(path, &body(path, extra.clone()));
        assert_eq!(response.status, 400, "{path} {extra}");
        assert!(response.body.replace("\\\"", "\"").contains(words), "{}", response.body);
    }
}
