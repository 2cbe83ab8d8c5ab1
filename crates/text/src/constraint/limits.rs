//! How large a schema may be.
//!
//! Compiling is linear in most schemas and not in all: nesting costs stack, properties that may be left out are tried
//! in every combination of neighbours, repetitions become states, and regular expressions that must all hold
//! multiply (measured: 24 of them 21 ms, 200 of them 20 GB). The limits stand well above the schemas of real tools
//! (the largest seen: 60 KB, 12 levels, 2,000 values); together with the fuel that the compiler gets (`mod.rs`)
//! they bound the time and memory of one request.

use serde_json::Value;

use super::ConstraintError;

/// Longest schema, as JSON text.
const BYTES_MAX: usize = 256 << 10;
/// Deepest nesting of lists and objects.
const DEPTH_MAX: usize = 48;
/// Values of all kinds.
const VALUES_MAX: usize = 10_000;
/// Functions that a forced call may choose from.
pub(super) const TOOLS_MAX: usize = 256;
/// Properties of one object.
const PROPERTIES_MAX: usize = 1_000;
/// Largest `maxLength`, `minItems` and the like.
const REPETITIONS_MAX: usize = 10_000;
/// Regular expressions in a schema, where more than that many schemas are combined by `allOf`.
const COMBINED_MAX: usize = 24;

/// What a schema holds.
#[derive(Default)]
struct Count {
    values: usize,
    /// `pattern`, `format` and keys of `patternProperties`.
    patterns: usize,
    /// Members of `allOf`, and references that have keywords beside them.
    combined: usize,
}

/// Refuses a schema that is beyond the limits, by the name of the request's `field`.
pub(super) fn check(field: &str, schema: &Value) -> Result<(), ConstraintError> {
    let mut count = Count::default();
    measure(field, schema, 0, &mut count)?;
    if count.patterns.min(count.combined) > COMBINED_MAX {
        let found = count.patterns;
        return Err(too_large(field, "regular expressions with allOf", found, COMBINED_MAX));
    }
    let bytes = schema.to_string().len();
    if bytes > BYTES_MAX {
        return Err(too_large(field, "bytes", bytes, BYTES_MAX));
    }
    Ok(())
}

fn measure(
    field: &str,
    value: &Value,
    depth: usize,
    count: &mut Count,
) -> Result<(), ConstraintError> {
    count.values += 1;
    if count.values > VALUES_MAX {
        return Err(too_large(field, "values", count.values, VALUES_MAX));
    }
    if depth > DEPTH_MAX {
        return Err(too_large(field, "levels", depth, DEPTH_MAX));
    }
    match value {
        Value::Array(items) => {
            items.iter().try_for_each(|item| measure(field, item, depth + 1, count))
        }
        Value::Object(fields) => {
            count.combined += usize::from(fields.len() > 1 && fields.contains_key("$ref"));
            fields.iter().try_for_each(|(key, item)| {
                keyword(field, key, item, count)?;
                measure(field, item, depth + 1, count)
            })
        }
        _ => Ok(()),
    }
}

/// What a keyword's value adds; a property of the same name is counted too, which errs towards more.
fn keyword(
    field: &str,
    key: &str,
    value: &Value,
    count: &mut Count,
) -> Result<(), ConstraintError> {
    let members = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        Value::Number(_) => value.as_u64().map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        _ => 0,
    };
    let (what, limit) = match key {
        "minLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            ("repetitions", REPETITIONS_MAX)
        }
        "properties" => ("properties", PROPERTIES_MAX),
        "patternProperties" => {
            count.patterns += members;
            ("patterns", COMBINED_MAX)
        }
        "pattern" | "format" => {
            count.patterns += 1;
            return Ok(());
        }
        "allOf" => {
            count.combined += members;
            return Ok(());
        }
        _ => return Ok(()),
    };
    if members > limit {
        return Err(too_large(&format!("{field}: {key}"), what, members, limit));
    }
    Ok(())
}

fn too_large(field: &str, what: &'static str, found: usize, limit: usize) -> ConstraintError {
    ConstraintError::TooLarge { field: field.to_owned(), what, found, limit }
}
