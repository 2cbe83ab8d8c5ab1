//! Typed access to the keys of config.json, with the key named in every complaint.

use serde_json::Value;

use crate::EngineError;

pub(super) fn problem(key: &'static str, problem: impl Into<String>) -> EngineError {
    EngineError::Config { key, problem: problem.into() }
}

/// Typed access to the keys of a configuration object.
pub(super) struct Keys<'a>(pub(super) &'a Value);

impl Keys<'_> {
    pub(super) fn size(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Err(problem(key, "is missing")),
            Some(value) => value
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .filter(|number| range.contains(number))
                .ok_or_else(|| {
                    let (low, high) = (range.start(), range.end());
                    problem(key, format!("{value} is not a whole number from {low} to {high}"))
                }),
        }
    }

    pub(super) fn size_or(
        &self,
        key: &'static str,
        default: usize,
        range: std::ops::RangeInclusive<usize>,
    ) -> Result<usize, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => self.size(key, range),
        }
    }

    pub(super) fn float_or(&self, key: &'static str, default: f64) -> Result<f64, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_f64()
                .filter(|number| number.is_finite())
                .ok_or_else(|| problem(key, format!("{value} is not a finite number"))),
        }
    }

    pub(super) fn flag_or(&self, key: &'static str, default: bool) -> Result<bool, EngineError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => {
                value.as_bool().ok_or_else(|| problem(key, format!("{value} is not a boolean")))
            }
        }
    }

    /// `rope_parameters` (transformers 5) or `rope_scaling` (before), when given as an object.
    fn rope(&self) -> Option<Keys<'_>> {
        ["rope_parameters", "rope_scaling"]
            .iter()
            .find_map(|key| self.0.get(*key).filter(|value| value.is_object()))
            .map(Keys)
    }

    pub(super) fn rope_theta(&self, default: f64) -> Result<f64, EngineError> {
        if let Some(rope) = self.rope() {
            let kind = ["rope_type", "type"].iter().find_map(|key| rope.0.get(*key)?.as_str());
            if !matches!(kind, None | Some("default")) {
                let found = format!("rope_type {:?} is not supported", kind.unwrap_or_default());
                return Err(problem("rope_parameters", found));
            }
            if rope.0.get("rope_theta").is_some_and(|value| !value.is_null()) {
                return positive("rope_theta", rope.float_or("rope_theta", default)?);
            }
        }
        positive("rope_theta", self.float_or("rope_theta", default)?)
    }

    pub(super) fn rotary_factor(&self, default: f64) -> Result<f64, EngineError> {
        let outer = self.float_or("partial_rotary_factor", default)?;
        let factor = match self.rope() {
            Some(rope) => rope.float_or("partial_rotary_factor", outer)?,
            None => outer,
        };
        positive("partial_rotary_factor", factor)
    }

    /// Refuses another activation than the families' own: computing it as silu would be a silent substitution.
    pub(super) fn require_silu(&self) -> Result<(), EngineError> {
        match self.0.get("hidden_act") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(name)) if name == "silu" || name == "swish" => Ok(()),
            Some(other) => {
                Err(problem("hidden_act", format!("{other} is not supported, only silu")))
            }
        }
    }

    pub(super) fn tied(&self, root: &Value) -> Result<bool, EngineError> {
        let outer = Keys(root).flag_or("tie_word_embeddings", false)?;
        self.flag_or("tie_word_embeddings", outer)
    }

    pub(super) fn end_tokens(&self, root: &Value) -> Result<Vec<u32>, EngineError> {
        let value =
            [self.0, root].iter().find_map(|v| v.get("eos_token_id")).unwrap_or(&Value::Null);
        token_ids("eos_token_id", value)
    }
}

/// A token id or a list of them; null is none.
///
/// # Errors
/// The key and the value that is no token id.
pub fn token_ids(key: &'static str, value: &Value) -> Result<Vec<u32>, EngineError> {
    let one = |value: &Value| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| problem(key, format!("{value} is not a token id")))
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}

fn positive(key: &'static str, value: f64) -> Result<f64, EngineError> {
    if value > 0.0 { Ok(value) } else { Err(problem(key, format!("{value} is not positive"))) }
}
