//! A small checker of JSON values against JSON schemas: the keywords that the tests use, written from the
//! specification and not from the compiler that is tested with it. Unknown keywords are refused.

use serde_json::Value;

/// Checks `value` against `schema`, a part of the document `root`.
pub(crate) fn check(schema: &Value, root: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(fields) = schema else { return Ok(()) };
    let wrong = |what: &str| Err(format!("{value} is not {what} in {schema}"));
    for (keyword, limit) in fields {
        let number = || limit.as_f64().unwrap_or(f64::NAN);
        let holds = match keyword.as_str() {
            "type" => match limit {
                Value::String(name) => is(value, name),
                Value::Array(names) => {
                    names.iter().any(|name| is(value, name.as_str().unwrap_or("")))
                }
                _ => return Err(format!("type {limit}")),
            },
            "enum" => limit.as_array().is_some_and(|values| values.contains(value)),
            "const" => limit == value,
            "minimum" => value.as_f64().is_none_or(|found| found >= number()),
            "maximum" => value.as_f64().is_none_or(|found| found <= number()),
            "maxLength" => {
                value.as_str().is_none_or(|text| text.chars().count() as f64 <= number())
            }
            "minItems" => value.as_array().is_none_or(|items| items.len() as f64 >= number()),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as f64 <= number()),
            "required" => value.as_object().is_none_or(|object| {
                let mut names = limit.as_array().into_iter().flatten().filter_map(Value::as_str);
                names.all(|name| object.contains_key(name))
            }),
            "additionalProperties" => value.as_object().is_none_or(|object| {
                let known = |name: &String| schema["properties"].get(name).is_some();
                limit != &Value::Bool(false) || object.keys().all(known)
            }),
            "properties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    if let Some(schema) = limit.get(name) {
                        check(schema, root, inner)?;
                    }
                }
                true
            }
            "items" => {
                for inner in value.as_array().into_iter().flatten() {
                    check(limit, root, inner)?;
                }
                true
            }
            "anyOf" => {
                let options = limit.as_array().into_iter().flatten();
                options.into_iter().any(|option| check(option, root, value).is_ok())
            }
            "$ref" => {
                let pointer = limit.as_str().unwrap_or("").trim_start_matches('#');
                check(root.pointer(pointer).unwrap_or(&Value::Null), root, value)?;
                true
            }
            "$defs" => true,
            other => return Err(format!("the checker does not know {other}")),
        };
        if !holds {
            return wrong(keyword);
        }
    }
    Ok(())
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}
