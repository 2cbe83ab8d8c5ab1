//! 8-bit floats end to end: a checkpoint in tiles of 128 x 128 gives the answers of the same values in binary32, in
//! every storage mode, and from a pack that copied its bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{Scored, distance, golden, run};

use crate::support;

pub(crate) const CASE: &str = "qwen3-calm-hf";

pub(crate) fn score(model: &Path, options: &[&str]) -> Scored {
    Scored::with_ids_of(CASE, model, options)
}

/// One tensor of a safetensors file.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn read(path: &Path) -> Vec<Stored> {
    let file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let numbers = |value: &Value| -> Vec<usize> { serde_json::from_value(value.clone()).unwrap() };
    let read = |(name, entry): (&String, &Value)| {
        let offsets = numbers(&entry["data_offsets"]);
        assert_eq!(entry["dtype"], "BF16", "{name}");
        let bytes = file[8 + length..][offsets[0]..offsets[1]].to_vec();
        Stored { name: name.clone(), dtype: "BF16", shape: numbers(&entry["shape"]), bytes }
    };
    tensors.map(read).collect()
}

pub(crate) fn write(path: &Path, tensors: &[Stored]) {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for Stored { name, dtype, shape, bytes } in tensors {
        let offsets = [at, at + bytes.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        at += bytes.len();
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    tensors.iter().for_each(|tensor| file.extend(&tensor.bytes));
    fs::write(path, file).unwrap();
}

/// The values of all codes that are numbers, by the format's description.
pub(crate) fn values_of_codes() -> Vec<(u8, f32)> {
    let value = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
        let magnitude = match exponent {
            0 => mantissa * 2f32.powi(-6),
            _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    };
    (0..=255).filter(|code| code & 0x7f != 0x7f).map(|code| (code, value(code))).collect()
}

/// A matrix in tiles: its codes, its scales, and its values in binary32.
fn tiles(shape: &[usize], values: &[f32], powers: bool) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
    let table = values_of_codes();
    let [rows, columns] = shape else { panic!("{shape:?}") };
    let across = columns.div_ceil(128);
    let tile = |index: usize| index / columns / 128 * across + index % columns / 128;
    let mut scales = vec![1e-12f32; rows.div_ceil(128) * across];
    for (index, value) in values.iter().enumerate() {
        let scale = &mut scales[tile(index)];
        *scale = scale.max(value.abs() / 448.0);
    }
    if powers {
        scales.iter_mut().for_each(|scale| *scale = scale.log2().ceil().exp2());
    }
    let mut codes = Vec::new();
    let mut exact = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let scale = scales[tile(index)];
        let distance = |of: f32| (of - value / scale).abs();
        let nearest = table.iter().min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        let &(code, nearest) = nearest.unwrap();
        codes.push(code);
        exact.push(nearest * scale);
    }
    (codes, scales, exact)
}

/// A matrix as a tool stores it, and its values by the description of the format.
pub(crate) struct Quantised {
    pub(crate) tensors: Vec<Stored>,
    pub(crate) exact: Vec<f32>,
}

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Writes the case with its matrices quantised by `with`, which gets stem, shape and values, and with their values in
/// binary32.
pub(crate) fn convert(
    folder: &Path,
    config: &Value,
    with: impl Fn(&str, [usize; 2], &[f32]) -> Quantised,
) -> [PathBuf; 2] {
    let source = golden().join(CASE).join("model");
    let (mut quantised, mut exact) = (Vec::new(), Vec::new());
    let files = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path());
    let shards = files.filter(|path| path.extension().is_some_and(|kind| kind == "safetensors"));
    for tensor in shards.flat_map(|path| read(&path)) {
        let whole = ["norm", "embed", "mlp.gate."].iter().any(|part| tensor.name.contains(part));
        let Stored { name, dtype, shape, bytes } = tensor;
        if whole {
            for to in [&mut quantised, &mut exact] {
                let (name, shape, bytes) = (name.clone(), shape.clone(), bytes.clone());
                to.push(Stored { name, dtype, shape, bytes });
            }
            continue;
        }
        let value = |two: &[u8]| f32::from_bits(u32::from_le_bytes([0, 0, two[0], two[1]]));
        let values: Vec<f32> = bytes.chunks_exact(2).map(value).collect();
        let stem = name.strip_suffix("weight").unwrap();
        let made = with(stem, [shape[0], shape[1]], &values);
        quantised.extend(made.tensors);
        exact.push(Stored { name, dtype: "F32", shape, bytes: floats(&made.exact) });
    }
    [("quantised", quantised), ("exact", exact)].map(|(name, tensors)| {
        let model = folder.join(name);
        fs::create_dir(&model).unwrap();
        for entry in fs::read_dir(&source).unwrap() {
            let path = entry.unwrap().path();
            if !path.to_str().unwrap().contains(".safetensors") {
                fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
            }
        }
        write(&model.join("model.safetensors"), &tensors);
        if name == "quantised" {
            let path = model.join("config.json");
            let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            json["quantization_config"] = config.clone();
            fs::write(&path, json.to_string()).unwrap();
        }
        model
    })
}

/// A matrix in tiles as a checkpoint stores it, with scales that are powers of two as DeepSeek-V4 has them, or others.
fn in_tiles(stem: &str, shape: [usize; 2], values: &[f32], powers: bool) -> Quantised {
    let (codes, scales, exact) = tiles(&shape, values, powers);
    let of_tiles = shape.map(|size| size.div_ceil(128)).to_vec();
    let (name, dtype, bytes) = if powers {
        let bytes = scales.iter().map(|scale| (scale.to_bits() >> 23) as u8).collect();
        (format!("{stem}scale"), "F8_E8M0", bytes)
    } else {
        (format!("{stem}weight_scale_inv"), "F32", floats(&scales))
    };
    let weight = Stored {
        name: format!("{stem}weight"),
        dtype: "F8_E4M3",
        shape: shape.to_vec(),
        bytes: codes,
    };
    Quantised { tensors: vec![Stored { name, dtype, shape: of_tiles, bytes }, weight], exact }
}

#[test]
fn tiles_give_the_answers_of_their_values() {
    for powers in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        });
        let [model, exact] = convert(folder.path(), &config, |stem, shape, values| {
            in_tiles(stem, shape, values, powers)
        });
        let reference = score(&exact, &[]);
        let found = score(&model, &[]);
        let error = distance(&found, &reference);
        assert!(error < 1e-5, "{error:e}");
        let original = score(&golden().join(CASE).join("model"), &[]);
        assert!(distance(&found, &original) > 1e-3, "nothing was rounded");
        let pack = folder.path().join("pack");
        let [source, target] = [&model, &pack].map(|path| path.to_str().unwrap());
        run(&["pack", source, target]);
        assert!(run(&["verify", target]).contains("all intact"));
        assert!(run(&["inspect", target]).contains("fp8"));
        for path in [&model, &pack] {
            for options in [
                &["--storage", "mmap"][..],
                &["--storage", "budget", "--slots", "floor"],
                &["--prefill-chunk", "5"],
            ] {
                assert!(score(path, options) == found, "{path:?} {options:?}");
            }
        }
        assert!(score(&pack, &["--check-reads"]) == found);
        run(&["plan", target, "--device", "cpu"]);
    }
}
