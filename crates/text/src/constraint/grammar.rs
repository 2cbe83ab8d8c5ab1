//! Rules as grammars, in the Lark-like notation of llguidance.
//!
//! A JSON answer is one JSON value after at most two line breaks. A forced call is the dialect's own syntax
//! (`CallForm`) with its control tokens by id, so that nothing else can stand in for them. Between tags values are
//! raw text: a parameter that may be a string is any text up to its closing tag, or one of its `enum`; every other
//! type is JSON by the parameter's own schema. Parameters come in the order of the schema; those that are not
//! required may be left out. Within a call's JSON, keywords that a grammar cannot express are ignored (the tool
//! checks its arguments anyway); in a schema that the client asked for by itself they are errors.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use store::shown;

use super::spelling::{after_trigger, filled, literal, opened, opened_any, quoted, text_until};
use super::{ConstraintError, SCHEMA_FIELD, bare, limits, plain, references};
use crate::schema::{self, Types};
use crate::{Body, CallForm, Dialect, Lead, Thinking, Tokenizer};

/// White space inside JSON: a blank, or a line break with its indentation. Unlimited white space is what small models
/// at a high temperature lose themselves in.
const WHITE_SPACE: &str = r" |\n[ \t]{0,40}";

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// Any JSON object.
    JsonObject,
    /// A JSON value by a schema.
    JsonSchema(Value),
    /// A text by a grammar in llama.cpp's notation, GBNF.
    Grammar(String),
    /// A text that a regular expression matches from its beginning to its end.
    Regex(String),
    /// One of some texts.
    OneOf(Vec<String>),
    /// One call, or several where `parallel`, of the tool called `name` or of any.
    Calls {
        /// The tool; `None` leaves the choice to the model.
        name: Option<String>,
        /// Whether more than one call may be made.
        parallel: bool,
    },
    /// What follows the opening tag of a call that the model began by itself, of any tool. Where messages have
    /// channels: a message's header, and a call if that is one.
    CallBody,
    /// The same at the beginning of an answer, whose first header the prompt has begun.
    CallHead,
}

/// The grammar of a rule. An answer that begins behind `thinking` that was closed has nothing before it.
pub(super) fn of(
    rule: &Rule,
    tools: &[Value],
    thinking: Thinking,
    dialect: Dialect,
    tokenizer: &Tokenizer,
) -> Result<String, ConstraintError> {
    let mut text = String::new();
    let form = dialect.calls();
    let lead = lead(form, thinking, tokenizer);
    match rule {
        Rule::Grammar(_) | Rule::Regex(_) | Rule::OneOf(_) => {
            let body = plain::rules(rule)?;
            // What is exact has line breaks where a template leaves them to the model, and not elsewhere.
            let before = if thinking == Thinking::Closed { "" } else { lead.answer.as_str() };
            let _ = writeln!(text, "start: {before} {}\n{}", plain::NAME, body);
        }
        Rule::JsonObject => {
            let schema = by_grammar(json!({"type": "object"}), false);
            let _ = writeln!(text, "start: {} body\nbody: %json {schema}", lead.answer);
        }
        Rule::JsonSchema(schema) => {
            limits::check(SCHEMA_FIELD, schema)?;
            references::check(SCHEMA_FIELD, schema)?;
            let schema = by_grammar(object(schema.clone()), false);
            let _ = writeln!(text, "start: {} body\nbody: %json {schema}", lead.answer);
        }
        Rule::Calls { name, parallel } => {
            let functions = functions(tools, name.as_deref())?;
            // What the model begins by itself is only watched, and goes on freely where a schema has no end.
            for Function { field, parameters, .. } in &functions {
                references::check(&format!("{field}.parameters"), parameters)?;
            }
            let [before, after] = form.block.map(|part| literal(part, tokenizer));
            let more = more(form, *parallel, tokenizer);
            let _ = writeln!(text, "start: {} {before} call{more} {after}", lead.call);
            call_rules(&mut text, &functions, Order::Schema, form, tokenizer);
        }
        Rule::CallBody | Rule::CallHead => {
            let functions = functions(tools, None)?;
            let _ = writeln!(text, "{}", own_call_start(rule, form, tokenizer));
            call_rules(&mut text, &functions, Order::Any, form, tokenizer);
        }
    }
    text.push_str(&lead.rules);
    text.push_str("LEAD: /\\n{1,2}/\nNAME: /[^<>\\n\"]+/\nNUMBER: /[0-9]{1,3}/\n");
    Ok(text)
}

/// The first rule of a call that the model has begun by itself: `rule` says where its first token stands.
fn own_call_start(rule: &Rule, form: &CallForm, tokenizer: &Tokenizer) -> String {
    match (form.lead, form.begins_block) {
        (Lead::Channels, _) => {
            let role = if *rule == Rule::CallBody { "\"assistant\" " } else { "" };
            let message = literal("<|message|>", tokenizer);
            let constrain = literal("<|constrain|>", tokenizer);
            let channel = literal("<|channel|>", tokenizer);
            format!(
                "start: {role}(call | plain)\n\
                 plain: {channel} CHANNEL ({constrain} \"json\")? {message}\n\
                 CHANNEL: /(analysis|commentary|final)( json| code)? ?/"
            )
        }
        (Lead::Breaks, true) => {
            let [before, after] = form.block;
            let before = after_trigger(before, tokenizer);
            let after = literal(after, tokenizer);
            let more = more(form, true, tokenizer);
            format!("start: {before} call{more} {after}")
        }
        (Lead::Breaks, false) => {
            let before = after_trigger(form.call[0], tokenizer);
            let after = literal(form.call[1], tokenizer);
            format!("start: {before} function {after}")
        }
    }
}

/// What may stand before an answer.
struct Leading {
    /// Before text that the client asked for.
    answer: String,
    /// Before a call.
    call: String,
    /// The rules of both.
    rules: String,
}

fn lead(form: &CallForm, thinking: Thinking, tokenizer: &Tokenizer) -> Leading {
    if form.lead == Lead::Breaks {
        let lead = || "LEAD?".to_owned();
        return Leading { answer: lead(), call: lead(), rules: String::new() };
    }
    if thinking == Thinking::Closed {
        // A prompt without a conversation has no channels.
        return Leading { answer: String::new(), call: String::new(), rules: String::new() };
    }
    let before = literal("<|channel|>analysis<|message|>", tokenizer);
    let after = literal("<|end|><|start|>assistant", tokenizer);
    let last = literal("<|channel|>final<|message|>", tokenizer);
    Leading {
        answer: format!("thought* {last}"),
        call: "thought*".to_owned(),
        rules: format!("thought: {before} THOUGHT? {after}\nTHOUGHT: /(.|\\n)+/\n"),
    }
}

/// Further calls behind the first.
fn more(form: &CallForm, parallel: bool, tokenizer: &Tokenizer) -> String {
    if !parallel || form.lead == Lead::Channels {
        return String::new();
    }
    format!(" ({} call)*", literal(form.between, tokenizer))
}

/// A function on offer: its name and the schema of its parameters.
struct Function<'a> {
    /// Its place in the request.
    field: String,
    name: &'a str,
    parameters: &'a Value,
}

fn functions<'a>(
    tools: &'a [Value],
    wanted: Option<&str>,
) -> Result<Vec<Function<'a>>, ConstraintError> {
    let mut found = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
        if wanted.is_some_and(|wanted| wanted != name) {
            continue;
        }
        let field = format!("tools[{index}].function");
        if name.is_empty() || name.contains(['<', '>', '\n', '"']) {
            let problem = format!(
                "the name {} cannot be forced: it has tags or line breaks",
                shown::quoted(name)
            );
            return Err(ConstraintError::Schema { field: field + ".name", problem });
        }
        let parameters = function.get("parameters").unwrap_or(&Value::Null);
        limits::check(&format!("{field}.parameters"), parameters)?;
        found.push(Function { field, name, parameters });
    }
    let most = limits::TOOLS_MAX;
    if found.len() > most {
        let (field, what) = ("tools".to_owned(), "functions that may be forced");
        return Err(ConstraintError::TooLarge { field, what, found: found.len(), limit: most });
    }
    match (found.is_empty(), wanted) {
        (false, _) => Ok(found),
        (true, Some(name)) => {
            let name = shown::quoted(name);
            let problem = format!("the function {name} is not among the tools of this request");
            Err(ConstraintError::NoSuchTool { problem })
        }
        (true, None) => {
            let problem = "a call is required, but the request has no function tools".to_owned();
            Err(ConstraintError::NoSuchTool { problem })
        }
    }
}

/// In which order a call's parameters come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// That of the schema.
    Schema,
    /// Any: what the model would have written by itself is not to be changed.
    Any,
}

/// The rules `call` and `function` and those that they need.
fn call_rules(
    text: &mut String,
    functions: &[Function<'_>],
    order: Order,
    form: &CallForm,
    tokenizer: &Tokenizer,
) {
    let [before, after] = form.call.map(|part| literal(part, tokenizer));
    let _ = writeln!(text, "call: {before} function {after}");
    let names = (0..functions.len()).map(|index| format!("f-{index}"));
    let _ = writeln!(text, "function: {}", names.collect::<Vec<_>>().join(" | "));
    if let Body::Bare { quote, .. } = form.body {
        bare::shared(text, quote, tokenizer);
    }
    for (index, function) in functions.iter().enumerate() {
        match form.body {
            Body::Json { before, after } => {
                let heads = before.iter().map(|head| filled(head, function.name, tokenizer));
                let heads = heads.collect::<Vec<_>>().join(" | ");
                let after = literal(after, tokenizer);
                let schema = by_grammar(object_schema(function.parameters), true);
                let _ = writeln!(text, "f-{index}: ({heads}) a-{index} {after}");
                let _ = writeln!(text, "a-{index}: %json {schema}");
            }
            Body::Bare { open, quote } => {
                let open = filled(open, function.name, tokenizer);
                let _ = writeln!(text, "f-{index}: {open} \"{{\" b-{index}");
                let rules = bare::Rules { quote, tokenizer, root: function.parameters };
                rules.members(
                    text,
                    &format!("b-{index}"),
                    function.parameters,
                    order == Order::Any,
                );
            }
            Body::Tagged { .. } => tagged_call(text, index, function, order, form, tokenizer),
        }
    }
}

fn tagged_call(
    text: &mut String,
    index: usize,
    function: &Function<'_>,
    order: Order,
    form: &CallForm,
    tokenizer: &Tokenizer,
) {
    let Body::Tagged { open, text: as_text, json: as_json, end, close } = form.body else { return };
    let parameters = function.parameters;
    let whole = schema::resolved(parameters, parameters);
    let required: Vec<&str> = match whole.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let listed = whole.get("properties").and_then(Value::as_object);
    let keys = listed.into_iter().flat_map(Map::keys);
    // A key with a tag's characters cannot be written in this dialect.
    let quotes = as_text.contains('"');
    let keys: Vec<&String> = keys
        .filter(|key| !(key.contains(['<', '>', '\n']) || quotes && key.contains('"')))
        .collect();
    let _ = write!(text, "f-{index}: {}", filled(open, function.name, tokenizer));
    let is_required = |key: &str| required.contains(&key);
    let close = literal(close, tokenizer);
    match order {
        Order::Schema => {
            for (place, key) in keys.iter().enumerate() {
                let optional = if is_required(key) { "" } else { "?" };
                let _ = write!(text, " p-{index}-{place}{optional}");
            }
            let _ = writeln!(text, " {close}");
        }
        Order::Any => {
            let needed: Vec<bool> = keys.iter().map(|key| is_required(key)).collect();
            let others = takes_others(whole);
            any_order(text, index, &needed, others, &close);
            if others {
                let open = opened_any(as_text, tokenizer);
                let _ = writeln!(text, "o-{index}: {open} ov-{index}");
                text.push_str(&text_until(&format!("ov-{index}"), end, tokenizer));
            }
        }
    }
    for (place, key) in keys.iter().enumerate() {
        let schema = schema::property(parameters, key).unwrap_or(&Value::Null);
        let value = Named { name: format!("v-{index}-{place}"), end, tokenizer };
        let text_open = opened(as_text, key, tokenizer);
        let json_open = opened(as_json, key, tokenizer);
        let (has_text, has_json) = value.write(text, schema, parameters, as_text != as_json);
        let mut ways = Vec::new();
        if has_text {
            ways.push(format!("{text_open} {}", value.name));
        }
        if has_json {
            ways.push(format!("{json_open} {}-value", value.name));
        }
        let _ = writeln!(text, "p-{index}-{place}: {}", ways.join(" | "));
    }
}

/// Most required parameters whose presence is seen to: each doubles the rules.
const TRACKED_MAX: usize = 6;

/// The rest of a call whose parameters come in any order, none that is required twice. A rule `s-INDEX-LEFT` stands for
/// each set of required parameters that are still to come, as bits; the call can end when none are. `others` lets
/// parameters in that the schema does not list.
fn any_order(text: &mut String, index: usize, needed: &[bool], others: bool, close: &str) {
    let tracked: Vec<usize> = (0..needed.len()).filter(|&place| needed[place]).collect();
    let tracked = if tracked.len() > TRACKED_MAX { Vec::new() } else { tracked };
    let all = (1_usize << tracked.len()) - 1;
    let _ = writeln!(text, " s-{index}-{all}");
    for left in 0..=all {
        let mut ways = Vec::new();
        for place in 0..needed.len() {
            match tracked.iter().position(|&other| other == place) {
                Some(bit) if left & (1 << bit) != 0 => {
                    ways.push(format!("p-{index}-{place} s-{index}-{}", left & !(1 << bit)));
                }
                Some(_) => {}
                None => ways.push(format!("p-{index}-{place} s-{index}-{left}")),
            }
        }
        if others {
            ways.push(format!("o-{index} s-{index}-{left}"));
        }
        if left == 0 {
            // Where nothing closes a function, the call's own end does.
            ways.push(if close.is_empty() { "\"\"".to_owned() } else { close.to_owned() });
        }
        let _ = writeln!(text, "s-{index}-{left}: {}", ways.join(" | "));
    }
}

/// Whether a tool takes parameters that its schema does not list.
pub(super) fn takes_others(schema: &Value) -> bool {
    match schema.get("additionalProperties") {
        Some(Value::Bool(allowed)) => *allowed,
        Some(_) => true,
        None => schema.get("properties").is_none() && schema.get("type").is_some(),
    }
}

/// The rules of a parameter's value and its closing tag: `name` for text, `name-value` for JSON.
struct Named<'a> {
    name: String,
    end: &'static str,
    tokenizer: &'a Tokenizer,
}

impl Named<'_> {
    /// Writes the rules and says which of the two there are. `flagged` says that the tag tells text from JSON.
    fn write(
        &self,
        text: &mut String,
        schema: &Value,
        root: &Value,
        flagged: bool,
    ) -> (bool, bool) {
        let (name, close) = (&self.name, literal(self.end, self.tokenizer));
        let choices = choices(schema::resolved(schema, root), self.end.trim());
        let types = schema::types(schema, root);
        if let Some(choices) = choices {
            let choices: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
            let _ = writeln!(text, "{name}: ({}) {close}", choices.join(" | "));
            return (true, false);
        }
        let as_text = types.allows(Types::STRING);
        if as_text {
            text.push_str(&text_until(name, self.end, self.tokenizer));
        }
        let as_json = !as_text || (flagged && types != Types::STRING);
        if as_json {
            let mut schema = object(schema.clone());
            // References reach the definitions of the whole.
            for definitions in ["$defs", "definitions"] {
                if let (Some(found), Value::Object(fields)) = (root.get(definitions), &mut schema) {
                    fields.entry(definitions).or_insert_with(|| found.clone());
                }
            }
            let schema = by_grammar(schema, true);
            let _ =
                writeln!(text, "{name}-value: {name}-json {close}\n{name}-json: %json {schema}");
        }
        (as_text, as_json)
    }
}

/// The texts of an `enum` or `const` that has strings among its values.
fn choices(schema: &Value, end: &str) -> Option<Vec<String>> {
    let values = match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => std::slice::from_ref(value),
        (None, Some(Value::Array(values))) => values.as_slice(),
        _ => return None,
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let texts: Vec<String> = values.iter().map(text).collect();
    // An empty text has no token of its own; a closing tag inside would end the value.
    let plain = texts.iter().all(|text| !text.is_empty() && !text.contains(end));
    (values.iter().any(Value::is_string) && plain).then_some(texts)
}

/// Parameters as the schema of an object, also where a tool declares none.
fn object_schema(parameters: &Value) -> Value {
    match parameters {
        Value::Object(fields) if !fields.is_empty() => {
            let mut schema = fields.clone();
            if !fields.contains_key("$ref") {
                schema.entry("type").or_insert_with(|| "object".into());
            }
            // As in the XML dialect: what is not listed is not asked for.
            if fields.contains_key("properties") {
                schema.entry("additionalProperties").or_insert(false.into());
            }
            Value::Object(schema)
        }
        _ => json!({"type": "object", "properties": {}, "additionalProperties": false}),
    }
}

/// A schema as an object, which options can be added to: `true` allows everything, `false` nothing.
fn object(schema: Value) -> Value {
    match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({"not": {}}),
        other => other,
    }
}

/// Sets how the schema is compiled; whatever the client wrote there is not its to decide.
pub(super) fn by_grammar(mut schema: Value, lenient: bool) -> Value {
    if let Value::Object(fields) = &mut schema {
        let options = json!({
            "whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE, "lenient": lenient, "coerce_one_of": true,
        });
        fields.insert("x-guidance".to_owned(), options);
    }
    schema
}
