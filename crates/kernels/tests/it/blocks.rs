//! Values of block encodings: a hash of decoded blocks of every format, taken when the reference program agreed.
//!
//! tests/reference/block_values.py compares far more blocks with another implementation; this test needs nothing but
//! the crate and fails when a value changes.

use crate::common;

use common::Random;
use kernels::format::{BlockFormat, Encoding, Matrix, decode_columns, decode_row};

/// FNV-1a over the values of some seeded random blocks.
const HASHES: &[(&str, u64)] = &[
    ("q4_0", 0x2f6f33bbfd1835da),
    ("q4_1", 0x2e55e55588c4be63),
    ("q5_0", 0x3d865ce581c19099),
    ("q5_1", 0xb6f80e82b7b03cab),
    ("q8_0", 0x66b33057e7667971),
    ("q2_k", 0x0d9d5fd67d79bf67),
    ("q3_k", 0x6c2c6967b72a5987),
    ("q4_k", 0x0240ea20b05ec54a),
    ("q5_k", 0x93f18e910537b5e8),
    ("q6_k", 0x4146ffdfba67cfa2),
    ("iq2_xxs", 0x04de28591f66ed0d),
    ("iq2_xs", 0x23c6020288f2a365),
    ("iq3_xxs", 0x8f64e39efe7436e4),
    ("iq1_s", 0x7cdbb68f98b2cd55),
    ("iq4_nl", 0x1711d5c0a4e16814),
    ("iq3_s", 0xeda67c03998e6eb0),
    ("iq2_s", 0xe964550beac81851),
    ("iq4_xs", 0x71fad55edaf6fe2b),
    ("iq1_m", 0xa1c8f21450496372),
    ("tq1_0", 0x3b53c75a93e1c2cd),
    ("tq2_0", 0xc2d086bf311d4ac4),
    ("mxfp4", 0xe8d9344c8109e0d0),
    ("nvfp4", 0xefcfa1fbfbe8530f),
];

/// Blocks of a format with random bits.
fn random_blocks(format: BlockFormat, count: usize) -> Vec<u8> {
    let mut random = Random::new(format.type_id().into());
    (0..count * format.bytes()).map(|_| random.next() as u8).collect()
}

fn hash(values: &[f32]) -> u64 {
    let bits = values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() });
    let bytes = bits.flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn values_are_those_of_the_reference() {
    let mut found = Vec::new();
    for &format in BlockFormat::ALL {
        let blocks = random_blocks(format, 200);
        let mut values = vec![0.0; 200 * format.values()];
        for (block, values) in blocks.chunks(format.bytes()).zip(values.chunks_mut(format.values()))
        {
            format.decode(block, values);
        }
        found.push((format.name(), hash(&values)));
    }
    assert_eq!(found, HASHES);
}

#[test]
fn any_columns_of_a_row_decode() {
    for &format in BlockFormat::ALL {
        let (rows, columns) = (3, 3 * format.values());
        let blocks = random_blocks(format, rows * 3);
        let matrix = Matrix::new(Encoding::Block(format), rows, columns, &blocks, &[], &[]);
        let matrix = matrix.expect("whole blocks");
        let mut row = vec![0.0; columns];
        decode_row(&matrix, 2, &mut row);
        for (first, count) in [(0, 1), (5, 40), (columns - 33, 33), (17, columns - 20), (7, 0)] {
            let mut part = vec![0.0; count];
            decode_columns(&matrix, 2, first, &mut part);
            assert_eq!(hash(&part), hash(&row[first..first + count]), "{format:?} {first}");
        }
        assert!(
            Matrix::new(Encoding::Block(format), rows, columns, &blocks[1..], &[], &[]).is_err()
        );
        assert!(
            Matrix::new(Encoding::Block(format), rows, columns, &blocks, &[0; 2], &[]).is_err()
        );
    }
}

#[test]
fn names_and_numbers_are_unique_and_sizes_fit() {
    for (index, &format) in BlockFormat::ALL.iter().enumerate() {
        assert_eq!(BlockFormat::parse(format.name()), Some(format));
        assert_eq!(BlockFormat::of_type_id(format.type_id()), Some(format));
        assert_eq!(format as usize, index);
    }
    assert_eq!(BlockFormat::parse("Q4_K"), None);
    assert_eq!(BlockFormat::of_type_id(1), None);
}

#[test]
fn any_bytes_decode() {
    for &format in BlockFormat::ALL {
        for byte in [0, 0x55, 0xff] {
            let mut out = vec![0.0; format.values()];
            let block = vec![byte; format.bytes()];
            format.decode(&block, &mut out);
            let finite = out.iter().all(|value| value.is_finite());
            assert_eq!(format.is_finite(&block), finite, "{} of {byte}", format.name());
        }
    }
}
