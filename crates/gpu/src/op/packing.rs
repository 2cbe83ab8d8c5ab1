//! How a matrix's values lie in words, and the text that unpacks them.
//!
//! Blocks are in `op::blocks`, where a unit is eight values. Of the others a *unit* is the least run of values that
//! begins and ends with a word: 16 values of 2 bits, 32 of 3, 8 of 4, 32 of 5, 16 of 6, 4 of 8, 2 halves, 1 float.
//! Units never cross a group of an affine encoding.

use std::fmt::Write as _;

use kernels::format::{BlockFormat, Encoding, FloatType, GlobalScale, ScaleType};

use super::blocks;
use crate::source::Source;

/// Storage of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// Binary32.
    F32,
    /// Binary16.
    F16,
    /// The upper half of binary32.
    Bf16,
}

impl From<FloatType> for Float {
    fn from(float: FloatType) -> Self {
        match float {
            FloatType::F32 => Self::F32,
            FloatType::F16 => Self::F16,
            FloatType::Bf16 => Self::Bf16,
        }
    }
}

/// Values that share a scale where groups do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// A tile of [`kernels::format::FP8_TILE`] rows and columns; those at the lower and right edges may be partial.
    Tile,
    /// A row.
    Row,
    /// The matrix.
    Matrix,
}

/// How values lie in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// One float each.
    Float(Float),
    /// Groups with a scale and a bias.
    Affine {
        /// Bits of a value.
        bits: u8,
        /// Values of a group.
        group: u16,
        /// Storage of scales and biases.
        scale: Float,
    },
    /// Integers less a number, in groups with a scale.
    Integer {
        /// Bits of a value: 4 or 8.
        bits: u8,
        /// Values of a group.
        group: u16,
        /// Storage of scales.
        scale: Float,
        /// Whether that number is a zero point of the group, in a plane of its own; else it is `2^(bits - 1)`.
        zeros: bool,
    },
    /// 8-bit floats (E4M3: 4 bits of exponent, 3 of mantissa, no infinities) with scales.
    Fp8 {
        /// Storage of scales.
        scale: ScaleType,
        /// What shares one.
        share: Share,
    },
    /// Blocks of GGUF.
    Block(BlockFormat),
    /// 4-bit floats in groups of 32, with a power of two for each in a plane of bytes.
    Mxfp4,
    /// 4-bit floats in groups of 16, with an 8-bit float for each in a plane of bytes, and a number of the matrix that
    /// meets those.
    Nvfp4 {
        /// How it does.
        global: GlobalScale,
    },
}

impl Packing {
    /// The packing of an encoding; [`Packing::serves`] says which rows the kernels read.
    pub fn of(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Float(float) => Self::Float(float.into()),
            Encoding::Affine { bits, group, scale } => {
                Self::Affine { bits, group, scale: scale.into() }
            }
            Encoding::Symmetric { bits, group, scale } => {
                Self::Integer { bits, group, scale: scale.into(), zeros: false }
            }
            Encoding::Zeroed { bits, group, scale } => {
                Self::Integer { bits, group, scale: scale.into(), zeros: true }
            }
            Encoding::Fp8 { scale } => Self::Fp8 { scale, share: Share::Tile },
            Encoding::Fp8Rows { scale, shared } => {
                let share = if shared { Share::Matrix } else { Share::Row };
                Self::Fp8 { scale: ScaleType::Float(scale), share }
            }
            Encoding::Block(format) => Self::Block(format),
            Encoding::Mxfp4 => Self::Mxfp4,
            Encoding::Nvfp4 { global } => Self::Nvfp4 { global },
        }
    }

    /// True when rows of `columns` are whole words, or blocks.
    pub fn serves(self, columns: usize) -> bool {
        let least = match self {
            Self::Block(format) => format.values(),
            _ => self.unit() as usize,
        };
        columns.is_multiple_of(least)
    }

    /// The step from a row to the next: words, or bytes of blocks.
    pub(crate) fn row_step(self, columns: usize) -> u32 {
        match self {
            Self::Block(format) => (columns / format.values() * format.bytes()) as u32,
            _ => columns as u32 / self.unit() * self.unit_words(),
        }
    }

    /// The format of blocks.
    pub(crate) fn block(self) -> Option<BlockFormat> {
        match self {
            Self::Block(format) => Some(format),
            _ => None,
        }
    }

    /// Values of a unit.
    pub(crate) fn unit(self) -> u32 {
        match self {
            Self::Float(Float::F32) => 1,
            Self::Float(_) => 2,
            Self::Affine { bits: 3 | 5, .. } => 32,
            Self::Affine { bits: 2 | 6, .. } => 16,
            Self::Affine { bits: 4, .. }
            | Self::Integer { bits: 4, .. }
            | Self::Mxfp4
            | Self::Nvfp4 { .. } => 8,
            Self::Block(_) => blocks::UNIT,
            Self::Affine { .. } | Self::Integer { .. } | Self::Fp8 { .. } => 4,
        }
    }

    /// Words of a unit; 0 of blocks.
    pub(crate) fn unit_words(self) -> u32 {
        match self {
            Self::Float(_)
            | Self::Integer { .. }
            | Self::Fp8 { .. }
            | Self::Mxfp4
            | Self::Nvfp4 { .. } => 1,
            Self::Block(_) => 0,
            Self::Affine { bits, .. } => self.unit() * u32::from(bits) / 32,
        }
    }

    /// Units that an invocation takes at once of rows of `columns`: vectors of words where 32 invocations have one each
    /// and units, or blocks, are whole vectors.
    pub fn together(self, columns: usize) -> u32 {
        let of_words = match self {
            Self::Float(_)
            | Self::Affine { bits: 4 | 8, .. }
            | Self::Integer { .. }
            | Self::Fp8 { .. }
            | Self::Mxfp4
            | Self::Nvfp4 { .. } => true,
            Self::Block(format) => blocks::Wide::serves(format),
            Self::Affine { .. } => false,
        };
        let fits = |units: &u32| {
            let values = (units * self.unit()) as usize;
            let one_scale = self.group() == 0 || values <= self.group() as usize;
            of_words && one_scale && columns.is_multiple_of(values) && columns / values >= 32
        };
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Expressions for the values of a unit whose words are `{words}0`, `{words}1` and so on, and whose zero point,
    /// where groups have one, is `zero`; none of blocks.
    pub(crate) fn values(self, words: &str, zero: &str) -> Vec<String> {
        match self {
            Self::Block(_) => Vec::new(),
            Self::Integer { bits, zeros, .. } => {
                let (bits, mask, word) = (u32::from(bits), (1u32 << bits) - 1, format!("{words}0"));
                let value = |shift: u32| match zeros {
                    true => format!("({} - {zero})", blocks::exact_field(&word, shift, mask, 0)),
                    false => blocks::exact_field(&word, shift, mask, 1 << (bits - 1)),
                };
                (0..self.unit()).map(|index| value(index * bits)).collect()
            }
            // Value `i` is byte `i` of the word.
            Self::Fp8 { .. } => {
                let places = ["<< 20u", "<< 12u", "<< 4u", ">> 4u"].into_iter().zip([24, 16, 8, 0]);
                let value =
                    |(place, sign)| format!("float8({words}0 {place}, {words}0 << {sign}u)");
                places.map(value).collect()
            }
            // Value `i` is nibble `i` of the word.
            Self::Mxfp4 | Self::Nvfp4 { .. } => {
                let value = |at: u32| match at {
                    0 => format!("float4({words}0 << 2u, {words}0 << 28u)"),
                    _ => {
                        format!("float4({words}0 >> {}u, {words}0 << {}u)", 4 * at - 2, 28 - 4 * at)
                    }
                };
                (0..8).map(value).collect()
            }
            Self::Float(Float::F32) => vec![format!("bitcast<f32>({words}0)")],
            Self::Float(Float::F16) => {
                vec![format!("unpack2x16float({words}0).x"), format!("unpack2x16float({words}0).y")]
            }
            Self::Float(Float::Bf16) => vec![
                format!("bitcast<f32>({words}0 << 16u)"),
                format!("bitcast<f32>({words}0 & 0xffff0000u)"),
            ],
            Self::Affine { bits, .. } => {
                let (bits, mask) = (u32::from(bits), (1u32 << bits) - 1);
                let value = |index: u32| {
                    let (word, shift) = (index * bits / 32, index * bits % 32);
                    match shift + bits > 32 {
                        false => blocks::exact_field(&format!("{words}{word}"), shift, mask, 0),
                        true => {
                            let (next, left) = (word + 1, 32 - shift);
                            let low = format!("{words}{word} >> {shift}u");
                            blocks::exact(
                                &format!("(({low}) | ({words}{next} << {left}u)) & {mask}u"),
                                0,
                            )
                        }
                    }
                };
                (0..self.unit()).map(value).collect()
            }
        }
    }

    /// Statements that read the words of a unit from `load(index)`, with `at` the first, into `{words}0` and so on.
    pub(crate) fn load(self, words: &str, at: &str, load: &dyn Fn(&str) -> String) -> String {
        let mut text = String::new();
        for word in 0..self.unit_words() {
            let _ = writeln!(text, "let {words}{word} = {};", load(&format!("{at} + {word}u")));
        }
        text
    }

    /// Declares the planes of a matrix, in the order of [`crate::Planes::spans`].
    pub(crate) fn declare(self, source: Source) -> Source {
        let source = self.declare_together(source, 1, "");
        self.declare_grid(source)
    }

    /// As [`Packing::declare`], with weights as vectors of so many words and `suffix` behind the planes' names.
    pub(crate) fn declare_together(self, source: Source, together: u32, suffix: &str) -> Source {
        let kind = if together == 1 { "u32".to_owned() } else { format!("vec{together}<u32>") };
        let source = source.read(&format!("w{suffix}"), &kind);
        let others = ["scales", "biases"].into_iter().take(self.planes() - 1);
        others.fold(source, |source, plane| source.read(&format!("{plane}{suffix}"), "u32"))
    }

    /// Declares the grid of a format that has one.
    pub(crate) fn declare_grid(self, source: Source) -> Source {
        match self.block().and_then(BlockFormat::grid) {
            Some(_) => source.read("grid", "u32"),
            None => source,
        }
    }

    /// The functions that a kernel's text needs to unpack.
    pub(crate) fn functions(self) -> String {
        match self {
            Self::Block(format) => blocks::functions(format),
            Self::Mxfp4 => format!("{}{FLOAT4}", self.number().0),
            Self::Fp8 { .. } => format!("{FLOAT8}{}", self.number().0),
            Self::Nvfp4 { .. } => format!("{FLOAT8}{}{FLOAT4}", self.number().0),
            _ => self.number().0.to_owned(),
        }
    }
}

/// `float4`: twice a 4-bit float whose magnitude is at bit 2 of `index` and whose sign is the last bit of `sign`. Twice
/// the magnitudes are 0, 1, 2, 3, 4, 6, 8 and 12, the nibbles of one word.
const FLOAT4: &str = "fn float4(index: u32, sign: u32) -> f32 {
    let magnitude = bitcast<f32>(((0xc8643210u >> (index & 28u)) & 15u) | 0x4b000000u) - 8388608.0;
    return bitcast<f32>(bitcast<u32>(magnitude) | (sign & 0x80000000u));
}
";

/// `float8`: an 8-bit float whose magnitude begins at bit 20 of `bits` and whose sign is the last bit of `sign`,
/// exactly and of bits alone: no GPU need know numbers below 2^-126. Below 2^-6 there is no leading one. The code that
/// is no number stays none, as on the processor.
const FLOAT8: &str = "fn float8(bits: u32, sign: u32) -> f32 {
    let code = bits & 0x07f00000u;
    let small = bitcast<u32>(bitcast<f32>(code | 0x3c800000u) - 0.015625);
    let magnitude = select(code + 0x3c000000u, small, code < 0x00800000u);
    let known = select(magnitude, 0x7fc00000u, code == 0x07f00000u);
    return bitcast<f32>(known | (sign & 0x80000000u));
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_whole_words_and_never_cross_a_group() {
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                let packing = Packing::Affine { bits, group, scale: Float::Bf16 };
                assert_eq!(packing.unit() * u32::from(bits), 32 * packing.unit_words());
                assert_eq!(u32::from(group) % packing.unit(), 0);
                assert_eq!(packing.values("w", "").len() as u32, packing.unit());
            }
        }
    }
}
