//! Products against a binary64 reference, and the promise that bits depend on nothing but the token.

use crate::common;

use common::{Random, compute, isas, random_matrix};
use kernels::format::{
    BlockFormat, Encoding, FloatType, GlobalScale, Matrix, ScaleType, decode_row,
};
use kernels::{Activations, Arithmetic, Compute, MatmulJob, Tokens};

fn multiply(
    compute: &Compute,
    matrix: &common::Owned,
    x: &[f32],
    tokens: Tokens<'_>,
    skew: usize,
) -> Vec<f32> {
    let columns = matrix.columns;
    let mut activations = Activations::with_capacity(1, columns);
    compute.prepare(x, columns, &[matrix.encoding], &mut activations);
    let count = match tokens {
        Tokens::All => x.len() / columns,
        Tokens::Rows(rows) => rows.len(),
    };
    let mut out = vec![f32::NAN; count * matrix.rows];
    let bytes = matrix.skewed(skew);
    compute.matmul(&mut [MatmulJob {
        matrix: matrix.view(&bytes),
        x: &activations,
        tokens,
        out: &mut out,
    }]);
    out
}

/// `[tokens, rows]` in binary64 from the decoded weights, and the norm that errors are relative to.
fn reference(matrix: &common::Owned, x: &[f32]) -> Vec<(f64, f64)> {
    let mut row = vec![0.0; matrix.columns];
    let bytes = matrix.skewed(0);
    let mut out = Vec::new();
    for x in x.chunks(matrix.columns) {
        for r in 0..matrix.rows {
            decode_row(&matrix.view(&bytes), r, &mut row);
            let dot: f64 = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            let norm = |v: &[f32]| v.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            out.push((dot, norm(&row) * norm(x)));
        }
    }
    out
}

/// Root mean square error over the root mean square of what random outputs have: the product of the
/// norms over the root of the number of columns.
fn relative_error(got: &[f32], want: &[(f64, f64)], columns: usize) -> f64 {
    let pairs = got.iter().zip(want);
    let errors: f64 = pairs.map(|(&got, want)| (f64::from(got) - want.0).powi(2)).sum();
    let norms: f64 = want.iter().map(|want| want.1.powi(2) / columns as f64).sum();
    (errors / norms).sqrt()
}

fn encodings() -> Vec<Encoding> {
    let mut all: Vec<_> = BlockFormat::ALL.iter().copied().map(Encoding::Block).collect();
    all.push(Encoding::Mxfp4);
    for global in [GlobalScale::Multiplies, GlobalScale::Divides] {
        all.push(Encoding::Nvfp4 { global });
    }
    all.push(Encoding::Fp8 { scale: ScaleType::E8m0 });
    for scale in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
        all.push(Encoding::Fp8 { scale: ScaleType::Float(scale) });
        all.push(Encoding::Float(scale));
        for shared in [false, true] {
            all.push(Encoding::Fp8Rows { scale, shared });
        }
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                if matches!(bits, 4 | 8) {
                    all.push(Encoding::Symmetric { bits, group, scale });
                    all.push(Encoding::Zeroed { bits, group, scale });
                }
                all.push(Encoding::Affine { bits, group, scale });
            }
        }
    }
    all
}

#[test]
fn products_are_accurate_and_equal_on_every_instruction_set() {
    let mut random = Random::new(1);
    for (index, encoding) in encodings().into_iter().enumerate() {
        // Shapes with odd rows, lone groups, eight groups, more than sixteen groups, partial steps.
        for (rows, columns) in
            [(1, 96), (6, 512), (7, 384), (33, 640), (5, 1024), (3, 1280), (5, 2176)]
        {
            let columns = usize::next_multiple_of(columns, encoding.block_values());
            let matrix = random_matrix(&mut random, encoding, rows, columns);
            // Enough outputs for a mean: one of them may well be three times as far off.
            let tokens = 1 + (index + rows) % 9 + 48 / rows;
            let x = random.normals(tokens * columns);
            let want = reference(&matrix, &x);
            for arithmetic in [Arithmetic::Int16, Arithmetic::F32] {
                let mut first: Option<Vec<f32>> = None;
                for isa in isas() {
                    let compute = compute(1, arithmetic, isa);
                    let got = multiply(&compute, &matrix, &x, Tokens::All, index % 5);
                    let error = relative_error(&got, &want, columns);
                    let limit = match (arithmetic, encoding) {
                        (
                            Arithmetic::Int16,
                            Encoding::Float(_) | Encoding::Fp8 { .. } | Encoding::Fp8Rows { .. },
                        )
                        | (Arithmetic::F32, _) => 1e-6,
                        _ => 5e-5,
                    };
                    let case = format!("{isa:?} {arithmetic:?} {encoding:?} {rows}x{columns}");
                    assert!(error < limit, "{case}: error {error:.2e}");
                    match &first {
                        None => first = Some(got),
                        Some(first) => assert_eq!(first, &got, "{case}: other bits than scalar"),
                    }
                }
            }
        }
    }
}

#[test]
fn bits_depend_on_the_token_alone() {
    let mut random = Random::new(2);
    for (index, encoding) in encodings().into_iter().enumerate() {
        let (rows, columns, tokens) = (67, 512, 40);
        let matrix = random_matrix(&mut random, encoding, rows, columns);
        let x = random.normals(tokens * columns);
        for arithmetic in [Arithmetic::Int16, Arithmetic::F32] {
            for isa in isas() {
                if isa == kernels::Isa::Scalar && index % 7 != 0 {
                    continue;
                }
                let one = compute(1, arithmetic, isa);
                let many = compute(3, arithmetic, isa);
                let case = format!("{isa:?} {arithmetic:?} {encoding:?}");
                let all = multiply(&one, &matrix, &x, Tokens::All, 0);
                assert_eq!(all, multiply(&many, &matrix, &x, Tokens::All, 1), "{case}: threads");
                for count in [1, 2, 3, 4, 5, 8, 15, 16, 17, 33] {
                    let got = multiply(&many, &matrix, &x[..count * columns], Tokens::All, 3);
                    assert_eq!(&all[..count * rows], got, "{case}: {count} tokens");
                    let chosen: Vec<u32> = (0..count as u32).map(|i| (i * 7 + 3) % 40).collect();
                    let got = multiply(&one, &matrix, &x, Tokens::Rows(&chosen), 2);
                    for (got, &token) in got.chunks(rows).zip(&chosen) {
                        let token = token as usize;
                        assert_eq!(&all[token * rows..][..rows], got, "{case}: chosen {token}");
                    }
                }
            }
        }
    }
}

#[test]
fn several_jobs_in_one_region_equal_the_same_jobs_alone() {
    let mut random = Random::new(3);
    let encodings = encodings();
    let columns = 256;
    let x = random.normals(6 * columns);
    let matrices: Vec<_> = (0..encodings.len())
        .map(|i| random_matrix(&mut random, encodings[i], 1 + i * 13 % 90, columns))
        .collect();
    let rows: Vec<u32> = vec![5, 0, 2];
    for isa in isas() {
        let compute = compute(3, Arithmetic::Int16, isa);
        let mut activations = Activations::with_capacity(6, columns);
        compute.prepare(&x, columns, &encodings, &mut activations);
        let bytes: Vec<_> = matrices.iter().map(|m| m.skewed(1)).collect();
        let mut outs: Vec<Vec<f32>> = matrices.iter().map(|m| vec![0.0; 3 * m.rows]).collect();
        let mut jobs: Vec<_> = matrices
            .iter()
            .zip(&bytes)
            .zip(&mut outs)
            .map(|((m, bytes), out)| MatmulJob {
                matrix: m.view(bytes),
                x: &activations,
                tokens: Tokens::Rows(&rows),
                out,
            })
            .collect();
        compute.matmul(&mut jobs);
        for (matrix, out) in matrices.iter().zip(&outs) {
            let alone = multiply(&compute, matrix, &x, Tokens::Rows(&rows), 0);
            assert_eq!(&alone, out, "{isa:?} {:?}", matrix.encoding);
        }
    }
}

#[test]
fn broken_activations_stay_visible_and_zeros_are_exact() {
    let mut random = Random::new(4);
    let encoding = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    let matrix = random_matrix(&mut random, encoding, 20, 256);
    for isa in isas() {
        let compute = compute(1, Arithmetic::Int16, isa);
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.normals(2 * 256);
            x[100] = broken;
            let out = multiply(&compute, &matrix, &x, Tokens::All, 0);
            assert!(out[..20].iter().all(|y| y.is_nan()), "{isa:?} {broken}");
            assert!(out[20..].iter().all(|y| y.is_finite()), "{isa:?} {broken}");
        }
        let out = multiply(&compute, &matrix, &[0.0; 256], Tokens::All, 0);
        assert!(out.iter().all(|&y| y == 0.0), "{isa:?}");
    }
}

#[test]
#[should_panic(expected = "not prepared for")]
fn a_product_with_unprepared_activations_is_refused() {
    let mut random = Random::new(5);
    let encoding = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    let matrix = random_matrix(&mut random, encoding, 4, 128);
    let compute = compute(1, Arithmetic::Int16, kernels::Isa::Auto);
    let mut activations = Activations::with_capacity(1, 128);
    let other = Encoding::Affine { bits: 4, group: 32, scale: FloatType::Bf16 };
    compute.prepare(&[1.0; 128], 128, &[other], &mut activations);
    let bytes = matrix.skewed(0);
    let (matrix, tokens) = (matrix.view(&bytes), Tokens::All);
    compute.matmul(&mut [MatmulJob { matrix, x: &activations, tokens, out: &mut [0.0; 4] }]);
}

/// Rows and columns that are no whole tiles, and every code, against the formula of the format.
#[test]
fn fp8_tiles_end_at_the_edges_of_the_matrix() {
    let mut random = Random::new(6);
    for (rows, columns) in [(1, 1), (5, 127), (130, 129), (257, 300), (128, 512), (131, 1041)] {
        let scale = ScaleType::Float(FloatType::F32);
        let matrix = random_matrix(&mut random, Encoding::Fp8 { scale }, rows, columns);
        let x = random.normals(9 * columns);
        let want = reference(&matrix, &x);
        let all = multiply(&compute(1, Arithmetic::Int16, isas()[0]), &matrix, &x, Tokens::All, 0);
        assert!(relative_error(&all, &want, columns) < 1e-6, "{rows}x{columns}");
        for isa in isas() {
            let compute = compute(2, Arithmetic::Int16, isa);
            for count in [1, 2, 3, 4, 5, 9] {
                let got = multiply(&compute, &matrix, &x[..count * columns], Tokens::All, count);
                assert_eq!(&all[..count * rows], got, "{isa:?} {rows}x{columns}: {count} tokens");
            }
        }
    }
}

#[test]
fn fp8_codes_without_a_number_stay_visible() {
    let (rows, columns) = (6, 160);
    for isa in isas() {
        let compute = compute(1, Arithmetic::Int16, isa);
        let x = vec![1.0; 3 * columns];
        for (at, code) in [(0, 0x7f), (columns - 1, 0xff), (130, 0x7f)] {
            let mut weight = vec![0x38; rows * columns];
            weight[2 * columns + at] = code;
            let encoding = Encoding::Fp8 { scale: ScaleType::E8m0 };
            let matrix = Matrix::new(encoding, rows, columns, &weight, &[127, 128], &[]).unwrap();
            for tokens in [1, 3] {
                let mut activations = Activations::with_capacity(tokens, columns);
                compute.prepare(&x[..tokens * columns], columns, &[encoding], &mut activations);
                let mut out = vec![0.0; tokens * rows];
                let (x, tokens) = (&activations, Tokens::All);
                compute.matmul(&mut [MatmulJob { matrix, x, tokens, out: &mut out }]);
                for (index, &y) in out.iter().enumerate() {
                    let expected = 128.0 + 2.0 * 32.0;
                    assert!(if index % rows == 2 { y.is_nan() } else { y == expected }, "{isa:?}");
                }
            }
        }
    }
}

#[test]
fn planes_of_another_length_are_refused() {
    let encoding = Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) };
    let (weight, scales) = (vec![0; 130 * 129], vec![0; 4 * 4]);
    assert!(Matrix::new(encoding, 130, 129, &weight, &scales, &[]).is_ok());
    for (w, s, b) in [(1, 0, 0), (0, 4, 0), (0, 1, 0)] {
        let (weight, scales) = (&weight[w..], &scales[s..]);
        assert!(Matrix::new(encoding, 130, 129, weight, scales, &vec![0; b]).is_err());
    }
    let error = Matrix::new(encoding, 130, 129, &weight, &scales, &[0; 16]).unwrap_err();
    assert_eq!(error.to_string(), "bias bytes: expected 0, found 16");
}

#[test]
fn many_tokens_have_the_bits_of_few_however_they_are_cut() {
    let mut random = Random::new(5);
    let affine = |bits| Encoding::Affine { bits, group: 64, scale: FloatType::Bf16 };
    let blocks = Encoding::Block(BlockFormat::Q4K);
    let floats = Encoding::Float(FloatType::Bf16);
    for encoding in [affine(4), affine(8), blocks, Encoding::Mxfp4, floats] {
        // Pieces of 64 rows and tokens, and what is left over of both.
        let (rows, columns, tokens) = (130, 512, 150);
        let matrix = random_matrix(&mut random, encoding, rows, columns);
        let x = random.normals(tokens * columns);
        for arithmetic in [Arithmetic::Int16, Arithmetic::F32] {
            for isa in isas() {
                let (one, many) = (compute(1, arithmetic, isa), compute(3, arithmetic, isa));
                let case = format!("{isa:?} {arithmetic:?} {encoding:?}");
                let parts = x.chunks(40 * columns);
                let all: Vec<f32> =
                    parts.flat_map(|x| multiply(&one, &matrix, x, Tokens::All, 0)).collect();
                let got = multiply(&many, &matrix, &x, Tokens::All, 0);
                assert!(all == got, "{case}: all tokens at once");
                let chosen: Vec<u32> = (0..140).map(|i| (i * 7 + 3) % 150).collect();
                let got = multiply(&many, &matrix, &x, Tokens::Rows(&chosen), 0);
                for (got, &token) in got.chunks(rows).zip(&chosen) {
                    assert!(all[token as usize * rows..][..rows] == *got, "{case}: {token}");
                }
            }
        }
    }
}
