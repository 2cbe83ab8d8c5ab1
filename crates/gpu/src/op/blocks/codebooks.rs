//! Formats whose codes name points of a grid, or values of a table with scales of 6 bits.

use std::fmt::Write as _;

use kernels::format::BlockFormat;

use super::{Block, UNIT, Unit, code, codes, eight_bytes, looked_up};

/// 4 bits that are looked up; scales of 6 bits.
pub(super) fn iq4_xs(block: &Block<'_>, name: &str) -> Unit {
    let bytes = "(8u + (part >> 2u) * 16u + (part & 1u) * 8u)";
    let mut text = eight_bytes(block, name, bytes, "((part >> 1u) & 1u) * 4u");
    let values = looked_up(BlockFormat::Iq4Xs, codes(name, 15));
    let (low, high) = (block.byte("(4u + (part >> 3u))"), block.short("2u"));
    let _ = writeln!(text, "let {name}l = ({low} >> (((part >> 2u) & 1u) * 4u)) & 15u;");
    let _ = writeln!(text, "let {name}t = ({high} >> ((part >> 2u) * 2u)) & 3u;");
    let scale = format!("{} * (f32({name}l | ({name}t << 4u)) - 32.0)", block.half("0u"));
    let minimum = None;
    Unit { text, values, scale, minimum }
}

/// 2 and 3 bits: coordinates of a point with a sign each.
pub(super) fn signed(format: BlockFormat, block: &Block<'_>, name: &str) -> Unit {
    let (text, scale) = signed_point(format, block, name);
    let values = (0..UNIT)
        .map(|index| {
            let sign = format!("select(1.0, -1.0, (({name}g >> {index}u) & 1u) != 0u)");
            format!("(f32({}) * {sign})", code(name, index, 255))
        })
        .collect();
    Unit { text, values, scale, minimum: None }
}

/// 1 bit: levels of a point with a shift.
pub(super) fn shifted(format: BlockFormat, block: &Block<'_>, name: &str) -> Unit {
    let (text, scale) = shifted_point(format, block, name);
    // Eight times the levels -1, 0 and 1, less or more one.
    let values = codes(name, 255)
        .into_iter()
        .map(|code| format!("(f32({code}) * 8.0 - 8.0 + {name}d)"))
        .collect();
    Unit { text, values, scale, minimum: None }
}

/// Statements that load the point `index` of a grid of eight bytes a point into `{name}a` and `{name}b`.
fn whole(text: &mut String, name: &str, index: &str) {
    let _ = writeln!(text, "let {name}i = ({index}) * 2u;");
    let _ = writeln!(text, "let {name}a = grid[{name}i];\nlet {name}b = grid[{name}i + 1u];");
}

/// Statements that leave seven signs and the eighth, by which their number is even, in `{name}g`.
fn even(text: &mut String, name: &str, bits: &str) {
    let _ = writeln!(text, "let {name}v = ({bits}) & 127u;");
    let _ = writeln!(text, "let {name}g = {name}v | ((countOneBits({name}v) & 1u) << 7u);");
}

/// A scale of four bits in the bytes from `at` on.
fn quarter(text: &mut String, block: &Block<'_>, name: &str, at: u32) -> String {
    let small = block.byte(&format!("({at}u + (part >> 2u))"));
    let _ = writeln!(text, "let {name}s = ({small} >> (((part >> 1u) & 1u) * 4u)) & 15u;");
    format!("{} * (0.5 + f32({name}s)) * 0.25", block.half("0u"))
}

/// Statements that leave a point's coordinates in `{name}a` and `{name}b` and their signs in `{name}g`; and the scale.
fn signed_point(format: BlockFormat, block: &Block<'_>, name: &str) -> (String, String) {
    use BlockFormat as F;
    let mut text = String::new();
    let scale = match format {
        F::Iq2Xxs => {
            whole(&mut text, name, &block.byte("(2u + (part >> 2u) * 8u + (part & 3u))"));
            let _ = writeln!(text, "let {name}w = {};", block.word("(6u + (part >> 2u) * 8u)"));
            even(&mut text, name, &format!("{name}w >> ((part & 3u) * 7u)"));
            format!("{} * (0.5 + f32({name}w >> 28u)) * 0.25", block.half("0u"))
        }
        F::Iq2Xs => {
            let _ = writeln!(text, "let {name}w = {};", block.short("(2u + part * 2u)"));
            whole(&mut text, name, &format!("{name}w & 511u"));
            even(&mut text, name, &format!("{name}w >> 9u"));
            quarter(&mut text, block, name, 66)
        }
        F::Iq2S => {
            let high = block.byte("(66u + (part >> 2u))");
            let high = format!("((({high} >> ((part & 3u) * 2u)) & 3u) << 8u)");
            whole(&mut text, name, &format!("{} | {high}", block.byte("(2u + part)")));
            let _ = writeln!(text, "let {name}g = {};", block.byte("(34u + part)"));
            quarter(&mut text, block, name, 74)
        }
        F::Iq3Xxs => {
            let _ = writeln!(text, "let {name}i = {};", block.short("(2u + part * 2u)"));
            let _ = writeln!(text, "let {name}a = grid[{name}i & 255u];");
            let _ = writeln!(text, "let {name}b = grid[{name}i >> 8u];");
            let _ = writeln!(text, "let {name}w = {};", block.word("(66u + (part >> 2u) * 4u)"));
            even(&mut text, name, &format!("{name}w >> ((part & 3u) * 7u)"));
            format!("{} * (0.5 + f32({name}w >> 28u)) * 0.5", block.half("0u"))
        }
        _ => {
            let _ = writeln!(text, "let {name}i = {};", block.short("(2u + part * 2u)"));
            let high = block.byte("(66u + (part >> 2u))");
            let _ = writeln!(text, "let {name}t = {high} >> ((part & 3u) * 2u);");
            let _ =
                writeln!(text, "let {name}a = grid[({name}i & 255u) | (({name}t & 1u) << 8u)];");
            let _ = writeln!(text, "let {name}b = grid[({name}i >> 8u) | (({name}t & 2u) << 7u)];");
            let _ = writeln!(text, "let {name}g = {};", block.byte("(74u + part)"));
            let small = block.byte("(106u + (part >> 3u))");
            let _ = writeln!(text, "let {name}s = ({small} >> (((part >> 2u) & 1u) * 4u)) & 15u;");
            format!("{} * f32(1u + 2u * {name}s)", block.half("0u"))
        }
    };
    (text, scale)
}

/// Statements that leave a point's levels in `{name}a` and `{name}b` and their shift in `{name}d`; and the scale.
fn shifted_point(format: BlockFormat, block: &Block<'_>, name: &str) -> (String, String) {
    let mut text = String::new();
    let scale = match format {
        BlockFormat::Iq1S => {
            let _ = writeln!(text, "let {name}w = {};", block.short("(34u + (part >> 2u) * 2u)"));
            let high = format!("((({name}w >> ((part & 3u) * 3u)) & 7u) << 8u)");
            whole(&mut text, name, &format!("{} | {high}", block.byte("(2u + part)")));
            let _ = writeln!(text, "let {name}d = select(1.0, -1.0, ({name}w & 32768u) != 0u);");
            format!("{} * f32(2u * (({name}w >> 12u) & 7u) + 1u) * 0.125", block.half("0u"))
        }
        _ => {
            let nibble = block.byte("(32u + (part >> 1u))");
            let _ = writeln!(text, "let {name}w = ({nibble} >> ((part & 1u) * 4u)) & 15u;");
            let high = format!("(({name}w & 7u) << 8u)");
            whole(&mut text, name, &format!("{} | {high}", block.byte("part")));
            let _ = writeln!(text, "let {name}d = select(1.0, -1.0, ({name}w & 8u) != 0u);");
            let _ = writeln!(text, "let {name}x = {};", block.word("48u"));
            let _ = writeln!(text, "let {name}y = {};", block.word("52u"));
            let small = block.short("(48u + (part >> 3u) * 2u)");
            let _ = writeln!(text, "let {name}s = ({small} >> (((part >> 1u) & 3u) * 3u)) & 7u;");
            // The scale lies in the highest nibbles of four words of 16 bits.
            let low = format!("(({name}x >> 12u) & 15u) | (({name}x >> 24u) & 240u)");
            let bits = format!("{low} | (({name}y >> 4u) & 3840u) | (({name}y >> 16u) & 61440u)");
            format!("half_of_bits({bits}) * f32(2u * {name}s + 1u) * 0.125")
        }
    };
    (text, scale)
}
