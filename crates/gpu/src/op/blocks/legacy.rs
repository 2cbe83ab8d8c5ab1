//! Blocks of 32 values with a scale and sometimes a minimum, and formats of 4 bits that look their codes up.

use std::fmt::Write as _;

use kernels::format::BlockFormat;

use super::{Block, Unit, codes, eight_bytes, exact, floats, less, looked_up};

/// Sixteen bytes of nibbles: value `j` below and value `j + 16` above.
fn nibbles(block: &Block<'_>, name: &str, first: u32) -> String {
    let bytes = format!("({first}u + (part & 1u) * 8u)");
    eight_bytes(block, name, &bytes, "((part >> 1u) & 1u) * 4u")
}

/// Adds bit `i` of `{name}h` to code `i` as its fifth.
fn fifth(name: &str, codes: Vec<String>) -> Vec<String> {
    let codes = codes.into_iter().enumerate();
    codes.map(|(i, code)| format!("({code} | ((({name}h >> {i}u) & 1u) << 4u))")).collect()
}

/// The scale of a block of MXFP4: half of a power of two, which may be subnormal.
fn half_of_power(block: &Block<'_>, name: &str) -> (String, String) {
    let (small, large) = (format!("2097152u << {name}e"), format!("({name}e - 1u) << 23u"));
    (
        format!("let {name}e = {};\n", block.byte("0u")),
        format!("bitcast<f32>(select({large}, {small}, {name}e < 2u))"),
    )
}

/// The unit of one of these formats.
pub(super) fn unit(format: BlockFormat, block: &Block<'_>, name: &str) -> Unit {
    use BlockFormat as F;
    // Where the codes begin; the scale is before them, then the minimum or the fifth bits.
    let mut text = match format {
        F::Mxfp4 => nibbles(block, name, 1),
        F::Q4_0 | F::Iq4Nl => nibbles(block, name, 2),
        F::Q4_1 => nibbles(block, name, 4),
        F::Q5_0 => nibbles(block, name, 6),
        F::Q5_1 => nibbles(block, name, 8),
        F::Q8_0 => eight_bytes(block, name, "(2u + part * 8u)", "0u"),
        _ => eight_bytes(block, name, "(4u + (part >> 1u) * 8u)", "(part & 1u) * 4u"),
    };
    let mut scale = block.half("0u");
    let mut minimum = None;
    let values = match format {
        F::Q4_0 => less(codes(name, 15), 8),
        F::Iq4Nl => looked_up(format, codes(name, 15)),
        F::Mxfp4 => {
            let (statement, power) = half_of_power(block, name);
            text.push_str(&statement);
            scale = power;
            looked_up(format, codes(name, 15))
        }
        F::Q5_0 => {
            let _ = writeln!(text, "let {name}h = {} >> (part * 8u);", block.word("2u"));
            less(fifth(name, codes(name, 15)), 16)
        }
        F::Q4_1 => {
            minimum = Some(block.half("2u"));
            floats(codes(name, 15))
        }
        F::Q5_1 => {
            let _ = writeln!(text, "let {name}h = {} >> (part * 8u);", block.word("4u"));
            minimum = Some(block.half("2u"));
            floats(fifth(name, codes(name, 15)))
        }
        F::Q8_0 => {
            let signed = |code| exact(&format!("({code} ^ 128u)"), 128);
            codes(name, 255).into_iter().map(signed).collect()
        }
        _ => {
            scale = format!("half_of_e4m3({})", block.byte("(part >> 1u)"));
            looked_up(format, codes(name, 15))
        }
    };
    Unit { text, values, scale, minimum }
}
