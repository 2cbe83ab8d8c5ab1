//! Which JSON types a tool's parameter may have, read from its JSON schema.
//!
//! Calls in the XML dialect carry text, so the schema alone can say whether `02134` is a string. Everything that real
//! tools write is followed: `type` as name or list, `anyOf`, `oneOf`, `allOf`, local `$ref`, `const`, `enum`,
//! `nullable`, and the keywords that only one type has. What cannot be known is every type. The walk is
//! bounded in depth and in steps: schemas come from clients and may refer to themselves.

use serde_json::Value;

/// Nesting of alternatives and references that is followed.
const DEPTH_MAX: usize = 16;
/// Schemas that are looked at for one parameter.
const STEPS_MAX: usize = 512;

/// A set of JSON types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const NULL: Self = Self(1);
    pub(crate) const BOOLEAN: Self = Self(2);
    pub(crate) const INTEGER: Self = Self(4);
    /// Numbers that may have a fraction; integers are numbers as well.
    pub(crate) const NUMBER: Self = Self(8 | 4);
    pub(crate) const STRING: Self = Self(16);
    pub(crate) const ARRAY: Self = Self(32);
    pub(crate) const OBJECT: Self = Self(64);
    pub(crate) const ANY: Self = Self(127);
    const NONE: Self = Self(0);

    /// Whether all of `other` are in this set.
    pub(crate) fn allows(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// This set without `other`; `None` where nothing is left.
    pub(crate) fn without(self, other: Self) -> Option<Self> {
        Some(Self(self.0 & !other.0)).filter(|rest| *rest != Self::NONE)
    }

    fn named(name: &str) -> Self {
        match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::ANY,
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// Whether a value is of one of these types; a number without a fraction is an integer.
    pub(crate) fn fits(self, value: &Value) -> bool {
        let whole = value.as_f64().is_some_and(|number| number.fract() == 0.0);
        self.allows(Self::of(value)) || (whole && self.allows(Self::INTEGER))
    }
}

/// The types that `schema`, a part of the document `root`, allows. Never empty: what allows nothing is not a
/// schema to go by.
pub(crate) fn types(schema: &Value, root: &Value) -> Types {
    let found = walk(schema, root, DEPTH_MAX, &mut { STEPS_MAX });
    if found == Types::NONE { Types::ANY } else { found }
}

/// The schema of parameter `key` of a function whose `parameters` are given, if it is listed.
pub(crate) fn property<'a>(parameters: &'a Value, key: &str) -> Option<&'a Value> {
    resolved(parameters, parameters).get("properties")?.get(key)
}

/// `schema`, or what its local `$ref` leads to.
pub(crate) fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    for _ in 0..DEPTH_MAX {
        let Some(next) = referred(schema, root) else { break };
        schema = next;
    }
    schema
}

fn referred<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    let pointer = schema.get("$ref")?.as_str()?.strip_prefix('#')?;
    root.pointer(pointer)
}

fn walk(schema: &Value, root: &Value, depth: usize, steps: &mut usize) -> Types {
    if depth == 0 || *steps == 0 {
        return Types::ANY;
    }
    *steps -= 1;
    let mut found = match schema.get("type") {
        Some(Value::String(name)) => Types::named(name),
        Some(Value::Array(names)) => {
            let named = names.iter().filter_map(Value::as_str).map(Types::named);
            named.fold(Types::NONE, Types::or)
        }
        _ => Types::ANY,
    };
    if let Some(value) = schema.get("const") {
        found = found.and(Types::of(value));
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        found = found.and(values.iter().map(Types::of).fold(Types::NONE, Types::or));
    }
    if let Some(target) = referred(schema, root) {
        found = found.and(walk(target, root, depth - 1, steps));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(options)) = schema.get(key) {
            let mut any = Types::NONE;
            for option in options {
                any = any.or(walk(option, root, depth - 1, steps));
            }
            found = found.and(any);
        }
    }
    if let Some(Value::Array(parts)) = schema.get("allOf") {
        for part in parts {
            found = found.and(walk(part, root, depth - 1, steps));
        }
    }
    // Only keywords say it: strictly such a schema allows other types too, but no author means that.
    if found == Types::ANY {
        let has = |keys: &[&str]| keys.iter().any(|key| schema.get(key).is_some());
        if has(&["properties", "additionalProperties", "required"]) {
            found = Types::OBJECT;
        } else if has(&["items", "prefixItems"]) {
            found = Types::ARRAY;
        } else if has(&["pattern", "format", "minLength", "maxLength"]) {
            found = Types::STRING;
        }
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        found = found.or(Types::NULL);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ladders_of_alternatives_and_references_are_followed() {
        let root = json!({"$defs": {"Unit": {"enum": ["c", "f"]}, "Count": {"type": "integer"},
            "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]},
            "List": {"$ref": "#/$defs/Loop2"}, "Loop2": {"type": "array", "items": {"$ref": "#/$defs/List"}}}});
        let or = Types::or;
        for (schema, expected) in [
            (json!({"type": "string"}), Types::STRING),
            (json!({"type": ["integer", "null"]}), or(Types::INTEGER, Types::NULL)),
            (
                json!({"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}),
                or(Types::INTEGER, Types::NULL),
            ),
            (
                json!({"anyOf": [{"anyOf": [{"type": "number"}]}, {"type": "null"}]}),
                or(Types::NUMBER, Types::NULL),
            ),
            (json!({"$ref": "#/$defs/Unit", "nullable": true}), or(Types::STRING, Types::NULL)),
            (json!({"allOf": [{"$ref": "#/$defs/Count"}], "description": "x"}), Types::INTEGER),
            (json!({"const": 3}), Types::INTEGER),
            (json!({"enum": [1, "a", null]}), or(or(Types::INTEGER, Types::STRING), Types::NULL)),
            (json!({"properties": {}}), Types::OBJECT),
            (json!({"items": {}}), Types::ARRAY),
            (json!({"$ref": "#/$defs/List"}), Types::ARRAY),
            (json!({"$ref": "#/$defs/Loop"}), Types::ANY),
            (json!({"$ref": "other.json"}), Types::ANY),
            (json!({"type": "string", "const": 3}), Types::ANY),
            (json!(true), Types::ANY),
            (json!({}), Types::ANY),
        ] {
            assert_eq!(types(&schema, &root), expected, "{schema}");
        }
        assert!(Types::INTEGER.fits(&json!(3.0)) && !Types::INTEGER.fits(&json!(3.5)));
        assert!(Types::NUMBER.fits(&json!(3)) && !Types::NUMBER.fits(&json!("3")));
    }
}
