//! Weights of GPTQ and AWQ end to end: a folder is refused where it would run, and its pack gives the answers of the
//! values that the formats define, to the bit in binary32, in every storage mode.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here is a failed test")]

use serde_json::{Value, json};
use support::{distance, flashmoe, golden, run};

use crate::fp8::{CASE, score};
use crate::quantised::{Quantised, Stored, WHOLE, convert, floats};
use crate::support;

/// Which of eight outputs is in which four bits of a word, from the low ones.
const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Inputs that share a scale.
const GROUP: usize = 32;

/// A positive float rounded down to one that a half has, and that half.
fn half(float: f32) -> (f32, u16) {
    let bits = float.max(2f32.powi(-14)).to_bits() & 0xffff_e000;
    (f32::from_bits(bits), (((bits >> 23) - 112) << 10 | bits >> 13 & 0x3ff) as u16)
}

/// Codes of 4 bits, zero points and scales, all by rows.
struct Coded {
    codes: Vec<u32>,
    zeros: Vec<u32>,
    scales: Vec<u16>,
    exact: Vec<f32>,
}

fn coded(values: &[f32], symmetric: bool) -> Coded {
    let mut coded = Coded { codes: vec![], zeros: vec![], scales: vec![], exact: vec![] };
    for group in values.chunks_exact(GROUP) {
        let least = group.iter().fold(0f32, |least, value| least.min(*value));
        let most = group.iter().fold(0f32, |most, value| most.max(*value));
        let range = if symmetric { 2.0 * most.max(-least) } else { most - least };
        let (scale, bits) = half(range / 15.0);
        let zero = if symmetric { 8.0 } else { (-least / scale).round().clamp(1.0, 15.0) };
        for value in group {
            let code = ((value / scale).round() + zero).clamp(0.0, 15.0);
            coded.codes.push(code as u32);
            coded.exact.push((code - zero) * scale);
        }
        coded.zeros.push(zero as u32);
        coded.scales.push(bits);
    }
    coded
}

/// The tensors of a matrix of AWQ, or of GPTQ with zero points less one.
fn turned(
    stem: &str,
    [rows, columns]: [usize; 2],
    values: &[f32],
    awq: bool,
    symmetric: bool,
) -> Quantised {
    let Coded { codes, zeros, scales, exact } = coded(values, symmetric);
    let groups = columns / GROUP;
    let place = |row: usize| match awq {
        true => 4 * AWQ.iter().position(|output| *output == row % 8).unwrap(),
        false => 4 * (row % 8),
    };
    let shape = if awq { [columns, rows / 8] } else { [columns / 8, rows] };
    let mut words = vec![0u32; rows * columns / 8];
    let mut of_zeros = vec![0u32; groups * rows / 8];
    let mut halves = vec![0u16; groups * rows];
    for row in 0..rows {
        for column in 0..columns {
            let code = codes[row * columns + column];
            match awq {
                true => words[column * rows / 8 + row / 8] |= code << place(row),
                false => words[column / 8 * rows + row] |= code << (4 * (column % 8)),
            }
        }
        for group in 0..groups {
            let stored = zeros[row * groups + group] - u32::from(!awq);
            of_zeros[group * rows / 8 + row / 8] |= stored << place(row);
            halves[group * rows + row] = scales[row * groups + group];
        }
    }
    let bytes = |words: Vec<u32>| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let of = |name: &str, dtype, shape: [usize; 2], bytes| {
        let name = format!("{stem}{name}");
        Stored { name, dtype, shape: shape.to_vec(), bytes }
    };
    let halves = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    let tensors = vec![
        of("qweight", "I32", shape, bytes(words)),
        of("qzeros", "I32", [groups, rows / 8], bytes(of_zeros)),
        of("scales", "F16", [groups, rows], halves),
    ];
    Quantised { tensors, exact }
}

/// Packs a quantised checkpoint and compares the pack's answers with those of its values.
fn check(config: &Value, label: &str, with: impl Fn(&str, [usize; 2], &[f32]) -> Quantised) {
    const EXACT: [&str; 2] = ["--arithmetic", "f32"];
    let folder = tempfile::tempdir().unwrap();
    let [model, exact] = convert((CASE, &WHOLE), folder.path(), config, with);
    let pack = folder.path().join("pack");
    let [source, target] = [&model, &pack].map(|path| path.to_str().unwrap());
    for refused in [&["plan", source, "--device", "cpu"][..], &["run", source, "x"]] {
        let output = flashmoe(refused);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{refused:?}");
        for word in ["model.safetensors", "qweight", "flashmoe pack"] {
            assert!(message.contains(word), "{refused:?}: {message}");
        }
    }
    assert!(run(&["inspect", source]).contains(label), "{label}");
    run(&["pack", source, target]);
    assert!(run(&["verify", target]).contains("all intact"));
    assert!(run(&["inspect", target]).contains(label), "{label}");
    run(&["plan", target, "--device", "cpu"]);
    let reference = score(&exact, &EXACT);
    assert!(score(&pack, &EXACT) == reference, "other bits than the values of {label}");
    let found = score(&pack, &[]);
    let error = distance(&found, &reference);
    assert!(error < 2e-3, "{label}: {error:e}");
    let original = score(&golden().join(CASE).join("model"), &[]);
    assert!(distance(&found, &original) > 1e-3, "nothing was rounded");
    for options in [
        &["--storage", "mmap"][..],
        &["--storage", "budget", "--slots", "floor"],
        &["--threads", "1", "--prefill-chunk", "5"],
        &["--check-reads"],
    ] {
        assert!(score(&pack, options) == found, "{label}: {options:?}");
    }
}

#[test]
fn gptq_gives_the_answers_of_its_values_from_a_pack() {
    for (symmetric, label) in [(false, "uint4 g32"), (true, "int4 g32")] {
        let config = json!({
            "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": false,
            "sym": symmetric, "checkpoint_format": "gptq",
        });
        check(&config, label, |stem, shape, values| turned(stem, shape, values, false, symmetric));
    }
}

#[test]
fn awq_gives_the_answers_of_its_values_from_a_pack() {
    let config = json!({
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true,
        "version": "gemm", "modules_to_not_convert": ["gate"],
    });
    check(&config, "uint4 g32", |stem, shape, values| turned(stem, shape, values, true, false));
}

/// The codes of NVFP4 with AutoRound's own description of them, which has no groups of modules.
#[test]
fn auto_round_in_the_tensors_of_compressed_tensors_is_read_in_place() {
    let ones = |stem: &str, [rows, columns]: [usize; 2], values: &[f32]| {
        // A code of one half and its sign, and 16 as the number: a value is 0.5 * 2 / 16 with its sign.
        let codes = values.chunks_exact(2).map(|pair| {
            let code = |value: f32| 1 | u8::from(value < 0.0) << 3;
            code(pair[0]) | code(pair[1]) << 4
        });
        let of = |name: &str, dtype, shape: &[usize], bytes| {
            let name = format!("{stem}{name}");
            Stored { name, dtype, shape: shape.to_vec(), bytes }
        };
        let tensors = vec![
            of("weight_packed", "U8", &[rows, columns / 2], codes.collect()),
            // Two in E4M3.
            of("weight_scale", "F8_E4M3", &[rows, columns / 16], vec![0x40; rows * columns / 16]),
            of("weight_global_scale", "F32", &[1], floats(&[16.0])),
        ];
        let exact = values.iter().map(|value| if *value < 0.0 { -0.0625 } else { 0.0625 });
        Quantised { tensors, exact: exact.collect() }
    };
    let config = json!({
        "quant_method": "auto-round", "packing_format": "auto_round:llm_compressor", "bits": 4,
        "group_size": 16, "data_type": "nv_fp", "sym": true, "act_bits": 4,
    });
    let folder = tempfile::tempdir().unwrap();
    let [model, exact] = convert((CASE, &WHOLE), folder.path(), &config, ones);
    let options = ["--arithmetic", "f32"];
    assert!(score(&model, &options) == score(&exact, &options));
}
