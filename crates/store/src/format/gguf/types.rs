//! The element types of tensors in GGUF files: their numbers, names and block sizes.
//!
//! Every type that a file may hold is listed, also those that are not computed with: where a tensor ends decides
//! where the next one begins. Numbers that are missing were given up, or are never stored.

use kernels::format::{BlockFormat, Encoding, FloatType};

/// A type of tensor elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GgmlType {
    /// Its number in files.
    pub(crate) id: u32,
    /// Its name as llama.cpp prints it.
    pub(crate) name: &'static str,
    /// Values of a block; a row is a whole number of blocks.
    pub(crate) values: u64,
    /// Bytes of a block.
    pub(crate) bytes: u64,
}

const fn row(id: u32, name: &'static str, values: u64, bytes: u64) -> GgmlType {
    GgmlType { id, name, values, bytes }
}

/// Every type that is stored.
const TYPES: [GgmlType; 33] = [
    row(0, "F32", 1, 4),
    row(1, "F16", 1, 2),
    row(2, "Q4_0", 32, 18),
    row(3, "Q4_1", 32, 20),
    row(6, "Q5_0", 32, 22),
    row(7, "Q5_1", 32, 24),
    row(8, "Q8_0", 32, 34),
    row(10, "Q2_K", 256, 84),
    row(11, "Q3_K", 256, 110),
    row(12, "Q4_K", 256, 144),
    row(13, "Q5_K", 256, 176),
    row(14, "Q6_K", 256, 210),
    row(16, "IQ2_XXS", 256, 66),
    row(17, "IQ2_XS", 256, 74),
    row(18, "IQ3_XXS", 256, 98),
    row(19, "IQ1_S", 256, 50),
    row(20, "IQ4_NL", 32, 18),
    row(21, "IQ3_S", 256, 110),
    row(22, "IQ2_S", 256, 82),
    row(23, "IQ4_XS", 256, 136),
    row(24, "I8", 1, 1),
    row(25, "I16", 1, 2),
    row(26, "I32", 1, 4),
    row(27, "I64", 1, 8),
    row(28, "F64", 1, 8),
    row(29, "IQ1_M", 256, 56),
    row(30, "BF16", 1, 2),
    row(34, "TQ1_0", 256, 54),
    row(35, "TQ2_0", 256, 66),
    row(39, "MXFP4", 32, 17),
    row(40, "NVFP4", 64, 36),
    row(41, "Q1_0", 128, 18),
    row(42, "Q2_0", 64, 18),
];

impl GgmlType {
    /// The type of a number; `None` for one that no file holds.
    pub(crate) fn of(id: u32) -> Option<Self> {
        TYPES.into_iter().find(|known| known.id == id)
    }

    /// How values of the type are computed with; `None` for a type that is not.
    pub(crate) fn encoding(self) -> Option<Encoding> {
        Some(match self.id {
            0 => Encoding::Float(FloatType::F32),
            1 => Encoding::Float(FloatType::F16),
            30 => Encoding::Float(FloatType::Bf16),
            id => return BlockFormat::of_type_id(id).map(Encoding::Block),
        })
    }
}
