//! Weights as publishers' tools quantise them, end to end: a checkpoint gives the answers of the values that its
//! description defines, to the bit in binary32, in every storage mode, and from a pack that copied its bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use serde_json::{Value, json};
use support::{distance, golden, run};

use crate::fp8::{CASE, Quantised, Stored, convert, floats, score, values_of_codes};
use crate::support;

/// Compares the answers of a quantised checkpoint with those of its values; `label` is what `inspect` calls it.
fn check(config: &Value, label: &str, with: impl Fn(&str, [usize; 2], &[f32]) -> Quantised) {
    const EXACT: [&str; 2] = ["--arithmetic", "f32"];
    let folder = tempfile::tempdir().unwrap();
    let [model, exact] = convert(folder.path(), config, with);
    let reference = score(&exact, &EXACT);
    let exactly = score(&model, &EXACT);
    // Products of 8-bit floats add up in another order than those of floats.
    let same = exactly == reference || label == "fp8" && distance(&exactly, &reference) < 1e-5;
    assert!(same, "other bits than the values of {label}");
    let found = score(&model, &[]);
    let error = distance(&found, &reference);
    assert!(error < 2e-3, "{label}: {error:e}");
    let original = score(&golden().join(CASE).join("model"), &[]);
    assert!(distance(&found, &original) > 1e-3, "nothing was rounded");
    let pack = folder.path().join("pack");
    let [source, target] = [&model, &pack].map(|path| path.to_str().unwrap());
    run(&["pack", source, target]);
    assert!(run(&["verify", target]).contains("all intact"));
    for path in [source, target] {
        assert!(run(&["inspect", path]).contains(label), "{label}");
        run(&["plan", path, "--device", "cpu"]);
    }
    for (path, options) in [
        (&model, &["--storage", "mmap"][..]),
        (&model, &["--storage", "budget", "--slots", "floor"]),
        (&model, &["--threads", "1", "--prefill-chunk", "5"]),
        (&pack, &["--storage", "budget", "--slots", "floor"]),
        (&pack, &["--check-reads"]),
    ] {
        assert!(score(path, options) == found, "{label}: {path:?} {options:?}");
    }
}

/// The 4-bit floats by their codes.
const FLOATS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// NVFP4 of ModelOpt, or with `divides` of compressed-tensors.
fn nvfp4(stem: &str, [rows, columns]: [usize; 2], values: &[f32], divides: bool) -> Quantised {
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

#[test]
fn nvfp4_gives_the_answers_of_its_values() {
    let modelopt = json!({
        "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"],
    });
    check(&modelopt, "nvfp4", |stem, shape, values| nvfp4(stem, shape, values, false));
    let weights = json!({
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
        "symmetric": true,
    });
    let compressed = json!({
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"weights": weights}}, "ignore": ["re:.*mlp.gate$"],
    });
    check(&compressed, "nvfp4", |stem, shape, values| nvfp4(stem, shape, values, true));
}

/// 4-bit integers in groups of 32 with zero points, as compressed-tensors packs them.
fn zeroed(stem: &str, [rows, columns]: [usize; 2], values: &[f32]) -> Quantised {
    let groups = columns / 32;
    let (mut codes, mut scales, mut exact) = (Vec::new(), Vec::new(), Vec::new());
    let mut zeros = vec![0u32; rows.div_ceil(8) * groups];
    for (index, group) in values.chunks_exact(32).enumerate() {
        let least = group.iter().fold(0f32, |least, value| least.min(*value));
        let most = group.iter().fold(1e-12f32, |most, value| most.max(*value));
        // A scale in bfloat16.
        let scale = f32::from_bits(((most - least) / 15.0).to_bits() & 0xffff_0000);
        let zero = (-least / scale).round().clamp(0.0, 15.0);
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
    let tensors = vec![
        of("weight_packed", "I32", &[rows, columns / 8], codes),
        of("weight_scale", "BF16", &[rows, groups], scales),
        of("weight_zero_point", "I32", &[rows.div_ceil(8), groups], points),
    ];
    Quantised { tensors, exact }
}

#[test]
fn zero_points_give_the_answers_of_their_values() {
    let weights = json!({
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false,
    });
    let config = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights}},
    });
    check(&config, "uint4 g32", zeroed);
}

/// 8-bit floats with a scale for each row, or with one for the matrix.
fn fp8_rows(stem: &str, [rows, columns]: [usize; 2], values: &[f32], shared: bool) -> Quantised {
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

#[test]
fn floats_of_eight_bits_by_row_and_by_matrix_give_the_answers_of_their_values() {
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    check(&modelopt, "fp8", |stem, shape, values| fp8_rows(stem, shape, values, true));
    let compressed = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true},
        }},
    });
    check(&compressed, "fp8", |stem, shape, values| fp8_rows(stem, shape, values, false));
}
