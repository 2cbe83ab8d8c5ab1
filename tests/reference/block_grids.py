#!/usr/bin/env python3
"""Prints the points of the IQ formats' grids, from the `gguf` package, for the processor or, with `cuda`, for a GPU.

    block_grids.py > crates/kernels/src/blocks/grids.rs
    block_grids.py cuda > crates/cuda/kernels/grids.cuh

A grid is a set of points with 8 coordinates of 3 levels, or 4 coordinates of 8 levels, in ascending order. So one bit
for each possible point says all: bit i is set when the point whose digits are those of i, the lowest first, is in it.
"""

import sys

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

CUDA_HEADER = '''\
// The points of the grids that the IQ formats choose from, as tables of device memory. Coordinate j of a point is
// byte j; of IQ1 it is nibble 2 j, and from the fifth on nibble 2 j - 7.
//
// Written by tests/reference/block_grids.py. Bit `i` of a set says whether the point is in the grid whose coordinates
// are the digits of `i`, the lowest first; the points of a grid are numbered in ascending order of `i`.
#pragma once
#include <cstdint>

template <typename WORD, int COUNT>
struct Grid {
    WORD point[COUNT];
};

// The points of a set of 8 coordinates of 3 levels, or 4 of 8, each coordinate replaced by its level's value.
template <typename WORD, int COUNT, int WORDS, int LEVELS>
constexpr Grid<WORD, COUNT> grid_points(const uint64_t (&set)[WORDS], const uint8_t (&levels)[LEVELS]) {
    Grid<WORD, COUNT> grid = {};
    constexpr int coordinates = LEVELS == 3 ? 8 : 4;
    int count = 0;
    for (int index = 0; index < 64 * WORDS; index++) {
        if ((set[index / 64] >> index % 64 & 1) == 0) continue;
        int rest = index;
        for (int j = 0; j < coordinates; j++) {
            int at = sizeof(WORD) == coordinates ? 8 * j : j % 4 * 8 + j / 4 * 4;
            grid.point[count] |= WORD(levels[rest % LEVELS]) << at;
            rest /= LEVELS;
        }
        count++;
    }
    return grid;
}
'''

# Name, class of the package, levels as bytes, what they are; on a GPU the words of points, levels, what they are.
GRIDS = [
    ("IQ2_XXS", quants.IQ2_XXS, "&[8, 25, 43]", "Magnitudes of IQ2_XXS.",
     "uint64_t", "72, 89, 107", "Magnitudes of IQ2_XXS, each plus 64."),
    ("IQ2_XS", quants.IQ2_XS, "&[8, 25, 43]", "Magnitudes of IQ2_XS.",
     "uint64_t", "72, 89, 107", "Magnitudes of IQ2_XS, each plus 64."),
    ("IQ2_S", quants.IQ2_S, "&[8, 25, 43]", "Magnitudes of IQ2_S.",
     "uint64_t", "72, 89, 107", "Magnitudes of IQ2_S, each plus 64."),
    ("IQ3_XXS", quants.IQ3_XXS, "&[4, 12, 20, 28, 36, 44, 52, 62]", "Magnitudes of IQ3_XXS.",
     "uint32_t", "68, 76, 84, 92, 100, 108, 116, 126", "Magnitudes of IQ3_XXS, each plus 64."),
    ("IQ3_S", quants.IQ3_S, "&[1, 3, 5, 7, 9, 11, 13, 15]", "Magnitudes of IQ3_S.",
     "uint32_t", "65, 67, 69, 71, 73, 75, 77, 79", "Magnitudes of IQ3_S, each plus 64."),
    ("IQ1", quants.IQ1_S, "&[0, 1, 2]", "Values of IQ1_S and IQ1_M, plus one.",
     "uint32_t", "1, 2, 3", "Values of IQ1_S and IQ1_M, plus two, four bits each."),
]


def rust(name, count, words, grid):
    """A table of the processor."""
    levels, meaning = grid[:2]
    table = f"\n/// {meaning}\n#[rustfmt::skip]\n"
    table += f"pub(crate) static {name}: [u64; {count}] = points(&{name}_SET, {levels});\n"
    return table + f"\n#[rustfmt::skip]\nconst {name}_SET: [u64; {len(words)}] = [\n{rows(words)}];\n"


def cuda(name, count, words, grid):
    """A table of a GPU."""
    word, levels, meaning = grid[2:]
    table = f"\n// {meaning}\nconstexpr uint64_t SET_{name}[{len(words)}] = {{\n{rows(words)}}};\n"
    table += f"constexpr uint8_t LEVELS_{name}[] = {{{levels}}};\n"
    table += f"__device__ constexpr Grid<{word}, {count}> GRID_{name} = "
    return table + f"grid_points<{word}, {count}>(SET_{name}, LEVELS_{name});\n"


def rows(words):
    row = [f"0x{word:x}" for word in words]
    return "".join("    " + ", ".join(row[start : start + 5]) + ",\n" for start in range(0, len(row), 5))


def main() -> None:
    on_gpu = sys.argv[1:] == ["cuda"]
    text = CUDA_HEADER if on_gpu else HEADER
    for name, kind, *about in GRIDS:
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
        text += (cuda if on_gpu else rust)(name, count, words, about)
    print(text if on_gpu else text + FOOTER, end="")


if __name__ == "__main__":
    main()
