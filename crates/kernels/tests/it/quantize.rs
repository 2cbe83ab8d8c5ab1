//! Affine group quantisation: errors against theory, exactness where it is possible, and the order of the methods.

use kernels::format::{Encoding, FloatType, Matrix, decode_row, pack, unpack};
use kernels::quantize::{Encoded, Error, Method, QuantizeError, encode};
use kernels::{bf16_from_f32, f32_from_bf16};

struct Random(u64);

impl Random {
    fn normal(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..6 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sum += (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        }
        sum * std::f32::consts::SQRT_2
    }
}

fn affine(bits: u8, group: u16, scale: FloatType) -> Encoding {
    Encoding::Affine { bits, group, scale }
}

/// Encodes and decodes; also checks that decoding goes through the public format.
fn there_and_back(values: &[f32], columns: usize, encoding: Encoding, method: Method) -> Vec<f32> {
    let rows = values.len() / columns;
    let mut weight = vec![0; rows * encoding.weight_row_bytes(columns)];
    let mut scales = vec![0; rows * encoding.scale_row_bytes(columns)];
    let mut biases = scales.clone();
    let mut out = Encoded { weight: &mut weight, scales: &mut scales, biases: &mut biases };
    encode(values, columns, encoding, method, &mut out).unwrap();
    let matrix = Matrix::new(encoding, rows, columns, &weight, &scales, &biases).unwrap();
    let mut decoded = vec![0.0; values.len()];
    for (row, out) in decoded.chunks_exact_mut(columns).enumerate() {
        decode_row(&matrix, row, out);
    }
    decoded
}

fn relative(values: &[f32], columns: usize, encoding: Encoding, method: Method) -> f64 {
    let mut error = Error::default();
    error.add(values, &there_and_back(values, columns, encoding, method));
    error.relative()
}

/// Scale, bias and codes of one group whose parameters are not rounded.
fn one_group(values: &[f32], bits: u8, method: Method) -> (f32, f32, Vec<u8>) {
    let encoding = affine(bits, values.len() as u16, FloatType::F32);
    let (mut weight, mut scale, mut bias) =
        (vec![0; values.len() * usize::from(bits) / 8], [0; 4], [0; 4]);
    let mut out = Encoded { weight: &mut weight, scales: &mut scale, biases: &mut bias };
    encode(values, values.len(), encoding, method, &mut out).unwrap();
    let mut codes = vec![0; values.len()];
    unpack(&weight, bits, 0, &mut codes);
    (f32::from_le_bytes(scale), f32::from_le_bytes(bias), codes)
}

/// What a parameter becomes when it is stored as bfloat16.
fn rounded(value: f32) -> f32 {
    f32_from_bf16(bf16_from_f32(value))
}

#[test]
fn packing_is_the_inverse_of_unpacking() {
    let mut random = Random(7);
    for bits in [2u8, 3, 4, 5, 6, 8] {
        let mask = ((1u16 << bits) - 1) as u8;
        let values: Vec<u8> =
            (0..96).map(|_| (random.normal() * 1e6) as i32 as u8 & mask).collect();
        let mut stream = vec![0; 96 * usize::from(bits) / 8];
        pack(&values, bits, &mut stream);
        for first in [0, 1, 31, 32, 50] {
            let mut back = vec![0; 96 - first];
            unpack(&stream, bits, first, &mut back);
            assert_eq!(&values[first..], back, "{bits} bits from {first}");
        }
    }
}

#[test]
fn errors_fall_by_two_per_bit_and_search_is_never_worse() {
    let mut random = Random(11);
    let values: Vec<f32> = (0..64 * 512).map(|_| random.normal() * 0.02).collect();
    for group in [32, 64, 128] {
        for float in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
            let mut before = f64::INFINITY;
            for bits in [2, 3, 4, 5, 6, 8] {
                let encoding = affine(bits, group, float);
                let [mlx, seed, search] = [Method::MinMax, Method::SeedMinMax, Method::Search]
                    .map(|method| relative(&values, 512, encoding, method));
                let case = format!("{encoding:?}: {mlx:.4} {seed:.4} {search:.4}");
                assert!(search < mlx && search < seed, "{case}");
                assert!(search < 0.6 * before, "{case} against {before:.4} with fewer bits");
                // A range of about five deviations in `2^bits - 1` steps of uniform error.
                let levels = f64::from((1u32 << bits) - 1);
                // From 8 bits on the rounding of the bias to bfloat16 is the larger part.
                assert!(bits == 8 || seed < 6.0 / levels / 12f64.sqrt() * 1.1, "{case}");
                before = search;
            }
        }
    }
}

#[test]
fn values_on_a_grid_are_exact() {
    for bits in [2u8, 3, 4, 5, 6, 8] {
        let levels = (1u32 << bits) - 1;
        // Both ends of the grid are there, and what lies between.
        let values: Vec<f32> = (0..128u32)
            .map(|i| levels.saturating_sub(i * 5 % (levels + 1)) as f32 * 0.25 - 1.0)
            .chain([levels as f32 * 0.25 - 1.0, -1.0])
            .skip(2)
            .collect();
        for method in [Method::SeedMinMax, Method::Search] {
            let encoding = affine(bits, 128, FloatType::Bf16);
            assert_eq!(there_and_back(&values, 128, encoding, method), values, "{bits} {method:?}");
        }
    }
}

#[test]
fn constant_and_zero_groups_are_exact() {
    for value in [0.0, 0.5, -3.0] {
        let values = [value; 64];
        for method in [Method::MinMax, Method::SeedMinMax, Method::Search] {
            let back = there_and_back(&values, 64, affine(4, 64, FloatType::Bf16), method);
            assert_eq!(back, values, "{method:?}");
        }
    }
}

#[test]
fn minmax_follows_mlx_in_sign_and_edge() {
    // By hand from the definition: the maximum has the larger magnitude, so it is the bias and the
    // scale is negative: -(3 + 1) / 3, steps = round(3 / -1.333) = -2, scale = 3 / -2.
    let mut values = [0.0f32; 32];
    (values[0], values[1]) = (3.0, -1.0);
    let (scale, bias, q) = one_group(&values, 2, Method::MinMax);
    assert_eq!((scale, bias), (-1.5, 3.0));
    assert_eq!((q[0], q[1], q[2]), (0, 3, 2));
    // Mirrored: the minimum is the edge and the scale positive.
    let values = values.map(|v| -v);
    let (scale, bias, _) = one_group(&values, 2, Method::MinMax);
    assert_eq!((scale, bias), (1.5, -3.0));
}

#[test]
fn truncated_parameters_differ_little_from_rounded_ones() {
    // The ancestors cut scale and bias to bfloat16. At two and four bits that costs nothing: cutting
    // narrows the range, which for bell-shaped values is what `Search` does on purpose.
    let mut random = Random(3);
    let values: Vec<f32> = (0..64 * 256).map(|_| random.normal() * 0.02).collect();
    let truncate = |v: f32| f32::from_bits(v.to_bits() & 0xffff_0000);
    for (bits, least, most) in [(2, 0.99, 1.01), (4, 0.99, 1.01), (8, 0.9, 0.99)] {
        let (mut cut, mut round) = (Error::default(), Error::default());
        for values in values.chunks(64) {
            let (s, b, q) = one_group(values, bits, Method::SeedMinMax);
            let decode =
                |s: f32, b: f32| q.iter().map(|&q| f32::from(q) * s + b).collect::<Vec<_>>();
            cut.add(values, &decode(truncate(s), truncate(b)));
            round.add(values, &decode(rounded(s), rounded(b)));
        }
        let ratio = round.rmse() / cut.rmse();
        assert!((least..most).contains(&ratio), "{bits} bits: rounded over truncated {ratio:.4}");
    }
}

#[test]
fn values_that_are_not_finite_are_refused_by_place() {
    let mut values = [1.0f32; 64];
    values[17] = f32::NAN;
    let mut out = Encoded { weight: &mut [0; 32], scales: &mut [0; 2], biases: &mut [0; 2] };
    let error =
        encode(&values, 64, affine(4, 64, FloatType::Bf16), Method::Search, &mut out).unwrap_err();
    assert!(matches!(error, QuantizeError::NotFinite { index: 17, .. }), "{error}");
}
