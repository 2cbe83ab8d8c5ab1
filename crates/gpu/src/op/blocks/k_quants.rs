//! Superblocks of 256 values whose groups have scales, and sometimes minima, of few bits.

use std::fmt::Write as _;

use kernels::format::BlockFormat;

use super::{Block, Unit, codes, eight_bytes, floats, less, pairs};

/// The low nibble of byte `32c + m` belongs to value `64c + m`, the high one to value `64c + 32 + m`.
fn halves(block: &Block<'_>, name: &str, first: u32) -> String {
    let bytes = format!("({first}u + (part >> 3u) * 32u + (part & 3u) * 8u)");
    eight_bytes(block, name, &bytes, "((part >> 2u) & 1u) * 4u")
}

/// Bit `j` of byte `m` belongs to value `32j + m`.
fn bits(block: &Block<'_>, name: &str, first: u32) -> String {
    eight_bytes(block, name, &format!("({first}u + (part & 3u) * 8u)"), "part >> 2u")
}

/// 2 bits; scales and minima of 4 bits.
pub(super) fn q2_k(block: &Block<'_>, name: &str) -> Unit {
    let mut text = pairs(block, name, 16);
    let _ = writeln!(text, "let {name}s = {};", block.byte("(part >> 1u)"));
    let values = floats(codes(name, 3));
    let scale = format!("{} * f32({name}s & 15u)", block.half("80u"));
    let minimum = Some(format!("-({} * f32({name}s >> 4u))", block.half("82u")));
    Unit { text, values, scale, minimum }
}

/// 3 bits, the third of them apart; scales of 6 bits.
pub(super) fn q3_k(block: &Block<'_>, name: &str) -> Unit {
    let mut text = pairs(block, name, 32);
    let high = format!("{name}h");
    text.push_str(&bits(block, &high, 0));
    let codes = codes(name, 3).into_iter().zip(codes(&high, 1));
    let values = less(codes.map(|(low, high)| format!("({low} | ({high} << 2u))")).collect(), 4);
    let (low, high) =
        (block.byte("(96u + ((part >> 1u) & 7u))"), block.byte("(104u + ((part >> 1u) & 3u))"));
    let _ = writeln!(text, "let {name}l = ({low} >> ((part >> 4u) * 4u)) & 15u;");
    let _ = writeln!(text, "let {name}t = ({high} >> ((part >> 3u) * 2u)) & 3u;");
    let scale = format!("{} * (f32({name}l | ({name}t << 4u)) - 32.0)", block.half("108u"));
    let minimum = None;
    Unit { text, values, scale, minimum }
}

/// 4 or 5 bits, the fifth of them apart; scales and minima of 6 bits.
pub(super) fn q4_k_or_q5_k(format: BlockFormat, block: &Block<'_>, name: &str) -> Unit {
    let mut text = halves(block, name, if format == BlockFormat::Q4K { 16 } else { 48 });
    let low = codes(name, 15);
    let values = if format == BlockFormat::Q4K {
        floats(low)
    } else {
        let high = format!("{name}h");
        text.push_str(&bits(block, &high, 16));
        let codes = low.into_iter().zip(codes(&high, 1));
        floats(codes.map(|(low, high)| format!("({low} | ({high} << 4u))")).collect())
    };
    // Eight scales and minima of six bits in twelve bytes.
    for (word, at) in [("x", 4), ("y", 8), ("z", 12)] {
        let small = block.word(&format!("{at}u"));
        let _ = writeln!(text, "let {name}{word} = {small} >> (((part >> 2u) & 3u) * 8u);");
    }
    let upper = "part >= 16u";
    let joined = |nibble: &str, pair: &str| {
        format!("(({nibble}) & 15u) | ((({name}{pair} >> 6u) & 3u) << 4u)")
    };
    let (s, m) = (joined(&format!("{name}z"), "x"), joined(&format!("{name}z >> 4u"), "y"));
    let scale = format!("{} * f32(select({name}x & 63u, {s}, {upper}))", block.half("0u"));
    let minimum =
        Some(format!("-({} * f32(select({name}y & 63u, {m}, {upper})))", block.half("2u")));
    Unit { text, values, scale, minimum }
}

/// 6 bits, two of them apart; scales of 8 bits.
pub(super) fn q6_k(block: &Block<'_>, name: &str) -> Unit {
    let mut text = eight_bytes(
        block,
        name,
        "((part >> 4u) * 64u + (part & 7u) * 8u)",
        "((part >> 3u) & 1u) * 4u",
    );
    let high = format!("{name}h");
    text.push_str(&pairs(block, &high, 128));
    let codes = codes(name, 15).into_iter().zip(codes(&high, 3));
    let values = less(codes.map(|(low, high)| format!("({low} | ({high} << 4u))")).collect(), 32);
    let small = format!("(f32({} ^ 128u) - 128.0)", block.byte("(192u + (part >> 1u))"));
    let (scale, minimum) = (format!("{} * {small}", block.half("208u")), None);
    Unit { text, values, scale, minimum }
}
