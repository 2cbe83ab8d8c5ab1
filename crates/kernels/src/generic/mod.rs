//! Every operation except the integer products, written once over sixteen [`Lanes`].
//!
//! The functions are `inline(always)`: `table.rs` instantiates them per instruction set inside
//! `target_feature` functions. They check nothing; `compute/` has checked shapes and split the work.
//!
//! [`Lanes`]: crate::lanes::Lanes

pub(crate) mod attention;
pub(crate) mod attention_tile;
pub(crate) mod delta;
pub(crate) mod elementwise;
pub(crate) mod float_product;
pub(crate) mod fp8_product;
pub(crate) mod prepare;
