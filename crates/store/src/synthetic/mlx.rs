//! Generated MLX files: what mlx-lm would have saved, with what makes them awkward to stream.
//!
//! Experts are stacked in one tensor per matrix and part, so one expert is nine reads; tensors lie in
//! hash order; the header is not padded, so data begins at an odd offset.

use kernels::format::{Encoding, FloatType};
use serde_json::{Map, Value, json};
use twox_hash::XxHash3_64;

use super::{GenerateError, GeneratedModel, Job, Output, OutputFile, Owner, Segment};
use crate::format::{Element, Integer, Projection};
use crate::record::Piece;

/// Bytes after which a new file begins, as mlx-lm does.
const SHARD_BYTES: u64 = 5 << 30;

/// A tensor as a file holds it.
struct Stored {
    name: String,
    data_type: &'static str,
    shape: Vec<usize>,
    piece: Piece,
    /// The tensors or experts one after another.
    owners: Vec<Owner>,
    /// Bytes of each of them.
    bytes: u64,
}

impl Stored {
    fn total(&self) -> u64 {
        self.bytes * self.owners.len() as u64
    }
}

pub(super) fn lay_out(model: &GeneratedModel) -> Result<Output, GenerateError> {
    let mut shards: Vec<Vec<Stored>> = vec![Vec::new()];
    let mut filled = 0;
    for stored in stored(model)? {
        if filled > 0 && filled + stored.total() > SHARD_BYTES {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += stored.total();
        shards.last_mut().expect("there is always one").push(stored);
    }
    let count = shards.len();
    let (mut files, mut jobs, mut weight_map) = (Vec::new(), Vec::new(), Map::new());
    for (file, mut shard) in shards.into_iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", file + 1),
        };
        shard.sort_by_cached_key(|stored| XxHash3_64::oneshot(stored.name.as_bytes()));
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
        let mut end = 0;
        for stored in &shard {
            let begin = end;
            end += stored.total();
            let entry = json!({
                "dtype": stored.data_type,
                "shape": stored.shape,
                "data_offsets": [begin, end],
            });
            header.insert(stored.name.clone(), entry);
            weight_map.insert(stored.name.clone(), name.clone().into());
        }
        let mut text = Value::Object(header).to_string();
        if text.len().is_multiple_of(2) {
            text.push(' ');
        }
        let mut head = (text.len() as u64).to_le_bytes().to_vec();
        head.extend(text.into_bytes());
        let mut offset = head.len() as u64;
        for stored in &shard {
            for &owner in &stored.owners {
                let segment = Segment { owner, piece: stored.piece, at: 0, bytes: stored.bytes };
                let (bytes, segments) = (stored.bytes, vec![segment]);
                jobs.push(Job { file, offset, bytes, segments, copy_of: None });
                offset += stored.bytes;
            }
        }
        files.push(OutputFile { name, bytes: offset, head, link_to: None });
    }
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    let config = pretty(&model.config);
    let finish = move |_: &[u64]| {
        let mut small = vec![("config.json".to_owned(), config)];
        if count > 1 {
            let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
            small.push(("model.safetensors.index.json".to_owned(), pretty(&index)));
        }
        small
    };
    Ok(Output { files, jobs, finish: Box::new(finish) })
}

fn pretty(value: &Value) -> Vec<u8> {
    let text = serde_json::to_string_pretty(value);
    text.expect("plain data becomes JSON").into_bytes()
}

fn stored(model: &GeneratedModel) -> Result<Vec<Stored>, GenerateError> {
    let mut all = Vec::new();
    for (index, tensor) in model.tensors.iter().enumerate() {
        let path = match tensor.name.as_str() {
            "lm_head" => format!("{}lm_head", model.prefix),
            name => format!("{}model.{name}", model.prefix),
        };
        let mut shape = tensor.shape.clone();
        if tensor.name.ends_with("conv1d") {
            shape.push(1);
        }
        let owners = [Owner::Tensor(index)];
        match tensor.element {
            Element::Value(encoding) => parts(&mut all, &path, &shape, encoding, &owners)?,
            Element::Whole(integer) => all.push(Stored {
                name: path,
                data_type: whole_name(integer),
                bytes: (shape.iter().product::<usize>() * integer.bytes()) as u64,
                shape,
                piece: Piece::Weight,
                owners: owners.to_vec(),
            }),
        }
    }
    for (layer, experts) in model.layers.iter().enumerate() {
        let Some(experts) = experts else { continue };
        for (projection, name) in [
            (Projection::Gate, "gate_proj"),
            (Projection::Up, "up_proj"),
            (Projection::Down, "down_proj"),
        ] {
            let matrix = experts.shapes[projection as usize];
            let path = format!("{}model.layers.{layer}.mlp.switch_mlp.{name}", model.prefix);
            let shape = [experts.experts, matrix.rows, matrix.columns];
            let owners: Vec<Owner> = (0..experts.experts)
                .map(|expert| Owner::Expert { layer, expert, projection })
                .collect();
            parts(&mut all, &path, &shape, matrix.encoding, &owners)?;
        }
    }
    Ok(all)
}

/// Adds the one or three tensors of a matrix.
fn parts(
    all: &mut Vec<Stored>,
    path: &str,
    shape: &[usize],
    encoding: Encoding,
    owners: &[Owner],
) -> Result<(), GenerateError> {
    let plain =
        ["A_log", "dt_bias", "e_score_correction_bias"].iter().any(|end| path.ends_with(end));
    let weight = if plain { path.to_owned() } else { format!("{path}.weight") };
    let values = shape.iter().product::<usize>() / owners.len();
    let owned = |name: String, data_type, shape: Vec<usize>, piece, bytes: usize| Stored {
        name,
        data_type,
        shape,
        piece,
        owners: owners.to_vec(),
        bytes: bytes as u64,
    };
    match encoding {
        Encoding::Float(float) => {
            let bytes = values * float.bytes();
            all.push(owned(weight, float_name(float), shape.to_vec(), Piece::Weight, bytes));
        }
        Encoding::Block(format) => {
            let reason = format!("MLX has no {}", format.name());
            return Err(GenerateError::Shape { name: path.to_owned(), reason });
        }
        Encoding::Mxfp4
        | Encoding::Nvfp4 { .. }
        | Encoding::Fp8 { .. }
        | Encoding::Fp8Rows { .. }
        | Encoding::Zeroed { .. }
        | Encoding::Symmetric { .. } => {
            let reason = format!("MLX's files of {} are not written", encoding.label());
            return Err(GenerateError::Shape { name: path.to_owned(), reason });
        }
        Encoding::Affine { bits, group, scale } => {
            let (&columns, outer) = shape.split_last().unwrap_or((&0, &[]));
            encoding.check(columns).map_err(|error| GenerateError::Shape {
                name: path.to_owned(),
                reason: error.to_string(),
            })?;
            let resized = |columns| [outer, &[columns]].concat();
            let words = columns * usize::from(bits) / 32;
            let bytes = values * usize::from(bits) / 8;
            all.push(owned(weight, "U32", resized(words), Piece::Weight, bytes));
            let groups = columns / usize::from(group);
            let bytes = values / usize::from(group) * scale.bytes();
            for (name, piece) in [("scales", Piece::Scales), ("biases", Piece::Biases)] {
                let name = format!("{path}.{name}");
                all.push(owned(name, float_name(scale), resized(groups), piece, bytes));
            }
        }
    }
    Ok(())
}

fn whole_name(integer: Integer) -> &'static str {
    match integer {
        Integer::I32 => "I32",
        Integer::I64 => "I64",
    }
}

fn float_name(float: FloatType) -> &'static str {
    match float {
        FloatType::F32 => "F32",
        FloatType::F16 => "F16",
        FloatType::Bf16 => "BF16",
    }
}
