//! `manifest.json` of a native pack: its text, its checksum, its fields.
//!
//! The text is one JSON object whose last member is the checksum (XXH3, 64 bits, hexadecimal) of all
//! bytes before that member. It is written last, so a folder with a whole manifest is a whole pack.
//! Meaning and consistency of the fields are checked in `native.rs`.

use std::collections::BTreeMap;
use std::path::Path;

use kernels::format::Encoding;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use twox_hash::XxHash3_64;

use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::layout::{
    MatrixSpans, Span, VERSION, VERSION_BLOCKS, VERSION_GLOBAL, VERSION_PLANES, VERSION_ROWS,
    VERSION_TABLES, VERSION_TILES,
};
use super::row_pages::RowEntry;
use super::{Element, json, names};
use crate::shown::shown;

pub(crate) const FORMAT: &str = "flashmoe-pack";
const TAIL_HEAD: &[u8] = b",\n  \"checksum\": \"";
const TAIL_END: &[u8] = b"\"\n}\n";
const TAIL_BYTES: usize = TAIL_HEAD.len() + 16 + TAIL_END.len();

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) source: Source,
    pub(crate) norms_are_zero_centred: bool,
    pub(crate) recipe: Value,
    pub(crate) trunk_bytes: u64,
    pub(crate) layers: Vec<Option<Layer>>,
    pub(crate) checksums: Table,
    pub(crate) copied: Vec<Copied>,
    pub(crate) skipped: Vec<String>,
    pub(crate) unused: Vec<String>,
    pub(crate) config: Value,
    pub(crate) tensors: Vec<TrunkTensor>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) row_tables: Vec<RowEntry>,
}

/// What the pack was made from.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Source {
    pub(crate) kind: String,
    pub(crate) fingerprint: Hex,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct TrunkTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: String,
    pub(crate) at: Spans,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ErrorEntry>,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layer {
    pub(crate) experts: usize,
    pub(crate) record_bytes: u64,
    pub(crate) gate: ProjectionEntry,
    pub(crate) up: ProjectionEntry,
    pub(crate) down: ProjectionEntry,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProjectionEntry {
    pub(crate) shape: [usize; 2],
    pub(crate) encoding: String,
    pub(crate) at: Spans,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ErrorEntry>,
}

/// What encoding a matrix anew changed: its encoding in the source, and the error against it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErrorEntry {
    pub(crate) from: String,
    pub(crate) rmse: f64,
    pub(crate) relative: f64,
    pub(crate) largest: f64,
}

/// Offset and length of weight, scales and biases.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spans {
    pub(crate) weight: [u64; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scales: Option<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) biases: Option<[u64; 2]>,
}

/// Size and checksum of `checksums.bin`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) bytes: u64,
    pub(crate) xxh3: Hex,
}

/// A file copied from beside the source's weights.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Copied {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) xxh3: Hex,
}

/// A 64-bit checksum, 16 hexadecimal digits in JSON (numbers there lose bits above 2^53 in many
/// readers).
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Hex(pub(crate) u64);

/// The version of a manifest with these tensors, layers and tables of rows: the oldest that every reader of it
/// understands.
pub(crate) fn version(
    tensors: &[TrunkTensor],
    layers: &[Option<Layer>],
    row_tables: &[RowEntry],
) -> u32 {
    if !row_tables.is_empty() {
        return VERSION_ROWS;
    }
    let block = |name: &str| matches!(Encoding::parse(name), Some(Encoding::Block(_)));
    let newer =
        |tensor: &TrunkTensor| block(&tensor.encoding) || tensor.name.ends_with(names::DECAY);
    let entries =
        || layers.iter().flatten().flat_map(|layer| [&layer.gate, &layer.up, &layer.down]);
    let trunk = tensors.iter().map(|tensor| &tensor.encoding);
    let all = trunk.chain(entries().map(|entry| &entry.encoding));
    let least = all.filter_map(|name| match Encoding::parse(name)? {
        Encoding::Mxfp4 => Some(VERSION_PLANES),
        Encoding::Fp8 { .. } | Encoding::Symmetric { .. } => Some(VERSION_TILES),
        Encoding::Nvfp4 { .. } | Encoding::Zeroed { .. } | Encoding::Fp8Rows { .. } => {
            Some(VERSION_GLOBAL)
        }
        Encoding::Float(_) | Encoding::Affine { .. } | Encoding::Block(_) => None,
    });
    let table =
        |tensor: &TrunkTensor| matches!(Element::parse(&tensor.encoding), Some(Element::Whole(_)));
    let tables = tensors.iter().any(table).then_some(VERSION_TABLES);
    if let Some(version) = least.chain(tables).max() {
        return version;
    }
    let any = tensors.iter().any(newer) || entries().any(|entry| block(&entry.encoding));
    if any { VERSION_BLOCKS } else { VERSION }
}

/// A matrix whose encoding a pack changed, and the error of the new values against the source's.
#[derive(Clone, Debug, PartialEq)]
pub struct Requantised {
    /// Name of a trunk tensor, or `layers.N.experts.gate` (`up`, `down`) for that projection of all experts
    /// of a layer.
    pub name: String,
    /// Encoding in the source.
    pub from: Encoding,
    /// Encoding in the pack.
    pub to: Encoding,
    /// Root mean square error.
    pub rmse: f64,
    /// Root of squared error over squared values.
    pub relative: f64,
    /// Largest absolute error.
    pub largest: f64,
}

impl Requantised {
    /// The object of `--report`.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name,
            "from": self.from.name(),
            "to": self.to.name(),
            "rmse": self.rmse,
            "relative": self.relative,
            "largest": self.largest,
        })
    }
}

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // Lower case only: one spelling of a value, so that no flipped bit leaves it what it was.
        let digits =
            text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let value = digits.then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        value.map(Self).ok_or_else(|| "expected 16 hexadecimal digits in lower case".to_owned())
    }
}

impl From<Hex> for String {
    fn from(hex: Hex) -> Self {
        format!("{:016x}", hex.0)
    }
}

impl From<&MatrixSpans> for Spans {
    fn from(spans: &MatrixSpans) -> Self {
        let pair = |span: Span| [span.offset, span.bytes];
        Self {
            weight: pair(spans.weight),
            scales: spans.scales_biases.map(|(scales, _)| pair(scales)),
            biases: spans.scales_biases.map(|(_, biases)| pair(biases)),
        }
    }
}

impl Manifest {
    /// The file's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let text = serde_json::to_string_pretty(self);
        let mut bytes = text.expect("plain data becomes JSON").into_bytes();
        // Off comes the closing "\n}", which follows the checksum.
        bytes.truncate(bytes.len() - 2);
        let checksum = XxHash3_64::oneshot(&bytes);
        bytes.extend(TAIL_HEAD);
        bytes.extend(format!("{checksum:016x}").into_bytes());
        bytes.extend(TAIL_END);
        bytes
    }

    /// Enters the errors of the matrices that were encoded anew.
    pub(crate) fn note_errors(&mut self, requantised: &[Requantised]) {
        let mut places = BTreeMap::new();
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let Some(layer) = layer else { continue };
            for (entry, name) in
                [(&mut layer.gate, "gate"), (&mut layer.up, "up"), (&mut layer.down, "down")]
            {
                places.insert(format!("layers.{index}.experts.{name}"), &mut entry.error);
            }
        }
        places.extend(self.tensors.iter_mut().map(|t| (t.name.clone(), &mut t.error)));
        for matrix in requantised {
            if let Some(place) = places.get_mut(&matrix.name) {
                **place = Some(ErrorEntry {
                    from: matrix.from.name(),
                    rmse: matrix.rmse,
                    relative: matrix.relative,
                    largest: matrix.largest,
                });
            }
        }
    }

    /// The matrices that were encoded anew, with their errors.
    pub(crate) fn errors(&self) -> Vec<Requantised> {
        let layers = self.layers.iter().enumerate().flat_map(|(index, layer)| {
            let entries = layer.iter().flat_map(|layer| {
                [("gate", &layer.gate), ("up", &layer.up), ("down", &layer.down)]
            });
            entries.map(move |(name, entry)| {
                (format!("layers.{index}.experts.{name}"), &entry.encoding, &entry.error)
            })
        });
        let tensors = self.tensors.iter().map(|t| (t.name.clone(), &t.encoding, &t.error));
        let read = |(name, to, error): (String, &String, &Option<ErrorEntry>)| {
            let ErrorEntry { from, rmse, relative, largest } = error.as_ref()?;
            let (from, to) = (Encoding::parse(from)?, Encoding::parse(to)?);
            Some(Requantised {
                name,
                from,
                to,
                rmse: *rmse,
                relative: *relative,
                largest: *largest,
            })
        };
        layers.chain(tensors).filter_map(read).collect()
    }

    /// Parses and verifies the bytes of the file `path`; returns the checksum as well.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<(Self, u64), FormatError> {
        let checksum = checked(path, bytes)?;
        let mut value = json::parse(path, bytes)?;
        let object = value.as_object_mut().expect("checked to be an object");
        object.shift_remove("checksum");
        let manifest = serde_json::from_value(value).map_err(|error| {
            FormatError::invalid(path, "manifest", error.to_string(), DOWNLOAD_AGAIN)
        })?;
        Ok((manifest, checksum))
    }
}

/// Format, version and checksum of a manifest; the checksum is returned.
fn checked(path: &Path, bytes: &[u8]) -> Result<u64, FormatError> {
    // Version first: a later version may keep its checksum elsewhere.
    let value = json::parse(path, bytes)?;
    let format = value.get("format").and_then(Value::as_str);
    if format != Some(FORMAT) {
        let found =
            value.get("format").map_or_else(|| "missing".to_owned(), |v| shown(v).to_string());
        return Err(FormatError::invalid(path, "format", found, "it must be \"flashmoe-pack\""));
    }
    let version = value.get("version").unwrap_or(&Value::Null);
    let known = u64::from(VERSION)..=u64::from(VERSION_ROWS);
    if !version.as_u64().is_some_and(|version| known.contains(&version)) {
        let remedy =
            "this program reads versions 1 to 7; use the program that wrote it, or pack again";
        return Err(FormatError::unsupported(path, "version", shown(version).to_string(), remedy));
    }
    let tail = bytes.len().checked_sub(TAIL_BYTES).map(|at| bytes.split_at(at));
    let digits = tail.and_then(|(body, tail)| {
        let digits = tail.strip_prefix(TAIL_HEAD)?.strip_suffix(TAIL_END)?;
        let digits = std::str::from_utf8(digits).ok()?.to_owned();
        Some((body, Hex::try_from(digits).ok()?.0))
    });
    let Some((body, expected)) = digits else {
        let found = "does not end with its checksum";
        return Err(FormatError::invalid(path, "checksum", found, DOWNLOAD_AGAIN));
    };
    let found = XxHash3_64::oneshot(body);
    if found != expected {
        let field = "manifest".to_owned();
        return Err(FormatError::Checksum { file: path.to_owned(), field, expected, found });
    }
    Ok(expected)
}
