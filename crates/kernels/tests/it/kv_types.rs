//! Types of keys and values: names, sizes, rounding, what a type cannot hold.

use kernels::{KvType, Q8_GROUP};

fn stored(kind: KvType, values: &[f32]) -> Vec<f32> {
    let mut row = vec![0xff; kind.bytes_of_head(values.len())];
    let mut back = vec![f32::NAN; values.len()];
    kind.encode(values, &mut row);
    kind.decode(&row, &mut back);
    back
}

#[test]
fn names_are_read_back_and_others_refused() {
    for kind in KvType::ALL {
        assert_eq!(kind.name().parse::<KvType>().unwrap(), kind);
    }
    let refused = "int4".parse::<KvType>().unwrap_err().to_string();
    assert!(refused.contains("int4") && refused.contains("q8"), "{refused}");
    assert_eq!("x".repeat(1000).parse::<KvType>().unwrap_err().name.len(), 100);
}

#[test]
fn a_head_of_256_takes_1024_512_512_and_272_bytes() {
    assert_eq!(KvType::ALL.map(|kind| kind.bytes_of_head(256)), [1024, 512, 512, 272]);
    // A head that is not whole groups has a short last one.
    assert_eq!(KvType::Q8.bytes_of_head(40), 44);
}

#[test]
fn rows_come_back_within_half_a_step() {
    for dim in [256, 128, 40, 8] {
        let values: Vec<f32> =
            (0..dim).map(|i| (i as f32 * 0.7).sin() * 1.1f32.powi(i % 97)).collect();
        assert_eq!(stored(KvType::F32, &values), values);
        for (kind, step) in [(KvType::F16, 11), (KvType::Bf16, 8)] {
            for (&got, &want) in stored(kind, &values).iter().zip(&values) {
                let limit = want.abs() * 0.5f32.powi(step);
                assert!((got - want).abs() <= limit, "{kind}: {got} for {want}");
            }
        }
        let back = stored(KvType::Q8, &values);
        for (got, want) in back.chunks(Q8_GROUP).zip(values.chunks(Q8_GROUP)) {
            let largest = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (&got, &want) in got.iter().zip(want) {
                // Half a step, and what the scale's own rounding takes of the largest byte.
                let limit = largest * (0.501 / 127.0 + 1.0 / 2048.0);
                assert!((got - want).abs() <= limit, "q8: {got} for {want} of {largest}");
            }
        }
    }
}

#[test]
fn q8_rounds_ties_to_even_and_uses_the_stored_scale() {
    // A largest value of 127 makes the scale 1.
    let mut values = [0.0; 32];
    values[..6].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]);
    let mut row = [0; 34];
    KvType::Q8.encode(&values, &mut row);
    assert_eq!(row[..6].iter().map(|&byte| byte as i8).collect::<Vec<_>>(), [127, 0, 2, 2, 0, -2]);
    assert_eq!(row[32..], 0x3c00u16.to_le_bytes());
    assert_eq!(stored(KvType::Q8, &[0.0; 32]), [0.0; 32]);
    // Scales of subnormal halves lose digits, never more than the group's largest value.
    let tiny = [1.0e-5, -9.0e-6, 3.0e-7, 0.0];
    for (got, want) in stored(KvType::Q8, &tiny).iter().zip(tiny) {
        assert!((got - want).abs() < 1.0e-5, "{got} for {want}");
    }
}

#[test]
fn what_a_type_cannot_hold_becomes_nan() {
    for (kind, value) in [
        (KvType::F16, 65_520.0),
        (KvType::F16, -1.0e9),
        (KvType::F16, f32::INFINITY),
        (KvType::Bf16, f32::MAX),
        (KvType::Bf16, f32::NEG_INFINITY),
        (KvType::Bf16, f32::NAN),
        (KvType::Q8, 1.0e7),
        (KvType::Q8, f32::NAN),
        (KvType::Q8, f32::INFINITY),
    ] {
        let back = stored(kind, &[1.0, value]);
        assert!(back[1].is_nan(), "{kind}: {value} came back as {}", back[1]);
    }
    assert_eq!(stored(KvType::F16, &[65_504.0, -65_519.0]), [65_504.0, -65_504.0]);
    assert_eq!(stored(KvType::Bf16, &[1.0e30])[0].to_bits() & 0xffff, 0);
}
