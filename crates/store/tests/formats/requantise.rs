//! Goal: a pack that changes precision holds what the chosen method gives, measures its error rightly, and
//! touches nothing else. Method: the seed's scheme and the error written out again from their definitions.

use kernels::format::{Encoding, FloatType, Matrix, decode_row};
use kernels::quantize::Method;
use std::ops::ControlFlow;
use store::format::{Checkpoint, Extent, ProjectionShape, Requantised, open};
use store::pack::{PackError, PackOptions, PackReport, Precision, Recipe, pack, verify};

use crate::common::{Folder, TINY, bytes, go};

/// Values of a matrix, row-major.
fn values(
    checkpoint: &Checkpoint,
    shape: ProjectionShape,
    weight: Extent,
    pair: Option<(Extent, Extent)>,
) -> Vec<f32> {
    let weight = bytes(checkpoint, weight);
    let (scales, biases) =
        pair.map(|(s, b)| (bytes(checkpoint, s), bytes(checkpoint, b))).unwrap_or_default();
    let matrix =
        Matrix::new(shape.encoding, shape.rows, shape.columns, &weight, &scales, &biases).unwrap();
    let mut values = vec![0.0; shape.rows * shape.columns];
    for (row, values) in values.chunks_exact_mut(shape.columns).enumerate() {
        decode_row(&matrix, row, values);
    }
    values
}

fn expert(checkpoint: &Checkpoint, layer: usize, expert: usize, projection: usize) -> Vec<f32> {
    let table = checkpoint.experts[layer].as_ref().unwrap();
    let extents = &table.experts[expert];
    let shape = table.shapes[projection];
    values(checkpoint, shape, extents.weight[projection], extents.scales_biases[projection])
}

fn packed(folder: &Folder, recipe: Recipe) -> (Checkpoint, Checkpoint, PackReport) {
    let source = open(folder.path()).unwrap();
    let target = folder.path().join("pack");
    let options = PackOptions { recipe, ..PackOptions::default() };
    let report = pack(&source, &target, options, &mut go).unwrap();
    let packed = open(&target).unwrap();
    assert!(verify(&packed, &mut go).unwrap().damaged.is_empty());
    (source, packed, report)
}

/// Section 3.4 of the seed: decode to float32, `s = (max - min) / 3`, `b = min`,
/// `q = clamp(round((f - b) / s), 0, 3)`; then `s` and `b` as bfloat16, here rounded.
fn seed_scheme(group: &[f32]) -> Vec<f32> {
    let max = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = group.iter().copied().fold(f32::INFINITY, f32::min);
    let (scale, bias) = ((max - min) / 3.0, min);
    let bf16 = |value: f32| {
        let bits = value.to_bits();
        f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
    };
    if scale == 0.0 {
        return vec![bf16(bias); group.len()];
    }
    let quantised = group.iter().map(|f| ((f - bias) / scale).round_ties_even().clamp(0.0, 3.0));
    quantised.map(|q| q.mul_add(bf16(scale), bf16(bias))).collect()
}

#[test]
fn the_seed_scheme_is_reproduced() {
    let folder = Folder::mlx();
    let method = Method::SeedMinMax;
    let recipe = Recipe { experts: Precision::Bits(2), method, ..Recipe::default() };
    let (source, packed, _) = packed(&folder, recipe);
    for layer in 0..TINY.layers {
        for number in 0..TINY.experts {
            for projection in 0..3 {
                let original = expert(&source, layer, number, projection);
                let expected: Vec<f32> = original.chunks(64).flat_map(seed_scheme).collect();
                let found = expert(&packed, layer, number, projection);
                let differs = found.iter().zip(&expected).position(|(a, b)| a != b);
                let at = differs.map(|i| (i, original[i], found[i], expected[i]));
                assert_eq!(at, None, "layer {layer}, expert {number}, {projection}");
            }
        }
    }
    // 4 bits become 2, the parameters stay as many: 44.4 % less, as the seed says.
    let ratio = packed.expert_bytes() as f64 / source.expert_bytes() as f64;
    assert!((ratio - 2.5 / 4.5).abs() < 1e-9, "{ratio}");
}

#[test]
fn errors_are_measured_and_search_has_the_least() {
    let mut by_method = Vec::new();
    for method in [Method::SeedMinMax, Method::MinMax, Method::Search] {
        let folder = Folder::hugging_face(true);
        let recipe = Recipe { experts: Precision::Bits(2), method, ..Recipe::default() };
        let (source, packed, report) = packed(&folder, recipe);
        assert_eq!(packed.pack.as_ref().unwrap().requantised, report.requantised);
        assert_eq!(report.requantised.len(), 3 * TINY.layers);
        for layer in 0..TINY.layers {
            for (projection, name) in ["gate", "up", "down"].into_iter().enumerate() {
                let (mut difference, mut squares, mut count, mut largest) = (0.0, 0.0, 0, 0.0f64);
                for number in 0..TINY.experts {
                    let original = expert(&source, layer, number, projection);
                    for (x, y) in original.iter().zip(expert(&packed, layer, number, projection)) {
                        let error = f64::from(*x) - f64::from(y);
                        difference += error * error;
                        squares += f64::from(*x) * f64::from(*x);
                        largest = largest.max(error.abs());
                        count += 1;
                    }
                }
                let name = format!("layers.{layer}.experts.{name}");
                let found = report.requantised.iter().find(|entry| entry.name == name).unwrap();
                let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
                assert!(close(found.rmse, (difference / f64::from(count)).sqrt()), "{name}");
                assert!(close(found.relative, (difference / squares).sqrt()), "{name}");
                assert!(close(found.largest, largest), "{name}");
            }
        }
        by_method.push(report.requantised);
    }
    let [seed, min_max, search] = by_method.try_into().unwrap();
    let mean = |of: &[Requantised]| of.iter().map(|m| m.rmse).sum::<f64>();
    assert!(mean(&search) < 0.9 * mean(&seed) && mean(&search) < 0.9 * mean(&min_max));
}

#[test]
fn the_trunk_keeps_its_vectors_and_precise_routers() {
    let folder = Folder::hugging_face(false);
    let recipe = Recipe { trunk: Precision::Bits(4), group: 32, ..Recipe::default() };
    let (source, packed, report) = packed(&folder, recipe);
    let affine = |bits| Encoding::Affine { bits, group: 32, scale: FloatType::Bf16 };
    for (name, tensor) in &packed.tensors {
        let original = &source.tensors[name];
        let original_encoding = original.element.encoding().unwrap();
        let columns = *tensor.shape.last().unwrap();
        let expected = if tensor.shape.len() != 2 || columns % 32 != 0 {
            original_encoding
        } else if name.ends_with("mlp.gate") || name.ends_with("shared_expert_gate") {
            affine(8)
        } else {
            affine(4)
        };
        assert_eq!(tensor.element, expected.into(), "{name}");
        if expected == original_encoding {
            assert_eq!(bytes(&packed, tensor.weight), bytes(&source, original.weight), "{name}");
            continue;
        }
        let shape = |encoding| ProjectionShape { rows: tensor.shape[0], columns, encoding };
        let before = values(&source, shape(original_encoding), original.weight, None);
        let after = values(&packed, shape(expected), tensor.weight, tensor.scales_biases);
        let squares = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x * x)).sum::<f64>();
        let difference = squares(&mut before.iter().zip(&after).map(|(x, y)| x - y));
        let relative = (difference / squares(&mut before.iter().copied())).sqrt();
        let found = report.requantised.iter().find(|entry| entry.name == *name).unwrap();
        assert!((found.relative - relative).abs() < 1e-6, "{name}: {relative}");
        assert!(relative < 0.2, "{name}: {relative}");
    }
    for (a, b) in source.experts.iter().flatten().zip(packed.experts.iter().flatten()) {
        assert_eq!(a.shapes, b.shapes);
    }
}

#[test]
fn another_recipe_does_not_go_on_with_this_work() {
    let folder = Folder::mlx();
    let source = open(folder.path()).unwrap();
    let target = folder.path().join("pack");
    let options = |bits| PackOptions {
        recipe: Recipe { experts: Precision::Bits(bits), ..Recipe::default() },
        ..PackOptions::default()
    };
    let stopped = pack(&source, &target, options(2), &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(PackError::Stopped)));
    let other = pack(&source, &target, options(3), &mut go);
    assert!(matches!(other, Err(PackError::OtherWork { .. })));
    pack(&source, &target, options(2), &mut go).unwrap();
}

#[test]
fn a_group_that_does_not_divide_the_rows_is_refused() {
    let folder = Folder::hugging_face(true);
    let source = open(folder.path()).unwrap();
    let recipe = Recipe { experts: Precision::Bits(2), group: 128, ..Recipe::default() };
    let options = PackOptions { recipe, ..PackOptions::default() };
    let refused = pack(&source, &folder.path().join("pack"), options, &mut go);
    let Err(PackError::Recipe { name, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(name, "layers.0.experts.down");
    assert!(!folder.path().join("pack.partial").exists());
}
