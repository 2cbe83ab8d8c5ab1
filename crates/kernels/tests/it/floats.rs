//! Short float types against what their bits say: round trips, ties to even.

use kernels::{bf16_from_f32, f16_from_f32, f32_from_bf16, f32_from_e4m3, f32_from_f16};

#[test]
fn every_half_survives_the_round_trip() {
    for bits in 0..=u16::MAX {
        let value = f32_from_f16(bits);
        let back = f16_from_f32(value);
        if value.is_nan() {
            assert!(f32_from_f16(back).is_nan(), "{bits:#06x}");
        } else {
            assert_eq!(back, bits, "{bits:#06x} is {value}");
        }
        let value = f32_from_bf16(bits);
        let back = bf16_from_f32(value);
        if value.is_nan() {
            assert!(f32_from_bf16(back).is_nan(), "{bits:#06x}");
        } else {
            assert_eq!(back, bits, "{bits:#06x} is {value}");
        }
    }
}

#[test]
fn e4m3_is_what_its_fields_say() {
    for byte in 0..=u8::MAX {
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7) / 8.0);
        let magnitude = match exponent {
            0 => mantissa * 2f32.powi(-6),
            15 if byte & 7 == 7 => f32::NAN,
            _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
        };
        let expected = if byte < 0x80 { magnitude } else { -magnitude };
        let found = f32_from_e4m3(byte);
        assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{byte:#04x}"
        );
    }
}

#[test]
fn rounding_is_to_nearest_even() {
    // Between two neighbours of each format, the midpoint goes to the even one, and a hair more
    // goes up.
    for bits in (0..0x7bffu16).step_by(7) {
        let (low, high) = (f32_from_f16(bits), f32_from_f16(bits + 1));
        let middle = (low + high) / 2.0;
        let even = if bits % 2 == 0 { bits } else { bits + 1 };
        assert_eq!(f16_from_f32(middle), even, "{bits:#06x}");
        assert_eq!(f16_from_f32(middle.next_up()), bits + 1, "{bits:#06x}");
    }
    for bits in (0x0080..0x7f00u16).step_by(13) {
        let middle = f32::from_bits(u32::from(bits) << 16 | 0x8000);
        let even = if bits % 2 == 0 { bits } else { bits + 1 };
        assert_eq!(bf16_from_f32(middle), even, "{bits:#06x}");
        assert_eq!(bf16_from_f32(middle.next_up()), bits + 1, "{bits:#06x}");
    }
    assert_eq!(f16_from_f32(65519.9), 0x7bff);
    assert_eq!(f16_from_f32(65520.0), 0x7c00);
}
