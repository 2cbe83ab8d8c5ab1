//! Rounded rows and keys against torch, bit for bit (tests/reference/rounded_rows.py writes the file).

use std::path::Path;

use kernels::{KvType, decode_fp4, encode_fp4, fp4_bytes, hadamard, round_fp4};

struct Case {
    kind: String,
    rotated: u16,
    values: Vec<f32>,
    expected: Vec<u8>,
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/rounded_rows.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    };
    let case = |line: &str| {
        let fields: Vec<_> = line.split(' ').collect();
        let values =
            bytes(fields[2]).as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        let (kind, rotated) = (fields[0].to_owned(), fields[1].parse().unwrap());
        Case { kind, rotated, values, expected: bytes(fields[3]) }
    };
    text.lines().map(case).collect()
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn rounding_has_the_bits_of_the_reference() {
    let cases = cases();
    assert_eq!(cases.len(), 90);
    for (index, case) in cases.iter().enumerate() {
        let mut values = case.values.clone();
        let found = match case.kind.as_str() {
            "row" => {
                let kind = KvType::Fp8 { rotated: case.rotated };
                let mut row = vec![0xff; kind.bytes_of_head(values.len())];
                kind.encode(&values, &mut row);
                row
            }
            "key" => {
                let mut key = vec![0xff; fp4_bytes(values.len())];
                encode_fp4(&values, &mut key);
                key
            }
            "rounded" => {
                round_fp4(&mut values);
                let mut key = vec![0xff; fp4_bytes(values.len())];
                let mut back = vec![0.0; values.len()];
                encode_fp4(&case.values, &mut key);
                decode_fp4(&key, &mut back);
                assert_eq!(bytes_of(&back), bytes_of(&values), "case {index}: stored and read");
                bytes_of(&values)
            }
            _ => {
                hadamard(&mut values);
                bytes_of(&values)
            }
        };
        assert!(found == case.expected, "case {index}, {}: other bits", case.kind);
    }
}

/// What was rounded once is rounded to itself: a row that is read and stored again keeps its values.
#[test]
fn rounded_rows_stay_as_they_are() {
    for case in cases().iter().filter(|case| case.kind == "row") {
        let kind = KvType::Fp8 { rotated: case.rotated };
        let (mut once, mut twice) = (case.values.clone(), case.values.clone());
        let mut row = vec![0; kind.bytes_of_head(once.len())];
        kind.encode(&case.values, &mut row);
        kind.decode(&row, &mut once);
        kind.encode(&once, &mut row);
        kind.decode(&row, &mut twice);
        assert_eq!(bytes_of(&once), bytes_of(&twice));
    }
}

#[test]
fn a_block_with_a_value_that_is_no_number_reads_as_none() {
    let kind = KvType::Fp8 { rotated: 16 };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let mut values = vec![1.0f32; 144];
        (values[70], values[143]) = (bad, bad);
        let mut row = vec![0; kind.bytes_of_head(144)];
        kind.encode(&values, &mut row);
        kind.decode(&row, &mut values);
        assert!(values[..64].iter().all(|&value| value == 1.0), "the block before");
        assert!(
            values[64..128].iter().all(|value| value.is_nan()),
            "{bad}: {:?}",
            &values[64..128]
        );
        assert!(values[128..143].iter().all(|&value| value == 1.0) && values[143].is_nan());
        let mut keys = vec![1.0f32; 64];
        keys[40] = bad;
        let mut key = vec![0; fp4_bytes(64)];
        encode_fp4(&keys, &mut key);
        round_fp4(&mut keys);
        assert!(keys[32..].iter().all(|value| value.is_nan()) && keys[0] == 1.0);
        decode_fp4(&key, &mut keys);
        assert!(keys[32..].iter().all(|value| value.is_nan()) && keys[0] == 1.0);
    }
}
