//! Block encodings: GGUF's number formats, one row of a table each.
//!
//! A block holds 32, 64 or 256 consecutive values of a row in a fixed number of bytes, with its scales
//! inside, so a matrix of blocks is one plane. Whatever a format does inside, a block unpacks to unsigned
//! codes of one byte, and to one scale for each group of 16 or 32 values: `value = (code - offset) * scale`, or
//! `code * scale + minimum`. All of these are exact in binary32 but the last addition, so decoding, products in
//! integers and products in binary32 start from the same numbers.
//!
//! A new format needs a row below, an unpacking function, and an unpacker for each instruction set: the compiler asks
//! for those that are missing.

pub(crate) mod codebooks;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod fields;
pub(crate) mod grids;
pub(crate) mod k_quants;
pub(crate) mod legacy;
pub(crate) mod nvfp4;
#[cfg(target_arch = "aarch64")]
pub(crate) mod points;
pub(crate) mod product;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) mod steps;
pub(crate) mod tables;
pub(crate) mod ternary;

use crate::blocks::CodeRange::{Minimum, Offset};
use crate::float::f32_from_f16;

/// Most values of a block.
pub(crate) const VALUES_MAX: usize = 256;
/// Below this a scale times any code, and a minimum of sixteen bits, stay finite.
const SCALE_SAFE: f32 = 1e30;

/// Most groups of a block.
pub(crate) const GROUPS_MAX: usize = VALUES_MAX / 16;

/// A block taken apart.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked {
    /// One for each value, in column order.
    pub(crate) codes: [u8; VALUES_MAX],
    /// One for each group.
    pub(crate) scales: [f32; GROUPS_MAX],
    /// One for each group, in formats with [`CodeRange::Minimum`].
    pub(crate) minima: [f32; GROUPS_MAX],
}

/// How the codes of a format become values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeRange {
    /// `(code - offset) * scale`; the offset is a power of two.
    Offset(u8),
    /// `code * scale + minimum`
    Minimum,
}

/// What a format is: its numbers, and the scalar reference that takes a block apart.
struct Layout {
    name: &'static str,
    type_id: u32,
    values: usize,
    bytes: usize,
    group: usize,
    range: CodeRange,
    unpack: fn(&[u8], &mut Unpacked),
}

/// What kernels rely on, for every row of the table of formats.
const _: () = {
    let mut index = 0;
    while index < BlockFormat::ALL.len() {
        let format = BlockFormat::ALL[index];
        let Layout { values, group, range, .. } = format.layout();
        assert!(format as usize == index, "the number of a format is its row");
        assert!(VALUES_MAX.is_multiple_of(values) && values.is_multiple_of(group));
        assert!(matches!(group, 16 | 32));
        assert!(match range {
            Minimum => true,
            Offset(offset) => offset.is_power_of_two(),
        });
        index += 1;
    }
};

/// Defines [`BlockFormat`] from its table.
macro_rules! formats {
    ($dollar:tt $($(#[$doc:meta])* $variant:ident = $name:literal [$type_id:literal]:
        $values:literal values in $bytes:literal bytes, groups of $group:literal, $range:expr,
        $family:ident::$unpack:ident;)*) => {
        /// A block encoding of GGUF (docs/formats.md describes each).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum BlockFormat {
            $($(#[$doc])* $variant,)*
        }

        impl BlockFormat {
            /// Every format.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The format's row.
            const fn layout(self) -> Layout {
                match self {
                    $(Self::$variant => Layout {
                        name: $name,
                        type_id: $type_id,
                        values: $values,
                        bytes: $bytes,
                        group: $group,
                        range: $range,
                        unpack: $family::$unpack,
                    },)*
                }
            }
        }

        /// Gives a macro what is given, if anything, and every format: name and group.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        macro_rules! each_format {
            ($dollar define:ident $dollar(, $dollar($dollar given:tt)*)?) => {
                $dollar define! { $dollar($dollar($dollar given)*;)? $($variant $group),* }
            };
        }
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        pub(crate) use each_format;
    };
}

// Name in lower case and number of the type in a GGUF file, sizes, how codes become values, scalar reference.
formats! { $
    /// 4 bits, one scale.
    Q4_0 = "q4_0" [2]: 32 values in 18 bytes, groups of 32, Offset(8), legacy::q4_0;
    /// 4 bits, one scale, one minimum.
    Q4_1 = "q4_1" [3]: 32 values in 20 bytes, groups of 32, Minimum, legacy::q4_1;
    /// 5 bits, one scale.
    Q5_0 = "q5_0" [6]: 32 values in 22 bytes, groups of 32, Offset(16), legacy::q5_0;
    /// 5 bits, one scale, one minimum.
    Q5_1 = "q5_1" [7]: 32 values in 24 bytes, groups of 32, Minimum, legacy::q5_1;
    /// 8 bits, one scale.
    Q8_0 = "q8_0" [8]: 32 values in 34 bytes, groups of 32, Offset(128), legacy::q8_0;
    /// 2 bits, scales and minima of 4 bits.
    Q2K = "q2_k" [10]: 256 values in 84 bytes, groups of 16, Minimum, k_quants::q2_k;
    /// 3 bits, scales of 6 bits.
    Q3K = "q3_k" [11]: 256 values in 110 bytes, groups of 16, Offset(4), k_quants::q3_k;
    /// 4 bits, scales and minima of 6 bits.
    Q4K = "q4_k" [12]: 256 values in 144 bytes, groups of 32, Minimum, k_quants::q4_k;
    /// 5 bits, scales and minima of 6 bits.
    Q5K = "q5_k" [13]: 256 values in 176 bytes, groups of 32, Minimum, k_quants::q5_k;
    /// 6 bits, scales of 8 bits.
    Q6K = "q6_k" [14]: 256 values in 210 bytes, groups of 16, Offset(32), k_quants::q6_k;
    /// Points of a grid of 256, eight values each, signs, scales of 4 bits.
    Iq2Xxs = "iq2_xxs" [16]: 256 values in 66 bytes, groups of 32, Offset(64), codebooks::iq2_xxs;
    /// The same with a grid of 512 and more scales.
    Iq2Xs = "iq2_xs" [17]: 256 values in 74 bytes, groups of 16, Offset(64), codebooks::iq2_xs;
    /// Points of a grid of 256, four values each, signs, scales of 4 bits.
    Iq3Xxs = "iq3_xxs" [18]: 256 values in 98 bytes, groups of 32, Offset(64), codebooks::iq3_xxs;
    /// Ternary points of a grid of 2048, eight values each, shifted by an eighth, scales of 3 bits.
    Iq1S = "iq1_s" [19]: 256 values in 50 bytes, groups of 32, Offset(16), codebooks::iq1_s;
    /// 4-bit indices of a table that is not linear, one scale.
    Iq4Nl = "iq4_nl" [20]: 32 values in 18 bytes, groups of 32, Offset(128), tables::iq4_nl;
    /// Points of a grid of 512, four values each, free signs, scales of 4 bits.
    Iq3S = "iq3_s" [21]: 256 values in 110 bytes, groups of 32, Offset(64), codebooks::iq3_s;
    /// Points of a grid of 1024, eight values each, free signs, scales of 4 bits.
    Iq2S = "iq2_s" [22]: 256 values in 82 bytes, groups of 16, Offset(64), codebooks::iq2_s;
    /// 4-bit indices of the same table as IQ4_NL, scales of 6 bits.
    Iq4Xs = "iq4_xs" [23]: 256 values in 136 bytes, groups of 32, Offset(128), tables::iq4_xs;
    /// As IQ1_S with more scales and shifts.
    Iq1M = "iq1_m" [29]: 256 values in 56 bytes, groups of 16, Offset(16), codebooks::iq1_m;
    /// Ternary digits, five to a byte, one scale.
    Tq1_0 = "tq1_0" [34]: 256 values in 54 bytes, groups of 32, Offset(1), ternary::tq1_0;
    /// Ternary digits of two bits, one scale.
    Tq2_0 = "tq2_0" [35]: 256 values in 66 bytes, groups of 32, Offset(1), ternary::tq2_0;
    /// 4-bit floats, one power of two.
    Mxfp4 = "mxfp4" [39]: 32 values in 17 bytes, groups of 32, Offset(16), tables::mxfp4;
    /// 4-bit floats, an 8-bit float for each 16.
    Nvfp4 = "nvfp4" [40]: 64 values in 36 bytes, groups of 16, Offset(16), tables::nvfp4;
}

impl BlockFormat {
    /// The format's name in lower case: `q4_k`.
    pub const fn name(self) -> &'static str {
        self.layout().name
    }

    /// The format of a name in lower case; `None` for any other text.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.name() == name)
    }

    /// The number that stands for the format in a GGUF file.
    pub const fn type_id(self) -> u32 {
        self.layout().type_id
    }

    /// The format of a number in a GGUF file; `None` for floats and for formats unknown here.
    pub fn of_type_id(type_id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.type_id() == type_id)
    }

    /// Values of a block: 32, 64 or 256. A row is whole blocks.
    pub const fn values(self) -> usize {
        self.layout().values
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        self.layout().bytes
    }

    /// Values that share a scale: 16 or 32.
    pub(crate) const fn group(self) -> usize {
        self.layout().group
    }

    /// The sixteen values that codes stand for, and what is taken off each; `None` for formats without a table.
    pub const fn table(self) -> Option<([u8; 16], u8)> {
        match self {
            Self::Iq4Nl | Self::Iq4Xs => Some((tables::IQ4, 128)),
            Self::Mxfp4 | Self::Nvfp4 => Some((tables::FP4, 16)),
            _ => None,
        }
    }

    /// The points of the format's grid, a coordinate to a byte, and how many coordinates there are: 4 or 8; `None` for
    /// formats without a grid. Magnitudes, or in IQ1 the levels 0, 1, 2 that stand for -1, 0, 1.
    pub fn grid(self) -> Option<(&'static [u64], usize)> {
        match self {
            Self::Iq1S | Self::Iq1M => Some((&grids::IQ1, 8)),
            Self::Iq2Xxs => Some((&grids::IQ2_XXS, 8)),
            Self::Iq2Xs => Some((&grids::IQ2_XS, 8)),
            Self::Iq2S => Some((&grids::IQ2_S, 8)),
            Self::Iq3Xxs => Some((&grids::IQ3_XXS, 4)),
            Self::Iq3S => Some((&grids::IQ3_S, 4)),
            _ => None,
        }
    }

    /// How the codes become values.
    pub(crate) const fn range(self) -> CodeRange {
        self.layout().range
    }

    /// True where all values of a block are finite.
    ///
    /// # Panics
    ///
    /// If the block has another length than [`Self::bytes`].
    pub fn is_finite(self, block: &[u8]) -> bool {
        let Layout { values, bytes, group, range, unpack, .. } = self.layout();
        assert_eq!(block.len(), bytes, "bytes of a block of {}", self.name());
        let mut unpacked = Unpacked::EMPTY;
        unpack(block, &mut unpacked);
        let largest = |numbers: &[f32]| {
            numbers[..values / group].iter().fold(0.0f32, |most, it| most.max(it.abs()))
        };
        let finite = |numbers: &[f32]| numbers[..values / group].iter().all(|it| it.is_finite());
        if !finite(&unpacked.scales) || (range == Minimum && !finite(&unpacked.minima)) {
            return false;
        }
        if largest(&unpacked.scales) < SCALE_SAFE {
            return true;
        }
        // A scale of 2^127 (MXFP4) is finite, its products are not.
        let mut out = [0.0; VALUES_MAX];
        self.decode(block, &mut out[..values]);
        out[..values].iter().all(|value| value.is_finite())
    }

    /// Decodes one block: `block` is [`Self::bytes`] long, `out` is [`Self::values`] floats.
    ///
    /// # Panics
    ///
    /// If a length is another.
    pub fn decode(self, block: &[u8], out: &mut [f32]) {
        let Layout { values, bytes, group, range, unpack, .. } = self.layout();
        assert_eq!(block.len(), bytes, "bytes of a block of {}", self.name());
        assert_eq!(out.len(), values, "values of a block of {}", self.name());
        let mut unpacked = Unpacked::EMPTY;
        unpack(block, &mut unpacked);
        let Unpacked { codes, scales, minima } = &unpacked;
        for (g, (out, codes)) in out.chunks_exact_mut(group).zip(codes.chunks(group)).enumerate() {
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = match range {
                    Offset(offset) => f32::from(i16::from(code) - i16::from(offset)) * scales[g],
                    Minimum => f32::from(code) * scales[g] + minima[g],
                };
            }
        }
    }
}

impl Unpacked {
    /// Zeros.
    pub(crate) const EMPTY: Self =
        Self { codes: [0; VALUES_MAX], scales: [0.0; GROUPS_MAX], minima: [0.0; GROUPS_MAX] };
}

/// The binary16 number at a byte of a block.
fn half(block: &[u8], at: usize) -> f32 {
    f32_from_f16(u16::from_le_bytes([block[at], block[at + 1]]))
}
