//! References of a schema that never come to an end.
//!
//! Two kinds have no answer. A reference that leads back to itself through references and combinations alone says
//! nothing of the value it stands for (the standard leaves it undefined, and a grammar of it has no first symbol). A
//! value that must contain another of its own shape has no end. Both are found here by name: compiled, they would fail
//! in the middle of an answer. Recursion that can end, a list of nodes or a child that may be left out, is allowed.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::ConstraintError;
use store::shown::quoted;

/// Keywords whose schemas are about the same value.
const COMBINATIONS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Refuses a schema with a reference that has no end, by the name of the request's `field`. References to what is not
/// there are left to the compiler.
pub(super) fn check(field: &str, schema: &Value) -> Result<(), ConstraintError> {
    let mut references = HashMap::new();
    collect(schema, schema, &mut references);
    let refused = |reference: &str, why: &str| {
        let problem = format!("the reference {} {why}", quoted(reference));
        Err(ConstraintError::Schema { field: field.to_owned(), problem })
    };
    if let Some(reference) = circular(schema, &references) {
        return refused(reference, "leads back to itself without a value between");
    }
    let mut finite = HashSet::new();
    loop {
        let more = references
            .iter()
            .filter(|(name, target)| !finite.contains(*name) && can_end(target, &finite))
            .map(|(name, _)| *name);
        let more: Vec<&str> = more.collect();
        if more.is_empty() {
            break;
        }
        finite.extend(more);
    }
    if can_end(schema, &finite) {
        return Ok(());
    }
    let mut endless: Vec<&str> =
        references.keys().copied().filter(|name| !finite.contains(name)).collect();
    endless.sort_unstable();
    match endless.first() {
        Some(reference) => refused(reference, "stands for a value that must contain itself"),
        // No reference is to blame: what else nothing can satisfy is the compiler's to say.
        None => Ok(()),
    }
}

/// Every local reference with what it stands for.
fn collect<'a>(value: &'a Value, root: &'a Value, references: &mut HashMap<&'a str, &'a Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, root, references)),
        Value::Object(fields) => {
            if let Some(name) = reference(fields)
                && let Some(target) = name.strip_prefix('#').and_then(|path| root.pointer(path))
            {
                references.insert(name, target);
            }
            fields.values().for_each(|item| collect(item, root, references));
        }
        _ => {}
    }
}

fn reference(fields: &Map<String, Value>) -> Option<&str> {
    fields.get("$ref").and_then(Value::as_str)
}

fn members<'a>(fields: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    fields.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// A reference that is reached from itself without going into a value.
fn circular<'a>(root: &'a Value, references: &HashMap<&'a str, &'a Value>) -> Option<&'a str> {
    let mut done = HashSet::new();
    // Definitions that nothing uses do no harm: only what the schema leads to is looked at, every value of it.
    let mut todo = vec![root];
    let mut seen = HashSet::new();
    while let Some(schema) = todo.pop() {
        match schema {
            Value::Array(items) => todo.extend(items),
            Value::Object(fields) => {
                if let Some(name) = reference(fields)
                    && let Some(target) = references.get(name)
                    && seen.insert(name)
                {
                    if let Some(found) = returns(name, references, &mut Vec::new(), &mut done) {
                        return Some(found);
                    }
                    todo.push(target);
                }
                let inside = fields.iter().filter(|(key, _)| !is_definitions(key));
                todo.extend(inside.map(|(_, value)| value));
            }
            _ => {}
        }
    }
    None
}

fn is_definitions(key: &str) -> bool {
    key == "$defs" || key == "definitions"
}

/// Follows a reference in place; `path` are those on the way, `done` those that were found to end.
fn returns<'a>(
    name: &'a str,
    references: &HashMap<&'a str, &'a Value>,
    path: &mut Vec<&'a str>,
    done: &mut HashSet<&'a str>,
) -> Option<&'a str> {
    if path.contains(&name) {
        return Some(name);
    }
    let target = references.get(name)?;
    if done.contains(name) {
        return None;
    }
    path.push(name);
    let mut next = Vec::new();
    in_place(target, &mut next);
    let found = next.into_iter().find_map(|name| returns(name, references, path, done));
    path.pop();
    done.insert(name);
    found
}

/// References about the same value as `schema`.
fn in_place<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    let Value::Object(fields) = schema else { return };
    found.extend(reference(fields));
    for key in COMBINATIONS {
        members(fields, key).for_each(|schema| in_place(schema, found));
    }
}

/// Whether a value of the schema can end, where references in `finite` are known to. Errs towards yes.
fn can_end(schema: &Value, finite: &HashSet<&str>) -> bool {
    let Value::Object(fields) = schema else { return true };
    if reference(fields).is_some_and(|name| name.starts_with('#') && !finite.contains(name)) {
        return false;
    }
    if !members(fields, "allOf").all(|schema| can_end(schema, finite)) {
        return false;
    }
    for key in ["anyOf", "oneOf"] {
        let mut options = members(fields, key).peekable();
        if options.peek().is_some() && !options.any(|schema| can_end(schema, finite)) {
            return false;
        }
    }
    if fields.contains_key("enum") || fields.contains_key("const") {
        return true;
    }
    match fields.get("type") {
        Some(Value::String(kind)) if kind == "object" => object_can_end(fields, finite),
        Some(Value::String(kind)) if kind == "array" => array_can_end(fields, finite),
        // Another type, several or none: one of them ends.
        _ => true,
    }
}

fn object_can_end(fields: &Map<String, Value>, finite: &HashSet<&str>) -> bool {
    let properties = fields.get("properties").and_then(Value::as_object);
    let mut required = members(fields, "required").filter_map(Value::as_str);
    required.all(|name| {
        let schema = properties.and_then(|properties| properties.get(name));
        schema.is_none_or(|schema| can_end(schema, finite))
    })
}

fn array_can_end(fields: &Map<String, Value>, finite: &HashSet<&str>) -> bool {
    let least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0);
    let first = members(fields, "prefixItems").count() as u64;
    let firsts = usize::try_from(least).unwrap_or(usize::MAX);
    members(fields, "prefixItems").take(firsts).all(|schema| can_end(schema, finite))
        && (least <= first || fields.get("items").is_none_or(|schema| can_end(schema, finite)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problem(schema: &Value) -> Option<String> {
        check("schema", schema).err().map(|error| error.to_string())
    }

    #[test]
    fn references_without_an_end_are_refused_by_name() {
        let cases = [
            json!({ "$ref": "#" }),
            json!({ "anyOf": [{ "$ref": "#" }, { "type": "string" }] }),
            json!({ "$ref": "#/$defs/a", "$defs": {
                "a": { "$ref": "#/$defs/b" }, "b": { "allOf": [{ "$ref": "#/$defs/a" }] } } }),
            json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/a" } }, "$defs": {
                "a": { "oneOf": [{ "type": "null" }, { "$ref": "#/$defs/a" }] } } }),
            json!({ "type": "object", "properties": { "x": { "$ref": "#" } }, "required": ["x"] }),
            json!({ "type": "array", "minItems": 1, "items": { "$ref": "#" } }),
            json!({ "$ref": "#/$defs/a", "$defs": {
                "a": { "type": "object", "properties": { "b": { "$ref": "#/$defs/b" } }, "required": ["b"] },
                "b": { "type": "array", "prefixItems": [{ "$ref": "#/$defs/a" }], "minItems": 1 } } }),
        ];
        for schema in cases {
            let found = problem(&schema).unwrap_or_else(|| panic!("was taken: {schema}"));
            assert!(found.starts_with("schema: the reference \"#"), "{found}");
        }
    }

    #[test]
    fn recursion_that_can_end_is_taken() {
        let cases = [
            json!({ "type": "object", "properties": { "next": { "$ref": "#" } } }),
            json!({ "type": "array", "items": { "$ref": "#" } }),
            json!({ "type": "object", "required": ["children"], "properties": {
                "children": { "type": "array", "items": { "$ref": "#" } } } }),
            json!({ "type": "object", "required": ["next"], "properties": {
                "next": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } } }),
            json!({ "type": "string", "$defs": { "unused": { "$ref": "#/$defs/unused" } } }),
            json!({ "$ref": "#/$defs/missing" }),
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "const": 1 } } }),
            json!(true),
        ];
        for schema in cases {
            assert_eq!(problem(&schema), None, "{schema}");
        }
    }
}
