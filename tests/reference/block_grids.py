#!/usr/bin/env python3
"""Prints crates/kernels/src/blocks/grids.rs: the points of the IQ formats' grids, from the `gguf` package.

    block_grids.py > crates/kernels/src/blocks/grids.rs

A grid is a set of points with 8 coordinates of 3 levels, or 4 coordinates of 8 levels, in ascending order. So one bit
for each possible point says all: bit i is set when the point whose digits are those of i, the lowest first, is in it.
"""

import numpy as np
from gguf import quants

HEADER = '''//! The points of the grids that the IQ formats choose from, as sets.
//!
//! Written by tests/reference/block_grids.py. A point has 8 coordinates of 3 levels, or 4 of 8 levels. Bit `i` of
//! a set says whether the point is in the grid whose coordinates are the digits of `i`, the lowest first; the
//! points of a grid are numbered in ascending order of `i`.
'''

FOOTER = '''
/// The points of a set, each coordinate replaced by its level's value; coordinate `j` is byte `j`.
const fn points<const COUNT: usize>(set: &[u64], levels: &[u8]) -> [u64; COUNT] {
    let mut points = [0; COUNT];
    let (base, coordinates) = if levels.len() == 3 { (3, 8) } else { (8, 4) };
    let (mut count, mut index) = (0, 0);
    while index < 64 * set.len() {
        if set[index / 64] >> (index % 64) & 1 == 1 {
            let (mut rest, mut j) = (index, 0);
            while j < coordinates {
                points[count] |= (levels[rest % base] as u64) << (8 * j);
                rest /= base;
                j += 1;
            }
            count += 1;
        }
        index += 1;
    }
    assert!(count == COUNT);
    points
}
'''

# Name, class of the package, levels as bytes, what they are.
GRIDS = [
    ("IQ2_XXS", quants.IQ2_XXS, "&[8, 25, 43]", "Magnitudes of IQ2_XXS."),
    ("IQ2_XS", quants.IQ2_XS, "&[8, 25, 43]", "Magnitudes of IQ2_XS."),
    ("IQ2_S", quants.IQ2_S, "&[8, 25, 43]", "Magnitudes of IQ2_S."),
    ("IQ3_XXS", quants.IQ3_XXS, "&[4, 12, 20, 28, 36, 44, 52, 62]", "Magnitudes of IQ3_XXS."),
    ("IQ3_S", quants.IQ3_S, "&[1, 3, 5, 7, 9, 11, 13, 15]", "Magnitudes of IQ3_S."),
    ("IQ1", quants.IQ1_S, "&[0, 1, 2]", "Values of IQ1_S and IQ1_M, plus one."),
]


def main() -> None:
    text = HEADER
    for name, kind, levels, meaning in GRIDS:
        kind.init_grid()
        grid = np.asarray(kind.grid).reshape(kind.grid_shape)
        count, coordinates = kind.grid_shape
        base = len(kind.grid_map)
        digits = np.searchsorted(np.array(kind.grid_map), grid)
        indices = (digits * base ** np.arange(coordinates)).sum(axis=-1)
        assert (np.diff(indices) > 0).all(), name
        words = [0] * -(-(base**coordinates) // 64)
        for index in indices.tolist():
            words[index // 64] |= 1 << index % 64
        text += f"\n/// {meaning}\n#[rustfmt::skip]\npub(crate) static {name}: [u64; {count}] = points(&{name}_SET, {levels});\n"
        text += f"\n#[rustfmt::skip]\nconst {name}_SET: [u64; {len(words)}] = [\n"
        row = [f"0x{word:x}" for word in words]
        for start in range(0, len(row), 5):
            text += "    " + ", ".join(row[start : start + 5]) + ",\n"
        text += "];\n"
    print(text + FOOTER, end="")


if __name__ == "__main__":
    main()
