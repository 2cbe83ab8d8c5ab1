//! What config.json says of matrices that publishers' tools quantised: which schemes occur in the checkpoint.
//!
//! compressed-tensors and ModelOpt store values and scales (and what all scales share) as tensors whose names and types
//! say what they are; the configuration must agree, and says what they do not: bits and group of packed integers, and
//! that something else is computed as well, which is refused by its name. Lists of modules that are not quantised
//! (`ignore`, `exclude_modules`) say what the tensors say. Roundings of activations are not read: a product of exact
//! activations with the weights of the file is the exact reading of the file.

use std::path::Path;

use kernels::format::{FP8_TILE, GlobalScale};
use serde_json::{Map, Value};

use super::error::FormatError;
use super::quantization::Scheme;
use crate::shown::shown;

/// ModelOpt's names of what is read.
const MODELOPT: &str = "of ModelOpt NVFP4, W4A16_NVFP4, FP8, FP8_PER_CHANNEL_PER_TOKEN and MIXED_PRECISION of these \
     are read";

/// compressed-tensors' formats that are read.
const COMPRESSED: &str = "of compressed-tensors integers of 4 or 8 bits in groups of 32, 64 or 128 (format \
     pack-quantized), 8-bit floats by tensor, channel and tile of 128 x 128 (float-quantized), \
     mxfp4-pack-quantized and nvfp4-pack-quantized are read";

/// ModelOpt's own file, older than its entry in config.json.
pub(super) const MODELOPT_FILE: &str = "hf_quant_config.json";

/// Schemes of publishers' tools that occur in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// Integers packed by compressed-tensors, in the same way wherever they are.
    pub(crate) integers: Option<Scheme>,
    /// Whether they have zero points.
    pub(crate) zeros: bool,
    /// 8-bit floats with one scale for a matrix.
    pub(crate) fp8_whole: bool,
    /// 8-bit floats with a scale for each row.
    pub(crate) fp8_rows: bool,
    /// Anything that its tensors say in full.
    said: bool,
    /// 4-bit floats in groups of 16, and what the number of each matrix does to its scales.
    pub(crate) nvfp4: Option<GlobalScale>,
}

/// Where an object is, for messages.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) file: &'a Path,
    pub(super) key: &'a str,
    pub(super) remedy: &'static str,
}

impl Published {
    /// Whether any tool quantised anything.
    pub(crate) fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

impl At<'_> {
    /// The refusal of a field of the object, and of the value found.
    pub(super) fn refused(self, field: &str, found: Option<&Value>) -> FormatError {
        let found = found.map_or_else(|| "no value".to_owned(), |v| shown(v).to_string());
        FormatError::unsupported(self.file, format!("{}.{field}", self.key), found, self.remedy)
    }

    /// Refuses any value of `weights` but the expected one.
    fn expect(self, path: &str, from: &Value, key: &str, wanted: Value) -> Result<(), FormatError> {
        match from.get(key) {
            Some(found) if *found == wanted => Ok(()),
            found => Err(self.refused(&format!("{path}.{key}"), found)),
        }
    }
}

/// True for a value that says nothing.
pub(super) fn is_nothing(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(object)) => object.is_empty(),
        Some(Value::Array(array)) => array.is_empty(),
        Some(_) => false,
    }
}

/// Schemes of the object `key` that compressed-tensors wrote.
pub(super) fn compressed_tensors(
    file: &Path,
    key: &str,
    object: &Map<String, Value>,
) -> Result<Published, FormatError> {
    let at = At { file, key, remedy: COMPRESSED };
    // Rotations of weights and activations.
    if !is_nothing(object.get("transform_config")) {
        return Err(at.refused("transform_config", object.get("transform_config")));
    }
    let sparse = object.get("sparsity_config").and_then(|sparse| sparse.get("format"));
    if sparse.is_some_and(|format| *format != "dense") {
        return Err(at.refused("sparsity_config.format", sparse));
    }
    let groups = object.get("config_groups").and_then(Value::as_object);
    let Some(groups) = groups.filter(|groups| !groups.is_empty()) else {
        return Err(at.refused("config_groups", object.get("config_groups")));
    };
    let mut found = Published::default();
    for (name, group) in groups {
        let path = format!("config_groups.{}", shown(name));
        let weights = group.get("weights").unwrap_or(&Value::Null);
        let own = group.get("format").filter(|format| !format.is_null());
        let format = own.or(object.get("format"));
        let place = if own.is_some() { format!("{path}.format") } else { "format".to_owned() };
        match format.and_then(Value::as_str) {
            Some("pack-quantized") => {
                let (scheme, zeros) = integers(at, &format!("{path}.weights"), weights)?;
                let before = found.integers.replace(scheme);
                let zeros_before = std::mem::replace(&mut found.zeros, zeros);
                if before.is_some_and(|other| (other, zeros_before) != (scheme, zeros)) {
                    let differ = Value::from("groups that differ");
                    return Err(at.refused("config_groups", Some(&differ)));
                }
            }
            Some("nvfp4-pack-quantized") => {
                let path = format!("{path}.weights");
                at.expect(&path, weights, "type", "float".into())?;
                at.expect(&path, weights, "num_bits", 4.into())?;
                at.expect(&path, weights, "group_size", 16.into())?;
                found.nvfp4 = Some(GlobalScale::Divides);
            }
            Some("mxfp4-pack-quantized") => {
                let path = format!("{path}.weights");
                at.expect(&path, weights, "type", "float".into())?;
                at.expect(&path, weights, "num_bits", 4.into())?;
                at.expect(&path, weights, "group_size", 32.into())?;
                found.said = true;
            }
            Some("float-quantized" | "naive-quantized") => {
                floats(at, &format!("{path}.weights"), weights, &mut found)?;
            }
            _ => return Err(at.refused(&place, format)),
        }
    }
    Ok(found)
}

/// Adds 8-bit floats with scales of one of the three kinds.
fn floats(
    at: At<'_>,
    path: &str,
    weights: &Value,
    found: &mut Published,
) -> Result<(), FormatError> {
    at.expect(path, weights, "type", "float".into())?;
    at.expect(path, weights, "num_bits", 8.into())?;
    let strategy = weights.get("strategy");
    match strategy.and_then(Value::as_str) {
        Some("tensor") => found.fp8_whole = true,
        Some("channel") => found.fp8_rows = true,
        Some("block") => {
            at.expect(path, weights, "block_structure", vec![FP8_TILE, FP8_TILE].into())?;
            found.said = true;
        }
        _ => return Err(at.refused(&format!("{path}.strategy"), strategy)),
    }
    Ok(())
}

/// Bits and group of integers in groups, and whether these have zero points.
fn integers(at: At<'_>, path: &str, weights: &Value) -> Result<(Scheme, bool), FormatError> {
    at.expect(path, weights, "type", "int".into())?;
    let symmetric = weights.get("symmetric");
    let Some(symmetric) = symmetric.and_then(Value::as_bool) else {
        return Err(at.refused(&format!("{path}.symmetric"), symmetric));
    };
    at.expect(path, weights, "strategy", "group".into())?;
    // Columns in another order than the inputs.
    if weights.get("actorder").is_some_and(|order| !order.is_null()) {
        return Err(at.refused(&format!("{path}.actorder"), weights.get("actorder")));
    }
    let number = |key: &str, known: &[u64]| {
        let value = weights.get(key);
        let number = value.and_then(Value::as_u64).filter(|number| known.contains(number));
        number.ok_or_else(|| at.refused(&format!("{path}.{key}"), value))
    };
    let (bits, group) = (number("num_bits", &[4, 8])?, number("group_size", &[32, 64, 128])?);
    // Both fit: the allowed values say so.
    Ok((Scheme { bits: bits as u8, group: group as u16, floats: false }, !symmetric))
}

/// Schemes of the object `key` of AutoRound whose tensors are those of compressed-tensors. Where it has no
/// `config_groups`, its type of data says which they are.
pub(super) fn auto_round(
    file: &Path,
    key: &str,
    object: &Map<String, Value>,
) -> Result<Published, FormatError> {
    if object.contains_key("config_groups") {
        return compressed_tensors(file, key, object);
    }
    let at = At { file, key, remedy: COMPRESSED };
    let kind = object.get("data_type");
    let (group, found) = match kind.and_then(Value::as_str) {
        Some("nv_fp") => {
            (16, Published { nvfp4: Some(GlobalScale::Divides), ..Published::default() })
        }
        Some("mx_fp") => (32, Published { said: true, ..Published::default() }),
        _ => return Err(at.refused("data_type", kind)),
    };
    for (name, expected) in [("bits", 4), ("group_size", group)] {
        let value = object.get(name);
        if value.and_then(Value::as_u64) != Some(expected) {
            return Err(at.refused(name, value));
        }
    }
    Ok(found)
}

/// Schemes of an object that ModelOpt wrote: `key` of config.json, or of its own file.
pub(super) fn modelopt(
    file: &Path,
    key: &str,
    object: &Map<String, Value>,
) -> Result<Published, FormatError> {
    let at = At { file, key, remedy: MODELOPT };
    let mut found = Published::default();
    let algorithm = object.get("quant_algo");
    if algorithm.and_then(Value::as_str) == Some("MIXED_PRECISION") {
        let layers = object.get("quantized_layers");
        let Some(layers) = layers.and_then(Value::as_object) else {
            return Err(at.refused("quantized_layers", layers));
        };
        for (name, layer) in layers {
            let path = format!("quantized_layers.{}", shown(name));
            let Some(layer) = layer.as_object() else {
                return Err(at.refused(&path, Some(layer)));
            };
            modelopt_scheme(at, &format!("{path}."), layer, &mut found)?;
        }
        return Ok(found);
    }
    modelopt_scheme(at, "", object, &mut found)?;
    Ok(found)
}

/// Adds the scheme of an object with `quant_algo`, at `path`.
fn modelopt_scheme(
    at: At<'_>,
    path: &str,
    object: &Map<String, Value>,
    found: &mut Published,
) -> Result<(), FormatError> {
    let algorithm = object.get("quant_algo");
    match algorithm.and_then(Value::as_str) {
        Some("NVFP4" | "W4A16_NVFP4") => {
            let group = object.get("group_size").filter(|group| !group.is_null());
            if group.is_some_and(|group| *group != 16) {
                return Err(at.refused(&format!("{path}group_size"), group));
            }
            found.nvfp4 = Some(GlobalScale::Multiplies);
            Ok(())
        }
        Some("FP8") => {
            found.fp8_whole = true;
            Ok(())
        }
        Some("FP8_PER_CHANNEL_PER_TOKEN") => {
            found.fp8_rows = true;
            Ok(())
        }
        _ => Err(at.refused(&format!("{path}quant_algo"), algorithm)),
    }
}
