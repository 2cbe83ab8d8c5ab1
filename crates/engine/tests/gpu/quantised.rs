//! Golden nets as publishers' tools quantise them, next to nets of the values that such a net has by the description of
//! its format: for tests of whatever computes with either.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// One tensor of a safetensors file.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// The tensors of a safetensors file.
pub(crate) fn read(path: &Path) -> Vec<Stored> {
    let file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let numbers = |value: &Value| -> Vec<usize> { serde_json::from_value(value.clone()).unwrap() };
    let read = |(name, entry): (&String, &Value)| {
        let offsets = numbers(&entry["data_offsets"]);
        let known =
            ["BF16", "F32", "I64", "U32"].into_iter().find(|dtype| entry["dtype"] == *dtype);
        let dtype = known.unwrap_or_else(|| panic!("{name}: {entry}"));
        let bytes = file[8 + length..][offsets[0]..offsets[1]].to_vec();
        Stored { name: name.clone(), dtype, shape: numbers(&entry["shape"]), bytes }
    };
    tensors.map(read).collect()
}

/// Writes a safetensors file.
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

/// Parts of the names of tensors that no tool quantises.
pub(crate) const WHOLE: [&str; 3] = ["norm", "embed", "mlp.gate."];

/// Writes a golden case with its matrices quantised by `with`, which gets stem, shape and values, and with their values
/// in binary32. Tensors in whose names is a part of `whole` stay what they are.
pub(crate) fn convert(
    (case, whole): (&str, &[&str]),
    folder: &Path,
    config: &Value,
    with: impl Fn(&str, [usize; 2], &[f32]) -> Quantised,
) -> [PathBuf; 2] {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let source = source.join(case).join("model");
    let (mut quantised, mut exact) = (Vec::new(), Vec::new());
    let files = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path());
    let shards = files.filter(|path| path.extension().is_some_and(|kind| kind == "safetensors"));
    for tensor in shards.flat_map(|path| read(&path)) {
        let Stored { name, dtype, shape, bytes } = tensor;
        let stem = name.strip_suffix("weight").filter(|stem| {
            let is_whole = |part: &&str| stem.contains(*part);
            !whole.iter().any(is_whole)
        });
        let Some(stem) = stem else {
            for to in [&mut quantised, &mut exact] {
                let (name, shape, bytes) = (name.clone(), shape.clone(), bytes.clone());
                to.push(Stored { name, dtype, shape, bytes });
            }
            continue;
        };
        let value = |two: &[u8]| f32::from_bits(u32::from_le_bytes([0, 0, two[0], two[1]]));
        let values: Vec<f32> = bytes.chunks_exact(2).map(value).collect();
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
pub(crate) fn in_tiles(stem: &str, shape: [usize; 2], values: &[f32], powers: bool) -> Quantised {
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

/// The 4-bit floats by their codes.
const FLOATS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// NVFP4 of ModelOpt, or with `divides` of compressed-tensors.
pub(crate) fn nvfp4(
    stem: &str,
    [rows, columns]: [usize; 2],
    values: &[f32],
    divides: bool,
) -> Quantised {
    let table = values_of_codes();
    let largest = values.iter().fold(1e-12f32, |most, value| most.max(value.abs()));
    let number = if divides { 6.0 * 448.0 / largest } else { largest / (6.0 * 448.0) };
    let scaled = |float: f32| if divides { float / number } else { float * number };
    let (mut codes, mut scales, mut exact) = (Vec::new(), Vec::new(), Vec::new());
    for group in values.chunks_exact(16) {
        let most = group.iter().fold(0f32, |most, value| most.max(value.abs()));
        let distance = |float: f32| (scaled(float) - most / 6.0).abs();
        let positive = table.iter().filter(|(code, _)| code & 0x80 == 0);
        let nearest = positive.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        let &(code, float) = nearest.unwrap();
        let scale = scaled(float);
        let rounded: Vec<u8> = group
            .iter()
            .map(|value| {
                let distance = |code: usize| (FLOATS[code] * scale - value.abs()).abs();
                let code = (0..8).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap();
                code as u8 | u8::from(*value < 0.0) << 3
            })
            .collect();
        exact.extend(rounded.iter().map(|&code| {
            let magnitude = FLOATS[usize::from(code & 7)] * scale;
            if code & 8 == 0 { magnitude } else { -magnitude }
        }));
        codes.extend(rounded.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4));
        scales.push(code);
    }
    let of = |name: &str, dtype, shape: &[usize], bytes| {
        let name = format!("{stem}{name}");
        Stored { name, dtype, shape: shape.to_vec(), bytes }
    };
    let (name, shared, shape): (_, _, &[usize]) = match divides {
        true => ("weight_packed", "weight_global_scale", &[1]),
        false => ("weight", "weight_scale_2", &[]),
    };
    let tensors = vec![
        of(name, "U8", &[rows, columns / 2], codes),
        of("weight_scale", "F8_E4M3", &[rows, columns / 16], scales),
        of(shared, "F32", shape, floats(&[number])),
    ];
    Quantised { tensors, exact }
}

/// 4-bit integers in groups of 32 with zero points, or the middle in their place, as compressed-tensors packs them.
pub(crate) fn integers(
    stem: &str,
    [rows, columns]: [usize; 2],
    values: &[f32],
    symmetric: bool,
) -> Quantised {
    let groups = columns / 32;
    let (mut codes, mut scales, mut exact) = (Vec::new(), Vec::new(), Vec::new());
    let mut zeros = vec![0u32; rows.div_ceil(8) * groups];
    for (index, group) in values.chunks_exact(32).enumerate() {
        let least = group.iter().fold(0f32, |least, value| least.min(*value));
        let most = group.iter().fold(1e-12f32, |most, value| most.max(*value));
        // A scale in bfloat16.
        let steps = if symmetric { most.max(-least) / 7.0 } else { (most - least) / 15.0 };
        let scale = f32::from_bits(steps.to_bits() & 0xffff_0000);
        let zero = if symmetric { 8.0 } else { (-least / scale).round().clamp(0.0, 15.0) };
        let rounded: Vec<f32> =
            group.iter().map(|value| ((value / scale).round() + zero).clamp(0.0, 15.0)).collect();
        exact.extend(rounded.iter().map(|code| (code - zero) * scale));
        codes.extend(rounded.chunks_exact(2).map(|pair| pair[0] as u8 | (pair[1] as u8) << 4));
        scales.extend_from_slice(&scale.to_le_bytes()[2..]);
        let (row, group) = (index / groups, index % groups);
        zeros[row / 8 * groups + group] |= (zero as u32) << (4 * (row % 8));
    }
    let of = |name: &str, dtype, shape: &[usize], bytes| {
        let name = format!("{stem}{name}");
        Stored { name, dtype, shape: shape.to_vec(), bytes }
    };
    let points = zeros.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut tensors = vec![
        of("weight_packed", "I32", &[rows, columns / 8], codes),
        of("weight_scale", "BF16", &[rows, groups], scales),
    ];
    if !symmetric {
        tensors.push(of("weight_zero_point", "I32", &[rows.div_ceil(8), groups], points));
    }
    Quantised { tensors, exact }
}

/// 8-bit floats with a scale for each row, or with one for the matrix.
pub(crate) fn fp8_rows(
    stem: &str,
    [rows, columns]: [usize; 2],
    values: &[f32],
    shared: bool,
) -> Quantised {
    let table = values_of_codes();
    let (mut codes, mut scales, mut exact) = (Vec::new(), Vec::new(), Vec::new());
    let most = |values: &[f32]| values.iter().fold(1e-12f32, |most, value| most.max(value.abs()));
    for row in values.chunks_exact(columns) {
        let scale = if shared { most(values) } else { most(row) } / 448.0;
        for value in row {
            let distance = |of: f32| (of - value / scale).abs();
            let nearest = table.iter().min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
            let &(code, nearest) = nearest.unwrap();
            codes.push(code);
            exact.push(nearest * scale);
        }
        scales.push(scale);
    }
    let shape = if shared { vec![] } else { vec![rows, 1] };
    scales.truncate(if shared { 1 } else { rows });
    let of = |name: &str, dtype, shape: Vec<usize>, bytes| Stored {
        name: format!("{stem}{name}"),
        dtype,
        shape,
        bytes,
    };
    let tensors = vec![
        of("weight", "F8_E4M3", vec![rows, columns], codes),
        of("weight_scale", "F32", shape, floats(&scales)),
    ];
    Quantised { tensors, exact }
}
