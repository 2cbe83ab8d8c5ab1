//! Rules as grammars, in the Lark-like notation of llguidance.
//!
//! A JSON answer is one JSON value after at most two line breaks. A forced call is the dialect's own syntax with its
//! control tokens by id, so that nothing else can stand in for them. In the XML dialect values are raw text: a
//! parameter that may be a string is any text up to its closing tag, or one of its `enum`; every other type
//! is JSON by the parameter's own schema. Parameters come in the order of the schema; those that are not
//! required may be left out. Within a call's JSON, keywords that a grammar cannot express are ignored (the tool checks
//! its arguments anyway); in a schema that the client asked for by itself they are errors.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use store::shown;

use super::{ConstraintError, SCHEMA_FIELD, limits, references};
use crate::text::schema::{self, Types};
use crate::text::{Dialect, Tokenizer};

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
    /// One call, or several where `parallel`, of the tool called `name` or of any.
    Calls {
        /// The tool; `None` leaves the choice to the model.
        name: Option<String>,
        /// Whether more than one call may be made.
        parallel: bool,
    },
    /// What follows the opening tag of a call that the model began by itself, of any tool.
    CallBody,
}

/// The grammar of a rule.
pub(super) fn of(
    rule: &Rule,
    tools: &[Value],
    dialect: Dialect,
    tokenizer: &Tokenizer,
) -> Result<String, ConstraintError> {
    let mut text = String::new();
    match rule {
        Rule::JsonObject => {
            let schema = by_grammar(json!({"type": "object"}), false);
            let _ = writeln!(text, "start: LEAD? body\nbody: %json {schema}");
        }
        Rule::JsonSchema(schema) => {
            limits::check(SCHEMA_FIELD, schema)?;
            references::check(SCHEMA_FIELD, schema)?;
            let schema = by_grammar(object(schema.clone()), false);
            let _ = writeln!(text, "start: LEAD? body\nbody: %json {schema}");
        }
        Rule::Calls { name, parallel } => {
            let functions = functions(tools, name.as_deref())?;
            // What the model begins by itself is only watched, and goes on freely where a schema has no end.
            for Function { field, parameters, .. } in &functions {
                references::check(&format!("{field}.parameters"), parameters)?;
            }
            calls(&mut text, &functions, *parallel, dialect, tokenizer)?;
        }
        Rule::CallBody => {
            let functions = functions(tools, None)?;
            let end = tag("</tool_call>", tokenizer);
            let _ = writeln!(text, "start: \"\\n\" function \"\\n\" {end}");
            function_rules(&mut text, &functions, Order::Any, dialect);
        }
    }
    text.push_str("LEAD: /\\n{1,2}/\nNAME: /[^<>\\n]+/\n");
    Ok(text)
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

fn calls(
    text: &mut String,
    functions: &[Function<'_>],
    parallel: bool,
    dialect: Dialect,
    tokenizer: &Tokenizer,
) -> Result<(), ConstraintError> {
    let more = if parallel { " (\"\\n\" call)*" } else { "" };
    let start = tag("<tool_call>", tokenizer);
    let end = tag("</tool_call>", tokenizer);
    let _ = writeln!(text, "start: LEAD? call{more}\ncall: {start} \"\\n\" function \"\\n\" {end}");
    function_rules(text, functions, Order::Schema, dialect);
    Ok(())
}

/// In which order a call's parameters come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// That of the schema.
    Schema,
    /// Any: what the model would have written by itself is not to be changed.
    Any,
}

/// The rule `function` and those that it needs.
fn function_rules(text: &mut String, functions: &[Function<'_>], order: Order, dialect: Dialect) {
    let names = (0..functions.len()).map(|index| format!("f-{index}"));
    let _ = writeln!(text, "function: {}", names.collect::<Vec<_>>().join(" | "));
    for (index, function) in functions.iter().enumerate() {
        match dialect {
            Dialect::QwenXml => xml_call(text, index, function, order),
            Dialect::Hermes => json_call(text, index, function),
        }
    }
}

/// A control token by its id, or its text where the tokenizer has none.
fn tag(name: &str, tokenizer: &Tokenizer) -> String {
    let control = tokenizer.control_tokens().tokens().iter().find(|token| token.text == name);
    control.map_or_else(|| quoted(name), |token| format!("<[{}]>", token.id))
}

fn json_call(text: &mut String, index: usize, function: &Function<'_>) {
    let name = Value::from(function.name).to_string();
    let head = quoted(&format!("{{\"name\": {name}, \"arguments\": "));
    let schema = by_grammar(object_schema(function.parameters), true);
    let _ = writeln!(text, "f-{index}: {head} a-{index} \"}}\"\na-{index}: %json {schema}");
}

fn xml_call(text: &mut String, index: usize, function: &Function<'_>, order: Order) {
    let parameters = function.parameters;
    let whole = schema::resolved(parameters, parameters);
    let required: Vec<&str> = match whole.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let listed = whole.get("properties").and_then(Value::as_object);
    let keys = listed.into_iter().flat_map(Map::keys);
    // A key with a tag's characters cannot be written in this dialect.
    let keys: Vec<&String> = keys.filter(|key| !key.contains(['<', '>', '\n'])).collect();
    let head = quoted(&format!("<function={}>\n", function.name));
    let _ = write!(text, "f-{index}: {head}");
    let is_required = |key: &str| required.contains(&key);
    match order {
        Order::Schema => {
            for (place, key) in keys.iter().enumerate() {
                let optional = if is_required(key) { "" } else { "?" };
                let _ = write!(text, " p-{index}-{place}{optional}");
            }
            text.push_str(" \"</function>\"\n");
        }
        Order::Any => {
            let needed: Vec<bool> = keys.iter().map(|key| is_required(key)).collect();
            any_order(text, index, &needed, takes_others(whole));
        }
    }
    for (place, key) in keys.iter().enumerate() {
        let open = quoted(&format!("<parameter={key}>\n"));
        let _ = writeln!(text, "p-{index}-{place}: {open} v-{index}-{place}");
        let schema = schema::property(parameters, key).unwrap_or(&Value::Null);
        value(text, &format!("v-{index}-{place}"), schema, parameters);
    }
}

/// Most required parameters whose presence is seen to: each doubles the rules.
const TRACKED_MAX: usize = 6;

/// The rest of a call whose parameters come in any order, none that is required twice. A rule `s-INDEX-LEFT` stands for
/// each set of required parameters that are still to come, as bits; the call can end when none are. `others` lets
/// parameters in that the schema does not list.
fn any_order(text: &mut String, index: usize, needed: &[bool], others: bool) {
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
            ways.push("\"</function>\"".to_owned());
        }
        let _ = writeln!(text, "s-{index}-{left}: {}", ways.join(" | "));
    }
    if others {
        let close = quoted("\n</parameter>\n");
        let _ = writeln!(text, "o-{index}: \"<parameter=\" NAME \">\\n\" ov-{index}");
        let _ = writeln!(text, "ov-{index}[suffix={close}]: /(.|\\n)*/");
    }
}

/// Whether a tool takes parameters that its schema does not list.
fn takes_others(schema: &Value) -> bool {
    match schema.get("additionalProperties") {
        Some(Value::Bool(allowed)) => *allowed,
        Some(_) => true,
        None => schema.get("properties").is_none() && schema.get("type").is_some(),
    }
}

/// The rule `name` for a parameter's value and its closing tag.
fn value(text: &mut String, name: &str, schema: &Value, root: &Value) {
    const CLOSE: &str = "\n</parameter>\n";
    let close = quoted(CLOSE);
    let choices = choices(schema::resolved(schema, root));
    let types = schema::types(schema, root);
    if let Some(choices) = choices {
        let choices: Vec<String> = choices.iter().map(|choice| quoted(choice)).collect();
        let _ = writeln!(text, "{name}: ({}) {close}", choices.join(" | "));
    } else if types.allows(Types::STRING) {
        let _ = writeln!(text, "{name}[suffix={close}]: /(.|\\n)*/");
    } else {
        let mut schema = object(schema.clone());
        // References reach the definitions of the whole.
        for definitions in ["$defs", "definitions"] {
            if let (Some(found), Value::Object(fields)) = (root.get(definitions), &mut schema) {
                fields.entry(definitions).or_insert_with(|| found.clone());
            }
        }
        let schema = by_grammar(schema, true);
        let _ = writeln!(text, "{name}: {name}-json {close}\n{name}-json: %json {schema}");
    }
}

/// The texts of an `enum` or `const` that has strings among its values.
fn choices(schema: &Value) -> Option<Vec<String>> {
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
    let plain = texts.iter().all(|text| !text.is_empty() && !text.contains("</parameter>"));
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
fn by_grammar(mut schema: Value, lenient: bool) -> Value {
    if let Value::Object(fields) = &mut schema {
        let options = json!({
            "whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE, "lenient": lenient, "coerce_one_of": true,
        });
        fields.insert("x-guidance".to_owned(), options);
    }
    schema
}

/// A string literal: JSON's, without the control character that the notation does not take raw.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
