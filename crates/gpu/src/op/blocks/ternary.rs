//! Blocks of ternary digits.

use std::fmt::Write as _;

use super::{Block, UNIT, Unit, code, codes, less, pairs};

/// Bytes of ternary digits and the powers of three that bring the wanted ones to the top.
fn ternary(block: &Block<'_>, name: &str) -> String {
    let first =
        "select(select(48u, 32u + (part & 1u) * 8u, part < 30u), (part & 3u) * 8u, part < 20u)";
    let mut text = format!(
        "let {name}n = select(select((part - 30u) * 2u, (part - 20u) >> 1u, part < 30u), part >> 2u, part < 20u);
"
    );
    // The last four bytes hold a digit for each of the first four values and another for the next four.
    let (low, high) =
        (block.word(first), block.word(&format!("({first} + select(4u, 0u, part >= 30u))")));
    let _ = write!(
        text,
        "let {name}a = {low};
let {name}b = {high};
let {name}m = {name}n + select(0u, 1u, part >= 30u);
let {name}p = power_of_three({name}n);
let {name}q = power_of_three({name}m);
"
    );
    text
}

/// Five digits a byte.
pub(super) fn tq1_0(block: &Block<'_>, name: &str) -> Unit {
    let text = ternary(block, name);
    let values = (0..UNIT)
        .map(|index| {
            let power = if index < 4 { "p" } else { "q" };
            let digit = format!("(({} * {name}{power}) & 255u) * 3u", code(name, index, 255));
            format!("(f32(({digit}) >> 8u) - 1.0)")
        })
        .collect();
    let (scale, minimum) = (block.half("52u"), None);
    Unit { text, values, scale, minimum }
}

/// Four digits a byte.
pub(super) fn tq2_0(block: &Block<'_>, name: &str) -> Unit {
    let text = pairs(block, name, 0);
    let values = less(codes(name, 3), 1);
    let (scale, minimum) = (block.half("64u"), None);
    Unit { text, values, scale, minimum }
}
