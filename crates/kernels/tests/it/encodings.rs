//! Names, sizes and planes of encodings; values of 4-bit floats in two planes.

use kernels::f32_from_e4m3;
use kernels::format::{
    BlockFormat, Encoding, FloatType, GlobalScale, Matrix, ScaleType, decode_row,
};

/// The values of the codes, from the format's description.
const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

#[test]
fn names_lead_back_to_their_encodings() {
    let affine = Encoding::Affine { bits: 4, group: 64, scale: FloatType::Bf16 };
    let blocks = BlockFormat::ALL.iter().copied().map(Encoding::Block);
    let fp8 = |scale| Encoding::Fp8 { scale };
    let fp8 = [fp8(ScaleType::E8m0), fp8(ScaleType::Float(FloatType::F32))];
    let symmetric = Encoding::Symmetric { bits: 4, group: 32, scale: FloatType::Bf16 };
    let float = Encoding::Float(FloatType::F16);
    let nvfp4 =
        [GlobalScale::Multiplies, GlobalScale::Divides].map(|global| Encoding::Nvfp4 { global });
    let others = [affine, float, Encoding::Mxfp4, fp8[0], fp8[1], symmetric, nvfp4[0], nvfp4[1]];
    for encoding in blocks.chain(others) {
        assert_eq!(Encoding::parse(&encoding.name()), Some(encoding));
    }
    assert_eq!(affine.name(), "affine:4:64:bf16");
    assert_eq!(fp8.map(Encoding::name), ["fp8:128:e8m0", "fp8:128:f32"]);
    assert_eq!(nvfp4.map(Encoding::name), ["nvfp4:multiplied", "nvfp4:divided"]);
    assert_eq!((affine.label(), affine.planes()), ("4-bit g64".to_owned(), 3));
    for other in [
        "",
        "affine",
        "affine:04:64:bf16",
        "affine:7:64:bf16",
        "affine:4:64",
        "Q4_K",
        "q4_k ",
        "fp8:128:",
        "nvfp4:planes",
        "symmetric:3:32:bf16",
    ] {
        assert_eq!(Encoding::parse(other), None, "{other:?}");
    }
}

#[test]
fn powers_of_two_are_a_plane_of_their_own() {
    let mxfp4 = Encoding::Mxfp4;
    assert_eq!((mxfp4.planes(), mxfp4.block_values()), (2, 32));
    assert_eq!(mxfp4.plane_bytes(3, 96), [3 * 48, 9, 0]);
    let as_blocks = Encoding::Block(BlockFormat::Mxfp4);
    assert_eq!(mxfp4.matrix_bytes(3, 96), as_blocks.matrix_bytes(3, 96));
    assert!(mxfp4.check(2880).is_ok() && mxfp4.check(48).is_err());
}

#[test]
fn rows_of_a_tile_share_their_scales() {
    let fp8 = Encoding::Fp8 { scale: ScaleType::Float(FloatType::F32) };
    assert_eq!((fp8.planes(), fp8.block_values()), (2, 1));
    assert_eq!(fp8.plane_bytes(576, 7168), [576 * 7168, 5 * 56 * 4, 0]);
    assert_eq!(fp8.plane_bytes(128, 130), [128 * 130, 2 * 4, 0]);
    let powers = Encoding::Fp8 { scale: ScaleType::E8m0 };
    assert_eq!(powers.matrix_bytes(129, 128), 129 * 128 + 2);
    let scales = [0, 1, 127, 254].map(|byte| ScaleType::E8m0.decode(&[byte], 0));
    assert_eq!(scales, [-127, -126, 0, 127].map(|power| 2f32.powi(power)));
    assert!(ScaleType::E8m0.decode(&[255], 0).is_nan());
}

#[test]
fn blocks_are_one_plane_of_whole_blocks() {
    let q4_k = Encoding::Block(BlockFormat::Q4K);
    assert_eq!((q4_k.planes(), q4_k.block_values()), (1, 256));
    assert_eq!(q4_k.plane_bytes(3, 512), [3 * 288, 0, 0]);
    assert_eq!(q4_k.matrix_bytes(3, 512), 3 * 288);
    assert!(q4_k.check(512).is_ok());
    let error = q4_k.check(544).unwrap_err();
    assert_eq!(error.to_string(), "columns past the last block: expected 0, found 32");
}

#[test]
fn both_planes_give_the_values_of_the_description() {
    let (rows, columns) = (3, 64);
    let weight: Vec<u8> = (0..rows * columns / 2).map(|i| (i * 37 + 11) as u8).collect();
    let scales: Vec<u8> = (0..rows * columns / 32).map(|i| 120 + 3 * i as u8).collect();
    let matrix = Matrix::new(Encoding::Mxfp4, rows, columns, &weight, &scales, &[]).expect("fits");
    let mut row = vec![0.0; columns];
    for r in 0..rows {
        decode_row(&matrix, r, &mut row);
        for (column, &value) in row.iter().enumerate() {
            let at = r * columns + column;
            let code = weight[at / 2] >> (4 * (at % 2)) & 15;
            let scale = 2f32.powi(i32::from(scales[at / 32]) - 127);
            let magnitude = VALUES[usize::from(code & 7)] * scale;
            let expected = if code & 8 == 0 { magnitude } else { -magnitude };
            assert_eq!(value, expected, "row {r}, column {column}");
        }
    }
}

/// Each value against the description, with both spellings of the number that all scales share: two roundings.
#[test]
fn scales_meet_the_number_of_the_matrix_first() {
    let (rows, columns, number) = (4, 48, 0.001_234_567_f32);
    let weight: Vec<u8> = (0..rows * columns / 2).map(|i| (i * 41 + 7) as u8).collect();
    let scales: Vec<u8> = (0..rows * columns / 16).map(|i| (i * 19 + 5) as u8 & 0x7e).collect();
    for global in [GlobalScale::Multiplies, GlobalScale::Divides] {
        let encoding = Encoding::Nvfp4 { global };
        assert_eq!((encoding.planes(), encoding.block_values()), (3, 16));
        assert_eq!(encoding.plane_bytes(rows, columns), [weight.len(), scales.len(), 4]);
        let bytes = number.to_le_bytes();
        let matrix = Matrix::new(encoding, rows, columns, &weight, &scales, &bytes).expect("fits");
        let mut values = vec![0.0; columns];
        for r in 0..rows {
            let part = matrix.part(r, 1);
            decode_row(&part, 0, &mut values);
            for (column, &value) in values.iter().enumerate() {
                let at = r * columns + column;
                let code = weight[at / 2] >> (4 * (at % 2)) & 15;
                let scale = f32_from_e4m3(scales[at / 16]);
                let scale = match global {
                    GlobalScale::Multiplies => scale * number,
                    GlobalScale::Divides => scale / number,
                };
                let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
                let expected = sign * VALUES[usize::from(code & 7)] * scale;
                assert_eq!(value.to_bits(), expected.to_bits(), "row {r}, column {column}");
            }
        }
    }
    assert!(Encoding::Nvfp4 { global: GlobalScale::Divides }.check(40).is_err());
}
