//! The few numbers of config.json that decide where bytes lie.
//!
//! The engine reads the configuration for what it means; here only sizes are taken, with limits, so
//! that tensors can be told apart and no table grows beyond what a real model needs.

use std::path::Path;

use serde_json::Value;

use super::Projection;
use super::error::FormatError;

/// Layers of any model (the deepest known has 126).
const LAYERS_MAX: u64 = 1024;
/// Width of any matrix.
const WIDTH_MAX: u64 = 1 << 20;
/// Expert records of a model: 2.8 times those of the largest known (92 layers of 512).
const RECORDS_MAX: u64 = 131_072;

/// Sizes from the text model's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimensions {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    /// Routed experts of a layer; zero where the configuration has none.
    pub(crate) experts: usize,
    pub(crate) intermediate: usize,
}

/// The text model's part of a configuration: `text_config`, or the root where there is none.
pub fn text_config(config: &Value) -> &Value {
    config.get("text_config").filter(|text| text.is_object()).unwrap_or(config)
}

/// `model_type` of the text model.
pub(crate) fn model_type(config: &Value) -> &str {
    text_config(config)
        .get("model_type")
        .or_else(|| config.get("model_type"))
        .and_then(Value::as_str)
        .unwrap_or("")
}

/// True for the families whose norms are trained around zero (`1 + w`). Only they have the question;
/// Qwen3-MoE's norms are plain in every layout.
pub(crate) fn has_zero_centred_norms(config: &Value) -> bool {
    let family = model_type(config);
    family.starts_with("qwen3_5") || family.starts_with("qwen3_next")
}

impl Dimensions {
    /// Rows and columns of an expert's matrix.
    pub(crate) fn projection(&self, projection: Projection) -> (usize, usize) {
        match projection {
            Projection::Gate | Projection::Up => (self.intermediate, self.hidden),
            Projection::Down => (self.hidden, self.intermediate),
        }
    }

    pub(crate) fn read(file: &Path, config: &Value) -> Result<Self, FormatError> {
        if !config.is_object() {
            return Err(FormatError::invalid(
                file,
                "config",
                "not a JSON object",
                "use the model's own config.json",
            ));
        }
        let text = text_config(config);
        let field = |name: &str, limit: u64| -> Result<Option<usize>, FormatError> {
            let Some(value) = text.get(name).filter(|value| !value.is_null()) else {
                return Ok(None);
            };
            match value.as_u64() {
                Some(number) if number > limit => {
                    Err(FormatError::limit(file, name, number, limit))
                }
                Some(number) if number > 0 => Ok(Some(number as usize)),
                _ => Err(FormatError::invalid(
                    file,
                    name,
                    value.to_string(),
                    "it must be a positive whole number",
                )),
            }
        };
        let required = |name: &str, limit: u64| -> Result<usize, FormatError> {
            field(name, limit)?.ok_or_else(|| {
                FormatError::invalid(file, name, "missing", "use the model's own config.json")
            })
        };
        let layers = required("num_hidden_layers", LAYERS_MAX)?;
        let hidden = required("hidden_size", WIDTH_MAX)?;
        let experts = field("num_experts", u16::MAX.into())?.unwrap_or(0);
        let intermediate = field("moe_intermediate_size", WIDTH_MAX)?.unwrap_or(0);
        let records = (layers * experts) as u64;
        if records > RECORDS_MAX {
            let what = "num_hidden_layers x num_experts";
            return Err(FormatError::limit(file, what, records, RECORDS_MAX));
        }
        let top_k = field("num_experts_per_tok", u16::MAX.into())?;
        if let Some(top_k) = top_k.filter(|&top_k| experts > 0 && top_k > experts) {
            return Err(FormatError::invalid(
                file,
                "num_experts_per_tok",
                format!("{top_k} of {experts} experts"),
                "a token cannot use more experts than there are",
            ));
        }
        Ok(Self { layers, hidden, experts, intermediate })
    }
}
