//! What config.json says of matrices that lie inputs before outputs: bits, groups, symmetry and version.
//!
//! Which matrices are quantised follows from their tensors, so that lists of those that are not
//! (`modules_to_not_convert`, rules `-:` of GPTQModel's `dynamic`) say nothing new. What gives a matrix other bits or
//! groups is kept where it names one module (AutoRound's `extra_config`), and refused where it is a pattern.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::super::names;
use super::super::published::{At, is_nothing};
use super::Layout;
use crate::format::error::FormatError;
use crate::shown::shown;

/// Groups of a pack. Those of a file are one of these or a multiple of the first.
pub(super) const GROUPS: [usize; 3] = [32, 64, 128];

/// Longest group of a file, but for a whole row: far above any that is published.
const GROUP_MAX: u64 = 1 << 16;

/// What is read of this kind, for messages.
pub(super) const READ: &str = "of GPTQ (gptq, gptq_v2), AWQ (gemm, 4 bits) and AutoRound (auto_round:auto_gptq, \
     auto_round:auto_awq, auto_round:llm_compressor) codes of 4 and 8 bits are read, in groups of a multiple of 32 or \
     of whole rows; else use another release of the model";

/// How a matrix is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    pub(super) layout: Layout,
    /// 4 or 8.
    pub(super) bits: u8,
    /// Inputs that share a scale; `None` for all of a row.
    pub(super) group: Option<usize>,
    /// Whether all zero points are the middle of the codes.
    pub(super) symmetric: bool,
}

/// How a checkpoint is quantised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quantised {
    /// The object in config.json.
    key: String,
    default: Packing,
    /// By canonical module path; `None` for one that is not quantised.
    overrides: HashMap<String, Option<Packing>>,
    /// Whether inputs may be in groups in another order.
    act_order: bool,
}

impl Quantised {
    /// How a module is quantised, by canonical path; `None` where the configuration has it with 16 bits.
    pub(super) fn of(&self, module: &str) -> Option<Packing> {
        self.overrides.get(module).copied().unwrap_or(Some(self.default))
    }

    /// Whether an entry names the module and says that it is quantised.
    pub(crate) fn overrides_to_quantised(&self, module: &str) -> bool {
        matches!(self.overrides.get(module), Some(Some(_)))
    }

    /// Whether inputs may be in groups in another order, which `g_idx` says.
    pub(super) fn act_order(&self) -> bool {
        self.act_order
    }

    /// A field as messages name it.
    pub(super) fn field(&self, name: &str) -> String {
        format!("{}.{name}", self.key)
    }
}

/// Entry of an object under one of two names.
fn either<'a>(
    at: At<'_>,
    object: &'a Map<String, Value>,
    [name, other]: [&'static str; 2],
) -> Result<(&'static str, Option<&'a Value>), FormatError> {
    let some = |name| object.get(name).filter(|value| !value.is_null());
    match (some(name), some(other)) {
        (Some(value), Some(also)) if value != also => Err(at.refused(other, Some(also))),
        (None, Some(value)) => Ok((other, Some(value))),
        (value, _) => Ok((name, value)),
    }
}

/// Bits, which must be given where there is no `default`.
fn bits(
    at: At<'_>,
    object: &Map<String, Value>,
    path: &str,
    known: &[u64],
    default: Option<u8>,
) -> Result<u8, FormatError> {
    let (name, value) = either(at, object, ["bits", "w_bit"])?;
    let found = value.map_or(default.map(u64::from), Value::as_u64);
    match found.filter(|bits| known.contains(bits)) {
        Some(bits) => Ok(bits as u8),
        None => Err(at.refused(&format!("{path}{name}"), value)),
    }
}

/// Size of a group, which must be given where there is no `default`; `None` for a whole row.
fn group(
    at: At<'_>,
    object: &Map<String, Value>,
    path: &str,
    default: Option<Option<usize>>,
) -> Result<Option<usize>, FormatError> {
    let (name, value) = either(at, object, ["group_size", "q_group_size"])?;
    if let (None, Some(default)) = (value, default) {
        return Ok(default);
    }
    if value.and_then(Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    let fits =
        |group: &u64| group.is_multiple_of(GROUPS[0] as u64) && (1..=GROUP_MAX).contains(group);
    match value.and_then(Value::as_u64).filter(fits) {
        Some(group) => Ok(Some(group as usize)),
        None => Err(at.refused(&format!("{path}{name}"), value)),
    }
}

/// A field that is true, false or missing.
fn flag(
    at: At<'_>,
    object: &Map<String, Value>,
    path: &str,
    name: &str,
    default: bool,
) -> Result<bool, FormatError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        found => Err(at.refused(&format!("{path}{name}"), found)),
    }
}

/// A field that is one of `known` in any letters, or missing, which is the first.
fn one_of(
    at: At<'_>,
    object: &Map<String, Value>,
    name: &str,
    known: &[&str],
) -> Result<usize, FormatError> {
    let value = object.get(name).filter(|value| !value.is_null());
    let Some(value) = value else { return Ok(0) };
    let text = value.as_str().map(str::to_ascii_lowercase);
    let found = text.and_then(|text| known.iter().position(|known| *known == text));
    found.ok_or_else(|| at.refused(name, Some(value)))
}

/// The object `key` that AutoGPTQ or GPTQModel wrote (`quant_method` gptq).
///
/// # Errors
/// The field, and its value, that is not read.
pub(crate) fn gptq(
    file: &Path,
    key: &str,
    object: &Map<String, Value>,
) -> Result<Quantised, FormatError> {
    let at = At { file, key, remedy: READ };
    // GPTQModel has both names in some versions.
    let (format, _) = either(at, object, ["checkpoint_format", "format"])?;
    let less_one = one_of(at, object, format, &["gptq", "gptq_v2"])? == 0;
    one_of(at, object, "pack_dtype", &["int32"])?;
    if flag(at, object, "", "is_marlin_format", false)? {
        return Err(at.refused("is_marlin_format", object.get("is_marlin_format")));
    }
    let default = Packing {
        layout: Layout::Gptq { less_one },
        bits: bits(at, object, "", &[4, 8], None)?,
        group: group(at, object, "", None)?,
        symmetric: flag(at, object, "", "sym", true)?,
    };
    let act_order = flag(at, object, "", "desc_act", false)?;
    dynamic(at, object, default, act_order)?;
    Ok(Quantised { key: key.to_owned(), default, overrides: HashMap::new(), act_order })
}

/// What a rule of `dynamic` may say other than bits and groups: how the codes were found.
const HOW_FOUND: [&str; 6] = [
    "act_group_aware",
    "damp_auto_increment",
    "damp_percent",
    "mse",
    "static_groups",
    "true_sequential",
];

/// Refuses rules of `dynamic` by which some modules are quantised in another way.
fn dynamic(
    at: At<'_>,
    object: &Map<String, Value>,
    default: Packing,
    act_order: bool,
) -> Result<(), FormatError> {
    let rules = object.get("dynamic");
    if is_nothing(rules) || rules == Some(&Value::Bool(false)) {
        return Ok(());
    }
    let Some(rules) = rules.and_then(Value::as_object) else {
        return Err(at.refused("dynamic", rules));
    };
    for (pattern, rule) in rules {
        // Modules that are not quantised: their tensors say so.
        if pattern.starts_with("-:") || *rule == Value::Bool(false) {
            continue;
        }
        let path = format!("dynamic.{}", shown(pattern));
        let Some(rule) = rule.as_object() else { return Err(at.refused(&path, Some(rule))) };
        let path = format!("{path}.");
        if bits(at, rule, &path, &[4, 8], Some(default.bits))? != default.bits {
            return Err(at.refused(&format!("{path}bits"), rule.get("bits")));
        }
        if group(at, rule, &path, Some(default.group))? != default.group {
            return Err(at.refused(&format!("{path}group_size"), rule.get("group_size")));
        }
        for (name, expected) in [("sym", default.symmetric), ("desc_act", act_order)] {
            if flag(at, rule, &path, name, expected)? != expected {
                return Err(at.refused(&format!("{path}{name}"), rule.get(name)));
            }
        }
        let known = |name: &str| {
            ["bits", "group_size", "sym", "desc_act"].contains(&name) || HOW_FOUND.contains(&name)
        };
        if let Some((name, value)) = rule.iter().find(|(name, _)| !known(name)) {
            return Err(at.refused(&format!("{path}{}", shown(name)), Some(value)));
        }
    }
    Ok(())
}

/// The object `key` that AutoAWQ wrote (`quant_method` awq).
///
/// # Errors
/// The field, and its value, that is not read.
pub(crate) fn awq(
    file: &Path,
    key: &str,
    object: &Map<String, Value>,
) -> Result<Quantised, FormatError> {
    let at = At { file, key, remedy: READ };
    one_of(at, object, "version", &["gemm"])?;
    for name in ["checkpoint_format", "format"] {
        one_of(at, object, name, &["gemm", "awq"])?;
    }
    // llm-awq has words in another order.
    one_of(at, object, "backend", &["autoawq", "auto"])?;
    let default = Packing {
        layout: Layout::Awq,
        bits: bits(at, object, "", &[4], None)?,
        group: group(at, object, "", None)?,
        symmetric: !flag(at, object, "", "zero_point", true)?,
    };
    let overrides = HashMap::new();
    Ok(Quantised { key: key.to_owned(), default, overrides, act_order: false })
}

/// AutoRound's layout in the tensors of compressed-tensors.
pub(crate) const LLM_COMPRESSOR: &str = "auto_round:llm_compressor";

/// The object `key` that AutoRound wrote (`quant_method` auto-round), but for [`LLM_COMPRESSOR`].
///
/// # Errors
/// The field, and its value, that is not read.
pub(crate) fn auto_round(
    file: &Path,
    key: &str,
    object: &Map<String, Value>,
) -> Result<Quantised, FormatError> {
    let at = At { file, key, remedy: READ };
    let format = object.get("packing_format");
    let layout = match format.and_then(Value::as_str) {
        Some("auto_round:auto_gptq") => Layout::Gptq { less_one: true },
        Some("auto_round:auto_awq") => Layout::Awq,
        _ => return Err(at.refused("packing_format", format)),
    };
    one_of(at, object, "data_type", &["int"])?;
    let known: &[u64] = if layout == Layout::Awq { &[4] } else { &[4, 8] };
    let default = Packing {
        layout,
        bits: bits(at, object, "", known, None)?,
        group: group(at, object, "", None)?,
        symmetric: flag(at, object, "", "sym", true)?,
    };
    let mut quantised =
        Quantised { key: key.to_owned(), default, overrides: HashMap::new(), act_order: false };
    let extra = object.get("extra_config");
    if is_nothing(extra) {
        return Ok(quantised);
    }
    let Some(extra) = extra.and_then(Value::as_object) else {
        return Err(at.refused("extra_config", extra));
    };
    for (name, entry) in extra {
        let path = format!("extra_config.{}", shown(name));
        let Some(entry) = entry.as_object() else { return Err(at.refused(&path, Some(entry))) };
        let packing = extra_entry(at, &format!("{path}."), entry, default, known)?;
        if name.contains(|character: char| "\\^$*+?()[]{}|".contains(character)) {
            // The tensors say which modules have 16 bits.
            if packing.is_some_and(|packing| packing != default) {
                let found = Value::from("a pattern with other bits, groups or symmetry");
                return Err(at.refused(&path, Some(&found)));
            }
            continue;
        }
        let module = names::module(name).into_owned();
        let before = quantised.overrides.insert(module, packing);
        if before.is_some_and(|before| before != packing) {
            let found = Value::from("a second, different entry for the same module");
            return Err(at.refused(&path, Some(&found)));
        }
    }
    Ok(quantised)
}

/// An entry of `extra_config`: how a module is quantised, `None` for one that has 16 bits.
fn extra_entry(
    at: At<'_>,
    path: &str,
    entry: &Map<String, Value>,
    default: Packing,
    known: &[u64],
) -> Result<Option<Packing>, FormatError> {
    let wide =
        entry.get("bits").and_then(Value::as_u64).is_some_and(|bits| matches!(bits, 16 | 32));
    if wide {
        return Ok(None);
    }
    let kind = entry.get("data_type").filter(|kind| !kind.is_null());
    if kind.is_some_and(|kind| *kind != "int") {
        return Err(at.refused(&format!("{path}data_type"), kind));
    }
    Ok(Some(Packing {
        layout: default.layout,
        bits: bits(at, entry, path, known, Some(default.bits))?,
        group: group(at, entry, path, Some(default.group))?,
        symmetric: flag(at, entry, path, "sym", default.symmetric)?,
    }))
}
