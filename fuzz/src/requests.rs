//! Bodies of requests, through all protocols: understood or refused as the client's mistake, never a panic, and
//! whatever the request says, the answer's frames are JSON.
//!
//! The seeds, in `corpus/requests`, have the fields that coding agents and the official libraries send.

use serde_json::Value;
use server::understanding::{Understood, understand};
use server::work::{CallConstraint, Constraint};
use text::constraint::{Grammars, Rule};
use text::sampling::Sampler;
use text::{ChatTemplate, Dialect, RenderOptions, TemplateHost, TemplateTokens, Thinking};

use crate::mutate;
use crate::target::{Target, golden_file};
use crate::text::good_tokenizer;

const PATHS: [&str; 7] = [
    "/chat/completions",
    "/responses",
    "/messages",
    "/messages/count_tokens",
    "/completions",
    "/api/chat",
    "/api/generate",
];
const CASE: &str = "qwen35-calm-mlxlm-4bit";
/// Longest schema that is compiled here: the target `constraint` has the others.
const SCHEMA_BYTES_MAX: usize = 4000;

/// Fields and values of all protocols.
const REQUEST_WORDS: &[&str] = &[
    "messages",
    "input",
    "content",
    "role",
    "type",
    "text",
    "user",
    "assistant",
    "system",
    "tool",
    "tools",
    "function",
    "function_call",
    "function_call_output",
    "item_reference",
    "reasoning",
    "name",
    "parameters",
    "input_schema",
    "arguments",
    "{\"at\":",
    "tool_choice",
    "required",
    "any",
    "none",
    "named",
    "tool_result",
    "tool_use",
    "tool_use_id",
    "image",
    "image_url",
    "input_image",
    "thinking",
    "budget_tokens",
    "adaptive",
    "disabled",
    "effort",
    "max",
    "response_format",
    "json_object",
    "json_schema",
    "schema",
    "stop",
    "logit_bias",
    "-1",
    "n",
    "seed",
    "temperature",
    "max_tokens",
    "previous_response_id",
    "metadata",
    "prompt",
    "suffix",
    "echo",
    "logprobs",
    "options",
    "num_predict",
    "format",
    "json",
    "think",
    "raw",
    "tool_name",
    "user_id",
    "cache_control",
    "<|im_end|>",
    "</think>",
    "<tool_call>",
];

pub(crate) fn requests() -> Target {
    let tokenizer = good_tokenizer();
    let source = String::from_utf8(golden_file(CASE, "chat_template.jinja")).expect("is text");
    let controls = tokenizer.control_tokens().clone();
    let template =
        ChatTemplate::new(&source, TemplateTokens::default(), controls, &TemplateHost::here())
            .expect("a committed template compiles");
    let vocabulary = tokenizer.vocabulary_size();
    let end = tokenizer.token_id("<|im_end|>").expect("the committed tokenizer has an end");
    let grammars = Grammars::new(&tokenizer, Dialect::QwenXml, &[end], vocabulary)
        .expect("it has an end token");
    Target {
        seeds: Vec::new(),
        mutate: |random, input| {
            mutate::json(random, input, REQUEST_WORDS);
        },
        run: Box::new(move |input| {
            for path in PATHS {
                match understand(path, input) {
                    Ok(understood) => {
                        frames_are_json(&understood);
                        goes_on(&understood, &template, &grammars, vocabulary);
                    }
                    Err(refused) => {
                        let status = refused.status;
                        assert!(
                            (400..500).contains(&status) && !refused.message.is_empty(),
                            "{refused:?}"
                        );
                    }
                }
            }
        }),
    }
}

/// Each frame is one line of JSON, whatever of the request is in it.
fn frames_are_json(understood: &Understood) {
    for line in understood.stream.lines() {
        let known = line.is_empty() || line.starts_with(": ") || line.starts_with("event: ");
        if known || line == "data: [DONE]" {
            continue;
        }
        // Lines of JSON are ollama's.
        let data = line.strip_prefix("data: ").unwrap_or(line);
        assert!(serde_json::from_str::<Value>(data).is_ok(), "{data}");
    }
}

/// What the work room does next: renders, checks the sampling, compiles the constraint. Mistakes found there are the
/// client's as well.
fn goes_on(
    understood: &Understood,
    template: &ChatTemplate,
    grammars: &Grammars,
    vocabulary: usize,
) {
    let (conversation, job) = (&understood.conversation, &understood.job);
    let options = RenderOptions {
        add_generation_prompt: true,
        enable_thinking: conversation.thinking,
        extra: conversation.template_variables.clone(),
        ..RenderOptions::default()
    };
    let _ = template.render(&conversation.messages, &conversation.tools, &options);
    let _ = Sampler::new(job.sampling.clone(), vocabulary);
    let rule = match &job.constraint {
        None => return,
        Some(Constraint::JsonObject) => Rule::JsonObject,
        Some(Constraint::JsonSchema(schema)) if schema.to_string().len() > SCHEMA_BYTES_MAX => {
            return;
        }
        Some(Constraint::JsonSchema(schema)) => Rule::JsonSchema(schema.clone()),
        Some(Constraint::Grammar(text) | Constraint::Regex(text))
            if text.len() > SCHEMA_BYTES_MAX =>
        {
            return;
        }
        Some(Constraint::Grammar(text)) => Rule::Grammar(text.clone()),
        Some(Constraint::Regex(text)) => Rule::Regex(text.clone()),
        Some(Constraint::OneOf(texts)) => Rule::OneOf(texts.clone()),
        Some(Constraint::Tool(which)) => Rule::Calls {
            name: match which {
                CallConstraint::Any => None,
                CallConstraint::Named(name) => Some(name.clone()),
            },
            parallel: job.output.parallel_tool_calls,
        },
    };
    if let Err(error) = grammars.compile(&rule, &job.output.tools, Thinking::Closed) {
        assert!(error.is_client_mistake(), "{error}");
    }
}
