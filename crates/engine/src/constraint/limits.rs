//! How large a schema may be.
//!
//! Compiling is linear in most schemas and not in all: nesting costs stack, long enumerations and repetitions cost
//! automaton states. The limits stand well above the schemas of real tools (the largest seen: 60 KB, 12 levels,
//! 2,000 values); together with the fuel that the compiler gets (`mod.rs`) they bound the time of one request.

use serde_json::Value;

use super::ConstraintError;

/// Longest schema, as JSON text.
pub(super) const BYTES_MAX: usize = 256 << 10;
/// Deepest nesting of lists and objects.
pub(super) const DEPTH_MAX: usize = 48;
/// Values of all kinds.
pub(super) const VALUES_MAX: usize = 20_000;
/// Functions that a forced call may choose from.
pub(super) const TOOLS_MAX: usize = 256;
/// Largest `maxLength`, `minItems` and the like: they are unrolled into states.
const REPETITIONS_MAX: u64 = 10_000;

/// Refuses a schema that is beyond the limits, by the name of the request's `field`.
pub(super) fn check(field: &str, schema: &Value) -> Result<(), ConstraintError> {
    let mut values = 0;
    measure(field, schema, 0, &mut values)?;
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
    values: &mut usize,
) -> Result<(), ConstraintError> {
    *values += 1;
    if *values > VALUES_MAX {
        return Err(too_large(field, "values", *values, VALUES_MAX));
    }
    if depth > DEPTH_MAX {
        return Err(too_large(field, "levels", depth, DEPTH_MAX));
    }
    match value {
        Value::Array(items) => {
            items.iter().try_for_each(|item| measure(field, item, depth + 1, values))
        }
        Value::Object(fields) => fields.iter().try_for_each(|(key, item)| {
            let repeats = ["minLength", "minItems", "maxItems", "minProperties", "maxProperties"];
            let count = item.as_u64().filter(|_| repeats.contains(&key.as_str()));
            if let Some(count) = count.filter(|&count| count > REPETITIONS_MAX) {
                let found = usize::try_from(count).unwrap_or(usize::MAX);
                let limit = REPETITIONS_MAX as usize;
                return Err(too_large(&format!("{field}: {key}"), "repetitions", found, limit));
            }
            measure(field, item, depth + 1, values)
        }),
        _ => Ok(()),
    }
}

fn too_large(field: &str, what: &'static str, found: usize, limit: usize) -> ConstraintError {
    ConstraintError::TooLarge { field: field.to_owned(), what, found, limit }
}
