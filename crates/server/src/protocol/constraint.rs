//! What an answer is to be by, under the names that servers have given it.
//!
//! One field of one of these names can be given: two rules of one answer are refused, because neither could be left
//! out.

use serde_json::Value;
use store::shown::quoted;

use super::Fields;
use crate::http::ApiError;
use crate::work::Constraint;

/// A constraint and the field that has it, as messages name it.
pub(crate) type Placed = (Constraint, String);

/// The rule that stands in `options` (llama.cpp, vLLM, SGLang), if there is one.
pub(super) fn of_others(options: &Fields<'_>) -> Result<Option<Placed>, ApiError> {
    let mut found = Found(None);
    found.add(options, "json_schema", schema)?;
    for name in ["grammar", "ebnf", "guided_grammar"] {
        found.add(options, name, grammar)?;
    }
    for name in ["regex", "guided_regex"] {
        found.add(options, name, regex)?;
    }
    found.add(options, "guided_json", schema)?;
    found.add(options, "guided_json_object", object)?;
    found.add(options, "guided_choice", one_of)?;
    if let Some(nested) = options.object("structured_outputs")? {
        found.add(&nested, "json", schema)?;
        found.add(&nested, "json_object", object)?;
        found.add(&nested, "regex", regex)?;
        found.add(&nested, "choice", one_of)?;
        found.add(&nested, "grammar", grammar)?;
        if nested.get("structural_tag").is_some() {
            return Err(nested.error("structural_tag", "is not supported: use tools or a schema"));
        }
    }
    Ok(found.0)
}

struct Found(Option<Placed>);

type Read = fn(&Fields<'_>, &str) -> Result<Option<Constraint>, ApiError>;

impl Found {
    fn add(&mut self, fields: &Fields<'_>, name: &str, read: Read) -> Result<(), ApiError> {
        let Some(constraint) = read(fields, name)? else { return Ok(()) };
        let place = fields.name(name);
        if let Some((_, other)) = &self.0 {
            return Err(exclude(&place, other));
        }
        self.0 = Some((constraint, place));
        Ok(())
    }
}

/// The refusal of a second rule.
pub(super) fn exclude(place: &str, other: &str) -> ApiError {
    ApiError::field(place, format!("{place} and {other} exclude each other"))
}

fn text(fields: &Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    Ok(fields.string(name)?.filter(|text| !text.is_empty()).map(str::to_owned))
}

fn grammar(fields: &Fields<'_>, name: &str) -> Result<Option<Constraint>, ApiError> {
    Ok(text(fields, name)?.map(Constraint::Grammar))
}

fn regex(fields: &Fields<'_>, name: &str) -> Result<Option<Constraint>, ApiError> {
    Ok(text(fields, name)?.map(Constraint::Regex))
}

fn object(fields: &Fields<'_>, name: &str) -> Result<Option<Constraint>, ApiError> {
    Ok(fields.boolean(name)?.unwrap_or(false).then_some(Constraint::JsonObject))
}

fn one_of(fields: &Fields<'_>, name: &str) -> Result<Option<Constraint>, ApiError> {
    let texts = fields.strings(name)?;
    Ok((!texts.is_empty()).then_some(Constraint::OneOf(texts)))
}

/// A schema, which some clients send as text.
fn schema(fields: &Fields<'_>, name: &str) -> Result<Option<Constraint>, ApiError> {
    let schema = match fields.get(name) {
        None => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => serde_json::from_str(text)
            .map_err(|error| fields.error(name, format!("is no JSON: {error}")))?,
        Some(value) => value.clone(),
    };
    Ok(Some(Constraint::JsonSchema(schema)))
}

/// `response_format` of OpenAI's chat completions.
pub(crate) fn response_format(fields: &Fields<'_>) -> Result<Option<Placed>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    let constraint = match format.required_string("type")? {
        "text" => return Ok(None),
        // llama.cpp's server takes a schema beside this type.
        "json_object" => match format.get("schema") {
            Some(schema) => (Constraint::JsonSchema(schema.clone()), format.name("schema")),
            None => (Constraint::JsonObject, fields.name("response_format")),
        },
        "json_schema" => {
            let outer = format
                .object("json_schema")?
                .ok_or_else(|| format.error("json_schema", "is missing"))?;
            let schema = outer.get("schema").ok_or_else(|| outer.error("schema", "is missing"))?;
            (Constraint::JsonSchema(schema.clone()), outer.name("schema"))
        }
        other => {
            let problem = format!("{} is not one of text, json_object, json_schema", quoted(other));
            return Err(format.error("type", problem));
        }
    };
    Ok(Some(constraint))
}
