//! The table of NEON.

use super::neon::NeonLanes;
use super::neon_blocks::{PACKING as BLOCK_PACKING, block_rows, nvfp4_rows};
use super::neon_quantised::{packing, quantised_rows};

crate::table::table!(
    "neon",
    NeonLanes,
    [#[target_feature(enable = "neon,dotprod")]],
    packing,
    quantised_rows,
    BLOCK_PACKING,
    block_rows,
    None,
    nvfp4_rows
);
