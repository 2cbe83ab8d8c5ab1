//! `quantization` of config.json: which modules are quantised, with how many bits, in which groups.
//!
//! MLX writes one default and overrides by module path (`language_model.model.layers.0.mlp.gate`):
//! an object, `false` for an unquantised module, `true` for the default. Paths are compared without
//! the text model's prefix. What the configuration says is checked against the shapes of the tensors;
//! a contradiction is an error, because bits and group cannot be told from the shapes alone (8 bits in
//! groups of 32 and 4 bits in groups of 64 have the same ones).

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::error::FormatError;
use super::names;

const SUPPORTED: &str = "supported are affine quantisation (bits 2, 3, 4, 5, 6, 8; groups of 32, 64, 128) and \
     unquantised bf16, f16, f32";

/// Bits and group size of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) bits: u8,
    pub(crate) group: u16,
}

/// The quantisation of a checkpoint; the default is "none at all".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantization {
    default: Option<Scheme>,
    /// By canonical module path; `None` for an unquantised module.
    overrides: HashMap<String, Option<Scheme>>,
}

impl Quantization {
    /// Reads `quantization`, or `quantization_config` where only that one is present.
    pub(crate) fn read(file: &Path, config: &Value) -> Result<Self, FormatError> {
        let root = ["quantization", "quantization_config"]
            .into_iter()
            .flat_map(|key| [config, super::text_config(config)].map(|place| (key, place)))
            .find_map(|(key, place)| Some((key, place.get(key).filter(|value| !value.is_null())?)));
        let Some((key, value)) = root else { return Ok(Self::default()) };
        let Some(object) = value.as_object() else {
            let found = value.to_string();
            return Err(FormatError::invalid(file, key, found, "it must be an object"));
        };
        if let Some(method) = object.get("quant_method") {
            let field = format!("{key}.quant_method");
            return Err(FormatError::unsupported(file, field, method.to_string(), SUPPORTED));
        }
        let default = scheme(file, key, value, None)?;
        let mut overrides = HashMap::new();
        for (path, value) in object {
            if matches!(path.as_str(), "bits" | "group_size" | "mode") {
                continue;
            }
            let field = format!("{key}.{path}");
            let scheme = match value {
                Value::Bool(false) => None,
                Value::Bool(true) => Some(default),
                Value::Object(_) => Some(scheme(file, &field, value, Some(default))?),
                // Scalars beside bits and group_size are notes of the converter.
                _ => continue,
            };
            let module = names::without_prefix(path).to_owned();
            if overrides.insert(module, scheme).is_some_and(|previous| previous != scheme) {
                let found = "a second, different entry for the same module";
                return Err(FormatError::invalid(file, field, found, "keep one of the two"));
            }
        }
        Ok(Self { default: Some(default), overrides })
    }

    /// The scheme of a module by canonical path; `None` when the configuration has it unquantised.
    pub(crate) fn of(&self, module: &str) -> Option<Scheme> {
        self.overrides.get(module).copied().unwrap_or(self.default)
    }

    /// True when an override names the module and says that it is quantised.
    pub(crate) fn overrides_to_quantised(&self, module: &str) -> bool {
        matches!(self.overrides.get(module), Some(Some(_)))
    }

    /// True when the configuration mentions quantisation at all.
    pub(crate) fn is_present(&self) -> bool {
        self.default.is_some()
    }
}

fn scheme(
    file: &Path,
    field: &str,
    value: &Value,
    default: Option<Scheme>,
) -> Result<Scheme, FormatError> {
    if let Some(mode) = value.get("mode").filter(|mode| mode.as_str() != Some("affine")) {
        let field = format!("{field}.mode");
        return Err(FormatError::unsupported(file, field, mode.to_string(), SUPPORTED));
    }
    let number = |name: &str, default: Option<u64>, allowed: &[u64]| -> Result<u64, FormatError> {
        let field = format!("{field}.{name}");
        let Some(value) = value.get(name) else {
            let missing = || FormatError::invalid(file, field, "missing", "add the number");
            return default.ok_or_else(missing);
        };
        match value.as_u64() {
            Some(number) if allowed.contains(&number) => Ok(number),
            _ => Err(FormatError::unsupported(file, field, value.to_string(), SUPPORTED)),
        }
    };
    let bits = number("bits", default.map(|scheme| scheme.bits.into()), &[2, 3, 4, 5, 6, 8])?;
    let group = number("group_size", default.map(|scheme| scheme.group.into()), &[32, 64, 128])?;
    // Both fit: the allowed values say so.
    Ok(Scheme { bits: bits as u8, group: group as u16 })
}
