//! `quantization` of config.json: which modules are quantised, with how many bits, in which groups.
//!
//! MLX writes one default and overrides by module path (`language_model.model.layers.0.mlp.gate`):
//! an object, `false` for an unquantised module, `true` for the default. Paths are compared without
//! the text model's prefix. What the configuration says is checked against the shapes of the tensors;
//! a contradiction is an error, because bits and group cannot be told from the shapes alone (8 bits in
//! groups of 32 and 4 bits in groups of 64 have the same ones).

use std::collections::HashMap;
use std::path::Path;

use kernels::format::FP8_TILE;
use serde_json::{Map, Value};

use super::config::keys::{self, Key};
use super::config::kind::AnyOf;
use super::error::FormatError;
use super::input_major::config::{self as input_major, Quantised};
use super::published::{self, MODELOPT_FILE, Published};
use super::{Configuration, files, json, names, scaled};
use crate::shown::shown;

const SUPPORTED: &str = "supported are affine quantisation (bits 2, 3, 4, 5, 6, 8; groups of 32, 64, 128), mxfp4, \
     fp8 in tiles of 128 x 128, nvfp4, int4 and int8 of compressed-tensors, gptq, awq and auto-round to be packed, \
     and unquantised bf16, f16, f32";

/// 4-bit floats as `quant_method` (gpt-oss) and as `mode` (mlx-lm): their tensors say so as well.
const MXFP4: &str = "mxfp4";

/// What is no module's path in the object.
const SCHEME_KEYS: [&str; 3] = ["bits", "group_size", "mode"];

/// Bits and group size of a module, and whether its values are floats of mlx-lm's mode `mxfp4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) bits: u8,
    pub(crate) group: u16,
    pub(crate) floats: bool,
}

/// The quantisation of a checkpoint; the default is "none at all".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quantization {
    default: Option<Scheme>,
    /// By canonical module path; `None` for an unquantised module.
    overrides: HashMap<String, Option<Scheme>>,
    /// What publishers' tools quantised.
    published: Published,
    /// What GPTQ, AWQ or AutoRound quantised.
    input_major: Option<Quantised>,
}

impl Quantization {
    /// Reads `quantization`, or `quantization_config` where only that one is present, or ModelOpt's own file in the
    /// folder.
    pub(crate) fn read(config: &Configuration, folder: &Path) -> Result<Self, FormatError> {
        let file = config.file();
        let found = match config.get(&keys::QUANTIZATION)? {
            Some(object) => Some((keys::QUANTIZATION.name(), object)),
            None => config
                .get(&keys::QUANTIZATION_CONFIG)?
                .map(|object| (keys::QUANTIZATION_CONFIG.name(), object)),
        };
        let Some((key, object)) = found else { return Self::of_modelopt(folder) };
        let method = object.get("quant_method");
        if method.and_then(Value::as_str) == Some(MXFP4) {
            // What is in 4-bit floats says so by its tensors.
            return Ok(Self::default());
        }
        if method.and_then(Value::as_str) == Some("fp8") {
            check_tiles(file, key, object)?;
            return Ok(Self::default());
        }
        if method.and_then(Value::as_str) == Some("compressed-tensors") {
            let published = published::compressed_tensors(file, key, object)?;
            return Ok(Self { published, ..Self::default() });
        }
        if let Some(read) = input_major(file, key, object)? {
            return Ok(read);
        }
        if let Some("modelopt" | "modelopt_fp4") = method.and_then(Value::as_str) {
            let published = published::modelopt(file, key, object)?;
            return Ok(Self { published, ..Self::default() });
        }
        if let Some(method) = method {
            let field = format!("{key}.quant_method");
            return Err(FormatError::unsupported(file, field, method.to_string(), SUPPORTED));
        }
        let default = scheme(file, key, object, None)?;
        let mut overrides = HashMap::new();
        for (path, value) in object {
            if SCHEME_KEYS.contains(&path.as_str()) {
                continue;
            }
            let field = format!("{key}.{path}");
            let scheme = match value {
                Value::Bool(false) => None,
                Value::Bool(true) => Some(default),
                Value::Object(object) => Some(scheme(file, &field, object, Some(default))?),
                // A module's path has dots; other names beside bits and group_size are notes of the converter.
                _ if !path.contains('.') => continue,
                _ => {
                    let found = format!("{} is not true, false or an object", shown(value));
                    return Err(FormatError::invalid(file, field, found, SUPPORTED));
                }
            };
            let module = names::module(path).into_owned();
            if overrides.insert(module, scheme).is_some_and(|previous| previous != scheme) {
                let found = "a second, different entry for the same module";
                return Err(FormatError::invalid(file, field, found, "keep one of the two"));
            }
        }
        Ok(Self { default: Some(default), overrides, ..Self::default() })
    }

    /// What ModelOpt's own file says, where there is one.
    fn of_modelopt(folder: &Path) -> Result<Self, FormatError> {
        let Some(path) = files::find(folder, MODELOPT_FILE)? else { return Ok(Self::default()) };
        let json = json::read(&path, json::CONFIG_BYTES_MAX)?;
        let Some(object) = json.get(keys::QUANTIZATION.name()).and_then(Value::as_object) else {
            let remedy = "the file has an object of this name";
            return Err(FormatError::invalid(&path, keys::QUANTIZATION.name(), "missing", remedy));
        };
        let published = published::modelopt(&path, keys::QUANTIZATION.name(), object)?;
        Ok(Self { published, ..Self::default() })
    }

    /// The scheme of a module by canonical path; `None` when the configuration has it unquantised.
    pub(crate) fn of(&self, module: &str) -> Option<Scheme> {
        self.overrides.get(module).copied().unwrap_or(self.default)
    }

    /// What publishers' tools quantised.
    pub(crate) fn published(&self) -> &Published {
        &self.published
    }

    /// What GPTQ, AWQ or AutoRound quantised.
    pub(crate) fn input_major(&self) -> Option<&Quantised> {
        self.input_major.as_ref()
    }

    /// True when an override names the module and says that it is quantised.
    pub(crate) fn overrides_to_quantised(&self, module: &str) -> bool {
        matches!(self.overrides.get(module), Some(Some(_)))
            || self.input_major().is_some_and(|quantised| quantised.overrides_to_quantised(module))
    }

    /// True when the configuration mentions quantisation at all.
    pub(crate) fn is_present(&self) -> bool {
        self.default.is_some()
    }
}

/// The quantisation of an object that GPTQ, AWQ or AutoRound wrote.
fn input_major(
    file: &Path,
    key: &str,
    object: &Map<String, Value>,
) -> Result<Option<Quantization>, FormatError> {
    let text = |name: &str| object.get(name).and_then(Value::as_str);
    let quantised = match text("quant_method") {
        Some("gptq") => input_major::gptq(file, key, object)?,
        Some("awq") => input_major::awq(file, key, object)?,
        Some("auto-round" | "intel/auto-round")
            if text("packing_format") == Some(input_major::LLM_COMPRESSOR) =>
        {
            let published = published::auto_round(file, key, object)?;
            return Ok(Some(Quantization { published, ..Quantization::default() }));
        }
        Some("auto-round" | "intel/auto-round") => input_major::auto_round(file, key, object)?,
        _ => return Ok(None),
    };
    Ok(Some(Quantization { input_major: Some(quantised), ..Quantization::default() }))
}

/// Checks that 8-bit floats are said to be of the kind that is read; their tensors say which they are.
fn check_tiles(file: &Path, key: &str, object: &Map<String, Value>) -> Result<(), FormatError> {
    let tile = Value::from([FP8_TILE, FP8_TILE].map(|size| size as u64).to_vec());
    for (name, expected) in [("weight_block_size", tile), ("fmt", Value::from("e4m3"))] {
        match object.get(name) {
            Some(found) if *found == expected => {}
            // Without the format the tensors' types say it.
            None if name == "fmt" => {}
            found => {
                let found = found.map_or_else(|| "no value".to_owned(), |v| shown(v).to_string());
                let field = format!("{key}.{name}");
                return Err(FormatError::unsupported(file, field, found, scaled::READ));
            }
        }
    }
    Ok(())
}

fn scheme(
    file: &Path,
    field: &str,
    object: &Map<String, Value>,
    default: Option<Scheme>,
) -> Result<Scheme, FormatError> {
    let unsupported = |name: &str, found: String| {
        FormatError::unsupported(file, format!("{field}.{name}"), found, SUPPORTED)
    };
    let mode = match object.get(keys::MODE.name()) {
        Some(mode) => keys::MODE.read(mode).map_err(|f| unsupported(keys::MODE.name(), f))?,
        None => None,
    };
    let number = |key: &Key<AnyOf>, default: Option<u64>| -> Result<u64, FormatError> {
        let read = match object.get(key.name()) {
            Some(value) => key.read(value).map_err(|found| unsupported(key.name(), found))?,
            None => None,
        };
        read.or(default).ok_or_else(|| {
            let field = format!("{field}.{}", key.name());
            FormatError::invalid(file, field, "missing", "add the number")
        })
    };
    let bits = number(&keys::BITS, default.map(|scheme| scheme.bits.into()))?;
    let group = number(&keys::GROUP_SIZE, default.map(|scheme| scheme.group.into()))?;
    let floats = mode == Some(MXFP4) || mode.is_none() && default.is_some_and(|it| it.floats);
    if floats && (bits, group) != (4, 32) {
        let found = format!("{MXFP4} of {bits} bits in groups of {group}");
        return Err(unsupported(keys::MODE.name(), found));
    }
    // Both fit: the allowed values say so.
    Ok(Scheme { bits: bits as u8, group: group as u16, floats })
}
