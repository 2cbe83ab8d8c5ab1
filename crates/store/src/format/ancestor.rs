//! The ancestor's folders: `model_weights.bin` with `model_weights.json`, and `packed_experts/` (4 bits)
//! or `packed_experts_2bit/` with one file of records per layer.
//!
//! Groups are always 64 with bf16 scales; norms already hold `1 + w`. Records have no header: gate, up,
//! down, of each weight, scales, biases, unpadded. The configuration in the JSON has the keys of a
//! text configuration already; `model_type` is added.

use std::path::Path;

use kernels::format::{Encoding, FloatType};
use serde_json::{Value, json};

use super::assemble::{self, Schemes};
use super::config::Dimensions;
use super::error::{DOWNLOAD_AGAIN, FormatError};
use super::place::Place;
use super::safetensors::{RawTensor, RawType};
use super::sidecar::Sidecar;
use super::{
    Checkpoint, CheckpointFile, Configuration, ExpertExtents, Extent, FileId, LayerExperts,
    Projection, ProjectionShape, SourceKind, files, json,
};
use crate::shown::shown;

pub(crate) const INDEX: &str = "model_weights.json";
const WEIGHTS: &str = "model_weights.bin";
const GROUP: u16 = 64;
/// Tensors of the trunk begin at multiples of it.
const ALIGNMENT: u64 = 64;

/// True for a folder with the index.
pub(super) fn probe(place: &Place<'_>) -> Result<bool, FormatError> {
    place.has(INDEX)
}

pub(crate) fn open(folder: &Path) -> Result<Checkpoint, FormatError> {
    let index = folder.join(INDEX);
    let value = json::read(&index, json::INDEX_BYTES_MAX)?;
    let mut config = value.get("config").cloned().unwrap_or(Value::Null);
    if let Some(object) = config.as_object_mut() {
        object.entry("model_type").or_insert_with(|| json!("qwen3_5_moe_text"));
    }
    let config = Configuration::new(&index, config)?;
    let dimensions = Dimensions::read(&config)?;
    let mut opened = vec![file(folder, WEIGHTS)?];
    let raw = trunk(&index, &value, &opened[0])?;
    let schemes = Schemes::Group(GROUP);
    let mut found = assemble::assemble(&index, &opened, raw, dimensions, &schemes)?;
    let (packed, bits) = match files::find(folder, "packed_experts")? {
        Some(path) => (path, 4),
        None => (folder.join("packed_experts_2bit"), 2),
    };
    for (layer, table) in found.experts.iter_mut().enumerate() {
        let known = file(&packed, &format!("layer_{layer:02}.bin"))?;
        *table = Some(records(&known, FileId(opened.len() as u32), dimensions, bits)?);
        opened.push(known);
    }
    let sidecar = Sidecar::read(folder, &config)?;
    Ok(Checkpoint {
        kind: SourceKind::Ancestor,
        root: folder.to_owned(),
        files: opened,
        config,
        generation_config: sidecar.generation_config,
        tokenizer: sidecar.tokenizer,
        tokenizer_config: sidecar.tokenizer_config,
        chat_template: sidecar.chat_template,
        tensors: found.tensors,
        experts: found.experts,
        norms_are_zero_centred: false,
        row_tables: found.row_tables,
        head: found.head,
        skipped: found.skipped,
        unused: found.unused,
        input_majors: Default::default(),
        pack: None,
    })
}

fn file(folder: &Path, name: &str) -> Result<CheckpointFile, FormatError> {
    // A file that is not there is named by the error of opening it.
    let path = files::find(folder, name)?.unwrap_or_else(|| folder.join(name));
    let files::Opened { length, modified_ns, changed_ns, .. } = files::open_regular(&path)?;
    Ok(CheckpointFile { path, length, modified_ns, changed_ns, header_checksum: 0 })
}

fn trunk(
    index: &Path,
    value: &Value,
    weights: &CheckpointFile,
) -> Result<Vec<(FileId, RawTensor)>, FormatError> {
    let tensors = value.get("tensors").and_then(Value::as_object);
    let invalid =
        |field: &str, found: &str| FormatError::invalid(index, field, found, DOWNLOAD_AGAIN);
    let tensors = tensors.ok_or_else(|| invalid("tensors", "missing or not an object"))?;
    let count = value.get("num_tensors").unwrap_or(&Value::Null);
    if count.as_u64() != Some(tensors.len() as u64) {
        let found = format!("{}, but {} are listed", shown(count), tensors.len());
        return Err(invalid("num_tensors", &found));
    }
    let mut raw = Vec::with_capacity(tensors.len());
    for (name, entry) in tensors {
        let number = |key: &str| entry.get(key).and_then(Value::as_u64);
        let dtype = match entry.get("dtype").and_then(Value::as_str) {
            Some("U32") => (RawType::U32, 4),
            Some("F32") => (RawType::F32, 4),
            Some("BF16") => (RawType::Bf16, 2),
            _ => return Err(invalid(&format!("tensors.{name}.dtype"), "not U32, F32 or BF16")),
        };
        let shape = entry.get("shape").and_then(Value::as_array);
        let shape = shape.filter(|shape| shape.len() <= 8).and_then(|shape| {
            shape
                .iter()
                .map(|size| usize::try_from(size.as_u64()?).ok())
                .collect::<Option<Vec<_>>>()
        });
        let shape = shape.ok_or_else(|| invalid(&format!("tensors.{name}.shape"), "no shape"))?;
        let bytes =
            shape.iter().try_fold(dtype.1, |bytes: u64, &size| bytes.checked_mul(size as u64));
        let (Some(offset), Some(length)) = (number("offset"), number("size")) else {
            return Err(invalid(&format!("tensors.{name}"), "offset or size missing"));
        };
        if bytes != Some(length) {
            return Err(invalid(&format!("tensors.{name}.size"), "does not fit shape and dtype"));
        }
        let end = offset.saturating_add(length);
        if end > weights.length {
            return Err(FormatError::length(&weights.path, name, end, weights.length));
        }
        let tensor = RawTensor { name: name.clone(), dtype: dtype.0, shape, offset, length };
        raw.push((FileId(0), tensor));
    }
    check_places(index, weights, &mut raw)?;
    Ok(raw)
}

/// Every tensor lies where the format puts it: by name, each at the next multiple of [`ALIGNMENT`], and nothing
/// behind the last. Two tensors in one place, or one in the place of another, would be a model that answers
/// something else.
fn check_places(
    index: &Path,
    weights: &CheckpointFile,
    raw: &mut [(FileId, RawTensor)],
) -> Result<(), FormatError> {
    raw.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let mut end = 0_u64;
    for (_, tensor) in raw.iter() {
        let expected = end.next_multiple_of(ALIGNMENT);
        if tensor.offset != expected {
            let field = format!("tensors.{}.offset", tensor.name);
            let found = format!("{}, but by names and sizes it lies at {expected}", tensor.offset);
            return Err(FormatError::invalid(index, field, found, DOWNLOAD_AGAIN));
        }
        // No overflow: the end was compared with the file's length.
        end = tensor.offset + tensor.length;
    }
    if weights.length > end.next_multiple_of(ALIGNMENT) {
        return Err(FormatError::length(
            &weights.path,
            "end of the last tensor",
            end,
            weights.length,
        ));
    }
    Ok(())
}

fn records(
    known: &CheckpointFile,
    file: FileId,
    dimensions: Dimensions,
    bits: u8,
) -> Result<LayerExperts, FormatError> {
    let encoding = Encoding::Affine { bits, group: GROUP, scale: FloatType::Bf16 };
    let shapes = [Projection::Gate, Projection::Up, Projection::Down].map(|projection| {
        let (rows, columns) = dimensions.projection(projection);
        ProjectionShape { rows, columns, encoding }
    });
    if shapes.iter().any(|shape| shape.columns == 0 || encoding.check(shape.columns).is_err()) {
        let found = "expert shapes are no whole number of groups of 64";
        return Err(FormatError::invalid(&known.path, "config", found, DOWNLOAD_AGAIN));
    }
    let record: u64 =
        shapes.iter().map(|shape| encoding.matrix_bytes(shape.rows, shape.columns) as u64).sum();
    let needed = record * dimensions.experts as u64;
    if known.length != needed {
        return Err(FormatError::length(&known.path, "expert records", needed, known.length));
    }
    let expert = |number: u64| {
        let mut at = number * record;
        let mut take = |length: usize| {
            let extent = Extent { file, offset: at, length: length as u64 };
            at += length as u64;
            extent
        };
        let pieces = shapes.map(|shape| {
            let weight = take(shape.rows * encoding.weight_row_bytes(shape.columns));
            let scale = shape.rows * encoding.scale_row_bytes(shape.columns);
            (weight, Some((take(scale), take(scale))))
        });
        let (weight, scales_biases) = (pieces.map(|p| p.0), pieces.map(|p| p.1));
        ExpertExtents { weight, scales_biases }
    };
    Ok(LayerExperts { shapes, experts: (0..dimensions.experts as u64).map(expert).collect() })
}
